"""bilm-tf's classes and functions with torch: change `from bilm import …` to `from elmokit.compat.bilm import …`.

    batcher = Batcher("vocab.txt", 50)
    bilm = BidirectionalLanguageModel("options.json", "weights.hdf5")
    ops = bilm(batcher.batch_sentences([["A", "river", "bank"]]))
    elmo_input = weight_layers("input", ops, l2_coef=0.0)["weighted_op"]

There are no placeholders and no session: a model is called on ids and returns torch tensors. As in bilm-tf, state is
carried from batch to batch; `state="zero"` switches that off. Padded positions are 0 in all outputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from elmokit.compat.load import load_elmo, model_path, token_lists
from elmokit.corpus.lines import InputLines
from elmokit.elmo import Elmo
from elmokit.errors import ElmoError
from elmokit.formats.hdf5 import Hdf5Tensors, write_datasets
from elmokit.formats.load import read_checkpoint
from elmokit.formats.source import FolderSource
from elmokit.model.bilm import lengths_of
from elmokit.model.context import State
from elmokit.model.placement import choose_device
from elmokit.model.scalar_mix import ScalarMix
from elmokit.output.writers.hdf5 import create_hdf5
from elmokit.storage.atomic import atomic_file
from elmokit.text.chars import PADDING, ByteIndexer, word_of_byte_ids
from elmokit.text.vocab import BEGIN, END
from elmokit.text.vocab import Vocabulary as WordList

__all__ = [
    "Batcher",
    "BidirectionalLanguageModel",
    "TokenBatcher",
    "UnicodeCharsVocabulary",
    "Vocabulary",
    "dump_bilm_embeddings",
    "dump_token_embeddings",
    "weight_layers",
]

Ids = NDArray[np.int64]
StateMode = Literal["carry", "zero"]


class Batcher:
    """Sentences → character ids [N, T + 2, M], including the boundaries and with 0 for padding tokens.

    bilm-tf read the vocabulary to cache ids; here the vocabulary is not needed and may be None.

    >>> Batcher(None, 50).batch_sentences([["a", "river", "bank"], ["yes"]]).shape
    (2, 5, 50)
    """

    def __init__(self, lm_vocab_file: str | Path | None, max_token_length: int) -> None:
        if lm_vocab_file is not None:
            _existing(lm_vocab_file, "lm_vocab_file")
        self._indexer = ByteIndexer(max_token_length)

    def batch_sentences(self, sentences: Iterable[Sequence[str]]) -> Ids:
        """The ids of a batch."""
        rows = token_lists(sentences, "sentences")
        indices: dict[str, int] = {self._indexer.begin: 0, self._indexer.end: 1}
        index_rows = [[indices.setdefault(word, len(indices)) for word in row] for row in rows]
        ids = self._indexer(list(indices)).characters
        assert ids is not None
        return _padded([ids[[0, *row, 1]] for row in index_rows])


class TokenBatcher:
    """Sentences → token ids [N, T + 2], including the boundaries; an id is the word's vocabulary index + 1."""

    def __init__(self, lm_vocab_file: str | Path) -> None:
        self._where, self._vocab = str(lm_vocab_file), Vocabulary(lm_vocab_file)
        if min(self._vocab.bos, self._vocab.eos) < 0:
            raise ElmoError(f"{lm_vocab_file} must have the lines <S> and </S>: add them", "lm_vocab_file")

    def batch_sentences(self, sentences: Iterable[Sequence[str]]) -> Ids:
        """The ids of a batch; a word outside the vocabulary is `<UNK>`."""
        rows = token_lists(sentences, "sentences")
        ids = [self._vocab.encode(row, split=False).astype(np.int64) + 1 for row in rows]
        for row, found in zip(rows, ids, strict=True):
            if not found.all():  # 0 would be padding
                word = row[int(found.argmin()) - 1]
                raise ElmoError(f"{self._where} has neither {word!r} nor <UNK>: add one of them", "lm_vocab_file")
        return _padded(ids)


