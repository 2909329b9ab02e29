"""The model that a command asks for."""

from __future__ import annotations

from dataclasses import dataclass

from elmokit.elmo import Elmo
from elmokit.text.tokens import SegmenterName


@dataclass(frozen=True, kw_only=True)
class ModelRequest:
    """The options of a command that name its model."""

    model: str
    options: str | None = None
    vocab: str | None = None
    device: str | None = None

    def load(self, segment: SegmenterName | None = None) -> Elmo:
        """The model; `segment` overrides its text policy."""
        return Elmo.load(self.model, options=self.options, vocab=self.vocab, device=self.device, segment=segment)
