"""Named entities: a biLSTM-CRF tagger on ELMo vectors, from CoNLL files to the entities of new sentences.

    python examples/ner_conll.py                                            # generated sentences, a tiny model, seconds
    python examples/ner_conll.py MODEL train.conll dev.conll --limit 2000   # one token and its tag per line, CoNLL-2003

The script prints the entity F1 by type, and tags the same word by its context: "Jordan" is a footballer in one sentence
and a country in the other. With a real model and 1,000 sentences of CoNLL-2003 expect an F1 of about 0.85.
"""

from __future__ import annotations

import random

from start import arguments, open_model

from elmokit.tasks import TaggedExample, TaskOptions, fit, read_tagged

BOTH = ["Jordan", "Washington", "Paris", "Sydney", "Chelsea"]  # people or places, depending on the context
NAMES = {"PER": ["Ada Lovelace", "Omar", "Nina Brown", "Leo", *BOTH], "LOC": ["New York", "Rome", "Peru", *BOTH]}
PATTERNS = [
    "{PER} was born in {LOC} .",
    "{PER} said that the team would win .",
    "The train to {LOC} left at noon .",
    "It rained in {LOC} , {PER} told us .",
    "Yesterday {PER} scored two goals against {PER} .",
    "Prices in {LOC} rose .",
]
SENTENCES = ["Yesterday Jordan scored two goals .", "The train to Jordan left at noon ."]


def main() -> None:
    given = arguments(__doc__, epochs=5)
    made = made_up(300) if given.train is None else []
    elmo = open_model(given.model, (" ".join(example.tokens) for example in made))
    train = made[:240] or read_tagged(given.train)[: given.limit]
    dev = made[240:] or read_tagged(given.dev)[: given.limit]
    fitted = fit("tag", train, dev, TaskOptions(epochs=given.epochs), elmo=elmo)
    print(*fitted.notes, *fitted.scores.table(), sep="\n")
    print(f"{len(fitted.history)} epochs, {fitted.seconds:.0f} s; tags: {' '.join(fitted.model.labels)}")
    for answer in fitted.model.predict([sentence.split() for sentence in SENTENCES]):
        print(f"\n{' '.join(answer.tokens)}")
        for entity in answer.entities:
            sure = min(answer.probabilities[entity.start : entity.end])
            print(f"  {entity.type:<4} {entity.text}, tokens {entity.start} to {entity.end - 1} ({sure:.2f})")


def made_up(count: int) -> list[TaggedExample]:
    """Generated sentences with BIO tags."""
    chance, examples = random.Random(1), []
    for _ in range(count):
        tokens: list[str] = []
        tags: list[str] = []
        for piece in chance.choice(PATTERNS).split():
            kind = piece.strip("{}")
            words = chance.choice(NAMES[kind]).split() if kind in NAMES else [piece]
            tokens += words
            tags += [f"B-{kind}", *[f"I-{kind}"] * (len(words) - 1)] if kind in NAMES else ["O"]
        examples.append(TaggedExample(tuple(tokens), tuple(tags)))
    return examples


if __name__ == "__main__":
    main()
