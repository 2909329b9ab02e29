"""TF-Hub's ELMo module over elmokit: `hub.Module(path)` and its two signatures, with torch tensors out.

Change `import tensorflow_hub as hub` to `from elmokit.compat import tfhub as hub`; a session is not needed any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

from torch import Tensor, nn

from elmokit.elmo import Elmo
from elmokit.errors import ElmoError
from elmokit.fetch import local_path

Signature = Literal["default", "tokens"]
_KEYS = ("word_emb", "elmo", "default")


class Module(nn.Module):
    """`hub.Module(path, trainable=…)` for ELMo.

    As in TF-Hub, `trainable` concerns the weights of the layer mix and its scale; the biLM itself stays as it is.

    >>> elmo = Module("my-model", trainable=True)  # doctest: +SKIP
    >>> elmo(["the cat is on the mat"], signature="default", as_dict=True)["elmo"]  # doctest: +SKIP
    """

    def __init__(
        self,
        spec: str | Path,
        trainable: bool = False,
        name: str = "module",
        tags: object = None,
        *,
        options: str | Path | None = None,
        device: str | None = None,
    ) -> None:
        super().__init__()
        if "tfhub.dev" in str(spec):
            raise ElmoError(
                f"{spec} cannot be loaded: give the path of an ELMo model instead, such as the original "
                "2x4096_512_2048cnn_2xhighway options.json and weights.hdf5"
            )
        self.name, self.tags = name, tags
        self.elmo = Elmo.load(local_path(spec), options=options, device=device)
        self.elmo.mixes.requires_grad_(trainable)

    def forward(
        self, inputs: object = None, _sentinel: None = None, signature: Signature | None = None, as_dict: bool = False
    ) -> Any:  # noqa: ANN401 - a tensor, or a dict of them with as_dict
        """Sentences, split at spaces, or with `signature="tokens"` padded tokens and `sequence_len`.

        Returns `default` [B, D], the mean over each sentence's own tokens, or with `as_dict` every output:
        `word_emb` [B, T, P], `lstm_outputs1` … [B, T, D], `elmo` [B, T, D] and `default`.
        """
        if signature not in (None, "default", "tokens"):
            raise ElmoError(f"signature must be default or tokens, got {signature!r}")
        out = self._tokens(inputs) if signature == "tokens" else self._default(inputs)
        if not as_dict:
            return out["default"]
        return {name: value for name, value in out.items() if name in _KEYS or name.startswith("lstm_outputs")}

    def _default(self, inputs: object) -> dict[str, Any]:
        if isinstance(inputs, Mapping):
            inputs = next(iter(inputs.values()))
        if isinstance(inputs, str | bytes) or not isinstance(inputs, Iterable):
            raise ElmoError("the default signature takes a list of sentences, got a single value")
        # At spaces alone, as TF-Hub did: other white space stays inside a token.
        sentences = [[token for token in _text(sentence).split(" ") if token] for sentence in inputs]
        return self.elmo(tokens=sentences)  # type: ignore[no-any-return]

    def _tokens(self, inputs: object) -> dict[str, Any]:
        if not isinstance(inputs, Mapping) or not {"tokens", "sequence_len"} <= set(inputs):
            raise ElmoError('the tokens signature takes {"tokens": [[…]], "sequence_len": […]}')
        rows = [[_text(token) for token in row] for row in inputs["tokens"]]
        return self.elmo(tokens=rows, sequence_len=inputs["sequence_len"])  # type: ignore[no-any-return]


def load(handle: str | Path, tags: object = None, **arguments: Any) -> SimpleNamespace:  # noqa: ANN401 - Module's
    """`hub.load(path)`: `.signatures["default"](sentences)` and `.signatures["tokens"](tokens=…, sequence_len=…)`."""
    module = Module(handle, tags=tags, **arguments)

    def default(sentences: Sequence[str]) -> dict[str, Tensor]:
        outputs: dict[str, Tensor] = module(sentences, as_dict=True)
        return outputs

    def tokens(tokens: Sequence[Sequence[str]], sequence_len: Sequence[int]) -> dict[str, Tensor]:
        outputs: dict[str, Tensor] = module(
            {"tokens": tokens, "sequence_len": sequence_len}, signature="tokens", as_dict=True
        )
        return outputs

    signatures: dict[str, Callable[..., dict[str, Tensor]]] = {"default": default, "tokens": tokens}
    return SimpleNamespace(signatures=signatures, module=module)


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if not isinstance(value, str):
        raise ElmoError(f"sentences and tokens must be strings, got {value!r}")
    return value
