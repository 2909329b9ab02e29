"""What the compat modules over `Elmo` have in common: a model by path, name or address, and sentences as lists."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from elmokit.compat.fetch import local_path
from elmokit.elmo import Elmo
from elmokit.errors import ElmoError


def load_elmo(
    model: str | Path,
    options: str | Path | None = None,
    *,
    stateful: bool = False,
    device: str | torch.device | None = None,
) -> Elmo:
    """Load a model of any format: a path, a bundled name, `owner/name` on the Hub, or an http(s) address.

    `stateful` carries state from call to call, as the old systems did, in a model that has state: a Transformer has
    none.
    """
    elmo = Elmo.load(model_path(model), options=None if options is None else model_path(options), device=device)
    if stateful and elmo.bilm.context.carries_state:
        elmo.state = "carry"
    return elmo


def model_path(path: str | Path) -> str | Path:
    """What `Elmo.load` takes; the file at an http(s) address is downloaded once."""
    return local_path(path) if str(path).lower().startswith(("http://", "https://")) else path


def token_lists(sentences: Iterable[Sequence[str]], argument: str) -> list[list[str]]:
    """Sentences as lists of words; a string in their place is refused, since its characters would become words."""
    if isinstance(sentences, str):
        raise ElmoError(f"{argument} must be a list of sentences, got the string {sentences[:40]!r}", argument)
    rows = []
    for sentence in sentences:
        if isinstance(sentence, str):
            raise ElmoError(
                f"{argument} must be lists of words, got the string {sentence[:40]!r}: split it into words, or into "
                "characters with list(…)",
                argument,
            )
        rows.append(list(sentence))
        if not all(isinstance(word, str) for word in rows[-1]):
            raise ElmoError(f"{argument} must be lists of words, got {rows[-1][:3]!r}", argument)
    return rows
