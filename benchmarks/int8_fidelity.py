"""How close int8 vectors are to float32 vectors, on text and in a task.

    python benchmarks/int8_fidelity.py [--model en] [--sentences 1000] [--task FOLDER] TEXT...

TEXT is a file with one sentence or paragraph per line, plain or packed; its first 1,000 lines are skipped. FOLDER has
train.tsv and dev.tsv with a label and a text per line; a logistic regression is trained on the mean vectors.
"""

from __future__ import annotations

import argparse
import csv
from itertools import islice
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from elmokit import Elmo
from elmokit.corpus.lines import InputLines

SKIPPED, LONGEST = 1000, 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="*", metavar="TEXT")
    parser.add_argument("--model", default="en")
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--task", type=Path)
    arguments = parser.parse_args()
    exact, small = (Elmo.load(arguments.model, device="cpu", dtype=dtype) for dtype in ("float32", "int8"))
    for path in arguments.text:
        with InputLines(path) as lines:
            rows = [line.split()[:LONGEST] for line in islice(lines, SKIPPED, SKIPPED + arguments.sentences)]
        print(f"{path}: {len(rows):,} sentences, {sum(map(len, rows)):,} tokens")
        for layer in ("mix", *range(exact.config.n_outputs)):
            one, other = (np.concatenate(elmo.encode(rows, layer=layer)) for elmo in (exact, small))
            cosine = (one * other).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)
            print(f"  {layer!s:<4} cosine to float32: mean {cosine.mean():.5f}, worst {cosine.min():.5f}", flush=True)
    if arguments.task:
        for elmo in (exact, small):
            print(f"{arguments.task}, {elmo.dtype}: accuracy {accuracy(elmo, arguments.task):.4f}", flush=True)


def accuracy(elmo: Elmo, folder: Path) -> float:
    (texts, labels), (dev_texts, dev_labels) = (read(folder / f"{part}.tsv") for part in ("train", "dev"))
    vectors = elmo.encode([*texts, *dev_texts], output="sentence", segment="whitespace")  # SST is tokenised
    scaler = StandardScaler().fit(vectors[: len(texts)])
    scaled = scaler.transform(vectors)
    model = LogisticRegression(C=0.01, max_iter=1000).fit(scaled[: len(texts)], labels)
    return float(model.score(scaled[len(texts) :], dev_labels))


def read(path: Path) -> tuple[list[str], list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return [row["text"] for row in rows], [row["label"] for row in rows]


if __name__ == "__main__":
    main()
