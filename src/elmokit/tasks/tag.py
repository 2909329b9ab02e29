"""The task `tag`, one tag for each token: [static vectors; ELMo] → biLSTM → scores of the tags → CRF."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from elmokit.errors import ElmoError
from elmokit.tasks.classify import check_training_labels, check_unseen_labels, label_names
from elmokit.tasks.network import Inputs, InputSpec, TaskNetwork
from elmokit.tasks.options import TaskOptions
from elmokit.tasks.reading import (
    Column,
    FilePath,
    Segment,
    Tokens,
    escape_formula,
    location,
    numbered_lines,
    read_columns,
    suffix_of,
    token_location,
)
from elmokit.tasks.schemes import (
    OUTSIDE,
    Scheme,
    Span,
    check_scheme,
    detect_scheme,
    from_bioes,
    spans,
    to_bioes,
    transitions,
)
from elmokit.tasks.scores import ClassScore, MainScore, TaskScores, accuracy_scores, check_lengths, class_scores
from elmokit.tasks.static import padded_rows
from elmokit.tasks.task import Answer, Example, Task
from elmokit.text.graphemes import HAN, KANA
from elmokit.text.policy import TextPolicy

_UNSPACED = re.compile(rf"([{HAN}{KANA}]) (?=[{HAN}{KANA}])")
Allowed = Sequence[Tensor | NDArray[np.bool_]]
_FORBIDDEN = -1e4
"""The score of a forbidden transition: its exp is exactly 0, and unlike -inf it keeps gradients finite."""


@dataclass(frozen=True)
class TaggedExample(Example):
    """A sentence and the tags of its tokens, as the file spells them."""

    tokens: Tokens
    tags: Tokens | None = None
    line: int = 0
    raw: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class Entity:
    """A span of tokens that the tags mark, from `start` up to but not including `end`."""

    start: int
    end: int
    type: str
    text: str
    """Its part of the raw text; if tokens were given, the tokens joined by spaces (none between CJK characters)."""
    start_char: int | None = None
    end_char: int | None = None
    """Its character offsets in the raw text, `text[start_char:end_char]`; None if tokens were given."""


@dataclass(frozen=True)
class TagAnswer(Answer):
    """The tags of a sentence, spelled as in training, their probabilities, and the spans that they mark."""

    tokens: Tokens
    tags: Tokens
    probabilities: tuple[float, ...]
    entities: tuple[Entity, ...]


def score_tags(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], scheme: Scheme) -> TaskScores:
    """Token accuracy and, if tags mark spans, precision, recall and F1 of whole spans by type.

    Gold and predicted tags have the given scheme and spelling; broken sequences are read as conlleval reads them.
    """
    check_lengths(len(gold), len(predicted))
    for right, guess in zip(gold, predicted, strict=True):
        if len(right) != len(guess):
            raise ElmoError(f"each token needs one predicted tag, got {len(guess)} for {len(right)} tokens")
    flat_gold, flat_predicted = ([tag for tags in part for tag in tags] for part in (gold, predicted))
    names = sorted({*flat_gold, *flat_predicted})
    classes, confusion = class_scores(flat_gold, flat_predicted, names)
    accuracy, macro_f1 = accuracy_scores(classes)
    counts = {"tokens": len(flat_gold)}
    if not scheme.has_spans:
        all_scores = (accuracy, macro_f1)
        return TaskScores(all_scores, classes, tuple(names), confusion, counts, "tag", confusion_title="tokens")
    right_spans, guessed_spans = ([spans(tags, scheme) for tags in part] for part in (gold, predicted))
    types = sorted({span.type for sentence in (*right_spans, *guessed_spans) for span in sentence})
    right_types, guessed_types = (_token_types(part, map(len, gold)) for part in (right_spans, guessed_spans))
    _, confusion = class_scores(right_types, guessed_types, [*types, OUTSIDE])
    # A predicted span is correct if its start, end and type are.
    both = [set(right) & set(guess) for right, guess in zip(right_spans, guessed_spans, strict=True)]
    found = [Counter(span.type for row in part for span in row) for part in (both, guessed_spans, right_spans)]
    classes = tuple(ClassScore(name, *(counter[name] for counter in found)) for name in types)
    total = ClassScore("all", *(counter.total() for counter in found))
    scores = (
        MainScore("entity F1", total.f1),
        MainScore("entity precision", total.precision),
        MainScore("entity recall", total.recall),
        MainScore("token accuracy", accuracy.value),
    )
    title = "tokens by type of span"
    return TaskScores(scores, classes, (*types, OUTSIDE), confusion, counts, "type", total, title)


def _token_types(found: Sequence[Sequence[Span]], lengths: Iterable[int]) -> list[str]:
    """For each token of all sentences, the type of the span that contains it, or O."""
    types: list[str] = []
    for sentence, length in zip(found, lengths, strict=True):
        row = [OUTSIDE] * length
        for span in sentence:
            row[span.start : span.end] = [span.type] * (span.end - span.start)
        types += row
    return types


class Crf(nn.Module):
    """A conditional random field: learned scores of transitions between K tags, and of each tag as first and last.

    `allowed` is the result of `schemes.transitions`. Forbidden sequences have probability 0 and are never decoded,
    unless no sequence is allowed at all.

    >>> crf = Crf(3)
    >>> crf.decode(torch.tensor([[[0.0, 2.0, 1.0], [3.0, 0.0, 1.0]]]), torch.tensor([2]))
    tensor([[1, 0]])
    """

    may_follow: Tensor
    may_start: Tensor
    may_end: Tensor

    def __init__(self, n_tags: int, allowed: Allowed | None = None) -> None:
        super().__init__()
        shapes = ((n_tags, n_tags), (n_tags,), (n_tags,))
        rules = [torch.ones(shape) for shape in shapes] if allowed is None else [torch.as_tensor(a) for a in allowed]
        self.n_tags = n_tags
        self.transitions = nn.Parameter(torch.zeros(n_tags, n_tags))
        self.starts = nn.Parameter(torch.zeros(n_tags))
        self.ends = nn.Parameter(torch.zeros(n_tags))
        for name, rule in zip(("may_follow", "may_start", "may_end"), rules, strict=True):
            self.register_buffer(name, rule.to(torch.bool).clone())

    def log_likelihood(self, emissions: Tensor, tags: Tensor, lengths: Tensor) -> Tensor:
        """emissions [B, T, K], tags [B, T] (any at padding), lengths [B] → log p(tags) [B]; 0 for empty sentences."""
        mask = _mask(emissions, lengths)
        if not emissions.shape[1]:
            return emissions.new_zeros(len(emissions))
        score = self._score(emissions, tags.clamp(0, self.n_tags - 1), mask)
        log_partition = torch.logsumexp(self._forward_scores(emissions, mask)[-1] + self._scores()[2], dim=1)
        return (score - log_partition) * mask[:, 0]

    def marginals(self, emissions: Tensor, lengths: Tensor) -> Tensor:
        """emissions [B, T, K] → the probability of each tag at each token [B, T, K], 0 at padding."""
        mask = _mask(emissions, lengths)
        if not emissions.shape[1]:
            return torch.zeros_like(emissions)
        forward = torch.stack(self._forward_scores(emissions, mask), dim=1)
        backward = torch.stack(self._backward_scores(emissions, mask), dim=1)
        return torch.softmax(forward + backward, dim=2) * mask.unsqueeze(2)

    @torch.no_grad()
    def decode(self, emissions: Tensor, lengths: Tensor) -> Tensor:
        """emissions [B, T, K] → the best allowed tag sequences [B, T], -1 at padding."""
        mask = _mask(emissions, lengths)
        if not emissions.shape[1]:
            return lengths.new_zeros(len(lengths), 0).to(emissions.device)
        transitions, starts, ends = self._scores(float("-inf"))
        first, *others = emissions.unbind(1)
        best = starts + first  # [B, K]: the best score of the sequences that end in each tag
        same_tag = torch.arange(self.n_tags, device=emissions.device).expand_as(best)
        back_pointers = []
        for step, here in enumerate(others, 1):
            reached, previous = (best.unsqueeze(2) + transitions).max(dim=1)
            inside = mask[:, step, None]
            best = torch.where(inside, reached + here, best)
            back_pointers.append(torch.where(inside, previous, same_tag))
        tag = (best + ends).argmax(dim=1, keepdim=True)  # [B, 1]
        path = [tag]
        for previous in reversed(back_pointers):
            tag = previous.gather(1, tag)
            path.append(tag)
        return torch.cat(path[::-1], dim=1).masked_fill(~mask, -1)

    def _scores(self, forbidden: float = _FORBIDDEN) -> tuple[Tensor, Tensor, Tensor]:
        """Transitions [K, K], starts [K] and ends [K], with the score `forbidden` where a rule forbids them."""
        return (
            self.transitions.masked_fill(~self.may_follow, forbidden),
            self.starts.masked_fill(~self.may_start, forbidden),
            self.ends.masked_fill(~self.may_end, forbidden),
        )

    def _score(self, emissions: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
        """The score of the given sequences, [B]."""
        transitions, starts, ends = self._scores()
        inside = mask.to(emissions.dtype)
        emitted = emissions.gather(2, tags.unsqueeze(2)).squeeze(2) * inside
        moved = transitions[tags[:, :-1], tags[:, 1:]] * inside[:, 1:]
        last = tags.gather(1, (mask.sum(dim=1, keepdim=True) - 1).clamp(min=0)).squeeze(1)
        return emitted.sum(dim=1) + moved.sum(dim=1) + starts[tags[:, 0]] + ends[last]

    def _forward_scores(self, emissions: Tensor, mask: Tensor) -> list[Tensor]:
        """For each token [B, K], the log-sum-exp of the scores of all sequences up to each tag; repeated at padding."""
        transitions, starts, _ = self._scores()
        # unbind: the gradient of an index per step would be a whole tensor of zeros for each step.
        first, *others = emissions.unbind(1)
        alpha = starts + first
        alphas = [alpha]
        for step, here in enumerate(others, 1):
            reached = torch.logsumexp(alpha.unsqueeze(2) + transitions, dim=1) + here
            alpha = torch.where(mask[:, step, None], reached, alpha)
            alphas.append(alpha)
        return alphas

    def _backward_scores(self, emissions: Tensor, mask: Tensor) -> list[Tensor]:
        """For each token [B, K], the log-sum-exp of the scores of all sequences that follow each tag."""
        transitions, _, ends = self._scores()
        beta = ends.expand(len(emissions), self.n_tags)
        betas = [beta]
        for step in range(emissions.shape[1] - 1, 0, -1):
            onward = torch.logsumexp(transitions + (emissions[:, step] + beta).unsqueeze(1), dim=2)
            beta = torch.where(mask[:, step, None], onward, beta)
            betas.append(beta)
        return betas[::-1]


def _mask(emissions: Tensor, lengths: Tensor) -> Tensor:
    """Which positions are tokens and not padding, [B, T]."""
    return torch.arange(emissions.shape[1], device=emissions.device) < lengths.to(emissions.device).unsqueeze(1)


class TagNetwork(TaskNetwork):
    """A linear layer for each token and, with the option `crf`, a CRF."""

    def __init__(self, options: TaskOptions, spec: InputSpec, n_outputs: int, allowed: Allowed | None = None) -> None:
        super().__init__(options, spec, n_outputs)
        self.output = nn.Linear(self.state_size, n_outputs)
        self.crf = Crf(n_outputs, allowed) if options.crf else None

    def vectors(self, inputs: Inputs) -> Tensor:
        """The vector of each token, [B, T, size]."""
        return self.states(inputs[0])

    def output_loss(self, outputs: Tensor, targets: Tensor, inputs: Inputs) -> Tensor:
        """outputs [B, T, K] and tags [B, T] (any at padding) → the mean loss of the sentences."""
        (batch,) = inputs
        if self.crf is not None:
            return -self.crf.log_likelihood(outputs, targets, batch.lengths).mean()
        known = targets.masked_fill(~batch.mask, -1)
        total = F.cross_entropy(outputs.flatten(0, 1), known.flatten(), ignore_index=-1, reduction="sum")
        return total / max(len(outputs), 1)

    def decode(self, outputs: Tensor, inputs: Inputs) -> tuple[Tensor, ...]:
        """The best tags [B, T], -1 at padding, and the probabilities of all tags [B, T, K], 0 at padding."""
        (batch,) = inputs
        if self.crf is not None:
            return self.crf.decode(outputs, batch.lengths), self.crf.marginals(outputs, batch.lengths)
        mask = batch.mask
        return outputs.argmax(dim=2).masked_fill(~mask, -1), torch.softmax(outputs, dim=2) * mask.unsqueeze(2)


@dataclass(frozen=True)
class TagTask(Task[TaggedExample, TagAnswer]):
    """One tag for each token; the network predicts BIOES tags, and answers have the scheme of the training file."""

    bioes_tags: Tokens
    """The tags that the network can predict, in the order of their ids."""
    scheme: Scheme = field(default_factory=Scheme)

    name = "tag"
    example = TaggedExample
    columns = ("token_column", "tag_column")
    own_options = ("crf",)
    hidden = 400
    splits_text = False
    suffixes = (".jsonl", ".tsv", ".conll")

    @classmethod
    def read_examples(
        cls, path: FilePath, columns: Mapping[str, Any], segment: Segment, labelled: bool
    ) -> Iterator[TaggedExample]:
        """The sentences of a file; with labelled=False and no token column, a .txt file has one text per line."""
        if labelled or columns.get("token_column") is not None or suffix_of(path) != ".txt":
            yield from (TaggedExample(*row) for row in read_columns(path, columns, labelled))
            return
        policy, empty = TextPolicy.of(segment), True
        for number, line in numbered_lines(path):
            if tokens := tuple(policy.split(line)):
                empty = False
                yield TaggedExample(tokens, None, number, (line,))
        if empty:
            raise ElmoError(f"{path} has no sentences: it must have one sentence per line")

    @classmethod
    def from_examples(
        cls, examples: Sequence[TaggedExample], options: TaskOptions, path: FilePath | None = None
    ) -> tuple[Self, list[str]]:
        """The task with the tags and the scheme of training examples, and a warning about broken spans."""
        scheme = detect_scheme(_tags(example, path) for example in examples)
        notes = check_scheme(_tags_with_locations(examples, path), scheme)
        tags = [tag for example in examples for tag in to_bioes(_tags(example), scheme)]
        check_training_labels(tags, path)  # its warnings do not apply: a tag of a span may well be rare
        return cls(label_names(tags), scheme), notes

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any], options: TaskOptions) -> Self:
        """The task that `to_dict` describes."""
        return cls(tuple(stored["tags"]), Scheme(**stored["scheme"]))

    def to_dict(self) -> dict[str, Any]:
        """The task for JSON."""
        return {"kind": self.name, "tags": self.bioes_tags, "scheme": asdict(self.scheme)}

    @cached_property
    def ids(self) -> dict[str, int]:
        """The id of each BIOES tag."""
        return {name: number for number, name in enumerate(self.bioes_tags)}

    @cached_property
    def labels(self) -> tuple[str, ...]:  # type: ignore[override]
        """The tags that answers can have, in the scheme and spelling of the training file."""
        if not self.scheme.has_spans:
            return self.bioes_tags
        found = {OUTSIDE} & self.ids.keys()
        for kind in {name[2:] for name in self.bioes_tags if name != OUTSIDE}:
            for letters in ("SS", "BEBE", "BIE"):  # with adjacent spans, which IOB1 spells differently
                tags = [f"{letter}-{kind}" if kind else letter for letter in letters]
                if self.ids.keys() >= set(tags):
                    found.update(from_bioes(tags, self.scheme))
        return label_names(found)

    def check(
        self, examples: Sequence[TaggedExample], path: FilePath | None = None, *, held_out: bool = False
    ) -> list[str]:
        """Refuse examples without tags or with another scheme; return warnings about tags unknown from training."""
        sentences = _tags_with_locations(examples, path)
        # Held-out sentences may have a large share of broken spans even if the whole file has few.
        notes = check_scheme(sentences, self.scheme, refuse=not held_out)
        if self.scheme.has_spans and all(tag == OUTSIDE for tags, _ in sentences for tag in tags):
            notes.append("every tag to score on is O, so the entity F1 is 0 for any answers")
        # Broken spans are checked as they are read.
        read = [(from_bioes(to_bioes(tags, self.scheme), self.scheme), location_of) for tags, location_of in sentences]
        tags = ((tag, partial(location_of, index)) for tags, location_of in read for index, tag in enumerate(tags))
        return notes + check_unseen_labels(self.labels, tags)

    def build_network(self, options: TaskOptions, spec: InputSpec) -> TagNetwork:
        """A network with one output per BIOES tag."""
        return TagNetwork(options, spec, len(self.bioes_tags), transitions(self.bioes_tags, self.scheme))

    def targets(self, examples: Sequence[TaggedExample]) -> Tensor:
        """The ids of the tags [B, T], 0 at padding."""
        return padded_rows([[self.ids[tag] for tag in to_bioes(_tags(e), self.scheme)] for e in examples])

    def answer(self, example: TaggedExample, decoded: tuple[Tensor, ...]) -> TagAnswer:
        """The tags as the training file spells them; `decoded` is tags [T] and probabilities [T, K], padded."""
        n = len(example.tokens)
        ids, probabilities = decoded[0][:n].tolist(), decoded[1][:n].tolist()
        tags = from_bioes([self.bioes_tags[number] for number in ids], self.scheme)
        found = spans(tags, self.scheme) if self.scheme.has_spans else []
        entities = tuple(_entities(example, found))
        # The probability of a tag is the sum over the BIOES tags that the file's scheme spells in the same way.
        sums = (
            min(1.0, sum(row[bioes_id] for bioes_id in {number, *self._bioes_ids(tag)}))
            for row, tag, number in zip(probabilities, tags, ids, strict=True)
        )
        return TagAnswer(example.tokens, tags, tuple(sums), entities)

    def _bioes_ids(self, tag: str) -> list[int]:
        """The ids of the BIOES tags that a tag of the file can stand for: in BIO, B stands for B and S."""
        letters = {"BIO": {"B": "BS", "I": "IE"}, "IOB1": {"B": "BS", "I": "BIES"}}.get(self.scheme.name)
        if letters is None or tag == OUTSIDE:
            return []
        names = [letter + tag[1:].replace(self.scheme.separator, "-", 1) for letter in letters[tag[0]]]
        return [self.ids[name] for name in names if name in self.ids]

    def score(self, examples: Sequence[TaggedExample], answers: Sequence[TagAnswer]) -> TaskScores:
        """The F1 of spans and the accuracy of tags."""
        return score_tags([_tags(example) for example in examples], [a.tags for a in answers], self.scheme)

    def on_screen(self, example: TaggedExample, answer: TagAnswer) -> str:
        """Spans in brackets, as in `[Ada Lovelace]PER was born in [London]LOC`; if tags mark no spans, token/tag."""
        if not self.scheme.has_spans:
            return " ".join(map("/".join, zip(answer.tokens, answer.tags, strict=True)))
        parts: list[str] = []
        at, (raw,) = 0, example.raw or ("",)
        for entity in answer.entities:
            marked = f"[{entity.text}]{entity.type}"
            if entity.start_char is not None and entity.end_char is not None:
                parts += [raw[at : entity.start_char], marked]
                at = entity.end_char
            else:
                parts += [*answer.tokens[at : entity.start], marked]
                at = entity.end
        return "".join([*parts, raw[at:]]) if example.raw else " ".join([*parts, *answer.tokens[at:]])

    def to_dict_with_texts(self, example: TaggedExample, answer: TagAnswer) -> dict[str, Any]:
        """The raw text, if there is one, and the answer, which includes the tokens, for JSON."""
        return {**dict(zip(self.sides, example.raw, strict=False)), **answer.to_dict()}

    def table_lines(self, answered: Iterable[tuple[TaggedExample, TagAnswer]], suffix: str) -> Iterator[str]:
        """Lines with a token and its tag, and a blank line after each sentence."""
        cell = escape_formula if suffix == ".tsv" else str  # spreadsheets do not open .conll files
        for _, answer in answered:
            yield "".join(f"{cell(token)}\t{tag}\n" for token, tag in zip(answer.tokens, answer.tags, strict=True))


TASK = TagTask


def _tags(example: TaggedExample, path: FilePath | None = None) -> Tokens:
    if example.tags is None:
        where = location(path, example.line)
        raise ElmoError(f"{where}: every token must have a tag to train or score, got none")
    if wrong := [tag for tag in example.tags if not isinstance(tag, str)]:
        raise ElmoError(f"{location(path, example.line)}: a tag must be a string, got {wrong[0]!r}")
    return example.tags


def _tags_with_locations(
    examples: Iterable[TaggedExample], path: FilePath | None
) -> list[tuple[Tokens, Callable[[int], str]]]:
    """The tags of each sentence, and a function from a token's index to its location in the file."""
    return [(_tags(example, path), partial(token_location, path, example.line, example.tokens)) for example in examples]


