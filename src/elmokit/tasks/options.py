"""Every choice in the making of a task model, with its default and the sentence that `--help` shows."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from elmokit.errors import ElmoError
from elmokit.options import check_options, option
from elmokit.tasks.examples import Kind


@dataclass(frozen=True)
class TaskOptions:
    """How a task model is built and trained."""

    elmo: Literal["mix", "0", "none"] = option(
        "mix", "What ELMo gives: a learned mix of all layers, layer 0 alone, or nothing."
    )
    elmo_output: bool = option(False, "ELMo again at the output of the task's LSTM, with a mix of its own.")
    elmo_dropout: float = option(0.5, "Dropout on the ELMo vectors.", least=0, below=1)
    mix_layer_norm: bool = option(False, "Normalise each layer before it is mixed.")
    mix_penalty: float = option(0.001, "λ of λ‖w‖², which keeps the mix near the mean of the layers.", least=0)
    fine_tune: bool = option(False, "Train the biLM too (slow: its vectors cannot be kept).")
    elmo_learning_rate: float = option(1e-5, "Its own learning rate, with --fine-tune.", least=0)
    static: str = option("train", "Static vectors beside ELMo: train, none, or a word2vec, GloVe or fastText file.")
    static_size: int = option(50, "Their size, where they are trained from nothing.", least=1)
    static_frozen: bool = option(False, "Leave given static vectors as they are.")
    static_min_count: int = option(2, "Rarer words share one vector, where they are trained from nothing.", least=1)
    hidden: int = option(200, "Size of the task's LSTM, each direction.", least=1)
    layers: int = option(1, "Layers of the task's LSTM.", least=1)
    dropout: float = option(0.5, "Dropout on the input and the output of the task's LSTM.", least=0, below=1)
    pooling: Literal["attention", "max", "mean"] = option(
        "attention", "How a text's vectors become one (classify, or pair without alignment)."
    )
    crf: bool = option(True, "Score whole tag sequences (tag); without, each tag for itself.")
    alignment: bool = option(True, "Let each word look at the other sentence (pair).")
    words_beside: bool = option(
        True, "Compare words also by ELMo's own vectors, a mix and layer 0 beside the LSTM's output (pair)."
    )
    target: Literal["label", "score"] = option("label", "What a pair has: a label, or a score such as a similarity.")
    learning_rate: float = option(0.001, "The learning rate of everything but the biLM.", least=0)
    batch_size: int = option(0, "Examples in an update; 0: 32, or 4 to 32 where there are fewer than 1,600.", least=0)
    epochs: int = option(30, "At most so many times through the data.", least=1)
    patience: int = option(3, "Stop after so many epochs without a better dev score; 0: never.", least=0)
    clip_norm: float = option(5.0, "Bound on the norm of the gradients; 0: none.", least=0)
    max_tokens: int = option(400, "Longer texts are cut (classify and pair).", least=8)
    seed: int = option(1, "Of everything random.", least=0, below=2**63)

    def __post_init__(self) -> None:
        check_options(self)
        if self.elmo == "none" and self.static == "none":
            raise ElmoError("elmo none and static none leave no input: choose one of the two")
        if self.elmo == "none" and (self.elmo_output or self.fine_tune):
            raise ElmoError("elmo_output and fine_tune need ELMo vectors, but elmo is none")

    def idle(self, kind: Kind) -> dict[str, str]:
        """The options that have no effect on a task of this kind with these others, and what each is for."""
        uses = {
            "elmo_output": (self.elmo != "none", "ELMo vectors, and --elmo is none"),
            "elmo_dropout": (self.elmo != "none", "ELMo vectors, and --elmo is none"),
            "mix_layer_norm": (self.elmo == "mix", "a mix of the layers, --elmo mix"),
            "mix_penalty": (self.elmo == "mix", "a mix of the layers, --elmo mix"),
            "elmo_learning_rate": (self.fine_tune, "a biLM that is trained too, --fine-tune"),
            "static_size": (self.static == "train", "vectors that are trained from nothing, --static train"),
            "static_min_count": (self.static == "train", "vectors that are trained from nothing, --static train"),
            "static_frozen": (self.static not in ("train", "none"), "vectors that are given, --static FILE"),
            "pooling": (
                kind == "classify" or (kind == "pair" and not self.alignment),
                "classify, or pair with --no-alignment",
            ),
            "crf": (kind == "tag", "tag"),
            "alignment": (kind == "pair", "pair"),
            "words_beside": (kind == "pair" and self.elmo != "none", "pair, with ELMo vectors"),
            "target": (kind == "pair", "pair"),
            "max_tokens": (kind != "tag", "classify and pair"),
        }
        return {name: what for name, (used, what) in uses.items() if not used}

    def batch_size_for(self, examples: int) -> int:
        """Examples in an update: small where there are few, so that an epoch has updates enough."""
        return self.batch_size or min(32, max(4, examples // 50))

    def to_dict(self) -> dict[str, Any]:
        """For JSON; `TaskOptions(**d)` reads it back."""
        return asdict(self)
