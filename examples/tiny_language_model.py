"""Train a tiny biLM on a small text, in a minute or two on two CPU cores: the model that `make demo` shows.

The network is the real one (BiLM and LmHead); the recipe is the shortest that works: whole sentences, Adam, the full
softmax.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from elmokit import BiLM, Elmo, ElmoConfig
from elmokit.config import CharacterConfig, LstmConfig
from elmokit.formats.checkpoint import Checkpoint
from elmokit.model.lm_head import LmHead
from elmokit.text.chars import ByteIndexer
from elmokit.text.vocab import BEGIN, END, UNKNOWN, Vocabulary

CONFIG = ElmoConfig(
    lstm=LstmConfig(cell_size=96, output_size=48),
    characters=CharacterConfig(filters=((1, 16), (2, 16), (3, 32), (4, 32)), embedding_size=16, n_highway=1),
)
BATCH, STEPS, MOST_SECONDS, RATE = 32, 2200, 110.0, 5e-3


def train(corpus: Path, folder: Path, *, steps: int = STEPS, seconds: float = MOST_SECONDS, seed: int = 0) -> Elmo:
    """Train on a text with a tokenised sentence a line until the steps or the seconds are used up; save the model."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)  # products this small gain nothing from a second core and lose much where it is busy
    sentences = [line.split() for line in corpus.read_text(encoding="utf-8").splitlines() if line]
    held_out, sentences = sentences[:200], sentences[200:]
    counts = Counter(word for sentence in sentences for word in sentence)
    vocab = Vocabulary([BEGIN, END, UNKNOWN, *(word for word, _ in counts.most_common())])
    types = torch.from_numpy(ByteIndexer(50)(list(vocab)).characters)  # [V, M]
    bilm, head = BiLM(CONFIG, dropout=0.2), LmHead(len(vocab), CONFIG.lstm.output_size)
    parameters = [*bilm.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=RATE)
    tokens = sum(len(sentence) for sentence in sentences)
    print(f"Training a tiny biLM once: {len(sentences):,} sentences, {tokens:,} tokens, {len(vocab):,} words")
    bilm.train()
    start, losses, step, done = time.monotonic(), [], 0, 0.0
    while done < 1:
        for batch in _batches(sentences):
            # The rate falls with the steps alone, so that the same machine trains the same model again.
            optimizer.param_groups[0]["lr"] = RATE * max(0.02, 1 - step / steps)
            done = max(step / steps, (time.monotonic() - start) / seconds)
            loss = _loss(bilm, head, types, vocab, batch)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            nn.utils.clip_grad_norm_(parameters, 5.0)
            optimizer.step()
            step += 1
            losses.append(loss.item())
            if step % 200 == 0:
                perplexity = math.exp(sum(losses[-200:]) / 200)
                print(f"  {time.monotonic() - start:4.0f} s  step {step:5,d}  perplexity {perplexity:7.1f}", flush=True)
            if done >= 1:
                break
    model = Checkpoint(
        CONFIG, dict(bilm.state_dict()), kind="elmokit", where=str(folder), vocab=vocab, head=dict(head.state_dict())
    )
    elmo = Elmo(model)
    print(f"  perplexity of {len(held_out)} sentences it has not seen: {elmo.perplexity(held_out):.1f}")
    elmo.save(folder)
    return elmo


def _batches(sentences: list[list[str]]) -> Iterator[list[list[str]]]:
    """Sentences of like length together, the batches in random order."""
    noise = torch.rand(len(sentences)).tolist()
    order = sorted(range(len(sentences)), key=lambda i: len(sentences[i]) + noise[i])
    for start in torch.randperm(len(order) // BATCH).tolist():
        yield [sentences[i] for i in order[start * BATCH : (start + 1) * BATCH]]


def _loss(bilm: BiLM, head: LmHead, types: Tensor, vocab: Vocabulary, batch: list[list[str]]) -> Tensor:
    """Mean over both directions: forward reads up to t and predicts t + 1, backward reads down to t, predicts t − 1."""
    rows = [[vocab.begin, *map(vocab.index, sentence), vocab.end] for sentence in batch]
    lengths = torch.tensor([len(row) for row in rows])
    words = torch.tensor([row + [0] * (int(lengths.max()) - len(row)) for row in rows])  # [B, T]
    used, places = torch.unique(words, return_inverse=True)
    table = bilm.encode_types(types[used], None)
    layers, _ = bilm.contextualise(table[places], lengths)
    forward, backward = layers[-1].chunk(2, dim=-1)
    inside = torch.arange(words.shape[1] - 1) < (lengths - 1).unsqueeze(1)
    losses = [
        nn.functional.cross_entropy(logits, target)
        for logits, target in (
            (head.logits(forward[:, :-1][inside]), words[:, 1:][inside]),
            (head.logits(backward[:, 1:][inside]), words[:, :-1][inside]),
        )
    ]
    return (losses[0] + losses[1]) / 2
