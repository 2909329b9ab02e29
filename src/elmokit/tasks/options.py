"""The options of a task model with their defaults and help texts; importable without torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from elmokit.errors import ElmoError
from elmokit.options import check_options, option

_LENIENT: dict[str, Any] = {"shared": False, "lenient": True}


@dataclass(frozen=True)
class TaskOptions:
    """How a task model is built and trained; your own task can use a subclass with more fields.

    Only tasks that list an option with shared=False in `Task.own_options` read it. Other tasks refuse such an option,
    or ignore it if it is lenient. So one set of options can be used for several tasks and for a comparison.
    """

    elmo: Literal["mix", "0", "none"] = option(
        "mix", "ELMo vectors to read: a learned mix of all layers, layer 0 alone, or none."
    )
    elmo_output: bool = option(False, "Also add ELMo vectors, with their own mix, to the output of the task's LSTM.")
    elmo_dropout: float = option(0.2, "Dropout on the ELMo vectors.", least=0, below=1)
    mix_layer_norm: bool = option(False, "Normalise each layer before it is mixed.")
    mix_penalty: float = option(0.001, "λ of the penalty λ‖w‖², which pulls the mix towards the mean.", least=0)
    fine_tune: bool = option(False, "Train the ELMo model too (slow: its vectors cannot be cached).")
    elmo_learning_rate: float = option(3e-5, "Learning rate of the ELMo model with --fine-tune.", least=0)
    static: str = option(
        "auto",
        "Static word vectors: glove (English, in the package), train, none, or a word2vec, GloVe or fastText file; "
        "auto: glove if it has 80 % of the tokens of the training text, otherwise train.",
    )
    static_size: int = option(50, "Size of static vectors that are trained from scratch.", least=1)
    static_frozen: bool = option(False, "Do not train the static vectors of GloVe or a file.")
    static_min_count: int = option(2, "With static train, rarer words share the vector of the unknown word.", least=1)
    hidden: int = option(0, "Size of the task's LSTM in each direction; 0: 400 for tag, 200 otherwise.", least=0)
    layers: int = option(1, "Number of layers of the task's LSTM.", least=1)
    dropout: float = option(0.5, "Dropout on the input and the output of the task's LSTM.", least=0, below=1)
    pooling: Literal["attention", "max", "mean"] = option(
        "attention", "How word vectors become one text vector (classify; pair without alignment).", shared=False
    )
    crf: bool = option(True, "Score whole tag sequences instead of each tag separately (tag).", shared=False)
    alignment: bool = option(True, "Compare each word with the words of the other sentence (pair).", shared=False)
    words_beside: bool = option(
        True, "Also compare words by ELMo vectors (a mix and layer 0), next to the LSTM's output (pair).", **_LENIENT
    )
    target: Literal["label", "score"] = option(
        "label", "What to predict for a pair: a label, or a score such as a similarity (pair).", shared=False
    )
    learning_rate: float = option(0.001, "Learning rate of everything but the ELMo model.", least=0)
    batch_size: int = option(0, "Examples per update; 0: 32, or 4 to 32 if there are fewer than 1,600.", least=0)
    epochs: int = option(30, "Maximum number of passes over the data.", least=1)
    patience: int = option(3, "Stop after this number of epochs without a better dev score; 0: never.", least=0)
    clip_norm: float = option(5.0, "Maximum norm of the gradients; 0: no limit.", least=0)
    max_tokens: int = option(
        400, "Maximum number of tokens in a text; longer texts are cut (classify, pair).", least=8, **_LENIENT
    )
    seed: int = option(1, "Seed of all random numbers.", least=0, below=2**63)

    def __post_init__(self) -> None:
        check_options(self)
        if self.elmo == "none" and self.static == "none":
            raise ElmoError("elmo none and static none leave no input: choose one of the two", "elmo", "static")
        if self.elmo == "none" and (self.elmo_output or self.fine_tune):
            raise ElmoError("elmo_output and fine_tune need ELMo vectors, but elmo is none", "elmo_output", "fine_tune")

    def unused(self) -> dict[str, str]:
        """The shared options that have no effect because of the values of others, each with its purpose."""
        uses = (
            (self.elmo != "none", "ELMo vectors, and elmo is none", ("elmo_output", "elmo_dropout")),
            (self.elmo == "mix", "a mix of the layers, elmo mix", ("mix_layer_norm", "mix_penalty")),
            (self.fine_tune, "an ELMo model that is trained too, fine_tune", ("elmo_learning_rate",)),
            (self.static == "train", "vectors trained from scratch, static train", ("static_size", "static_min_count")),
            (
                self.static == "glove" or self.static_file is not None,
                "vectors of a file or of GloVe, static FILE or glove",
                ("static_frozen",),
            ),
        )
        return {name: purpose for used, purpose, names in uses if not used for name in names}

    @property
    def static_file(self) -> str | None:
        """The file of the static vectors, if they come from a file."""
        return None if self.static in ("auto", "glove", "train", "none") else self.static

    def batch_size_for(self, examples: int) -> int:
        """Examples per update; smaller for small training sets, so that an epoch has enough updates."""
        return self.batch_size or min(32, max(4, examples // 50))

    def without_elmo(self) -> TaskOptions:
        """The same options with static vectors as the only input."""
        static = "auto" if self.static == "none" else self.static
        return replace(self, elmo="none", elmo_output=False, fine_tune=False, static=static)

    def with_layer_0(self) -> TaskOptions:
        """The same options with layer 0 of ELMo, which has no context."""
        return replace(self, elmo="0")

    def to_dict(self) -> dict[str, Any]:
        """The options for JSON; `TaskOptions(**values)` restores them."""
        return asdict(self)