class Vocabulary:
    """The words of a file, one per line; the id of a word is its index from 0, or -1 if it is missing."""

    def __init__(self, filename: str | Path | WordList, validate_file: bool = False) -> None:
        self._words = filename if isinstance(filename, WordList) else read_words(filename, "filename")
        if validate_file:
            self._words.require_specials()
        self.bos, self.eos, self.unk = self._words.begin, self._words.end, self._words.unknown
        self.size = len(self._words)

    def word_to_id(self, word: str) -> int:
        """The id of a word, or the id of `<UNK>`."""
        return self._words.index(word)

    def id_to_word(self, cur_id: int) -> str:
        """The word of an id."""
        return self._words[cur_id]

    def decode(self, cur_ids: Iterable[int]) -> str:
        """Words with spaces between them."""
        return " ".join(map(self.id_to_word, cur_ids))

    def encode(self, sentence: str | Sequence[str], reverse: bool = False, split: bool = True) -> NDArray[np.int32]:
        """The ids of a sentence including its boundaries; `reverse` is for a sentence whose words are reversed."""
        ids = map(self.word_to_id, _words(sentence, split=split))
        begin, end = (self.eos, self.bos) if reverse else (self.bos, self.eos)
        return np.array([begin, *ids, end], np.int32)


class UnicodeCharsVocabulary(Vocabulary):
    """A vocabulary that also gives character ids: UTF-8 bytes and markers, without the + 1 of `Batcher`."""

    def __init__(self, filename: str | Path | WordList, max_word_length: int, validate_file: bool = False) -> None:
        super().__init__(filename, validate_file)
        self.max_word_length = max_word_length

    def word_to_char_ids(self, word: str) -> NDArray[np.int32]:
        """The character ids of a word [M]."""
        return self._characters([word]).reshape(-1)

    def encode_chars(
        self, sentence: str | Sequence[str], reverse: bool = False, split: bool = True
    ) -> NDArray[np.int32]:
        """The character ids of a sentence including its boundaries [T + 2, M]."""
        begin, end = (END, BEGIN) if reverse else (BEGIN, END)
        return self._characters([begin, *_words(sentence, split=split), end])

    def _characters(self, words: Sequence[str]) -> NDArray[np.int32]:
        ids = ByteIndexer(self.max_word_length)(words).characters
        assert ids is not None
        return (ids - 1).astype(np.int32)


def _words(sentence: str | Sequence[str], *, split: bool) -> Sequence[str]:
    return sentence.split() if split and isinstance(sentence, str) else sentence


def _padded(rows: Sequence[Ids]) -> Ids:
    longest = max(map(len, rows), default=2)
    batch = np.zeros((len(rows), longest, *(rows[0].shape[1:] if rows else ())), np.int64)
    for number, row in enumerate(rows):
        batch[number, : len(row)] = row
    return batch


