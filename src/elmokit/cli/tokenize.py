"""`elmo tokenize`: shows the tokens of a text as a model reads them."""

from __future__ import annotations

from dataclasses import dataclass

from elmokit.cli.registry import command
from elmokit.cli.shared import AS_IN_TRAINING, SEGMENT_HELP, ModelOptions, input_lines, say
from elmokit.messages import json_line
from elmokit.options import argument, option
from elmokit.text.tokens import SegmenterName


@command("tokenize")
@dataclass(frozen=True, kw_only=True)
class TokenizeCommand(ModelOptions):
    """Show the tokens of a text exactly as the model reads them, with a space between them."""

    texts: tuple[str, ...] = argument("Sentences, each as one argument.", "TEXT", default=(), blank=True)
    input: str | None = option(
        None, "Text with one sentence per line, plain or compressed; - is standard input.", metavar="FILE"
    )
    segment: SegmenterName | None = option(None, SEGMENT_HELP, shown=AS_IN_TRAINING)
    json: bool = option(False, "Print one JSON object per line: the text and its tokens with character offsets.")

    def run(self) -> None:
        """Print one line per sentence."""
        with input_lines(self.texts, self.input, "tokenise") as lines:
            elmo = self.load(self.segment)
            unknown = elmo.unknown_tokens()
            for line in lines:
                tokens = elmo.tokenize(line)
                unknown.add([token.text for token in tokens])
                if self.json:
                    record = {"text": line, "tokens": [token._asdict() for token in tokens]}
                    print(json_line(record), flush=True)
                else:
                    print(" ".join(token.text for token in tokens), flush=True)
        if message := unknown.message():
            say(f"elmo: {message}")
