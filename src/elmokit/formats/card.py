"""The model card of a saved model: README.md with its facts, an example and notes."""

from __future__ import annotations

import re
from collections.abc import Mapping

from elmokit.formats.checkpoint import Checkpoint
from elmokit.model.int8 import COLUMNS, SCALES

CARD_TITLE = "# An ELMo model in elmokit's format"
_HEADING = re.compile("#{1,5} ")
_NOTES_BEGIN, _NOTES_END = "<!-- notes: kept when the model is saved again -->", "<!-- end of the notes -->"


def model_card(checkpoint: Checkpoint) -> str:
    """A short model card in Markdown."""
    lines = [CARD_TITLE, ""]
    lines += [f"- {'read from' if name == 'format' else name}: {value}" for name, value in describe(checkpoint)]
    lines += [
        "",
        "```python",
        "from elmokit import Elmo",
        "",
        'elmo = Elmo.load("path/to/this/folder")',
        f'vectors = elmo.encode(["{_example(checkpoint)}"])',
        "```",
        "",
    ]
    if notes := checkpoint.notes.strip("\n"):
        # A marker inside the notes would end them too early when they are read.
        for mark in (_NOTES_BEGIN, _NOTES_END):
            notes = notes.replace(mark, "")
        lines += [_NOTES_BEGIN, "", notes, "", _NOTES_END, ""]
    return "\n".join(lines)


def notes_in(card: str) -> str:
    """The notes in a model card; empty if it has none."""
    _, begun, rest = card.replace("\r\n", "\n").partition(_NOTES_BEGIN)
    notes, ended, _ = rest.partition(_NOTES_END)
    return notes.strip("\n") if begun and ended else ""


def training_section(facts: Mapping[str, str]) -> str:
    """The facts about a model's training as Markdown, for `Checkpoint.notes`.

    A fact is one line, or a list below its name if it has several lines; `command` becomes a code block.

    >>> print(training_section({"data": "news.txt, 1,000 sentences", "command": "elmo train news.txt --output m"}))
    ## Training
    <BLANKLINE>
    - data: news.txt, 1,000 sentences
    <BLANKLINE>
    ```bash
    elmo train news.txt --output m
    ```
    """
    lines = ["## Training", ""]
    for name, value in facts.items():
        first, *more = value.strip().splitlines() or [""]
        if name == "command" or not first:
            continue
        lines += [f"- {name}:", *(f"  - {line.strip()}" for line in (first, *more))] if more else [f"- {name}: {first}"]
    if command := facts.get("command", "").strip():
        fence = "```" if "```" not in command else "~~~~"
        lines += ["", f"{fence}bash", command, fence]
    return "\n".join(lines)


def earlier_section(notes: str) -> str:
    """The notes of the model that a run started from, with headings one level lower; empty if it has none.

    >>> print(earlier_section("## Licence\\n\\nApache-2.0"))
    <BLANKLINE>
    <BLANKLINE>
    ## The model it started from
    <BLANKLINE>
    What follows describes that model: its figures are not those of this one, but its data and its licence still apply.
    <BLANKLINE>
    ### Licence
    <BLANKLINE>
    Apache-2.0
    """
    if not notes.strip():
        return ""
    lines = [
        "",
        "",
        "## The model it started from",
        "",
        "What follows describes that model: its figures are not those of this one, but its data and its licence still "
        "apply.",
        "",
    ]
    in_code = False
    for line in notes.strip("\n").split("\n"):
        in_code ^= line.startswith(("```", "~~~"))
        lines.append(f"#{line}" if _HEADING.match(line) and not in_code else line)
    return "\n".join(lines)


def describe(checkpoint: Checkpoint) -> list[tuple[str, str]]:
    """The names and values of the facts that `elmo info` and the model card show."""
    config = checkpoint.config
    parameters = sum(
        value.numel() for name, value in checkpoint.weights.items() if not name.endswith((SCALES, COLUMNS))
    )
    matrices = ", int8 matrices" if checkpoint.int8 else ""
    rows = [*checkpoint.about.items(), ("format", checkpoint.kind), ("parameters", f"{parameters:,}{matrices}")]
    if config.characters is not None:
        characters = config.characters
        alphabet = "UTF-8 bytes" if characters.alphabet == "bytes" else f"{characters.n_characters - 1:,} symbols"
        filters = " ".join(f"{width}:{count}" for width, count in characters.filters)
        rows.append(
            ("characters", f"{alphabet}, at most {characters.max_characters} per word, {characters.activation}")
        )
        rows.append(("filters (width:count)", f"{filters} = {characters.n_filters:,}, highways {characters.n_highway}"))
    if config.words is not None:
        rows.append(("word table", f"{config.words.n_words:,} words x {config.words.embedding_size}"))
    rows += config.context.describe(config.n_directions)
    rows.append(("vectors", f"{config.n_outputs} layers x {config.vector_size}"))
    rows.append(("vocabulary", f"{len(checkpoint.vocab):,} words" if checkpoint.vocab else "none"))
    dtype = ", int8" if checkpoint.softmax_int8 else ""
    rows.append(("softmax", f"{len(checkpoint.head['bias']):,} words{dtype}" if checkpoint.head else "none"))
    if checkpoint.optimizer:
        step = int(checkpoint.optimizer["step"][0]) if "step" in checkpoint.optimizer else None
        rows.append(("optimiser state", "Adagrad" + (f" at step {step:,}" if step is not None else "")))
    return rows


def _example(checkpoint: Checkpoint) -> str:
    """A sentence in a language that the model probably knows."""
    chinese = checkpoint.text.get("segment") in ("chars", "jieba")
    return "他在银行存钱。" if chinese else "The bank raised interest rates"
