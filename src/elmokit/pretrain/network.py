"""The network in training: a batch of text in, the loss and the carried state out."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from elmokit.model.bilm import BiLM
from elmokit.model.context import State
from elmokit.model.language_model import LmHead, target_losses
from elmokit.ops.softmax_loss import softmax_loss
from elmokit.pretrain.batches import Batch
from elmokit.pretrain.sampled_softmax import sampled_softmax_loss


@dataclass(frozen=True, eq=False)
class Negatives:
    """The words that a sampled softmax scores the right ones against."""

    words: Tensor  # [S]
    tries: int


class LanguageModelNetwork(nn.Module):
    """BiLM and softmax; `forward` reads a batch and gives its loss."""

    def __init__(self, bilm: BiLM, head: LmHead, *, dropout: float = 0.0, tied: bool = False) -> None:
        super().__init__()
        self.bilm, self.head, self.dropout, self.tied = bilm, head, dropout, tied
        if tied:
            del self.head.weight

    def softmax_weight(self) -> Tensor:
        """[V, S]: the softmax's own, or the word table without its padding row."""
        if not self.tied:
            return self.head.weight
        assert self.bilm.token_encoder.words is not None
        return self.bilm.token_encoder.words.weight[1:]

    def forward(
        self,
        batch: Batch,
        state: State | None,
        negatives: Negatives | None = None,
        precision: torch.dtype = torch.float32,
    ) -> tuple[Tensor, Tensor, State | None]:
        """A batch and the state before it → the loss, −log p without gradient in the targets' shape, the state after.

        With `negatives` the softmax is the sampled one; without, it is over all words.
        """
        top, after = self.contextualise(batch, state, precision)
        flat, targets, weight = top.flatten(0, -2), batch.targets.reshape(-1), batch.row_weight()
        if negatives is None:
            loss, each = softmax_loss(flat, self.softmax_weight(), self.head.bias, targets, row_weight=weight)
        else:
            each = sampled_softmax_loss(
                flat, self.softmax_weight(), self.head.bias, targets, negatives.words, negatives.tries
            )
            loss = (each * weight).sum() if isinstance(weight, Tensor) else each.mean()
        return loss, each.detach().view(batch.targets.shape), after

    def contextualise(self, batch: Batch, state: State | None, precision: torch.dtype) -> tuple[Tensor, State | None]:
        """A batch and the state before it → what the softmax reads for each target, and the state after it."""
        with torch.autocast(batch.targets.device.type, torch.bfloat16, enabled=precision == torch.bfloat16):
            types = self.bilm.encode_types(batch.characters, batch.words)  # [U, P]
        return batch.read(self.bilm.context, types.to(precision), state, dropout=self.dropout if self.training else 0.0)

    def losses(self, states: Tensor, targets: Tensor) -> Tensor:
        """states [N, S], targets [N] → −log p [N] under the full softmax."""
        return target_losses(states, self.softmax_weight(), self.head.bias, targets)
