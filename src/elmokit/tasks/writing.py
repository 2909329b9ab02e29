"""Answers as text: for a person's screen, and as .jsonl, .tsv and .conll files that can be read as examples again."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path

from elmokit.errors import ElmoError
from elmokit.output.sentence_vectors import without_surrogates
from elmokit.storage.atomic import atomic_file
from elmokit.tasks.examples import Example, Kind, PairExample, Tokens
from elmokit.tasks.model import Answer, LabelAnswer, ScoreAnswer, TagAnswer, TaskModel

Answered = Iterable[tuple[Example, Answer]]
_SUFFIXES = (".jsonl", ".tsv", ".conll")
_RANKED = 3


def check_suffix(path: Path, kind: Kind | None = None) -> None:
    """Refuse a file whose suffix names no format, or none for answers of this kind."""
    if path.suffix not in _SUFFIXES:
        raise ElmoError(f"--output must end in {', '.join(_SUFFIXES)}, got {str(path)!r}")
    if path.suffix == ".conll" and kind not in (None, "tag"):
        raise ElmoError(f"--output {path}: .conll is for tags; a {kind} model writes .jsonl or .tsv")


def write_answers(path: Path, answered: Answered, model: TaskModel) -> None:
    """Examples with their answers to a file, all or none; tags as .tsv are the columns that .conll has."""
    check_suffix(path, model.kind)
    if path.suffix == ".jsonl":
        lines: Iterator[str] = (_json(example, answer) for example, answer in answered)
    elif model.kind == "tag":
        lines = (_columns(answer) for _, answer in answered)
    else:
        lines = _table(answered, model)
    with atomic_file(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(without_surrogates(line) + "\n" for line in lines)


def on_screen(example: Example, answer: Answer, *, has_spans: bool) -> str:
    """An answer as a person reads it, on a line: spans in brackets, or a tag after each token, or label and text."""
    if isinstance(answer, TagAnswer):
        parts = _marked(answer) if has_spans else map("/".join, zip(answer.tokens, answer.tags, strict=True))
        return _printable(" ".join(parts))
    if isinstance(answer, ScoreAnswer):
        said = f"{answer.score:.3f}"
    else:
        ranked = sorted(answer.probabilities.items(), key=lambda item: -item[1])
        said = "  ".join(f"{label} {probability:.3f}" for label, probability in ranked[:_RANKED])
    return _printable(f"{said}  {' | '.join(_texts(example))}")


def _marked(answer: TagAnswer) -> Iterator[str]:
    """[Ada Lovelace]PER was born in [London]LOC."""
    at = 0
    for entity in answer.entities:
        yield from answer.tokens[at : entity.start]
        yield f"[{entity.text}]{entity.type}"
        at = entity.end
    yield from answer.tokens[at:]


def _json(example: Example, answer: Answer) -> str:
    texts = {} if isinstance(answer, TagAnswer) else dict(zip(_text_names(example), _texts(example), strict=True))
    return json.dumps({**texts, **answer.to_dict()}, ensure_ascii=False)


def _columns(answer: Answer) -> str:
    assert isinstance(answer, TagAnswer)
    return "".join(f"{token}\t{tag}\n" for token, tag in zip(answer.tokens, answer.tags, strict=True))


def _table(answered: Answered, model: TaskModel) -> Iterator[str]:
    said = ("score",) if model.answers.labels is None else ("label", "probability")
    yield "\t".join([*said, *(("first", "second") if model.kind == "pair" else ("text",))])
    for example, answer in answered:
        if isinstance(answer, LabelAnswer):
            cells = [" ".join(answer.label.split()), f"{answer.probability:.6f}"]
        else:
            assert isinstance(answer, ScoreAnswer)
            cells = [f"{answer.score:.6f}"]
        yield "\t".join([*cells, *_texts(example)])


def _text_names(example: Example) -> tuple[str, ...]:
    return ("first", "second") if isinstance(example, PairExample) else ("text",)


def _texts(example: Example) -> list[str]:
    sides: tuple[Tokens, ...] = (
        (example.first, example.second) if isinstance(example, PairExample) else (example.tokens,)
    )
    return [" ".join(tokens) for tokens in sides]


def _printable(text: str) -> str:
    """Without characters that would steer a terminal."""
    return "".join("\ufffd" if unicodedata.category(character) == "Cc" else character for character in text)
