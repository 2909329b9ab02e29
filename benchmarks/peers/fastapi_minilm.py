"""A sentence encoder of the shape of all-MiniLM-L6-v2 behind a plain FastAPI handler, as tutorials write it.

    python -m peers.fastapi_minilm PORT WORDS [FOLDER]

FOLDER has the files of sentence-transformers/all-MiniLM-L6-v2. Without it the weights are random and the pieces are the
words of the file WORDS and single letters: the vectors mean nothing, the time is that of the model. It runs in the
environment of that peer.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI  # type: ignore[import-not-found,unused-ignore]
from pydantic import BaseModel  # type: ignore[import-not-found,unused-ignore]
from tokenizers import Tokenizer, models, pre_tokenizers  # type: ignore[import-not-found,unused-ignore]
from transformers import (  # type: ignore[import-not-found,unused-ignore]
    AutoModel,
    AutoTokenizer,
    BertConfig,
    BertModel,
    PreTrainedTokenizerFast,
)


class Texts(BaseModel):
    """The body of a request."""

    inputs: list[str]


def load(words: Path, folder: str | None) -> tuple[Any, Any]:
    """The tokenizer and the network."""
    if folder is not None:
        return AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    known = [line.strip().lower() for line in words.read_text(encoding="utf-8").splitlines()][3:]
    letters = [prefix + chr(code) for prefix in ("", "##") for code in range(33, 127)]
    pieces = dict.fromkeys(["[PAD]", "[UNK]", *letters, *known])
    vocab = {piece: number for number, piece in enumerate(list(pieces)[:30522])}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    shape = BertConfig(
        vocab_size=30522, hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]"), BertModel(shape).eval()


def main() -> None:
    port, words, *folder = sys.argv[1:]
    tokenizer, model = load(Path(words), *(folder or [None]))
    app = FastAPI()

    @app.post("/embed")
    def embed(texts: Texts) -> list[list[float]]:
        batch = tokenizer(texts.inputs, padding=True, truncation=True, max_length=256, return_tensors="pt")
        inner = {name: batch[name] for name in ("input_ids", "attention_mask")}
        with torch.inference_mode():
            last, mask = model(**inner).last_hidden_state, batch["attention_mask"].unsqueeze(-1)
            means = (last * mask).sum(1) / mask.sum(1)
            found: list[list[float]] = torch.nn.functional.normalize(means).tolist()
        return found

    @app.get("/health")
    def health() -> None:
        embed(Texts(inputs=["a first text"]))

    uvicorn.run(app, port=int(port), log_level="warning")


if __name__ == "__main__":
    main()
