"""`elmo serve`: serves vectors over HTTP."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal

from elmokit.cli.registry import command
from elmokit.cli.shared import AS_IN_TRAINING, MODEL_HELP, SEGMENT_HELP, ModelOptions, say
from elmokit.errors import MissingExtraError
from elmokit.formats.bundled import DEFAULT
from elmokit.options import argument, option
from elmokit.serve.settings import ServeSettings
from elmokit.text.tokens import SegmenterName

_KEY = "ELMOKIT_API_KEY"


@command("serve")
@dataclass(frozen=True, kw_only=True)
class ServeCommand(ServeSettings, ModelOptions):
    """Serve vectors over HTTP with the routes of text-embeddings-inference and OpenAI, and /tokens for word vectors."""

    model: str = argument(MODEL_HELP, "MODEL", default=DEFAULT)
    dtype: Literal["float32", "float64", "float16", "bfloat16", "int8"] | None = option(
        None, "dtype to compute in; int8 is for the CPU.", shown="float32, or int8 if the model is stored so"
    )
    segment: SegmenterName | None = option(None, SEGMENT_HELP, shown=AS_IN_TRAINING)

    def run(self) -> None:
        """Open the port, load the model, and serve until a signal stops the server."""
        try:
            from elmokit.serve.server import bind, serve
            from elmokit.serve.service import Service
        except ModuleNotFoundError as error:
            raise MissingExtraError(error.name or "starlette", "serve", "elmo serve") from error
        given = {item.name: getattr(self, item.name) for item in fields(ServeSettings)}
        settings = replace(ServeSettings(**given), api_key=self.api_key or os.environ.get(_KEY) or None)
        listening = bind(settings.host, settings.port)
        host, port = listening.getsockname()[:2]
        name = Path(self.model).name
        say(f"elmo: serving {settings.served_name or name} on http://{f'[{host}]' if ':' in host else host}:{port}")
        if not settings.is_loopback and settings.api_key is None:
            say("elmo: everyone who can reach this address can use the server: --api-key KEY requires a key")
        service = Service(lambda: self.load(self.segment, self.dtype), settings, name)
        serve(service, listening)
        if service.is_busy:  # Python would abort the process at its exit while a thread still computes
            sys.stderr.flush()
            os._exit(0)
