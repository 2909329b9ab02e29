"""Words to character ids, and the boundary tokens of a sentence put on and taken off, as AllenNLP's helpers did."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from elmokit.compat.allennlp_errors import ConfigurationError
from elmokit.text import chars, vocab

WIDTH = 50
"""Character ids of a word, whatever the model: `batch_to_ids` knows none."""


def batch_to_ids(batch: Iterable[Sequence[str]], *, max_characters: int = WIDTH) -> Tensor:
    """Sentences as lists of words → character ids [B, T, 50], zeros after a sentence's end.

    `max_characters` is for models that read longer words.

    >>> batch_to_ids([["a", "river", "bank"], ["yes"]]).shape
    torch.Size([2, 3, 50])
    """
    rows, words = distinct(batch)
    ids = chars.ByteIndexer(max_characters)(words).characters
    assert ids is not None
    table = torch.cat([torch.zeros(1, max_characters, dtype=torch.long), torch.from_numpy(ids)])
    longest = max(map(len, rows), default=0)
    places = [[place + 1 for place in row] + [0] * (longest - len(row)) for row in rows]
    return table[torch.tensor(places, dtype=torch.long).reshape(len(rows), longest)]


def distinct(batch: Iterable[Sequence[str]]) -> tuple[list[list[int]], list[str]]:
    """Sentences as rows of places in the list of their distinct words."""
    places: dict[str, int] = {}
    rows = [[places.setdefault(_word(word), len(places)) for word in sentence] for sentence in batch]
    return rows, list(places)


def _word(word: object) -> str:
    if not isinstance(word, str):
        raise ConfigurationError(f"a sentence must be a list of strings, got the word {word!r}")
    return word


class ELMoCharacterMapper:
    """Words → 50 character ids; `tokens_to_add` gives words of the user's own one raw character each."""

    max_word_length = WIDTH
    beginning_of_sentence_character = chars.SENTENCE_BEGIN
    end_of_sentence_character = chars.SENTENCE_END
    beginning_of_word_character = chars.WORD_BEGIN
    end_of_word_character = chars.WORD_END
    padding_character = chars.PADDING
    bos_token, eos_token = vocab.BEGIN, vocab.END

    def __init__(self, tokens_to_add: Mapping[str, int] | None = None) -> None:
        self.tokens_to_add = dict(tokens_to_add or {})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ELMoCharacterMapper) and self.tokens_to_add == other.tokens_to_add

    __hash__ = None  # type: ignore[assignment]

    def convert_word_to_char_ids(self, word: str) -> list[int]:
        """The ids of one word."""
        ids = chars.byte_ids(word, WIDTH)
        if word in self.tokens_to_add:
            ids = chars.byte_ids("", WIDTH)[:-1]
            ids.insert(1, self.tokens_to_add[word] + 1)
        return ids


def add_sentence_boundary_token_ids(
    tensor: Tensor, mask: Tensor, sentence_begin_token: int | Tensor, sentence_end_token: int | Tensor
) -> tuple[Tensor, Tensor]:
    """Put a token before and after each sentence: [B, T] or [B, T, d] and mask [B, T] → T + 2 of both."""
    if tensor.dim() not in (2, 3):
        raise ConfigurationError(f"the tensor must have the shape [B, T] or [B, T, d], got {list(tensor.shape)}")
    lengths = mask.long().sum(dim=1)
    longer = tensor.new_zeros(tensor.shape[0], tensor.shape[1] + 2, *tensor.shape[2:])
    longer[:, 1:-1] = tensor
    longer[:, 0] = sentence_begin_token
    longer[torch.arange(len(tensor), device=tensor.device), lengths + 1] = torch.as_tensor(
        sentence_end_token, dtype=tensor.dtype, device=tensor.device
    )
    return longer, _first(lengths + 2, longer.shape[1])


def remove_sentence_boundaries(tensor: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Take each sentence's first and last token away: [B, T, d] and mask [B, T] → T - 2 of both, padded by 0."""
    if tensor.dim() != 3 or tensor.shape[1] < 2:
        raise ConfigurationError(
            f"the tensor must have the shape [B, T, d] with T at least 2, got {list(tensor.shape)}"
        )
    inner = _first(mask.long().sum(dim=1) - 2, tensor.shape[1] - 2)
    return tensor[:, 1:-1].masked_fill(~inner.unsqueeze(-1), 0), inner


def _first(lengths: Tensor, size: int) -> Tensor:
    """lengths [B] → mask [B, size]."""
    return torch.arange(size, device=lengths.device) < lengths.unsqueeze(1)
