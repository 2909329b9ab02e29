"""A bidirectional LSTM over ragged batches: every sentence is read from its first word to its last and back."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class BiLstm(nn.Module):
    """torch's LSTM over packed sentences, so that padding costs nothing and changes nothing; dropout between layers."""

    def __init__(self, input_size: int, hidden: int, *, layers: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        self.lstm = nn.LSTM(
            input_size,
            hidden,
            num_layers=layers,
            dropout=dropout if layers > 1 else 0.0,
            bidirectional=True,
            batch_first=True,
        )
        self.output_size = 2 * hidden
        for layer in range(layers):
            for suffix in ("", "_reverse"):
                _initialise(self.lstm, f"l{layer}{suffix}", hidden)

    def forward(self, values: Tensor, lengths: Tensor) -> Tensor:
        """values [B, T, D], lengths [B] on the CPU → [B, T, 2·hidden], zeros at padding."""
        batch, width, _ = values.shape
        if not batch or not width:
            return values.new_zeros(batch, width, self.output_size)
        # A packed sentence has a word at least; one without has a word of padding, whose output is taken out again.
        packed = pack_padded_sequence(values, lengths.clamp(min=1), batch_first=True, enforce_sorted=False)
        outputs, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=width)
        if int(lengths.min()) == 0:
            outputs = outputs * (lengths > 0).to(outputs.device)[:, None, None]
        return outputs


def _initialise(lstm: nn.LSTM, name: str, hidden: int) -> None:
    """Orthogonal steps in time, inputs that keep their size, and a forget gate that starts open."""
    for gate in range(4):
        rows = slice(gate * hidden, (gate + 1) * hidden)
        nn.init.orthogonal_(getattr(lstm, f"weight_hh_{name}").data[rows])
        nn.init.xavier_uniform_(getattr(lstm, f"weight_ih_{name}").data[rows])
    for kind in ("ih", "hh"):
        nn.init.zeros_(getattr(lstm, f"bias_{kind}_{name}").data)
    getattr(lstm, f"bias_ih_{name}").data[hidden : 2 * hidden] = 1.0
