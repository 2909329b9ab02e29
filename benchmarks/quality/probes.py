"""The information in frozen vectors, layer by layer: simple probes on the development data, the same for any model.

    python benchmarks/quality/probes.py en                      # the English probes of a model
    python benchmarks/quality/probes.py zh                      # the Chinese probes of a model that reads Chinese
    python benchmarks/quality/probes.py FOLDER --json FILE      # also a BERT-like model: config.json, tokenizer.json …
    python benchmarks/quality/probes.py glove                   # the GloVe that comes with elmokit, one layer
    python benchmarks/quality/probes.py en --tasks ner,sst2 --limit 500       # a quick look

The columns: each layer from 0, which has no context; the mean of all layers; the best single layer; all layers joined.
"Joined" is a regression on the concatenated layers; without a regression it is the mean of the layers' cosines. The
best layer is chosen on the same data, so its score is a little too high.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from logistic import fit_logistic
from numpy.typing import NDArray
from results import machine
from rows import Row, read_rows
from run import data_folder
from sources import Encoder, Vectors, open_encoder
from torch import Tensor
from two_senses import SENTENCES, read_lists, share_right, uses_of

from elmokit.analyse.probes.sources import evenly
from elmokit.analyse.probes.wic import WicPair, best_threshold, read_wic
from elmokit.analyse.probes.wsd import Entry, SenseSentence, read_evaluation, read_semcor
from elmokit.corpus.lines import InputLines
from elmokit.errors import ElmoError
from elmokit.storage.atomic import write_text
from elmokit.tasks import read_pairs, read_tagged, read_texts
from elmokit.tasks.inputs import rounded
from elmokit.tasks.schemes import detect_scheme, spans

TASKS: dict[str, tuple[str, ...]] = {
    "en": ("two-senses", "wic", "wsd", "pos", "ner", "sst2", "sst5", "trec", "sick-relatedness"),
    "zh": ("two-senses", "zh-ner-resume", "zh-ner-weibo", "zh-ner-msra", "zh-toutiao", "zh-thucnews"),
}
_FOLDS = 10
_CHUNK_TOKENS = 16_384
_CHUNK_TEXTS = 512
_NEIGHBOURS = 5
_TIE = 1e-5


@dataclass(frozen=True)
class Result:
    """One line of the table, in percent."""

    name: str
    metric: str
    layers: list[float]
    """Score of each layer."""
    mean: float
    """Score of the mean of the layers."""
    joined: float
    """Score of all layers together."""
    facts: dict[str, float] = field(default_factory=dict)
    """Sizes, and baselines without vectors."""

    @property
    def best(self) -> int:
        """The number of the best layer."""
        return int(np.argmax(self.layers))


@dataclass(frozen=True)
class Setting:
    """The options that all probes of a run share."""

    encoder: Encoder
    data: Path
    split: Literal["dev", "test"]
    limit: int | None

    @property
    def device(self) -> torch.device:
        """The device that stores the vectors and computes the probes."""
        return self.encoder.source.device

    def files(self, row: Row) -> tuple[Path, list[Path]]:
        """The training file, and the files to measure on."""
        files = row.files(self.data, self.split)
        return files["train"][0], files["measured"]


# Vectors


def stored(arrays: Iterable[Vectors], device: torch.device) -> Tensor:
    """Arrays [K, T, D] one by one → a tensor [K, N, D] in float16."""
    parts: list[Tensor] = []
    waiting: list[Vectors] = []
    tokens = 0

    def move() -> None:
        parts.append(rounded(torch.from_numpy(np.concatenate(waiting, axis=1)), torch.float16).to(device))
        waiting.clear()

    for array in arrays:
        waiting.append(array)
        tokens += array.shape[1]
        if tokens >= _CHUNK_TOKENS:  # many small arrays would be many small transfers
            move()
            tokens = 0
    if waiting:
        move()
    return torch.cat(parts, dim=1)


def shuffled(items: Sequence[Any], limit: int | None) -> list[Any]:
    """At most `limit` items in a fixed random order, because a file may be sorted."""
    chosen = evenly(items, limit)
    return [chosen[number] for number in np.random.default_rng(0).permutation(len(chosen))]


def by_layer(vectors: Tensor) -> Iterator[Tensor]:
    """vectors [K, N, D] → the vectors of each column: each layer and the mean as [1, N, D], then all layers."""
    yield from (layer.unsqueeze(0) for layer in vectors)
    yield vectors.float().mean(dim=0, keepdim=True).half() if vectors.shape[0] > 1 else vectors
    yield vectors


def with_mean(layers: Vectors) -> Vectors:
    """Layers [K, …] → [K+1, …]: the layers and their mean."""
    return np.concatenate([layers, layers.mean(axis=0, keepdims=True)])


def unit(vectors: Tensor) -> Tensor:
    """The vectors in float32, scaled to length 1."""
    return torch.nn.functional.normalize(vectors.float(), dim=-1)


def result(name: str, metric: str, columns: Sequence[float], **facts: float) -> Result:
    """A line of the table from the scores of the layers, their mean and all of them, as shares of 1."""
    *layers, mean, joined = (100 * float(value) for value in columns)
    return Result(name, metric, layers, mean, joined, facts)


# Words with several senses: no training


def probe_two_senses(setting: Setting) -> Iterator[Result]:
    """The share of uses whose nearest other use has the same sense."""
    encoder = setting.encoder
    for words in read_lists(encoder.language):
        shares = []
        for word, senses in words.items():
            vectors, labels = uses_of(encoder.source, encoder.tokenize, word, senses)  # [U, K, D]
            layers = [vectors[:, layer] for layer in range(vectors.shape[1])]
            joined = np.concatenate([found / np.linalg.norm(found, axis=1, keepdims=True) for found in layers], axis=1)
            shares.append([share_right(found, labels) for found in (*layers, vectors.mean(axis=1), joined)])
        yield result(f"{len(words)} ambiguous words", "same sense", np.mean(shares, axis=0).tolist(), words=len(words))


# Word in context: a threshold on the cosine, or a regression on the cosines of all layers


def probe_wic(setting: Setting, row: Row) -> Iterator[Result]:
    """Results of training on the training pairs, and of ten folds by word over all pairs, which are less noisy."""
    path, measured = setting.files(row)
    train, dev = _wic_pairs(setting, [path]), _wic_pairs(setting, measured)
    cosines, same, words = (np.concatenate([one, other]) for one, other in zip(train, dev, strict=True))
    first = np.arange(len(same)) < len(train[1])
    right = _wic_right(cosines, same, [(first, ~first)], setting.device)
    yield result("WiC", "accuracy", right[~first].mean(0), pairs=int((~first).sum()))
    order = np.random.default_rng(0).permutation(sorted(set(words)))
    fold_of = {word: number % _FOLDS for number, word in enumerate(order)}
    folds = np.array([fold_of[word] for word in words])
    parts = [(folds != fold, folds == fold) for fold in range(_FOLDS) if (folds == fold).any()]
    if len(parts) > 1:
        right = _wic_right(cosines, same, parts, setting.device)
        yield result("WiC, ten folds by word", "accuracy", right.mean(0), pairs=len(same))


def _wic_pairs(setting: Setting, paths: Sequence[Path]) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[Any]]:
    """The cosines of all layers and of their mean [N, K+1], the answers [N], the words [N]."""
    pairs: list[tuple[WicPair, str]] = []
    for path in paths:
        with InputLines(path) as lines:
            column = next(lines).split("\t").index("word")
            words = [line.split("\t")[column] for line in lines if line]
        pairs += zip(read_wic(path), words, strict=True)
    chosen = shuffled(pairs, setting.limit)
    stream = setting.encoder.source.stream(tokens for pair, _ in chosen for tokens in (pair.first, pair.second))
    cosines = []
    for pair, _ in chosen:
        one, other = (next(stream)[:, place] for place in pair.positions)
        cosines.append(_cosine(with_mean(one), with_mean(other)))
    return np.array(cosines), np.array([pair.same for pair, _ in chosen]), np.array([word for _, word in chosen])


def _cosine(one: Vectors, other: Vectors) -> NDArray[np.float64]:
    lengths = np.linalg.norm(one, axis=-1) * np.linalg.norm(other, axis=-1)
    cosines: NDArray[np.float64] = (one * other).sum(-1).astype(np.float64) / np.where(lengths > 0, lengths, 1)
    return cosines


def _wic_right(
    cosines: NDArray[np.float64],
    same: NDArray[np.bool_],
    parts: Sequence[tuple[NDArray[np.bool_], NDArray[np.bool_]]],
    device: torch.device,
) -> NDArray[np.bool_]:
    """Whether each answer is right, by layer, mean and all [N, K+2]; `parts` are pairs to train on and to test on."""
    answers = np.zeros((len(same), cosines.shape[1] + 1), bool)
    layers = cosines.shape[1] - 1  # the mean of the layers is not one of them
    features = torch.from_numpy(cosines[None, :, :layers]).float().to(device)
    labels = torch.from_numpy(same).long().to(device)
    for known, asked in parts:
        for column in range(cosines.shape[1]):
            answers[asked, column] = cosines[asked, column] >= best_threshold(cosines[known, column], same[known])
        classifier = fit_logistic(features[:, known], labels[known], 2)
        answers[asked, -1] = classifier.predict(features[:, asked]).bool().cpu().numpy()
    right: NDArray[np.bool_] = answers == same[:, None]
    return right


# Word senses: the sense with the nearest mean vector, or the sense of the nearest context


@dataclass(frozen=True)
class Mentions:
    """Words with a sense: vectors [K, M, D] with the layers' mean last, and the entry and the senses of each word."""

    vectors: Tensor
    entries: list[Entry]
    senses: list[tuple[str, ...]]

    def part(self, start: int, end: int) -> Mentions:
        """The mentions from `start` to `end`."""
        return Mentions(self.vectors[:, start:end], self.entries[start:end], self.senses[start:end])


