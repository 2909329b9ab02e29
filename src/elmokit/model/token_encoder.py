"""What a token is before any context: its word row, its characters, or both, brought to P numbers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from elmokit.config import ElmoConfig
from elmokit.errors import ElmoError
from elmokit.model.char_cnn import CharCnn
from elmokit.model.int8 import Linear, apply_linear


class TokenEncoder(nn.Module):
    """Ids of U tokens → [U, P]; with both parts a token is projection([word; characters])."""

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__()
        self.words: nn.Embedding | None = None
        self.char_cnn: CharCnn | None = None
        self.projection: Linear | None = None
        if config.words is not None:
            self.words = nn.Embedding(config.words.n_words + 1, config.words.embedding_size, padding_idx=0)
        if config.characters is not None:
            self.char_cnn = CharCnn(config.characters)
        if config.token_projection:
            self.projection = nn.Linear(config.parts_size, config.token_size)

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        table = self.words if self.char_cnn is None else self.char_cnn.embedding
        assert table is not None
        return table.weight.device

    def forward(self, characters: Tensor | None, words: Tensor | None) -> Tensor:
        """characters [U, M], words [U] → [U, P]."""
        if self.words is None and self.char_cnn is not None and characters is not None:
            token: Tensor = self.char_cnn(characters, self.projection)
            return token
        parts: list[Tensor] = []
        if self.words is not None:
            if words is None:
                raise ElmoError("this model reads word ids, and none were given")
            parts.append(self.words(words))
        if self.char_cnn is not None:
            if characters is None:
                raise ElmoError("this model reads character ids, and none were given")
            parts.append(self.char_cnn(characters))
        token = parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
        return token if self.projection is None else apply_linear(self.projection, token)
