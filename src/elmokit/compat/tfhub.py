"""TF-Hub's ELMo module: `hub.Module(path)` and its two signatures, which return torch tensors.

Change `import tensorflow_hub as hub` to `from elmokit.compat import tfhub as hub`; a session is no longer needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from elmokit.compat.load import local_paths
from elmokit.elmo import Elmo
from elmokit.encode import ElmoOutput
from elmokit.errors import ElmoError

Signature = Literal["default", "tokens"]
_KEYS = ("word_emb", "elmo", "default")


class Module(nn.Module):
    """`hub.Module(path, trainable=…)` for ELMo.

    As in TF-Hub, `trainable` is for the weights and the scale of the layer mix; the biLM itself is not trained.

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
        if any(host in str(spec) for host in ("tfhub.dev", "kaggle.com/models")):
            raise ElmoError(
                f"{spec} cannot be loaded: give the path of an ELMo model instead, such as the original "
                "2x4096_512_2048cnn_2xhighway options.json and weights.hdf5"
            )
        self.name, self.tags = name, tags
        with local_paths(spec, options) as (model, options_file):
            self.elmo = Elmo.load(model, options=options_file, device=device)
        self.elmo.mixes.requires_grad_(trainable)

    def forward(
        self, inputs: object = None, _sentinel: None = None, signature: Signature | None = None, as_dict: bool = False
    ) -> Any:  # noqa: ANN401 - a tensor, or a dict of them with as_dict
        """Sentences, split at spaces, or with `signature="tokens"` padded tokens and `sequence_len` → tensors.

        Returns `default` [B, D], the mean over each sentence's own tokens, or with `as_dict` all outputs:
        `word_emb` [B, T, P], `lstm_outputs1` … [B, T, D], `elmo` [B, T, D], `default`, and `sequence_len` [B].
        """
        if signature not in (None, "default", "tokens"):
            raise ElmoError(f"signature must be default or tokens, got {signature!r}")
        out = self._tokens(inputs) if signature == "tokens" else self._default(inputs)
        if not as_dict:
            return out["default"]
        found = {name: out[name] for name in out if name in _KEYS or name.startswith("lstm_outputs")}
        return found | {"sequence_len": out["sequence_len"].int()}

    @property
    def signatures(self) -> dict[str, Callable[..., dict[str, Tensor]]]:
        """`hub.load(path).signatures["default"](sentences)` and `["tokens"](tokens=…, sequence_len=…)`."""

        def default(sentences: object = None, **named: object) -> dict[str, Tensor]:
            outputs: dict[str, Tensor] = self(named or sentences, as_dict=True)
            return outputs

        def tokens(tokens: object, sequence_len: object) -> dict[str, Tensor]:
            inputs = {"tokens": tokens, "sequence_len": sequence_len}
            outputs: dict[str, Tensor] = self(inputs, signature="tokens", as_dict=True)
            return outputs

        return {"default": default, "tokens": tokens}

    def _default(self, inputs: object) -> ElmoOutput:
        if isinstance(inputs, Mapping):
            inputs = next(iter(inputs.values()), None)
        # Only at spaces, as in TF-Hub: other white space stays inside a token.
        sentences = [[token for token in _text(sentence).split(" ") if token] for sentence in _items(inputs)]
        return self.elmo(tokens=sentences)

    def _tokens(self, inputs: object) -> ElmoOutput:
        if not isinstance(inputs, Mapping) or not {"tokens", "sequence_len"} <= set(inputs):
            raise ElmoError('the tokens signature takes {"tokens": [[…]], "sequence_len": […]}')
        rows = [[_text(token) for token in _items(row)] for row in _items(inputs["tokens"])]
        lengths = [int(length) for length in _items(inputs["sequence_len"])]
        return self.elmo(tokens=rows, sequence_len=lengths)


class KerasLayer(Module):
    """`hub.KerasLayer(path, signature=…, output_key=…)`, called on sentences; it cannot be a layer of a Keras model."""

    def __init__(
        self,
        handle: str | Path,
        trainable: bool = False,
        arguments: object = None,
        _sentinel: None = None,
        tags: object = None,
        signature: Signature | None = None,
        signature_outputs_as_dict: bool | None = None,
        output_key: str | None = None,
        output_shape: object = None,
        *,
        options: str | Path | None = None,
        device: str | None = None,
        **keras: object,
    ) -> None:
        """As in TF-Hub; arguments only for Keras (`arguments`, `output_shape`, `input_shape`, `dtype`) are ignored."""
        super().__init__(handle, trainable, tags=tags, options=options, device=device)
        self._signature: Signature | None = signature
        self._as_dict, self._output_key = bool(signature_outputs_as_dict), output_key

    def forward(
        self, inputs: object = None, _sentinel: None = None, signature: Signature | None = None, as_dict: bool = False
    ) -> Any:  # noqa: ANN401 - a tensor, or a dict of them
        """Sentences, or tokens if the constructor's signature is "tokens" → the output that the constructor names."""
        outputs = super().forward(inputs, signature=signature or self._signature, as_dict=True)
        if as_dict or self._as_dict:
            return outputs
        key = self._output_key or "default"
        if key not in outputs:
            raise ElmoError(f"output_key must be one of {', '.join(outputs)}, got {key!r}")
        return outputs[key]


def load(handle: str | Path, tags: object = None, **arguments: Any) -> Module:  # noqa: ANN401 - Module's
    """`hub.load(path)`: the module, with `.signatures`."""
    return Module(handle, tags=tags, **arguments)


def _items(values: object) -> list[Any]:
    """The items of a list or array, including TensorFlow's eager tensors."""
    if isinstance(values, str | bytes):
        raise ElmoError(f"ELMo takes a list or an array of values, got the text {values[:40]!r}: put it into a list")
    if hasattr(values, "numpy"):
        values = values.numpy()
    try:
        if not isinstance(values, Iterable):
            raise TypeError
        return list(values)
    except TypeError as error:  # TensorFlow's symbolic tensors raise it when they are read
        raise ElmoError(
            f"ELMo takes a list or an array of values, got {type(values).__name__}: compute the vectors first, and "
            "pass their values to a Keras model or a session"
        ) from error


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if not isinstance(value, str):
        raise ElmoError(f"sentences and tokens must be strings, got {value!r}")
    return value
