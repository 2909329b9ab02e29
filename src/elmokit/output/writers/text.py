"""Text in the format of ELMoForManyLangs: one line per token, the token and its vector separated by tabs.

An empty line ends a sentence. With all layers, a line has the vector of layer 0, then of layer 1 and so on.
A pooled sentence is one line with its tokens joined by spaces. White space inside a token becomes a space.
"""

from __future__ import annotations

from pathlib import Path

from elmokit.output.sentence_vectors import SentenceVectors, without_surrogates
from elmokit.output.writers import DEFAULT_LAYOUT, register_writer


def write(stored: SentenceVectors, target: Path) -> None:
    """Write the tokens of all sentences."""
    with target.open("w", encoding="utf-8", newline="\n") as file:
        for _, tokens, rows in stored.items():
            names = [" ".join(tokens)] if stored.shape.pooled else tokens
            for name, row in zip(names, rows, strict=True):
                numbers = "\t".join(f"{value:.8f}" for value in row.reshape(-1).tolist())
                file.write(f"{' '.join(without_surrogates(name).split())}\t{numbers}\n")
            file.write("\n")


for _layout in (DEFAULT_LAYOUT, "manylangs"):
    register_writer(".txt", write=write, layout=_layout)
