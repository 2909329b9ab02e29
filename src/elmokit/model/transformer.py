"""The Transformer context encoder: blocks that read the words before and after a word at once, in training and in use.

The same network has three uses, which differ only in the tokens that a token sees: those before and after it (for
vectors and masked words), those before it (to predict the next word), or those after it (to predict the word before).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from operator import is_
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from elmokit.config import TransformerConfig
from elmokit.errors import ElmoError
from elmokit.model.context import ContextEncoder, ContextOutput, SoftmaxInputs, State, padded, register_context
from elmokit.model.int8 import Int8Weight, Linear, matrix_and_bias
from elmokit.model.placement import moved
from elmokit.ops.attention import BACKWARD, BOTH, FORWARD, Segments
from elmokit.ops.traceable import prediction_dense, transformer_dense
from elmokit.ops.transformer import choose, norm, softmax_input, transformer
from elmokit.ops.weights import BlockStack, BlockWeights, HeadWeights

DIRECTIONS = {"this": BOTH, "next": FORWARD, "previous": BACKWARD}
"""The word that a head predicts, and the tokens that a token sees for that; `this` word is masked."""


class TransformerBlock(nn.Module):
    """The weights of one block; `elmokit.ops.transformer.block` shows how they are used."""

    int8_weights: ClassVar[tuple[str, ...]] = ("qkv", "out", "up", "down")
    int8_factors: ClassVar[tuple[str, ...]] = ("out", "up", "down")

    def __init__(self, config: TransformerConfig, depth: int) -> None:
        super().__init__()
        self.depth = depth
        size, inner = config.size, config.inner_size
        self.qkv: nn.Parameter | Int8Weight = nn.Parameter(torch.zeros(3 * size, size))
        self.out: nn.Parameter | Int8Weight = nn.Parameter(torch.zeros(size, size))
        self.up: nn.Parameter | Int8Weight = nn.Parameter(torch.zeros(2 * inner, size))
        self.down: nn.Parameter | Int8Weight = nn.Parameter(torch.zeros(size, inner))
        self.gate_weight = nn.Parameter(torch.zeros(config.n_heads, size))
        self.gate_bias = nn.Parameter(torch.zeros(config.n_heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights; deeper blocks start with smaller outputs."""
        size, depth = self.gate_weight.shape[1], 2 * self.depth + 2
        for weight, scale in ((self.qkv, 1), (self.up, 1), (self.out, depth), (self.down, depth)):
            assert isinstance(weight, nn.Parameter)
            nn.init.trunc_normal_(weight, std=math.sqrt(2 / (5 * size * scale)))
        bound = 1 / math.sqrt(size)
        nn.init.uniform_(self.gate_weight, -bound, bound)
        nn.init.uniform_(self.gate_bias, -bound, bound)

    def weights(self) -> BlockWeights:
        """The block's weights in the form that the operations take."""
        parameters, modules = self._parameters, self._modules  # faster than the attributes of a module
        qkv, out, up, down = (
            cast(Int8Weight, modules[name]).matrix() if name in modules else cast(Tensor, parameters[name])
            for name in self.int8_weights
        )
        gates = cast(Tensor, parameters["gate_weight"]), cast(Tensor, parameters["gate_bias"])
        return BlockWeights(qkv, out, up, down, *gates)


