"""The preparation of a run: its prepared corpora, its initial network, its training and held-out sentences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from elmokit.config import ElmoConfig, TransformerConfig
from elmokit.corpus.prepare import prepare
from elmokit.corpus.prepared import PreparedCorpus, build_vocabulary, coverage
from elmokit.corpus.report import progress_display
from elmokit.errors import ElmoError
from elmokit.formats.checkpoint import Checkpoint
from elmokit.formats.load import read_checkpoint
from elmokit.formats.registry import DEFAULT_FORMAT
from elmokit.model.bilm import BiLM
from elmokit.model.language_model import LmHead
from elmokit.pretrain.checkpoints import RunFolder
from elmokit.pretrain.distributed import Processes
from elmokit.pretrain.loop import Data
from elmokit.pretrain.network import LanguageModelNetwork, initialise, start_from_frequencies
from elmokit.pretrain.recipe import Recipe, character_options, parse_filters
from elmokit.pretrain.request import TrainRequest, read_vocab_file
from elmokit.pretrain.sentences import Sentences, TypeTable
from elmokit.pretrain.updates import choose_precision, choose_sampled
from elmokit.text.chars import SymbolTable
from elmokit.text.vocab import Vocabulary
from elmokit.text.word_vectors import align

Say = Callable[[str], None]
_MOST_HELD_OUT = 10_000
_UPDATES_AN_EPOCH, _LEAST_ROWS, _MOST_ROWS = 800, 16, {False: 32, True: 256}
_LEAST_TOKENS, _MOST_TOKENS = 512, {False: 4096, True: 65_536}
_BLOCKS, _ADDED = "blocks.", ("out", "down")
"""The prefix of a Transformer's block weights, and a block's two matrices whose outputs are added to the residual."""


@dataclass
class Start:
    """A network before its first update, with its vocabulary and origin."""

    config: ElmoConfig
    network: LanguageModelNetwork
    vocab: Vocabulary
    symbols: SymbolTable | None = None
    slots: dict[str, Tensor] | None = None
    """Adagrad's sums from a TensorFlow checkpoint, by the network's names of weights."""
    new_softmax: bool = True
    """Whether the softmax is untrained."""
    messages: list[str] = field(default_factory=list)
    """Lines about the network for the user."""
    where: str = ""
    """The path of the model of `init`; empty for a new network."""
    notes: str = ""
    """The text of that model's card about its training and licence."""

    def checkpoint(self, where: str, weights: Mapping[str, Tensor] | None = None) -> Checkpoint:
        """The model as a checkpoint to write, with `weights` or the current weights of the network."""
        weights = weights if weights is not None else self.network.state_dict()
        bilm = {name.removeprefix("bilm."): value for name, value in weights.items() if name.startswith("bilm.")}
        head = {name.removeprefix("head."): value for name, value in weights.items() if name.startswith("head.")}
        if self.network.tied:
            head["weight"] = bilm["token_encoder.words.weight"][1:]
        return Checkpoint(
            self.config, bilm, kind=DEFAULT_FORMAT, where=where, vocab=self.vocab, symbols=self.symbols, head=head
        )


def corpora(
    request: TrainRequest, recipe: Recipe, folder: RunFolder, processes: Processes, say: Say
) -> tuple[PreparedCorpus, PreparedCorpus | None]:
    """The prepared corpus and held-out text; for a resumed run the text must be unchanged."""
    stored = folder.read_request() if folder.started else {"prepared": {}}
    found: dict[str, PreparedCorpus | None] = {"corpus": None, "heldout": None}
    for name, sources in (
        ("heldout", request.heldout),
        ("corpus", request.corpus),
    ):  # the shorter text first: an error shows sooner
        if not sources:
            continue
        before, corpus = stored["prepared"].get(name), None
        if before and list(sources) == stored[name]:
            with suppress(ElmoError):  # the prepared corpus was removed
                corpus = PreparedCorpus.open(Path(before["folder"]), before["content"])
        if corpus is None:
            if "-" in sources and processes.count > 1:
                raise ElmoError("standard input cannot be shared by several processes: write the corpus to a file")
            into = request.cache
            if "-" in sources and into is None:
                into = folder.folder / f"{name}-from-stdin"
            reading: Any = {"segment": recipe.segment, "split": recipe.split, "max_tokens": recipe.max_tokens}
            with progress_display(name, quiet=not processes.first) as on_progress:
                corpus = prepare(sources, **reading, folder=into, workers=request.workers, on_progress=on_progress)
            if before and corpus.content != before["content"]:
                raise ElmoError(f"the {name} is no longer the text the run began with: start a new run")
        for line in corpus.report.lines():
            say(f"{name}: {line}")
        found[name] = corpus
    assert found["corpus"] is not None
    return found["corpus"], found["heldout"]