def probe_wsd(setting: Setting, row: Row) -> Iterator[Result]:
    """Senses learned from SemCor: on the evaluation set, with unknown lemmas as errors, and on SemCor's last fifth."""
    path, measured = setting.files(row)
    known = read_semcor(path, setting.limit)
    mentions = _mentions(setting.encoder, known)
    asked = _mentions(setting.encoder, [s for file in measured for s in read_evaluation(file, setting.limit)])
    yield from _senses("word senses, SemCor to SemEval-2007", mentions, asked, unknown_wrong=True)
    cut = sum(len(sentence.mentions) for sentence in known[: len(known) * 4 // 5])
    fifth = mentions.part(cut, len(mentions.entries))
    yield from _senses("word senses, last fifth of SemCor", mentions.part(0, cut), fifth, unknown_wrong=False)


def _mentions(encoder: Encoder, sentences: Sequence[SenseSentence]) -> Mentions:
    used = [sentence for sentence in sentences if sentence.mentions]

    def means() -> Iterator[Vectors]:
        layers = encoder.source.stream(sentence.tokens for sentence in used)
        for sentence, found in zip(used, layers, strict=True):
            words = [found[:, m.start : m.start + m.length].mean(axis=1) for m in sentence.mentions]
            yield with_mean(np.stack(words, axis=1))

    every = [mention for sentence in used for mention in sentence.mentions]
    vectors = stored(means(), encoder.source.device)
    return Mentions(vectors, [(m.lemma, m.pos) for m in every], [m.senses for m in every])


def _senses(name: str, known: Mentions, asked: Mentions, *, unknown_wrong: bool) -> Iterator[Result]:
    indices: defaultdict[Entry, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for index, entry in enumerate(known.entries):
        indices[entry][0].append(index)
    for index, entry in enumerate(asked.entries):
        indices[entry][1].append(index)
    columns = known.vectors.shape[0] + 1
    right = {method: np.zeros(columns) for method in ("nearest sense mean", "nearest context")}
    frequent = total = 0
    for examples, questions in indices.values():
        if not questions or not (examples or unknown_wrong):
            continue
        total += len(questions)
        if not examples:
            continue
        counts = Counter(known.senses[index][0] for index in examples)
        names = sorted(counts, key=lambda sense: (-counts[sense], sense))  # the most frequent first
        gold = np.array([[sense in asked.senses[index] for sense in names] for index in questions])
        frequent += int(gold[:, 0].sum())
        if len(names) == 1:
            for method in right:
                right[method] += gold[:, 0].sum()
            continue
        numbers = torch.tensor([names.index(known.senses[index][0]) for index in examples])
        member = torch.nn.functional.one_hot(numbers, len(names)).float().to(known.vectors.device)  # [M, S]
        contexts, queries = unit(known.vectors[:, examples]), unit(asked.vectors[:, questions])
        for method, answers in zip(right, _answers(contexts, queries, member), strict=True):
            right[method] += [gold[np.arange(len(questions)), found].sum() for found in answers.cpu().numpy()]
    if total == 0:
        raise ElmoError(f"{name} needs words to measure on, got none: raise --limit")
    for method, sums in right.items():
        facts = {"words": total, "most frequent sense": round(100 * frequent / total, 2)}
        yield result(f"{name}, {method}", "recall" if unknown_wrong else "accuracy", (sums / total).tolist(), **facts)


def _answers(contexts: Tensor, queries: Tensor, member: Tensor) -> tuple[Tensor, Tensor]:
    """Contexts [K, M, D], queries [K, Q, D], member [M, S] → senses by both methods [K+1, Q]; the last row is "joined".

    Of equally near senses, as in layer 0, the first is chosen, which is the most frequent.
    """
    layers = slice(0, len(contexts) - 1)  # the mean of the layers is not one of them
    sums = torch.einsum("kmd,ms->ksd", contexts, member)
    lengths = sums.norm(dim=-1)
    dots = torch.einsum("kqd,ksd->kqs", queries, sums)
    joined = dots[layers].sum(0) / lengths[layers].square().sum(0).sqrt() / len(dots[layers]) ** 0.5
    near = torch.cat([dots / lengths.unsqueeze(1), joined.unsqueeze(0)])
    similar = torch.einsum("kqd,kmd->kqm", queries, contexts)
    similar = torch.cat([similar, similar[layers].mean(0, keepdim=True)])
    votes = (similar >= similar.amax(-1, keepdim=True) - _TIE).float() @ member
    first = torch.arange(member.shape[1], 0, -1, device=member.device)
    by_mean = ((near >= near.amax(-1, keepdim=True) - _TIE) * first).argmax(-1)
    return by_mean, ((votes >= votes.amax(-1, keepdim=True)) * first).argmax(-1)


# Tags: a linear classifier for each token


def probe_tags(setting: Setting, row: Row) -> Iterator[Result]:
    """The accuracy of parts of speech, or the F1 of entities."""
    path, measured = setting.files(row)
    train = shuffled(read_tagged(path), setting.limit)
    dev = evenly([example for file in measured for example in read_tagged(file)], setting.limit)
    tags = sorted({tag for example in train for tag in example.tags})
    known, asked = (
        stored(setting.encoder.source.stream(e.tokens for e in some), setting.device) for some in (train, dev)
    )
    numbers = {tag: number for number, tag in enumerate(tags)}
    labels = torch.tensor([numbers[tag] for example in train for tag in example.tags], device=setting.device)
    scheme = detect_scheme([example.tags for example in (*train, *dev)])
    columns: list[float] = []
    gold = [example.tags or () for example in dev]
    wanted = [tag for sentence in gold for tag in sentence]
    for vectors, questions in zip(by_layer(known), by_layer(asked), strict=True):
        found = [tags[number] for number in fit_logistic(vectors, labels, len(tags)).predict(questions).tolist()]
        if scheme.has_spans:
            columns.append(_entity_f1(found, gold, lambda tags: spans(tags, scheme)))
        else:
            columns.append(float(np.mean([guess == tag for guess, tag in zip(found, wanted, strict=True)])))
    metric = "entity F1" if scheme.has_spans else "accuracy"
    yield result(f"{row.title}, linear", metric, columns, tokens=known.shape[1], dev=asked.shape[1])


def _entity_f1(found: Sequence[str], gold: Sequence[Sequence[str]], spans_of: Callable[[Sequence[str]], Any]) -> float:
    start = correct = total = 0
    for tags in gold:
        guessed, wanted = set(spans_of(found[start : start + len(tags)])), set(spans_of(tags))
        correct += len(guessed & wanted)
        total += len(guessed) + len(wanted)
        start += len(tags)
    return 2 * correct / max(1, total)


# Sentences: the mean of the words


def probe_texts(setting: Setting, row: Row) -> Iterator[Result]:
    """The accuracy of a logistic regression on the mean of a text's words, and of the nearest training texts."""
    segment = setting.encoder.segment if row.language == "zh" else "none"
    path, measured = setting.files(row)
    read = ([e for file in files for e in read_texts(file, segment=segment)] for files in ([path], [], measured))
    train, _, dev = row.divided(*read)
    train, dev = shuffled(train, setting.limit), evenly(dev, setting.limit)
    classes = sorted({example.label for example in train})
    numbers = {label: number for number, label in enumerate(classes)}
    known, asked = (_stored_means(setting, [example.tokens for example in some]) for some in (train, dev))
    labels, wanted = (
        torch.tensor([numbers.get(example.label, -1) for example in some], device=setting.device)
        for some in (train, dev)
    )
    columns = [
        float((fit_logistic(vectors, labels, len(classes)).predict(questions) == wanted).float().mean())
        for vectors, questions in zip(by_layer(known), by_layer(asked), strict=True)
    ]
    yield result(f"{row.title}, mean of the words", "accuracy", columns, texts=len(train), dev=len(dev))
    votes = torch.nn.functional.one_hot(labels, len(classes)).float()
    columns = [
        float((_nearest_class(vectors, votes, questions) == wanted).float().mean())
        for vectors, questions in zip(by_layer(known), by_layer(asked), strict=True)
    ]
    yield result(f"{row.title}, {_NEIGHBOURS} nearest texts", "accuracy", columns, texts=len(train), dev=len(dev))


def _nearest_class(known: Tensor, votes: Tensor, asked: Tensor) -> Tensor:
    """Means [K, M, D], their classes [M, C] and means [K, Q, D] → the classes [Q] by vote of the nearest neighbours.

    A neighbour's vote is weighted by its cosine.
    """
    known, found = unit(known), []
    for part in asked.split(_CHUNK_TEXTS, dim=1):
        cosines = torch.einsum("kqd,kmd->qm", unit(part), known) / len(known)
        near = cosines.topk(min(_NEIGHBOURS, cosines.shape[1]))
        found.append((near.values.unsqueeze(-1) * votes[near.indices]).sum(1).argmax(-1))
    return torch.cat(found)


def probe_pairs(setting: Setting, row: Row) -> Iterator[Result]:
    """The rank correlation of the cosine of two sentences with people's scores, without training."""
    _, measured = setting.files(row)
    columns: dict[str, Any] = {**row.columns}
    pairs = [pair for file in measured for pair in read_pairs(file, segment="english", **columns)]
    pairs = list(evenly(pairs, setting.limit))
    sides = [_stored_means(setting, [pair.sentences[side] for pair in pairs]) for side in (0, 1)]
    scores = np.array([float(str(pair.label)) for pair in pairs])
    *single, joined = zip(by_layer(sides[0]), by_layer(sides[1]), strict=True)
    cosines = [(unit(one) * unit(other)).sum(-1).mean(0).cpu().numpy() for one, other in (*single, joined)]
    found = [float(np.corrcoef(_ranks(values), _ranks(scores))[0, 1]) for values in cosines]
    yield result(f"{row.title}, cosine of the means", "Spearman", found, pairs=len(pairs))


def _ranks(values: NDArray[Any]) -> NDArray[np.float64]:
    """The rank of each value; equal values get their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks: NDArray[np.float64] = (ends - (counts - 1) / 2)[inverse]
    return ranks


def _stored_means(setting: Setting, sentences: Sequence[Sequence[str]]) -> Tensor:
    return stored((found[:, None] for found in setting.encoder.means(sentences)), setting.device)


# The command


def run_task(setting: Setting, task: str, rows: dict[str, Row]) -> Iterator[Result]:
    """The lines of one task."""
    if task == "two-senses":
        return probe_two_senses(setting)
    probes = {"wic": probe_wic, "wsd": probe_wsd, "pos": probe_tags, "tag": probe_tags, "classify": probe_texts}
    return {**probes, "pair": probe_pairs}[rows[task].kind](setting, rows[task])


def render(results: Sequence[Result]) -> str:
    """The table in Markdown."""
    if not results:
        return ""
    layers = range(max(len(found.layers) for found in results))
    head = ["probe", "metric", *(f"layer {layer}" for layer in layers), "mean", "best layer", "joined"]
    lines = [head, ["---", "---", *["---:"] * (len(head) - 2)]]
    for found in results:
        shown = [f"{value:.1f}" for value in (*found.layers, found.mean)]
        best = f"{found.layers[found.best]:.1f} ({found.best})"
        lines.append([found.name, found.metric, *shown, best, f"{found.joined:.1f}"])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "model", metavar="MODEL", help="a model that Elmo.load can load, the folder of a BERT-like model, or glove"
    )
    parser.add_argument("--data", type=Path, metavar="DIR", help="the folder of the tasks [../shared/tasks]")
    parser.add_argument("--tasks", help=f"separated by commas [all of a language]; English: {', '.join(TASKS['en'])}; "
                        f"Chinese: {', '.join(TASKS['zh'])}")  # fmt: skip
    parser.add_argument("--language", choices=tuple(SENTENCES), help="language of the tasks [the model's]")
    parser.add_argument("--split", choices=("dev", "test"), default="dev", help="the data to measure on [%(default)s]")
    parser.add_argument("--limit", type=int, metavar="N", help="use at most N sentences of each set, evenly spread")
    parser.add_argument("--device", help="cpu, cuda … [a GPU if there is one]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the scores to this file")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> None:
    options = arguments(given)
    start = time.perf_counter()
    encoder = open_encoder(options.model, options.device, options.language)
    setting = Setting(encoder, data_folder(options.data), options.split, options.limit)
    tasks = TASKS[encoder.language] if options.tasks is None else options.tasks.split(",")
    known = ("two-senses", *(rows := read_rows()))
    if unknown := [task for task in tasks if task not in known]:
        raise ElmoError(f"--tasks must name some of {', '.join(known)}, got {unknown[0]!r}")
    found: list[Result] = []
    seconds: dict[str, float] = {}
    for task in tasks:
        begun = time.perf_counter()
        try:
            for line in run_task(setting, task, rows):
                found.append(line)
                joined = f"layer 0 {line.layers[0]:.1f}, best {line.layers[line.best]:.1f}, joined {line.joined:.1f}"
                print(f"{line.name}: {joined} ({line.facts})", file=sys.stderr, flush=True)
        except ElmoError as error:
            print(f"{task}: {error}", file=sys.stderr, flush=True)
        seconds[task] = round(time.perf_counter() - begun, 1)
    command = shlex.join(["python", "benchmarks/quality/probes.py", *(sys.argv[1:] if given is None else given)])
    print(f"`{command}`\n\n{machine(options.device)}; {time.perf_counter() - start:.0f} s: {seconds}\n")
    print(render(found))
    if options.json is not None:
        figures = [{**vars(line), "best": line.best} for line in found]
        facts = {"model": options.model, "command": command, "machine": machine(options.device), "seconds": seconds}
        write_text(options.json, json.dumps({**facts, "probes": figures}, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    try:
        main()
    except ElmoError as error:
        sys.exit(f"probes.py: {error}")
