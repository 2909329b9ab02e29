"""ELMo vectors in scikit-learn: a Pipeline, and a GridSearchCV over options of ELMo and of the classifier.

    python examples/sklearn_pipeline.py                                       # generated questions, a tiny model
    python examples/sklearn_pipeline.py MODEL train.tsv dev.tsv --limit 1000  # `label TAB text`

A text is embedded once for each layer and pool, for all folds and classifiers, so this grid costs four passes through
the model. The script prints the mean score of each cell of the grid, and a report by class on texts that the search has
not seen. Needs scikit-learn: pip install 'elmokit[tasks]'.
"""

from __future__ import annotations

import random

from sklearn.linear_model import LogisticRegression
from sklearn.metrics import classification_report
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline
from start import arguments, open_model

from elmokit.sklearn import ElmoVectorizer
from elmokit.tasks import TextExample, read_texts

THINGS = ["bank", "river", "play", "match", "light", "ring", "note", "spring"]
PATTERNS = {
    "place": ["Where is the {} ?", "In which town did you see a {} ?", "What is the way to the {} ?"],
    "time": ["When did the {} begin ?", "At what hour do we see the {} ?", "How long is the {} ?"],
    "reason": ["Why is the {} so important ?", "What made you see the {} ?", "What is the {} for ?"],
}
GRID = {
    "elmo__layer": ["mix", 0],  # 0: words without context
    "elmo__pool": ["mean", "max"],
    "classifier__C": [0.1, 1.0],
}


def main() -> None:
    given = arguments(__doc__)
    made = made_up(150) if given.train is None else []
    elmo = open_model(given.model, (" ".join(example.tokens) for example in made))
    train = made[:100] or read_texts(given.train, segment=elmo.segment)[: given.limit]
    dev = made[100:] or read_texts(given.dev, segment=elmo.segment)[: given.limit]
    pipeline = Pipeline([("elmo", ElmoVectorizer(elmo)), ("classifier", LogisticRegression(max_iter=2000))])
    search = GridSearchCV(pipeline, GRID, cv=3).fit([example.tokens for example in train], labels(train))
    for cell, score in zip(search.cv_results_["params"], search.cv_results_["mean_test_score"], strict=True):
        print(f"{score:.3f}  " + "  ".join(f"{name} {value}" for name, value in cell.items()))
    print(f"the best: {search.best_params_}")
    predicted = search.predict([example.tokens for example in dev])
    print(classification_report(labels(dev), predicted, zero_division=0))


def labels(examples: list[TextExample]) -> list[str]:
    return [str(example.label) for example in examples]


def made_up(count: int) -> list[TextExample]:
    """Generated questions about a place, a time or a reason."""
    chance, questions = random.Random(1), []
    for _ in range(count):
        label = chance.choice(sorted(PATTERNS))
        question = chance.choice(PATTERNS[label]).format(chance.choice(THINGS))
        questions.append(TextExample(tuple(question.split()), label))
    return questions


if __name__ == "__main__":
    main()