def start_of(request: TrainRequest, recipe: Recipe, corpus: PreparedCorpus) -> Start:
    """The network before its first update: a new one, perhaps with static word vectors, or an existing model."""
    vocab = None if request.vocab is None else read_vocab_file(request.vocab)
    if request.init is not None:
        model = read_checkpoint(request.init, options=request.init_options)
        usable = model.vocab is not None and set(model.vocab.specials) <= set(model.vocab)
        # A model without a word table and a softmax fits any vocabulary.
        if vocab is None and not (usable and (model.head or model.config.words)):
            vocab = _vocabulary_of(corpus, recipe)
        start = start_from(model, recipe, vocab)
    else:
        start = new_start(recipe, vocab or _vocabulary_of(corpus, recipe))
    if request.word_vectors is not None:
        _set_word_vectors(request.word_vectors, recipe, start, corpus)
    if start.new_softmax and recipe.unigram_bias:
        start_from_frequencies(start.network.head, start.vocab, corpus)
    share = f"{coverage(corpus, start.vocab):.2%}"
    start.messages.append(f"vocabulary: {len(start.vocab):,} words, which cover {share} of the tokens")
    return start


def _vocabulary_of(corpus: PreparedCorpus, recipe: Recipe) -> Vocabulary:
    vocab = build_vocabulary(corpus, max_size=recipe.vocab_size, min_count=recipe.min_count)
    if len(vocab) == len(vocab.specials):
        raise ElmoError(
            f"no word of the corpus occurs {recipe.min_count} times (min_count), so there is nothing to predict: "
            "give more text or a smaller number",
            "min_count",
        )
    return vocab


def _set_word_vectors(path: Path, recipe: Recipe, start: Start, corpus: PreparedCorpus) -> None:
    """Copy static vectors into the word table; without `train_word_vectors` these rows get no gradient."""
    words = start.network.bilm.token_encoder.words
    assert words is not None
    counts = dict(zip(corpus.type_texts(), corpus.counts.tolist(), strict=True))
    in_order = [counts.get(word, 0) for word in start.vocab]
    found = align(start.vocab, path, size=words.embedding_dim, counts=in_order, size_option="word_size")
    rows, vectors = torch.from_numpy(found.found), torch.from_numpy(found.matrix)
    with torch.no_grad():
        words.weight[1:] *= vectors[rows].std() / words.weight[1:].std()  # the other rows get the same scale
        words.weight[1:][rows] = vectors[rows]
    if not recipe.train_word_vectors:
        fixed = torch.cat([torch.zeros(1, dtype=torch.bool), rows]).unsqueeze(1)

        def without_fixed(gradient: Tensor) -> Tensor:
            return gradient.masked_fill(fixed.to(gradient.device), 0.0)

        words.weight.register_hook(without_fixed)  # type: ignore[no-untyped-call]
    start.messages.append(found.report())


