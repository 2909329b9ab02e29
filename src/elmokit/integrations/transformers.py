"""ELMo in Hugging Face transformers: a configuration, a model and a tokenizer, registered with the Auto classes.

    from elmokit.integrations.transformers import ElmokitModel, ElmokitTokenizer
    model, tokenizer = ElmokitModel.from_elmokit("en"), ElmokitTokenizer.from_elmokit("en")
    model(**tokenizer("A river bank.", return_tensors="pt")).last_hidden_state

`input_ids` is [B, T, C]: the ids of a token's characters, followed by the id of its word if the model has a word table.
The model adds the two sentence boundaries itself and leaves them out of its output.
"""

# No postponed annotations here: `strict` checks the values of a configuration against types, not strings.
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from elmokit.config import ElmoConfig
from elmokit.elmo import Elmo
from elmokit.encode import Layers
from elmokit.errors import ElmoError, MissingExtraError
from elmokit.formats.bundled import DEFAULT
from elmokit.formats.checkpoint import Checkpoint
from elmokit.formats.load import read_checkpoint
from elmokit.layers import check_layer
from elmokit.model.bilm import BiLM, file_name, lengths_of
from elmokit.model.scalar_mix import ScalarMix
from elmokit.text.chars import ByteIndexer, Ids, Indexer, SymbolIndexer, SymbolTable, WordIndexer, byte_ids
from elmokit.text.policy import CharacterPieces, TextPolicy
from elmokit.text.tokens import SegmenterName, Token
from elmokit.text.vocab import BEGIN, END, UNKNOWN, Vocabulary

try:
    from huggingface_hub.dataclasses import strict
    from transformers import (
        AutoConfig,
        AutoModel,
        AutoTokenizer,
        BatchEncoding,
        PreTrainedConfig,
        PreTrainedModel,
        PreTrainedTokenizerBase,
    )
    from transformers.modeling_outputs import BaseModelOutput
    from transformers.tokenization_utils_base import TruncationStrategy

    if not is_dataclass(PreTrainedConfig):
        raise ImportError("configurations are dataclasses since transformers 5.4")
except ImportError as error:
    raise MissingExtraError("transformers 5.4 or newer", "transformers", "ElmokitModel") from error

_SMALL = {
    "lstm": {"cell_size": 64, "output_size": 16},
    "characters": {"filters": [[1, 8], [2, 8], [3, 16]], "n_highway": 1},
}
"""The default configuration: a new model, small enough for experiments."""


@strict
class ElmokitConfig(PreTrainedConfig):  # type: ignore[misc]  # transformers is not annotated for mypy --strict
    """The configuration of the network, the layer that is returned, and the ids of the boundaries."""

    model_type: ClassVar[str] = "elmokit"

    network: dict[str, Any] = field(default_factory=lambda: dict(_SMALL))
    """`ElmoConfig.to_dict()`: LSTM or Transformer, characters, words."""
    layer: str | int | None = None
    """The layer in `last_hidden_state`: "mix", "top" or a number; None means as in `Elmo.encode`."""
    layer_norm: bool | str = False
    """The layer norm before the mix, see `ScalarMix`."""
    boundary_ids: list[list[int]] | None = None
    """The ids of the beginning and the end of a sentence; None means the ids in a model of bytes."""

    def __post_init__(self, **kwargs: Any) -> None:  # noqa: ANN401 - of transformers
        config = self.elmo
        self.layer = config.context.default_layer if self.layer is None else self.layer
        check_layer(self.layer, config.n_outputs, single=True)  # type: ignore[arg-type]
        if self.boundary_ids is None:
            if config.characters is None or config.words is not None or config.characters.alphabet != "bytes":
                raise ElmoError("boundary_ids must be given for a model that does not read bytes", "boundary_ids")
            self.boundary_ids = [byte_ids(token, config.characters.max_characters) for token in (BEGIN, END)]
        super().__post_init__(**kwargs)

    @property
    def elmo(self) -> ElmoConfig:
        """The configuration of the network as elmokit's class."""
        return ElmoConfig.from_dict(self.network)

    @property
    def hidden_size(self) -> int:
        """D, the size of a vector."""
        return self.elmo.vector_size

    @property
    def num_hidden_layers(self) -> int:
        """L, the number of layers above the token layer."""
        return self.elmo.context.n_layers


