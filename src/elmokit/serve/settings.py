"""The settings of the server: its address, its limits and its access control."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from elmokit.errors import ElmoError
from elmokit.options import check_options, option

MEGABYTE = 1_000_000


@dataclass(frozen=True, kw_only=True)
class ServeSettings:
    """The options of `elmo serve`."""

    host: str = option("127.0.0.1", "Address to listen on; 0.0.0.0 means all networks of this machine.", metavar="HOST")
    port: int = option(8080, "Port to listen on; 0 means any free port.", least=0, most=65535, shown="8080")
    layer: str | None = option(
        None,
        "Layer of the vectors if a request names no layer: mix, top or a number from 0.",
        metavar="mix|top|N",
        shown="the model's own choice",
    )
    pool: Literal["mean", "max", "first", "last"] = option(
        "mean", "How the vectors of a text's tokens are pooled if a request does not say."
    )
    served_name: str | None = option(
        None, "Name of the model in responses.", metavar="NAME", shown="the name of the model or its folder"
    )
    any_model: bool = option(False, "Accept requests to /v1/embeddings that name another model.")
    max_batch_tokens: int | None = option(
        None, "Number of tokens per batch.", least=1, shown="512 on a CPU, 8,192 on a GPU"
    )
    max_queue_tokens: int = option(
        200_000, "Largest number of tokens in the queue; further requests get status 429.", least=1
    )
    max_texts: int = option(2048, "Largest number of texts in one request.", least=1)
    max_input_tokens: int = option(
        8192, "Largest number of tokens in one text; longer texts are cut or refused.", least=1
    )
    max_body: float = option(8, "Largest size of a request in megabytes.", least=0.001)
    max_memory: float = option(
        1024,
        "Megabytes for all open requests and responses; further requests get status 429. One may take a quarter.",
        least=1,
    )
    max_wait: float = option(
        30, "Seconds after which a waiting request is refused; a large request has more time.", least=0.1
    )
    drain: float = option(30, "Seconds to finish accepted requests after SIGTERM.", least=0)
    api_key: str | None = option(
        None, "Key that clients send as Authorization: Bearer KEY.", metavar="KEY", shown="ELMOKIT_API_KEY, or none"
    )
    allow_host: tuple[str, ...] = option(
        (), "Another host name that clients may use for a server on loopback; may be repeated.", metavar="NAME"
    )
    cors: tuple[str, ...] = option(
        (), "Origin of web pages that may use the server; may be repeated.", metavar="ORIGIN"
    )
    index: tuple[Path, ...] = option(
        (), "Folder of an index for /neighbours and /senses; may be repeated.", metavar="DIR"
    )
    demo: bool = option(False, "Also serve a small index of example sentences, to try the page with.")
    page: bool = option(True, "Serve the page at /.", names="--page/--no-page")
    log_requests: Literal["none", "text", "json"] = option("none", "Log a line for each request, without its texts.")

    def __post_init__(self) -> None:
        check_options(self)
        if self.api_key is not None and not (self.api_key.isascii() and self.api_key.isprintable()):
            raise ElmoError("api_key must contain ASCII letters, digits and signs only", "api_key")

    @property
    def is_loopback(self) -> bool:
        """Whether only programs on this machine can reach the server."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def body_bytes(self) -> int:
        """`max_body` in bytes."""
        return int(self.max_body * MEGABYTE)

    @property
    def memory_bytes(self) -> int:
        """`max_memory` in bytes."""
        return int(self.max_memory * MEGABYTE)
