"""Words to character ids, and sentence boundaries on and off."""

from __future__ import annotations

import pytest
import torch

from elmokit.compat.allennlp import (
    ConfigurationError,
    ELMoCharacterMapper,
    add_sentence_boundary_token_ids,
    batch_to_ids,
    remove_sentence_boundaries,
)


def test_batch_to_ids():
    ids = batch_to_ids([["ab", "x" * 60, "x" * 47 + "é"], ["a\ud800", ""], []])
    assert ids.shape == (3, 3, 50)
    assert ids.dtype == torch.int64
    assert ids[0, 0].tolist() == [259, 98, 99, 260] + [261] * 46
    assert ids[0, 1].tolist() == [259] + [121] * 48 + [260]
    assert ids[0, 2, -3:].tolist() == [121, 0xC3 + 1, 260]
    assert ids[1, 0, :4].tolist() == [259, 98, 260, 261]
    assert ids[1, 1, :3].tolist() == [259, 260, 261]
    assert not ids[1, 2].any()
    assert not ids[2].any()
    assert batch_to_ids([["<S>", "</S>"]])[0, :, 1].tolist() == [257, 258]
    assert torch.equal(batch_to_ids(["ab"]), batch_to_ids([["a", "b"]]))
    assert torch.equal(batch_to_ids(iter([("a", "b")])), batch_to_ids([["a", "b"]]))


def test_batch_to_ids_of_nothing_keeps_its_axes():
    assert batch_to_ids([]).shape == (0, 0, 50)
    assert batch_to_ids([[], []]).shape == (2, 0, 50)


@pytest.mark.parametrize("word", [3, None, ["a"]])
def test_batch_to_ids_refuses_what_is_no_word(word):
    with pytest.raises(ConfigurationError, match="a list of strings"):
        batch_to_ids([["a", word]])


def test_character_mapper():
    mapper = ELMoCharacterMapper({"<first>": 1})
    assert mapper.convert_word_to_char_ids("<first>") == [259, 2, 260] + [261] * 47
    assert mapper.convert_word_to_char_ids("ab") == batch_to_ids([["ab"]])[0, 0].tolist()


# Boundaries


def test_boundaries_on_and_off():
    values = torch.tensor([[[-1.0, -2.0], [0.0, 3.0]], [[-4.0, -5.0], [0.0, 0.0]]])
    mask = torch.tensor([[1, 1], [1, 0]])
    longer, longer_mask = add_sentence_boundary_token_ids(
        values, mask, torch.tensor([9.0, 9.0]), torch.tensor([8.0, 8.0])
    )
    assert longer[:, :, 0].tolist() == [[9, -1, 0, 8], [9, -4, 8, 0]]
    assert longer_mask.tolist() == [[True] * 4, [True, True, True, False]]  # negative values count
    back, back_mask = remove_sentence_boundaries(longer, longer_mask)
    assert torch.equal(back, values)
    assert torch.equal(back_mask, mask.bool())
    ids, ids_mask = add_sentence_boundary_token_ids(torch.tensor([[5, 6], [7, 0]]), mask, 1, 2)
    assert ids.tolist() == [[1, 5, 6, 2], [1, 7, 2, 0]]
    assert ids_mask.tolist() == [[True] * 4, [True, True, True, False]]


def test_boundaries_need_a_shape():
    with pytest.raises(ValueError, match="shape"):
        add_sentence_boundary_token_ids(torch.ones(1, 2, 3, 4), torch.ones(1, 2), 1, 2)
    with pytest.raises(ConfigurationError, match="at least 2"):
        remove_sentence_boundaries(torch.ones(1, 1, 3), torch.ones(1, 1))