class TransformerEncoder(ContextEncoder):
    """Token vectors → blocks → normalised layers, so that all layers have the same weight in a new mix."""

    config: TransformerConfig
    predicts_masked = True
    reads_flat = True
    joined_matrices: ClassVar[Mapping[str, int]] = {"qkv": 3, "up": 2}
    token_factors: ClassVar[tuple[str, ...]] = ("projection",)

    def __init__(self, config: TransformerConfig, n_directions: int) -> None:
        super().__init__(config, n_directions)
        self.masked = nn.Parameter(torch.zeros(config.size))
        self.blocks = nn.ModuleList(TransformerBlock(config, depth) for depth in range(config.n_blocks))
        self.heads = nn.ModuleDict({name: nn.Linear(config.size, config.softmax_size) for name in DIRECTIONS})
        self._stack: tuple[list[Tensor], BlockStack] | None = None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights."""
        nn.init.normal_(self.masked, std=0.02)
        for block in self.blocks:
            cast(TransformerBlock, block).reset_parameters()
        for head in self.heads.values():
            cast(nn.Linear, head).reset_parameters()

    def block_weights(self) -> BlockStack:
        """The weights of every block, the lowest first; the same object as long as they are the same tensors."""
        modules: Any = self._modules["blocks"]
        blocks: Collection[TransformerBlock] = modules._modules.values()
        tensors: list[Any] = []  # Any, because a cast for each tensor would take longer than everything else here
        for block in blocks:
            tensors += block._parameters.values()
            for part in block._modules.values():
                if part is not None:
                    tensors += part._buffers.values()
        known = self._stack
        if known is None or len(known[0]) != len(tensors) or not all(map(is_, known[0], tensors)):
            stack = BlockStack(block.weights() for block in blocks)
            known = self._stack = tensors, stack
        return known[1]

    def run(
        self,
        x: Tensor,
        segments: Segments,
        outputs: Sequence[int],
        dropout: float = 0.0,
        head: HeadWeights | None = None,
    ) -> Tensor:
        """x [N, P] → [len(outputs), N, P]: the normalised states after these blocks, then the head's prediction."""
        window = self.config.window
        return transformer(
            x, segments, self.block_weights(), window=window, outputs=outputs, dropout=dropout, head=head
        )

    def forward(
        self, tokens: Tensor, lengths: Tensor, state: State | None = None, *, dropout: float = 0.0
    ) -> ContextOutput:
        """tokens [B, T, P], lengths [B] → layers [L+1, B, T, P]; there is no state."""
        if state is not None:
            raise ElmoError("a transformer has no state between sentences, got one: give whole sentences")
        flat = FlatBatch(tokens, lengths)
        return ContextOutput(flat.padded(self._layers(flat.tokens, flat.segments(), None, dropout)), None)

    def flat_layers(self, tokens: Tensor, lengths: Tensor, *, only: int | None = None, dropout: float = 0.0) -> Tensor:
        """The layers of `forward` without padding: tokens [N, P] → [L+1, N, P], or only one of them, [1, N, P]."""
        return self._layers(tokens, Segments.of(lengths.tolist()), only, dropout)

    def traceable_layers(self, tokens: Tensor, inside: Tensor) -> list[Tensor]:
        """The layers of `forward` in operations that torch.export records."""
        blocks = [cast(TransformerBlock, block).weights() for block in self.blocks]
        layers = transformer_dense(tokens, inside, blocks, window=self.config.window, every=self.config.every)
        head = self.prediction_head()
        return layers if head is None else [*layers, prediction_dense(layers[-1], head)]

    def _layers(self, x: Tensor, segments: Segments, only: int | None, dropout: float) -> Tensor:
        outputs: Sequence[int] = range(0, self.config.n_blocks + 1, self.config.every)
        head = self.prediction_head()
        if only is not None:
            index = only % (len(outputs) + (head is not None))
            outputs, head = (outputs[index : index + 1], None) if index < len(outputs) else ((), head)
        return self.run(x, segments, outputs, dropout, head)

    def prediction_head(self) -> HeadWeights | None:
        """The head that computes the last layer, or None if the last layer is not a prediction."""
        return self._head("this") if self.config.prediction_layer else None

    def _head(self, word: str) -> HeadWeights:
        return HeadWeights(*matrix_and_bias(cast(Linear, self.heads[word])))

    def predict(self, tokens: Tensor, lengths: Tensor, state: State | None = None) -> SoftmaxInputs:
        """The inputs of the softmax at each token, from two passes: in each, a token sees only one direction."""
        if state is not None:
            raise ElmoError("a transformer has no state between sentences, got one: give whole sentences")
        flat = FlatBatch(tokens, lengths)
        tops = {word: self.top(flat.tokens, flat.segments(DIRECTIONS[word])) for word in ("next", "previous")}
        forward, backward = (flat.padded(self.softmax_input(top, word).unsqueeze(0))[0] for word, top in tops.items())
        return SoftmaxInputs(forward, backward, None)

    def predict_masked(self, tokens: Tensor, lengths: Tensor, masked: Tensor) -> Tensor:
        """The inputs of the softmax [M, S] at the tokens in `masked` [B, T], in order; all are masked together."""
        masked = masked.to(tokens.device)
        flat = FlatBatch(torch.where(masked.unsqueeze(-1), self.masked.to(tokens.dtype), tokens), lengths)
        top = flat.padded(self.top(flat.tokens, flat.segments()).unsqueeze(0))[0]
        return self.softmax_input(top[masked], "this")

    def top(self, x: Tensor, segments: Segments, *, dropout: float = 0.0) -> Tensor:
        """x [N, P] → the normalised vectors after the last block [N, P], without the prediction layer."""
        return self.run(x, segments, [self.config.n_blocks], dropout)[0]

    def softmax_input(self, top: Tensor, word: str) -> Tensor:
        """top [N, P], normalised → the inputs of the softmax [N, S], by the head for `this`, `next` or `previous`."""
        return softmax_input(top, self._head(word))

    def token_layer(self, tokens: Tensor) -> Tensor:
        """The token layer of the result: normalised, like every layer."""
        return norm(tokens)

    def explain(self, tokens: Tensor) -> str:
        """The path that the dispatcher chooses for tokens of this shape and dtype, and the reason."""
        choice = choose(tokens.flatten(0, -2), self.block_weights(), gradient=False)
        return f"{choice.path}: {choice.why}"


class FlatBatch:
    """A batch without its padding: tokens [N, P], one sentence after the other; `padded` restores the padding."""

    def __init__(self, tokens: Tensor, lengths: Tensor) -> None:
        self.time = tokens.shape[1]
        self.lengths = lengths
        self._lengths: list[int] = lengths.tolist()
        self.tokens = tokens.flatten(0, 1)
        if sum(self._lengths) != len(self.tokens):
            inside = torch.arange(self.time) < lengths.unsqueeze(1)
            self.tokens = self.tokens[moved(inside.flatten().nonzero()[:, 0], tokens.device)]

    def segments(self, direction: int = BOTH) -> Segments:
        """The sentences as segments with this direction."""
        return Segments.of(self._lengths, direction)

    def padded(self, values: Tensor) -> Tensor:
        """values [L, N, D] → [L, B, T, D], 0 past a sentence's end."""
        return padded(values, self.lengths, self.time)


register_context(TransformerConfig, TransformerEncoder)