class BidirectionalLanguageModel:
    """The ids of a batch from `Batcher` or `TokenBatcher` → all layers.

    `weight_file` may be any model that elmokit loads, and `options_file` may be None if the model does not need it.
    With `use_character_inputs=False` the ids are rows of `embedding_weight_file`. `max_batch_size` has no effect: a
    batch may have any size. `state="zero"` makes a sentence's vectors independent of earlier batches.

    State belongs to the object. For a second input with its own state, like a second placeholder, use
    `copy.copy(bilm)`, which shares the weights.
    """

    def __init__(
        self,
        options_file: str | Path | None,
        weight_file: str | Path,
        use_character_inputs: bool = True,
        embedding_weight_file: str | Path | None = None,
        max_batch_size: int = 128,
        *,
        state: StateMode = "carry",
        device: str | torch.device | None = None,
    ) -> None:
        if state not in ("carry", "zero"):
            raise ElmoError(f"state must be carry or zero, got {state!r}", "state")
        if not use_character_inputs and embedding_weight_file is None:
            raise ElmoError(
                "token ids need embedding_weight_file, the file that dump_token_embeddings writes, got None",
                "embedding_weight_file",
            )
        self.elmo: Elmo | None = None
        """The model with character inputs."""
        self._table: Tensor | None = None
        if use_character_inputs or embedding_weight_file is None:
            self.elmo = load_elmo(weight_file, options_file, device=device)
            self.network = self.elmo.bilm
        else:
            options = None if options_file is None else model_path(options_file)
            checkpoint = read_checkpoint(model_path(weight_file), options=options).in_floats()
            self.network = checkpoint.network().eval().to(choose_device(device))
            self._table = _read_table(embedding_weight_file, self.network.config.token_size).to(self.network.device)
        self.mixes = nn.ModuleDict()
        """The weights that `weight_layers` creates, by name; give `bilm.mixes.parameters()` to the optimiser."""
        self._carries = state == "carry" and self.network.context.carries_state
        self._carried: State | None = None

    def reset_state(self) -> None:
        """Forget the carried state, as a new session did."""
        self._carried = None

    @torch.no_grad()
    def __call__(self, ids: Tensor | NDArray[Any]) -> dict[str, Any]:
        """ids [B, T + 2, M] or [B, T + 2] → tensors by bilm-tf's names.

        `lm_embeddings` [B, L+1, T, D], `lengths` [B] and `mask` [B, T] are without the boundaries, `token_embeddings`
        [B, T + 2, P] includes them. `weight_layers` needs `mixes`.
        """
        ids = torch.as_tensor(ids)
        dims = 3 if self._table is None else 2
        if ids.dim() != dims or ids.is_floating_point() or ids.dtype == torch.bool or ids.shape[1] < 2:
            shape = "[B, T + 2, M]" if dims == 3 else "[B, T + 2]"
            raise ElmoError(f"ids must be whole numbers in the shape {shape}, got {ids.dtype} {list(ids.shape)}", "ids")
        mask = (ids != 0).any(dim=-1) if dims == 3 else ids != 0
        lengths = lengths_of(mask)
        if len(lengths) and int(lengths.min()) < 2:
            raise ElmoError(
                f"a sentence must have its two boundaries, got a sentence of {int(lengths.min())} ids", "ids"
            )
        if self.elmo is None or isinstance(self.elmo.indexer, ByteIndexer):
            tokens = self._token_vectors(ids.to(self.network.device))
            before = None if self._carried is None else self._carried.resized(len(ids)).like(tokens)
            layers, last = self.network.contextualise(tokens, lengths, before)
            if self._carries and last is not None:
                # The state of rows that a smaller batch did not use does not change.
                self._carried = last if self._carried is None else last.with_rows_of(self._carried)
        else:
            inside = (row[1 : n - 1].tolist() for row, n in zip(ids, lengths, strict=True))
            layers = self.elmo.layers_of([list(map(word_of_byte_ids, words)) for words in inside]).values
        inner = (torch.arange(ids.shape[1] - 2) < (lengths - 2).unsqueeze(1)).to(layers.device)
        return {
            "lm_embeddings": (layers[:, :, 1:-1] * inner.unsqueeze(-1)).transpose(0, 1),
            "lengths": lengths - 2,
            "token_embeddings": layers[0, :, :, : self.network.config.token_size],
            "mask": inner,
            "mixes": self.mixes,
        }

    def _token_vectors(self, ids: Tensor) -> Tensor:
        """ids [B, T, M] or [B, T] → token vectors [B, T, P]; each distinct word is encoded once."""
        if self._table is not None:
            _check_range(ids, len(self._table) - 1, "token ids", "is the vocabulary that of the embedding_weight_file?")
            return nn.functional.embedding(ids.long(), self._table)
        characters = self.network.config.characters
        width = characters.max_characters if characters else 0
        if ids.shape[2] != width:
            raise ElmoError(
                f"ids must have {width} characters per word, got {ids.shape[2]}: use Batcher(vocab, {width})", "ids"
            )
        _check_range(ids, PADDING + 1, "character ids", "Batcher makes them")
        types, inverse = torch.unique(ids.flatten(0, 1).long(), dim=0, return_inverse=True)
        return self.network.encode_types(types, None)[inverse].reshape(*ids.shape[:2], -1)


def _check_range(ids: Tensor, most: int, what: str, hint: str) -> None:
    if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) <= most:
        raise ElmoError(f"{what} must be from 0 to {most}, got {int(ids.min())} to {int(ids.max())}: {hint}", "ids")