def _entities(example: TaggedExample, found: Iterable[Span]) -> Iterator[Entity]:
    """The spans with their text and, if the example has its raw text, with their character offsets."""
    if not example.raw:
        for span in found:
            yield Entity(*span, _UNSPACED.sub(r"\1", " ".join(example.tokens[span.start : span.end])))
        return
    (text,), ends = example.raw, [0]
    for token in example.tokens:  # in the raw text, the tokens are in the same order
        ends.append(text.index(token, ends[-1]) + len(token))
    for span in found:
        start, end = ends[span.start + 1] - len(example.tokens[span.start]), ends[span.end]
        yield Entity(*span, text[start:end], start, end)


def read_tagged(
    path: FilePath,
    *,
    token_column: Column | None = None,
    tag_column: Column | None = None,
    segment_digits: bool | None = None,
    segment: Segment = "whitespace",
    labelled: bool = True,
) -> list[TaggedExample]:
    """The sentences of a file and their tags, as the file spells them.

    Columns are separated by tabs or spaces and numbered from 1. By default the token is in the first column and the tag
    in the last, or in FORM and UPOS of a .conllu file, whose columns also have names (`tag_column="xpos"`).
    `segment_digits` says whether each token ends in a digit for its position in a word (口0 腔1); None: detect it. With
    labelled=False no tags are read, and a .txt file has one sentence per line, split by `segment`.
    """
    columns = {"token_column": token_column, "tag_column": tag_column, "segment_digits": segment_digits}
    return list(TagTask.read(path, segment=segment, labelled=labelled, **columns))
