"""What a notebook shows of `elmo(...)`: the tokens, the layers and small heat maps, as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

SHOWN_SENTENCES = 3
SHOWN_TOKENS = 16


def heat_maps(sentences: Sequence[Sequence[str]], layers: Sequence[NDArray[np.float32]]) -> str:
    """How similar the tokens of a sentence are to each other without context, in layer 0, and in the top layer.

    `layers`: [L+1, T, D] for each sentence.
    """
    parts = [_sentence(*each) for each in zip(sentences[:SHOWN_SENTENCES], layers, strict=False)]
    if len(sentences) > SHOWN_SENTENCES:
        parts.append(f"<p>… and {len(sentences) - SHOWN_SENTENCES:,} more</p>")
    return f"<p>ElmoOutput: cosine similarities of tokens</p>{''.join(parts)}"


def _sentence(tokens: Sequence[str], layers: NDArray[np.float32]) -> str:
    n_layers, n_tokens, size = layers.shape
    more = f", the first {SHOWN_TOKENS} shown" if n_tokens > SHOWN_TOKENS else ""
    tables = (_table(f"layer {number}", tokens[:SHOWN_TOKENS], layers[number]) for number in (0, n_layers - 1))
    return f"<p>{n_tokens:,} tokens{more}, {n_layers} layers x {size}</p>{''.join(tables)}"


def _table(title: str, tokens: Sequence[str], vectors: NDArray[np.float32]) -> str:
    vectors = vectors[: len(tokens)]
    scaled = vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
    names = [f"<th><bdi>{escape(token)}</bdi></th>" for token in tokens]
    cells = ("".join(map(_cell, row)) for row in (scaled @ scaled.T).tolist())
    rows = "".join(f"<tr>{name}{row}</tr>" for name, row in zip(names, cells, strict=True))
    return f'<table style="display: inline-block"><tr><th>{title}</th>{"".join(names)}</tr>{rows}</table>'


def _cell(similarity: float) -> str:
    shade = min(max(similarity, 0.0), 1.0)
    return f'<td style="background: rgba(31, 119, 180, {shade:.2f})">{similarity:.2f}</td>'