def weight_layers(
    name: str,
    bilm_ops: Mapping[str, Any],
    l2_coef: float | None = None,
    use_top_only: bool = False,
    do_layer_norm: bool = False,
) -> dict[str, Tensor]:
    """One weighted sum of the layers of a batch: `weighted_op` [B, T, D] and `regularization_op` [1].

    Calls with the same name use the same weights. Train them with `torch.optim.Adam(bilm.mixes.parameters())`.
    """
    layers, mask = bilm_ops["lm_embeddings"].transpose(0, 1), bilm_ops["mask"]
    mix = _mix(name, bilm_ops.get("mixes"), len(layers)).to(layers.device)
    mix.layer_norm = do_layer_norm
    if use_top_only:
        return {"weighted_op": mix.gamma * layers[-1], "regularization_op": torch.zeros(1, device=layers.device)}
    weighted = mix(layers, mask) * mask.unsqueeze(-1)
    return {"weighted_op": weighted, "regularization_op": ((l2_coef or 0.0) * mix.penalty()).reshape(1)}


def _mix(name: str, mixes: nn.ModuleDict | None, n_layers: int) -> ScalarMix:
    key = f"{name.replace('.', '_')}_ELMo"
    if mixes is None:
        return ScalarMix(n_layers)
    if key not in mixes:
        mixes[key] = ScalarMix(n_layers)
    mix = mixes[key]
    assert isinstance(mix, ScalarMix)
    return mix


def dump_bilm_embeddings(
    vocab_file: str | Path | None,
    dataset_file: str | Path,
    options_file: str | Path | None,
    weight_file: str | Path,
    outfile: str | Path,
    *,
    state: StateMode = "carry",
) -> None:
    """Write all layers of each line of a text, split at white space, to HDF5: keys "0", "1", …, values [L+1, T, D].

    As in bilm-tf, each sentence starts with the last state of the sentence before it. `state="zero"` starts each
    sentence from zero, as `elmo embed --format bilm` does, and is faster.
    """
    if vocab_file is not None:
        _existing(vocab_file, "vocab_file")
    elmo = load_elmo(weight_file, options_file, stateful=state == "carry")
    with InputLines(dataset_file) as lines, atomic_file(Path(outfile)) as temporary:
        sentences = (line.split() for line in lines)
        one_by_one = (elmo.encode([sentence], output="layers")[0] for sentence in sentences)
        found = one_by_one if elmo.state == "carry" else elmo.stream(sentences, layer="all")
        with create_hdf5(temporary) as (file, check):
            for number, layers in enumerate(found):
                file.create_dataset(str(number), data=layers)
                check()


def dump_token_embeddings(
    vocab_file: str | Path, options_file: str | Path | None, weight_file: str | Path, outfile: str | Path
) -> None:
    """Write the vector without context of each word of a vocabulary: `embedding` [V, P] in an HDF5 file."""
    words = list(read_words(vocab_file, "vocab_file"))
    with torch.no_grad():
        rows = load_elmo(weight_file, options_file).encode_types(words)
    write_datasets(Path(outfile), {"embedding": rows.float().cpu().numpy()}, {})


def _read_table(path: str | Path, size: int) -> Tensor:
    """The token embeddings of a file [V + 1, P], with row 0 for padding."""
    path = _existing(path, "embedding_weight_file")
    with Hdf5Tensors(FolderSource(path.parent), path.name) as tensors:
        if "embedding" not in tensors.names():
            raise ElmoError(f"{path} must have a dataset named embedding: write the file with dump_token_embeddings")
        rows = torch.from_numpy(tensors.read("embedding")).float()
    if rows.dim() != 2 or rows.shape[1] != size:
        raise ElmoError(f"{path} must have vectors of size {size} for this model, got the shape {list(rows.shape)}")
    return torch.cat([rows.new_zeros(1, size), rows])


def read_words(path: str | Path, argument: str) -> WordList:
    """The words of a file, plain or packed."""
    with InputLines(_existing(path, argument)) as lines:
        return WordList.from_text("".join(f"{line}\n" for line in lines))


def _existing(path: str | Path, argument: str) -> Path:
    path = Path(path).expanduser()
    if not path.is_file():
        raise ElmoError(f"{argument} must be a file that exists, got {path}", argument)
    return path