class ElmokitModel(PreTrainedModel):  # type: ignore[misc]
    """The network of an elmokit model, LSTM or Transformer, and its mix, without a language-model head."""

    config_class = ElmokitConfig
    base_model_prefix = "elmokit"

    def __init__(self, config: ElmokitConfig) -> None:
        super().__init__(config)
        self.bilm = BiLM(config.elmo, file_names=False)  # transformers finds a module by the name of its weight
        self.mix = ScalarMix(config.elmo.n_outputs, layer_norm=config.layer_norm)  # type: ignore[arg-type]
        self.post_init()

    @classmethod
    def from_elmokit(cls, model: str | Path | Elmo = DEFAULT) -> Self:
        """The network of a model that `Elmo.load` can load, in floats, with its first mix and without its softmax."""
        checkpoint = _checkpoint(model)
        indexer, mixes = checkpoint.indexer(), checkpoint.mixes[:1]
        config = ElmokitConfig(
            network=json.loads(json.dumps(checkpoint.config.to_dict())),
            layer_norm=mixes[0]["layer_norm"] if mixes else False,
            boundary_ids=_ids(indexer, [indexer.begin, indexer.end]).tolist(),
        )
        found = cls(config)
        found.bilm.load_state_dict(dict(checkpoint.network().named_parameters()))
        for mix in mixes:
            found.mix.load_state_dict({"weights": mix["weights"], "gamma": mix["gamma"].reshape(())})
        found.eval()
        return found

    def to_elmokit(self, tokenizer: "ElmokitTokenizer") -> Elmo:
        """An Elmo with these weights; `Elmo.save` can write it as an elmokit folder."""
        mix = {
            "weights": self.mix.weights.detach(),
            "gamma": self.mix.gamma.detach(),
            "layer_norm": self.mix.layer_norm,
        }
        weights = self.bilm.state_dict()
        checkpoint = Checkpoint(
            self.config.elmo,
            {file_name(f"bilm.{name}").removeprefix("bilm."): value.clone() for name, value in weights.items()},
            kind="transformers",
            where=self.config.name_or_path or "a model of transformers",
            vocab=tokenizer.words,
            symbols=tokenizer.symbols,
            mixes=[mix],
            text=tokenizer.text,
        )
        return Elmo(checkpoint, segment=tokenizer.segment).to(self.device)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **_: object,
    ) -> BaseModelOutput | tuple[Any, ...]:
        """input_ids [B, T, C], attention_mask [B, T] → vectors [B, T, D], 0 where the mask is 0.

        Without a mask, a token whose ids are all 0 is padding. `hidden_states` are the L + 1 layers.
        """
        if input_ids is None or input_ids.dim() != 3:
            got = None if input_ids is None else tuple(input_ids.shape)
            raise ElmoError(f"input_ids must have the shape [B, T, C], the characters of each token, got {got}")
        mask = (input_ids != 0).any(dim=-1) if attention_mask is None else attention_mask != 0
        lengths = lengths_of(mask)
        tokens = self._tokens(input_ids * mask.unsqueeze(-1), lengths)
        values, _state = self.bilm.contextualise(tokens, lengths + 2)
        layers = Layers(values, lengths + 2).without_boundaries()
        # The mix is made of one tensor per layer, so that the hidden states have gradients.
        hidden = layers.values.unbind()
        layer = self.config.layer
        if layer == "mix":
            last = Layers(torch.stack(hidden), lengths).select("mix", self.mix)
        else:
            last = hidden[-1 if layer == "top" else layer]
        wanted = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        output = BaseModelOutput(last_hidden_state=last, hidden_states=hidden if wanted else None)
        as_dict = self.config.return_dict if return_dict is None else return_dict
        return output if as_dict else output.to_tuple()

    def _tokens(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """ids [B, T, C], 0 at padding → vectors without context including the boundaries, [B, T + 2, P]."""
        batch, time, size = ids.shape
        begin, end = torch.tensor(self.config.boundary_ids, dtype=ids.dtype, device=ids.device)
        whole = nn.functional.pad(ids, (0, 0, 1, 1))
        whole[:, 0] = begin
        whole[torch.arange(batch, device=ids.device), lengths.to(ids.device) + 1] = end
        # Each distinct token is encoded once.
        types, rows = torch.unique(whole.reshape(-1, size), dim=0, return_inverse=True)
        config = self.bilm.config
        characters = types[:, : config.characters.max_characters] if config.characters else None
        vectors = self.bilm.encode_types(characters, types[:, -1] if config.words else None)
        return vectors[rows].reshape(batch, time + 2, -1)

    def get_input_embeddings(self) -> nn.Module:
        """The embedding of the characters, or of the words in a model without characters."""
        encoder = self.bilm.token_encoder
        table = encoder.words if encoder.char_cnn is None else encoder.char_cnn.embedding
        assert table is not None
        return table

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace this embedding."""
        encoder = self.bilm.token_encoder
        owner, name = (encoder, "words") if encoder.char_cnn is None else (encoder.char_cnn, "embedding")
        setattr(owner, name, value)

    def _init_weights(self, module: nn.Module) -> None:
        """Initialise weights that were not loaded, as elmokit does."""
        if callable(reset := getattr(module, "reset_parameters", None)):
            reset()


@dataclass(frozen=True)
class TokenAlignment:
    """The tokens of one text and the numbers of their words, for `BatchEncoding.tokens()` and `.word_ids()`."""

    tokens: list[str]
    word_ids: list[int | None]
    n_sequences: int = 1

    @classmethod
    def of(cls, row: Sequence[tuple[Token, int]], width: int, pad_token: str) -> Self:
        """Tokens with the numbers of their words, padded to a width."""
        missing = width - len(row)
        return cls(
            [*(token.text for token, _word in row), *[pad_token] * missing],
            [*(word for _token, word in row), *[None] * missing],
        )


class ElmokitTokenizer(PreTrainedTokenizerBase):  # type: ignore[misc]
    """Texts → the ids of their tokens, by the text policy of the model.

    A model of bytes needs no vocabulary. A model of characters (`zh`) reads a word of several characters as several
    tokens; `word_ids()` says which tokens belong to one word.
    """

    vocab_files_names: ClassVar[dict[str, str]] = {"vocab_file": "vocab.txt", "symbols_file": "characters.json"}
    model_input_names: ClassVar[list[str]] = ["input_ids", "attention_mask"]
    pad_token_id = 0

    def __init__(
        self,
        vocab_file: str | None = None,
        symbols_file: str | None = None,
        *,
        max_characters: int | None = 50,
        text: Mapping[str, str] | None = None,
        segment: SegmenterName | None = None,
        specials: Sequence[str] = (BEGIN, END, UNKNOWN),
        **kwargs: Any,  # noqa: ANN401 - of transformers
    ) -> None:
        """`text`: how the model's training text was tokenised; `segment` overrides it, as in `Elmo.load`.

        `max_characters` is M, or None for a model that reads only words.
        """
        self.max_characters, self.segment, self.specials = max_characters, segment, list(specials)
        self.words = self.symbols = None
        if vocab_file is not None:
            lines = Path(vocab_file).read_text(encoding="utf-8").removesuffix("\n").split("\n")
            self.words = Vocabulary(lines, specials=(specials[0], specials[1], specials[2]))
        if symbols_file is not None:
            self.symbols = SymbolTable(json.loads(Path(symbols_file).read_text(encoding="utf-8")))
        self.text, self.policy = TextPolicy.of_model(text or {}, segment, kwargs.get("name_or_path") or "this model")
        kwargs.setdefault("pad_token", "<pad>")
        super().__init__(
            max_characters=max_characters, text=self.text, segment=segment, specials=self.specials, **kwargs
        )

    @classmethod
    def from_elmokit(cls, model: str | Path | Elmo = DEFAULT) -> Self:
        """The tokenizer of a model that `Elmo.load` can load."""
        checkpoint = _checkpoint(model)
        characters, words = checkpoint.config.characters, checkpoint.config.words
        found = cls(
            max_characters=characters.max_characters if characters else words.max_characters if words else None,
            text=checkpoint.text,
            segment=model.segment if isinstance(model, Elmo) and checkpoint.text else None,
            specials=checkpoint.vocab.specials if words and checkpoint.vocab else (BEGIN, END, UNKNOWN),
        )
        found.words, found.symbols = checkpoint.vocab if words else None, checkpoint.symbols
        return found

    @property
    def indexer(self) -> Indexer:
        """The indexer that turns tokens into ids."""
        if self.max_characters is None:
            if self.words is None:
                raise ElmoError("max_characters must be given for a tokenizer without a vocabulary", "max_characters")
            return WordIndexer(self.words)
        if self.words is None and self.symbols is None:
            return ByteIndexer(self.max_characters)
        return SymbolIndexer(self.symbols, self.words, self.max_characters)

    @property
    def vocab_size(self) -> int:
        """The number of words in the word table; 0 for a model that reads only characters."""
        return 0 if self.words is None else len(self.words)

    def __len__(self) -> int:
        return self.vocab_size

    def get_vocab(self) -> dict[str, int]:
        """The words of the word table and their ids."""
        return {} if self.words is None else {word: number for number, word in enumerate(self.words, start=1)}

    @property
    def added_tokens_decoder(self) -> dict[int, Any]:
        """Always empty: no token can be added."""
        return {}

    added_tokens_encoder = added_tokens_decoder

    def tokenize(self, text: str, **_: object) -> list[str]:
        """The tokens of a string."""
        return [token.text for token, _word in self._split(text)]

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> Any:  # noqa: ANN401 - one or many
        """The ids of a token [C], or of each token [T, C]."""
        ids = _ids(self.indexer, [tokens] if isinstance(tokens, str) else tokens).tolist()
        return ids[0] if isinstance(tokens, str) else ids

    def save_vocabulary(self, save_directory: str, filename_prefix: str | None = None) -> tuple[str, ...]:
        """Write the tables of words and of characters that the model has."""
        texts = {
            "vocab_file": None if self.words is None else self.words.to_text(),
            "symbols_file": None if self.symbols is None else json.dumps(dict(self.symbols.ids)),
        }
        written = []
        for key, text in texts.items():
            if text is not None:
                name = self.vocab_files_names[key]
                path = Path(save_directory) / (f"{filename_prefix}-{name}" if filename_prefix else name)
                path.write_text(text, encoding="utf-8", newline="\n")
                written.append(str(path))
        return tuple(written)

    def _split(self, text: str | Sequence[str]) -> list[tuple[Token, int]]:
        """The tokens of a string, or of given words, with their offsets, each with the number of its word.

        The offsets are relative to the string, or to the given word.
        """
        if isinstance(text, str):
            words = self.policy.tokenize(text)
        else:
            words = [Token(word, 0, len(word)) for word in self.policy.tokens_of(text)]
        indexer = self.indexer
        whole = CharacterPieces([indexer.begin, indexer.end, *self.specials])
        found = []
        for number, word in enumerate(words):
            at = 0
            for piece in whole.of(word.text) if self.text.get("segment") == "chars" else (word.text,):
                at = word.text.index(piece, at)
                found.append((Token(piece, word.start + at, word.start + at + len(piece)), number))
                at += len(piece)
        return found

    def _encode_plus(
        self,
        text: Any,  # noqa: ANN401 - a string, words, or a list of either
        text_pair: object = None,
        *,
        padding_strategy: Any = "do_not_pad",  # noqa: ANN401 - of transformers
        truncation_strategy: TruncationStrategy = TruncationStrategy.DO_NOT_TRUNCATE,
        max_length: int | None = None,
        is_split_into_words: bool = False,
        pad_to_multiple_of: int | None = None,
        padding_side: str | None = None,
        return_tensors: Any = None,  # noqa: ANN401 - of transformers
        return_attention_mask: bool | None = None,
        return_offsets_mapping: bool = False,
        return_length: bool = False,
        return_special_tokens_mask: bool = False,
        **_: object,
    ) -> BatchEncoding:
        """The result of `tokenizer(...)`."""
        if text_pair is not None:
            raise ElmoError("ELMo reads single texts, got a pair: encode each of the two texts", "text_pair")
        single = isinstance(text, str) or (is_split_into_words and (not len(text) or isinstance(text[0], str)))
        rows = [self._split(each) for each in ([text] if single else text)]
        if truncation_strategy != TruncationStrategy.DO_NOT_TRUNCATE and max_length is not None:
            left = self.truncation_side == "left"
            rows = [row[max(0, len(row) - max_length) :] if left else row[:max_length] for row in rows]
        tokens = [[token.text for token, _word in row] for row in rows]
        data: dict[str, Any] = {"input_ids": [self.convert_tokens_to_ids(row) for row in tokens]}
        if return_offsets_mapping:
            data["offset_mapping"] = [[(token.start, token.end) for token, _word in row] for row in rows]
        if return_special_tokens_mask:
            data["special_tokens_mask"] = [[0] * len(row) for row in rows]
        if return_length:
            data["length"] = [len(row) for row in rows]
        padded = self.pad(
            data,
            padding=padding_strategy,
            max_length=max_length,
            pad_to_multiple_of=pad_to_multiple_of,
            padding_side=padding_side,
            return_attention_mask=return_attention_mask,
        )
        widths = [len(row) for row in padded["input_ids"]]
        found = dict(padded) if not single else {key: value[0] for key, value in padded.items()}
        aligned = [TokenAlignment.of(row, width, self.pad_token) for row, width in zip(rows, widths, strict=True)]
        if return_tensors is not None and len(set(widths)) == 1:  # the right shape even without tokens
            shape = (*([] if single else [len(rows)]), widths[0], self.ids_per_token)
            found["input_ids"] = np.array(found["input_ids"], np.int64).reshape(shape)
        return BatchEncoding(found, aligned, return_tensors, prepend_batch_axis=single and return_tensors is not None)

    def _pad(self, encoded_inputs: dict[str, Any], *args: Any, **kwargs: Any) -> dict[str, Any]:  # noqa: ANN401
        """Pad one text: a padding token has ids of 0, and the offsets (0, 0)."""
        found: dict[str, Any] = super()._pad(encoded_inputs, *args, **kwargs)
        if (kwargs.get("padding_side") or self.padding_side) != "right":
            raise ElmoError(
                "padding_side must be right, because the model reads tokens first, then padding", "padding_side"
            )
        padding = [0] * self.ids_per_token
        found["input_ids"] = [padding if row == self.pad_token_id else row for row in found["input_ids"]]
        if "offset_mapping" in found:
            missing = len(found["input_ids"]) - len(found["offset_mapping"])
            found["offset_mapping"] = [*found["offset_mapping"], *[(0, 0)] * missing]
        return found

    @property
    def ids_per_token(self) -> int:
        """C: the number of character ids of a token, and one more for its word."""
        characters = self.max_characters if self.words is None or self.symbols is not None else 0
        return (characters or 0) + (self.words is not None)

    def _decode(self, *_: object, **__: object) -> str:
        raise ElmoError("character ids cannot be decoded: keep the texts, or use tokens() of the encoding")


AutoConfig.register(ElmokitConfig.model_type, ElmokitConfig, exist_ok=True)
AutoModel.register(ElmokitConfig, ElmokitModel, exist_ok=True)
AutoTokenizer.register(ElmokitConfig, tokenizer_class=ElmokitTokenizer, exist_ok=True)


def _checkpoint(model: str | Path | Elmo) -> Checkpoint:
    found = model.checkpoint() if isinstance(model, Elmo) else read_checkpoint(model)
    return found.in_floats(softmax=False)


def _ids(indexer: Indexer, tokens: Sequence[str]) -> Ids:
    """The ids of tokens, [T, C]: first the characters, then the word."""
    ids = indexer(tokens)
    parts = [ids.characters, None if ids.words is None else ids.words[:, None]]
    return np.concatenate([part for part in parts if part is not None], axis=1)
