"""Sentiment of film reviews with an LSTM classifier of your own: `Elmo` is a layer like any other torch module.

    python examples/sentiment_lstm.py                                       # generated reviews, a tiny model, seconds
    python examples/sentiment_lstm.py MODEL train.tsv dev.tsv --limit 1000  # `label TAB text`, as IMDB or SST

The biLM is frozen and runs again in every epoch; the LSTM, the output layer and the mix of the layers are trained. To
compute the vectors only once, use `elmo task train classify`. The script prints accuracy and mix after each epoch; the
model learns that "not dull" is praise. With a real model an epoch takes minutes on a CPU; use hundreds of reviews.
"""

from __future__ import annotations

import random
import time

import torch
from start import arguments, batches, open_model, shown
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from elmokit import Elmo
from elmokit.tasks import TextExample, read_texts

MAX_TOKENS = 120
WORDS = {"positive": ["wonderful", "clever", "funny", "moving"], "negative": ["dull", "clumsy", "boring", "weak"]}
THINGS = ["film", "plot", "acting", "ending", "music", "script", "story", "cast"]
# The last pattern negates the words, so that counting words is not enough.
PATTERNS = [
    "The {} was {} and the {} {} .",
    "What a {1} {0} and {3} {2} !",
    "We saw a {1} {0} with {3} {2} .",
    "I do not find the {} {} nor the {} {} .",
]


class SentimentLstm(nn.Module):
    """Texts → scores of the labels [B, K]."""

    def __init__(self, elmo: Elmo, n_labels: int, hidden: int = 50) -> None:
        super().__init__()
        self.elmo = elmo
        self.lstm = nn.LSTM(elmo.config.vector_size, hidden, batch_first=True, bidirectional=True)
        self.output = nn.Linear(2 * hidden, n_labels)

    def forward(self, texts: list[tuple[str, ...]]) -> Tensor:
        """Scores from the largest value of each LSTM output over the words of a text, without padding."""
        found = self.elmo(texts)  # "elmo" [B, T, D], "sequence_len" [B], and more
        packed = pack_padded_sequence(found["elmo"], found["sequence_len"].cpu(), True, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.lstm(packed)[0], True, padding_value=-torch.inf)
        scores: Tensor = self.output(states.amax(dim=1))
        return scores


def main() -> None:
    given = arguments(__doc__, epochs=5)
    torch.manual_seed(1)
    made = made_up(500) if given.train is None else []
    elmo = open_model(given.model, (" ".join(example.tokens) for example in made))
    train = made[:400] or read_texts(given.train, segment=elmo.segment)[: given.limit]
    dev = made[400:] or read_texts(given.dev, segment=elmo.segment)[: given.limit]
    labels = sorted({str(example.label) for example in train})
    model = SentimentLstm(elmo, len(labels)).to(elmo.device)
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    frozen = sum(parameter.numel() for parameter in elmo.bilm.parameters())
    print(f"parameters: {frozen:,} frozen (biLM), {sum(parameter.numel() for parameter in learned):,} trained")
    optimizer = torch.optim.Adam(learned, lr=0.006)
    for epoch in range(1, given.epochs + 1):
        began = time.monotonic()
        for batch in batches(train, shuffle=epoch):
            loss = nn.functional.cross_entropy(scores(model, batch), targets(batch, labels).to(elmo.device))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        with torch.no_grad():
            right = sum(int((scores(model, b).argmax(1).cpu() == targets(b, labels)).sum()) for b in batches(dev))
        print(
            f"epoch {epoch}: accuracy {right / len(dev):.3f}, {shown(elmo.mixes[0])} ({time.monotonic() - began:.0f} s)"
        )


def scores(model: SentimentLstm, batch: list[TextExample]) -> Tensor:
    found: Tensor = model([example.tokens[:MAX_TOKENS] for example in batch])
    return found


def targets(batch: list[TextExample], labels: list[str]) -> Tensor:
    return torch.tensor([labels.index(str(example.label)) for example in batch])


def made_up(count: int) -> list[TextExample]:
    """Reviews of one sentence."""
    chance, reviews = random.Random(1), []
    for _ in range(count):
        label, other = chance.sample(sorted(WORDS), 2)
        pattern = chance.choice(PATTERNS)
        words, things = WORDS[other if " not " in pattern else label], chance.sample(THINGS, 2)
        review = pattern.format(things[0], chance.choice(words), things[1], chance.choice(words))
        reviews.append(TextExample(tuple(review.split()), label))
    return reviews


if __name__ == "__main__":
    main()
