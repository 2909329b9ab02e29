"""spaCy's tagger or entity recogniser on ELMo vectors, compared with the same component on spaCy's own features.

    python examples/spacy_tagger.py                                              # generated sentences, a tiny model
    python examples/spacy_tagger.py en train.conllu dev.conllu --limit 500       # parts of speech: spaCy's tagger
    python examples/spacy_tagger.py en train.conll dev.conll --limit 500         # BIO tags: spaCy's ner

Whether tags mark spans is detected from the file. ELMo is frozen, so each sentence is embedded once, before training.
The script prints the score on DEV after each training. --output saves the pipeline on ELMo vectors for spacy.load.
Needs spaCy: pip install 'elmokit[spacy]'.
"""

from __future__ import annotations

import random
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import spacy
from ner_conll import made_up
from spacy.language import Language
from spacy.tokens import Doc, Span
from spacy.training import Example
from spacy.util import fix_random_seed
from start import arguments, batches, open_model

from elmokit.tasks import TaggedExample, read_tagged
from elmokit.tasks.schemes import Scheme, detect_scheme, spans

OWN = {  # spaCy's default: embeddings of the norm, prefix, suffix and shape of words, and four convolutions
    "@architectures": "spacy.HashEmbedCNN.v2",
    "pretrained_vectors": None,
    "width": 96,
    "depth": 4,
    "embed_size": 2000,
    "window_size": 1,
    "maxout_pieces": 3,
    "subword_features": True,
}


def main() -> None:
    given = arguments(__doc__, epochs=10, output=True)
    made = made_up(300) if given.train is None else []
    train = made[:240] or read_tagged(given.train)[: given.limit]
    dev = made[240:] or read_tagged(given.dev)[: given.limit]
    scheme = detect_scheme(example.tags or () for example in train)
    with TemporaryDirectory() as folder:
        model = given.model
        if model is None:
            model = str(Path(folder, "tiny"))
            open_model(None, (" ".join(example.tokens) for example in train)).save(model)
        for features in ("spaCy", "ELMo"):
            nlp = pipeline(scheme, model if features == "ELMo" else None)
            score, seconds = fit(nlp, train, dev, scheme, given.epochs)
            name, measure = nlp.pipe_names[-1], "F1" if scheme.has_spans else "accuracy"
            print(f"{name} on {features} features: {measure} {score:.3f} after {given.epochs} epochs, {seconds:.0f} s")
        if given.output:
            nlp.get_pipe("elmo").save_model = given.model is None  # the tiny model is gone when this script ends
            nlp.to_disk(given.output)


def pipeline(scheme: Scheme, model: str | None) -> Language:
    """spaCy's tagger or ner on the component elmo, or without a model on spaCy's own features."""
    nlp = spacy.blank("en")
    features: dict[str, Any] = OWN
    if model is not None:
        elmo = nlp.add_pipe("elmo", config={"model": model, "per": "doc"})
        features = {"@architectures": "spacy.Tok2VecListener.v1", "width": elmo.width, "upstream": "elmo"}
    if scheme.has_spans:
        nlp.add_pipe("ner", config={"model": {"tok2vec": features}})
    else:
        nlp.add_pipe("tagger", config={"model": {"tok2vec": features}})
    return nlp


def fit(
    nlp: Language, train: list[TaggedExample], dev: list[TaggedExample], scheme: Scheme, epochs: int
) -> tuple[float, float]:
    """Train all components but elmo; return the score on dev, and the seconds of training and scoring."""
    begin = time.monotonic()
    fix_random_seed(1)
    examples = [Example(bare(nlp, each), annotated(nlp, each, scheme)) for each in train]
    elmo = [name for name in nlp.pipe_names if name == "elmo"]
    for name in elmo:  # once: spaCy copies doc.tensor in each update
        list(nlp.get_pipe(name).pipe(example.predicted for example in examples))
    optimizer = nlp.initialize(lambda: examples)
    chance = random.Random(1)
    for _ in range(epochs):
        for batch in batches(examples, 8, shuffle=chance.randrange(1000)):
            nlp.update(batch, sgd=optimizer, drop=0.1, exclude=elmo)
    scores = nlp.evaluate([Example(bare(nlp, each), annotated(nlp, each, scheme)) for each in dev])
    return scores["ents_f" if scheme.has_spans else "tag_acc"], time.monotonic() - begin


def bare(nlp: Language, example: TaggedExample) -> Doc:
    """A doc with the tokens only."""
    return Doc(nlp.vocab, words=list(example.tokens))


def annotated(nlp: Language, example: TaggedExample, scheme: Scheme) -> Doc:
    """A doc with the tokens and their correct tags or entities."""
    doc = bare(nlp, example)
    if scheme.has_spans:
        doc.set_ents([Span(doc, found.start, found.end, found.type) for found in spans(example.tags or (), scheme)])
    else:
        for token, tag in zip(doc, example.tags or (), strict=True):
            token.tag_ = tag
    return doc


if __name__ == "__main__":
    main()
