"""AllenNLP's exception for a wrong argument."""

from __future__ import annotations

from elmokit.errors import ElmoError


class ConfigurationError(ElmoError):
    """A model, an option or an input that cannot be used; the sentence is also in `message`."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