def batch_size_for(recipe: Recipe, corpus: PreparedCorpus, device: torch.device, processes: int) -> dict[str, int]:
    """The batch size as an option: small for a small text, so that it gets enough updates; larger on a GPU."""
    parts, gpu, tokens = processes * recipe.accumulate, device.type == "cuda", corpus.n_tokens + corpus.n_sentences
    if recipe.objective == "segments":
        size = max(_LEAST_TOKENS, tokens // _UPDATES_AN_EPOCH // 128 * 128) // parts
        return {"batch_tokens": recipe.batch_tokens or min(_MOST_TOKENS[gpu], max(1, size))}
    rows = tokens // (recipe.window * _UPDATES_AN_EPOCH)
    size = min(_MOST_ROWS[gpu], max(1, max(_LEAST_ROWS, rows // 8 * 8) // parts))
    return {"batch_size": recipe.batch_size or size}


def completed_recipe(
    recipe: Recipe, start: Start, corpus: PreparedCorpus, device: torch.device, processes: int = 1
) -> Recipe:
    """The recipe with the network's shape and the automatic choices for this machine and text."""
    precision, sampled = choose_precision(recipe, device), choose_sampled(recipe, start.network, device)
    config = start.config
    characters, words = config.characters, config.words
    shape: dict[str, Any] = {
        "input": "chars" if characters else "words",
        "context": config.context.kind,
        **config.context.to_options(),
        **batch_size_for(recipe, corpus, device, processes),
        "precision": str(precision).removeprefix("torch."),
        "loss": "sampled" if sampled else "full",
    }
    # Equivalent values stay as the user wrote them: they may be given again when the run is resumed.
    if words and words.embedding_size != (recipe.word_size or config.token_size):
        shape["word_size"] = words.embedding_size
    if characters:
        shape |= character_options(characters)
        if parse_filters(recipe.filters) == characters.filters:
            shape["filters"] = recipe.filters
    return replace(recipe, **shape)


def data_of(recipe: Recipe, start: Start, corpus: PreparedCorpus, heldout: PreparedCorpus | None) -> Data:
    """The training and held-out sentences: held-out files, or one of every n sentences of the corpus."""
    indexer = start.checkpoint("the new model").indexer()
    characters = start.config.characters
    widest = characters.widest_filter if characters else 0

    def table(of: PreparedCorpus) -> TypeTable:
        return TypeTable(of, start.vocab, indexer, widest_filter=widest, directions=start.config.n_directions)

    types = table(corpus)
    if heldout is not None:
        read = Sentences(corpus, None, recipe.shuffle, recipe.seed)
        return Data(types, read, table(heldout), Sentences(heldout))
    count = min(_MOST_HELD_OUT, int(corpus.n_sentences * recipe.heldout_fraction))
    if not count:  # the text has too few sentences
        return Data(types, Sentences(corpus, None, recipe.shuffle, recipe.seed), None, None)
    every = max(2, -(-corpus.n_sentences // count))
    read = Sentences(corpus, (every, 0), recipe.shuffle, recipe.seed)
    return Data(types, read, types, Sentences(corpus, (every, 1)))


def new_start(recipe: Recipe, vocab: Vocabulary) -> Start:
    """A network with random weights that depend only on the seed."""
    config = recipe.config(len(vocab))
    torch.manual_seed(recipe.seed)
    bilm, head = BiLM(config), LmHead(len(vocab), config.context.prediction_size)
    initialise(bilm)
    return Start(config, LanguageModelNetwork(bilm, head, dropout=recipe.dropout, tied=recipe.tie_softmax), vocab)


def start_from(model: Checkpoint, recipe: Recipe, vocab: Vocabulary | None) -> Start:
    """Start from an existing model. With another vocabulary, known words keep their rows; other rows are new."""
    messages = [f"init: the int8 weights of {model.where} are read as floats"] if model.int8 else []
    model, vocab = model.in_floats(), vocab or model.vocab
    assert vocab is not None
    if isinstance(model.config.context, TransformerConfig) and recipe.blocks != model.config.context.n_blocks:
        messages.append(f"blocks: {recipe.blocks}, grown from the {model.config.context.n_blocks} of {model.where}")
        model = with_more_blocks(model, recipe.blocks)
    torch.manual_seed(recipe.seed)
    config, weights, sums = model.config, dict(model.weights), dict(model.optimizer)
    old = model.vocab
    if config.words is not None and old is not None and old != vocab:
        if model.symbols is not None or old.specials != vocab.specials:
            raise ElmoError(
                f"{model.where} has its own words and characters, so it needs its own vocabulary: leave vocab out",
                "vocab",
            )
        config = replace(config, words=replace(config.words, n_words=len(vocab)))
        drawn = BiLM(config)
        initialise(drawn)
        fresh = drawn.state_dict()["token_encoder.words.weight"]
        table, known = _by_word(weights["token_encoder.words.weight"][1:], old, vocab, fresh[1:])
        sums.pop("token_encoder.words.weight", None)  # its rows have the order of the old vocabulary
        weights["token_encoder.words.weight"] = torch.cat([torch.zeros_like(table[:1]), table])
        messages.append(f"word table: {known:,} of {len(vocab):,} words from {model.where}")
    bilm, head = BiLM(config), LmHead(len(vocab), config.context.prediction_size)
    bilm.load_state_dict(weights)
    slots = {f"bilm.{name}": value for name, value in sums.items() if name in weights}
    if model.head and (old is None or old == vocab) and len(model.head["bias"]) == len(vocab):
        head.load_state_dict(model.head)
        slots |= {name: value for name, value in sums.items() if name.startswith("head.")}
        messages.append(f"softmax: that of {model.where}")
    elif model.head and old is not None:
        with torch.no_grad():
            rows, known = _by_word(model.head["weight"], old, vocab, head.weight)
            head.weight.copy_(rows)
            head.bias.copy_(_by_word(model.head["bias"], old, vocab, head.bias)[0])
        messages.append(f"softmax: {known:,} of {len(vocab):,} words from {model.where}, the others new")
    else:
        messages.append(f"softmax: new, {len(vocab):,} words; {model.where} has none that fits")
    tied = recipe.tie_softmax and config.words is not None
    if tied and config.words is not None and config.words.embedding_size != config.context.prediction_size:
        raise ElmoError(
            f"tie_softmax needs word vectors of size {config.context.prediction_size}, and those of {model.where} have "
            f"size {config.words.embedding_size}: leave it out",
            "tie_softmax",
        )
    network = LanguageModelNetwork(bilm, head, dropout=recipe.dropout, tied=tied)
    return Start(
        config, network, vocab, model.symbols, slots or None, not model.head, messages, model.where, model.notes
    )


def with_more_blocks(model: Checkpoint, n_blocks: int) -> Checkpoint:
    """A deeper Transformer that computes the same as the model until it is trained.

    The new blocks are spread evenly. Each is a copy of the block below it, with zeros in the two matrices that add to
    the residual: it adds nothing at first, but all its weights can learn.
    """
    context = model.config.context
    assert isinstance(context, TransformerConfig)
    weights = {name: value for name, value in model.weights.items() if not name.startswith(_BLOCKS)}
    sources = [block * context.n_blocks // n_blocks for block in range(n_blocks)]
    for block, source in enumerate(sources):
        is_new = block > 0 and sources[block - 1] == source
        for name, value in model.weights.items():
            if name.startswith(old := f"{_BLOCKS}{source}."):
                part = name.removeprefix(old)
                weights[f"{_BLOCKS}{block}.{part}"] = torch.zeros_like(value) if is_new and part in _ADDED else value
    config = replace(model.config, context=replace(context, n_blocks=n_blocks))
    return replace(model, config=config, weights=weights)


def _by_word(rows: Tensor, old: Vocabulary, new: Vocabulary, fresh: Tensor) -> tuple[Tensor, int]:
    """The rows of a new vocabulary, with those of new words from `fresh`, and the number of known words."""
    result = fresh.detach().clone()
    pairs = [(number, old.index(word)) for number, word in enumerate(new) if word in old]
    if pairs:
        to, from_ = (torch.tensor(part) for part in zip(*pairs, strict=True))
        result[to] = rows[from_].to(result)
    return result, len(pairs)
