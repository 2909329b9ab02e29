"""A table for spreadsheets and R: one row per token, or one per sentence if the vectors are pooled.

    sentence   the number of the sentence, from 1
    position   the number of the token in the sentence, from 1; empty in the one row of a sentence without tokens
    token      the token; if pooled, the column `tokens` instead, with spaces between the tokens, and no position
    layer      only with all layers, one row per layer: the number of the layer, from 0; in the row of a sentence
               without tokens, the number of layers
    d1 ... dD  the vector

A spreadsheet would run a token that begins with = + - @ or a control character as a formula. Such a token gets an
apostrophe in front, also if apostrophes come before that character; read_vectors removes the apostrophe. Lone
surrogates become U+FFFD.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import numpy as np

from elmokit.errors import ElmoError
from elmokit.output.sentence_vectors import SentenceVectors, Vectors, shortest_decimals, without_surrogates
from elmokit.output.writers import register_writer

_FORMULA = re.compile("'*[=+\\-@＝＋－＠\\t\\r\\n]")
_MAX_COLUMNS = 1 << 20


def write(stored: SentenceVectors, target: Path) -> None:
    """Write a row for each vector."""
    shape = stored.shape
    names = ["sentence", "tokens"] if shape.pooled else ["sentence", "position", "token"]
    layer = [] if shape.layers is None else ["layer"]
    with target.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow([*names, *layer, *(f"d{number}" for number in range(1, shape.dim + 1))])
        for sentence, (_, tokens, rows) in enumerate(stored.items(), 1):
            if shape.pooled:
                cells: list[list[object]] = [[sentence, _harmless(" ".join(tokens))]]
            else:
                cells = [[sentence, position, _harmless(token)] for position, token in enumerate(tokens, 1)]
                if not tokens:
                    table.writerow([sentence, "", "", *([shape.layers] if layer else [])])
            for before, row in zip(cells, rows, strict=True):
                vectors = row if layer else row[np.newaxis]
                for number, vector in enumerate(vectors):
                    table.writerow([*before, *([number] if layer else []), *shortest_decimals(vector)])


def _harmless(text: str) -> str:
    """The text in a form that a spreadsheet shows and does not run."""
    return without_surrogates(f"'{text}" if _FORMULA.match(text) else text)


def read(path: Path) -> Iterator[tuple[list[str], Vectors]]:
    """The tokens and vectors of each sentence."""
    before = csv.field_size_limit(1 << 30)  # a token may be long
    try:
        with path.open(encoding="utf-8", newline="") as file:
            yield from _read(path, csv.reader(file))
    except csv.Error as error:
        raise ValueError(str(error)) from error
    finally:
        csv.field_size_limit(before)


def _read(path: Path, table: Iterator[list[str]]) -> Iterator[tuple[list[str], Vectors]]:
    head = next(table, [])
    pooled, layered = "tokens" in head, "layer" in head
    n_names = 2 if pooled else 3
    start = n_names + layered
    expected = ["sentence", "tokens"] if pooled else ["sentence", "position", "token"]
    if head[:start] != expected + ["layer"] * layered or len(head) > _MAX_COLUMNS:
        raise ElmoError(f"{path} must have the columns sentence, token and d1 to dD, got {', '.join(head)[:80]}")
    dim, layers = len(head) - start, 0
    for _, rows in groupby(table, key=lambda row: row[0]):
        cells: list[str] = []
        vectors: list[Vectors] = []
        for row in rows:
            if not pooled and row[1:3] == ["", ""]:  # a sentence without tokens
                layers = int(row[3]) if layered else 0
                continue
            if len(row) != len(head):
                raise ValueError(f"a row of {len(row)} cells in a table of {len(head)} columns")
            if not layered or int(row[n_names]) == 0:
                cells.append(row[n_names - 1])
            vectors.append(np.array(row[start:], np.float64).astype(np.float32))
        tokens = [cell[1:] if cell.startswith("'") and _FORMULA.match(cell[1:]) else cell for cell in cells]
        layers = len(vectors) // len(tokens) if tokens else layers
        shape = (len(tokens), layers, dim) if layered else (len(tokens), dim)
        flat = np.concatenate([np.empty((0, dim), np.float32), *(each[np.newaxis] for each in vectors)]).reshape(shape)
        if pooled:
            yield tokens[0].split(" ") if tokens[0] else [], flat[0]
        else:
            yield tokens, np.ascontiguousarray(flat.swapaxes(0, 1)) if layered else flat


register_writer(".csv", write=write, read=read)
