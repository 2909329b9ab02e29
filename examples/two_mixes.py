"""Answers to questions, as in SQuAD: ELMo at the input of the task's LSTM and again at its output.

    python examples/two_mixes.py                               # generated passages, a tiny model, seconds
    python examples/two_mixes.py MODEL train.jsonl dev.jsonl   # {"passage": …, "question": …, "answer": …} a line

`Elmo.load(..., mixes=2)` gives two weighted sums of the same layers, `output["mixes"]`, each with its own weights; the
biLM runs once for both. The answer is a span of the passage: each token is scored as its first and as its last token.
The script prints the share of right answers, some answers, and the two mixes, which learn different weights.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import torch
from start import arguments, batches, open_model, shown
from torch import Tensor, nn

from elmokit import Elmo

Question = tuple[list[str], list[str], tuple[int, int]]
"""A passage, a question, and the first and the last token of the answer in the passage."""
PEOPLE = ["Anna", "Omar", "Nina", "Leo", "Maria", "Peter", "Lucy", "Sam"]
FACTS = {
    "lives in": ["Rome", "New York", "Lima"],
    "works as": ["a nurse", "a cook", "an old sailor"],
    "eats": ["rice", "fresh fish", "apples"],
}
ASKED = {"lives in": "Where does {} live ?", "works as": "What is the work of {} ?", "eats": "What does {} eat ?"}


class SpanFinder(nn.Module):
    """Questions → scores of each token as the first and as the last token of the answer, [B, T, 2]."""

    def __init__(self, elmo: Elmo, hidden: int = 50) -> None:
        super().__init__()
        self.elmo, size = elmo, elmo.config.vector_size
        self.lstm = nn.LSTM(2 * size + 1, hidden, batch_first=True, bidirectional=True)
        self.output = nn.Linear(2 * hidden + size, 2)

    def forward(self, batch: list[Question]) -> Tensor:
        """Attention from each token of a passage to the question, then the LSTM, then ELMo's second mix."""
        passages, questions = self.elmo([q[0] for q in batch]), self.elmo([q[1] for q in batch])
        at_input, at_output = passages["mixes"]  # [B, T, D] each
        asked = questions["mixes"][0]  # [B, Q, D]
        similarity = nn.functional.normalize(at_input, dim=2) @ nn.functional.normalize(asked, dim=2).mT  # [B, T, Q]
        attended = (10 * similarity).masked_fill(~questions["mask"].unsqueeze(1), -torch.inf).softmax(2) @ asked
        states, _ = self.lstm(torch.cat([at_input, attended, similarity.amax(2, keepdim=True)], dim=2))
        scores: Tensor = self.output(torch.cat([states, at_output], dim=2))
        return scores.masked_fill(~passages["mask"].unsqueeze(2), -1e9)

    @torch.no_grad()
    def answers(self, batch: list[Question]) -> list[tuple[int, int]]:
        """The best span of each passage; a span does not end before it begins."""
        first, last = self(batch).unbind(2)  # [B, T] each
        spans = first.unsqueeze(2) + last.unsqueeze(1)  # [B, T, T]
        spans = spans.masked_fill(torch.ones_like(spans).tril(-1).bool(), -torch.inf)
        return [divmod(int(best), first.shape[1]) for best in spans.flatten(1).argmax(1)]


def main() -> None:
    given = arguments(__doc__, epochs=4)
    torch.manual_seed(1)
    made = made_up(360) if given.train is None else []
    elmo = open_model(given.model, (" ".join(words) for question in made for words in question[:2]), mixes=2)
    train = made[:300] or read(given.train)[: given.limit]
    dev = made[300:] or read(given.dev)[: given.limit]
    model = SpanFinder(elmo).to(elmo.device)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.005)
    for epoch in range(1, given.epochs + 1):
        for batch in batches(train, shuffle=epoch):
            spans = torch.tensor([question[2] for question in batch], device=elmo.device)  # [B, 2]
            loss = nn.functional.cross_entropy(model(batch), spans)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        found = [span for batch in batches(dev) for span in model.answers(batch)]
        right = sum(span == question[2] for span, question in zip(found, dev, strict=True))
        print(f"epoch {epoch}: {right / len(dev):.3f} of the answers are right")
    for (passage, question, _), (first, last) in zip(dev[:3], found, strict=False):
        print(f"  {' '.join(passage)}\n  {' '.join(question)} {' '.join(passage[first : last + 1])}")
    for place, mix in zip(("input", "output"), elmo.mixes, strict=True):
        print(f"at the {place}: {shown(mix)}")


def read(path: str) -> list[Question]:
    """The questions of a file, tokenised by spaces; a line is left out if the answer is not in its passage."""
    found: list[Question] = []
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        passage, question, answer = (json.loads(line)[name].split() for name in ("passage", "question", "answer"))
        starts = [start for start in range(len(passage)) if passage[start : start + len(answer)] == answer]
        found += [(passage, question, (start, start + len(answer) - 1)) for start in starts[:1]]
    return found


def made_up(count: int) -> list[Question]:
    """Generated passages with three facts about a person in any order, and a question about one of them."""
    chance, found = random.Random(1), []
    for _ in range(count):
        who, asked = chance.choice(PEOPLE), chance.choice(list(FACTS))
        passage: list[str] = []
        for verb in chance.sample(list(FACTS), len(FACTS)):
            answer = chance.choice(FACTS[verb]).split()
            passage += [who, *verb.split(), *answer, "."]
            if verb == asked:
                span = (len(passage) - 1 - len(answer), len(passage) - 2)
        found.append((passage, ASKED[asked].format(who).split(), span))
    return found


if __name__ == "__main__":
    main()
