"""ELMo in spaCy: the component `elmo`, which fills `doc.tensor` and compares words by their context.

    nlp = spacy.blank("en")
    nlp.add_pipe("elmo", config={"model": "en"})

An entry point in pyproject.toml lets spaCy find the component without an import.
"""

import io
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, Self

import numpy as np

from elmokit.elmo import Elmo
from elmokit.errors import ElmoError, MissingExtraError
from elmokit.formats.bundled import DEFAULT
from elmokit.layers import Vectors, check_layer, pool_tokens
from elmokit.options import check_value

try:
    from spacy.language import Language
    from spacy.pipeline import Pipe
    from spacy.tokens import Doc, Span, Token
    from spacy.util import minibatch
    from thinc.api import get_current_ops
    from thinc.util import to_numpy
except ImportError as error:
    raise MissingExtraError("spacy", "spacy", "the spaCy component elmo") from error

Per = Literal["auto", "sentence", "doc"]
"""The unit that is encoded as one sentence: a sentence, a whole doc, or (auto) a sentence if boundaries are known."""
_FOLDER = "model"
"""The folder of the model among the files of a saved pipeline."""


# No postponed annotations in this module: spaCy reads the annotations of the factory to check a configuration.
@Language.factory(  # type: ignore[untyped-decorator]
    "elmo",
    assigns=["doc.tensor"],
    default_config={
        "model": DEFAULT,
        "layer": None,
        "per": "auto",
        "batch_tokens": None,
        "device": None,
        "save_model": False,
    },
)
def make_elmo(
    nlp: Language,
    name: str,
    model: str,
    layer: int | str | None,
    per: str,
    batch_tokens: int | None,
    device: str | None,
    save_model: bool,
) -> "ElmoPipe":
    """The component `elmo` of a pipeline, from its configuration."""
    return ElmoPipe(name, model, layer=layer, per=per, batch_tokens=batch_tokens, device=device, save_model=save_model)


class ElmoPipe(Pipe):  # type: ignore[misc]  # spaCy is not installed where types are checked
    """Stores the vectors of a doc's tokens in `doc.tensor` [T, D], and sets the similarity hooks."""

    def __init__(
        self,
        name: str = "elmo",
        model: str = DEFAULT,
        *,
        layer: int | str | None = None,
        per: str = "auto",
        batch_tokens: int | None = None,
        device: str | None = None,
        save_model: bool = False,
    ) -> None:
        """Store the options; the model is loaded when it is first needed, in each process.

        `model`, `layer`, `batch_tokens` and `device` are as in `Elmo.load` and `Elmo.encode`. `per` is the unit that
        is encoded as one sentence: "sentence", "doc", or "auto" for sentences if their boundaries are known. With
        `save_model` the model's files are saved with the pipeline, otherwise its name.
        """
        check_value("per", per, Per)
        self.name, self.model = name, model
        self.layer, self.per, self.batch_tokens, self.device = layer, per, batch_tokens, device
        self.save_model = save_model
        self._elmo: Elmo | None = None

    @property
    def elmo(self) -> Elmo:
        """The model."""
        if self._elmo is None:
            elmo = Elmo.load(self.model, device=self.device)
            if self.layer is not None:
                check_layer(self.layer, elmo.config.n_outputs, single=True)  # type: ignore[arg-type]
            self._elmo = elmo
        return self._elmo

    @property
    def width(self) -> int:
        """D, the size of a token's vector, which a listener's `width` must equal."""
        return self.elmo.config.vector_size

    def __call__(self, doc: Doc) -> Doc:
        """Give one doc its vectors."""
        self._annotate([doc])
        return doc

    def pipe(self, stream: Iterable[Doc], *, batch_size: int = 128) -> Iterator[Doc]:
        """Give docs their vectors, `batch_size` docs at a time; their sentences are batched again for the network."""
        report = self.get_error_handler()
        for docs in minibatch(stream, size=batch_size):
            try:
                self._annotate(docs)
            except Exception as error:  # noqa: BLE001 - spaCy's handler decides; by default it raises
                report(self.name, self, docs, error)
            else:
                yield from docs

    def _annotate(self, docs: list[Doc]) -> None:
        rows = [self._sentences(doc) for doc in docs]
        sentences = (row for each in rows for row in each)
        vectors = self.elmo.stream(sentences, layer=self.layer, batch_tokens=self.batch_tokens)  # type: ignore[arg-type]  # checked there
        for doc, each in zip(docs, rows, strict=True):
            found = [next(vectors) for _ in each]
            tensor: Vectors = np.concatenate(found) if found else np.zeros((0, self.width), np.float32)
            doc.tensor = get_current_ops().asarray(tensor)
            add_similarity(doc)

    def _sentences(self, doc: Doc) -> list[list[str]]:
        """The tokens of a doc, as one list per sentence or one list in all."""
        known = len(doc) > 0 and doc.has_annotation("SENT_START")
        if self.per == "sentence" and len(doc) and not known:
            raise ElmoError(
                "per='sentence' needs docs with sentence boundaries, got one without: add a component such as "
                "sentencizer before elmo, or use per='auto'",
                "per",
            )
        spans = doc.sents if known and self.per != "doc" else [doc] if len(doc) else []
        return [[token.text for token in span] for span in spans]

    def initialize(self, get_examples: Callable[[], Iterable[Any]], *, nlp: Language | None = None) -> None:
        """Check that the components that listen to this one expect vectors of its width; nothing is learned."""
        for name, pipe in nlp.pipeline if nlp is not None else ():
            for node in pipe.model.walk() if hasattr(pipe, "model") and hasattr(pipe.model, "walk") else ():
                listens = node.name == "tok2vec-listener" and node.upstream_name in ("*", self.name)
                if listens and node.get_dim("nO") != self.width:
                    raise ElmoError(
                        f"the listener of {name} must have width {self.width}, the vector size of {self.model}, got "
                        f"{node.get_dim('nO')}"
                    )

    def to_disk(self, path: str | Path, *, exclude: Iterable[str] = ()) -> None:
        """Save the model's files with `save_model`; otherwise the configuration of the pipeline is enough."""
        if self.save_model:
            self.elmo.save(Path(path) / _FOLDER)

    def from_disk(self, path: str | Path, *, exclude: Iterable[str] = ()) -> Self:
        """Load the model that was saved with the pipeline, if there is one."""
        if (folder := Path(path) / _FOLDER).exists():
            self._elmo = Elmo.load(folder, device=self.device)
        return self

    def to_bytes(self, *, exclude: Iterable[str] = ()) -> bytes:
        """The model's files with `save_model`, otherwise nothing."""
        if not self.save_model:
            return b""
        packed = io.BytesIO()
        with TemporaryDirectory() as folder, zipfile.ZipFile(packed, "w") as archive:
            self.to_disk(folder)
            for file in sorted(Path(folder, _FOLDER).iterdir()):
                archive.write(file, f"{_FOLDER}/{file.name}")
        return packed.getvalue()

    def from_bytes(self, data: bytes, *, exclude: Iterable[str] = ()) -> Self:
        """Load the model from `to_bytes`."""
        if data:
            with TemporaryDirectory() as folder, zipfile.ZipFile(io.BytesIO(data)) as archive:
                archive.extractall(folder)
                self.from_disk(folder)
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the options and, with `save_model`, the model's files; otherwise each process loads the model."""
        options = ("name", "model", "layer", "per", "batch_tokens", "device", "save_model")
        return _restored, ({name: getattr(self, name) for name in options}, self.to_bytes())


def _restored(options: dict[str, Any], data: bytes) -> ElmoPipe:
    return ElmoPipe(**options).from_bytes(data)


def add_similarity(doc: Doc) -> Doc:
    """Let `similarity` of a doc, its spans and its tokens compare the vectors in `doc.tensor`.

    spaCy does not save these hooks: call this function for a doc from `Doc.from_bytes` or from `nlp.pipe` with several
    processes.
    """
    for hooks in (doc.user_hooks, doc.user_span_hooks, doc.user_token_hooks):
        hooks["similarity"] = _similarity
    return doc


def _similarity(one: Doc | Span | Token, other: Doc | Span | Token) -> float:
    """The cosine of two vectors; 0 if one of them is zero."""
    first, second = _vector(one), _vector(other)
    if len(first) != len(second):
        raise ElmoError(
            f"similarity needs vectors of one model, got vectors of the sizes {len(first)} and {len(second)}"
        )
    lengths = float(np.linalg.norm(first) * np.linalg.norm(second))
    return float(first @ second) / lengths if lengths else 0.0


def _vector(item: Doc | Span | Token) -> Vectors:
    """The vector of a token in its context, or the mean vector of a span or doc, [D]."""
    doc = item if isinstance(item, Doc) else getattr(item, "doc", None)
    if doc is None or doc.tensor.ndim != 2 or len(doc.tensor) != len(doc):
        raise ElmoError(
            f"similarity compares tokens, spans and docs with vectors of elmo, got {type(item).__name__} "
            f"{item!s:.40}: process it with the pipeline first"
        )
    rows: Vectors = to_numpy(doc.tensor)
    if isinstance(item, Token):
        rows = rows[item.i : item.i + 1]
    part = rows[item.start : item.end] if isinstance(item, Span) else rows
    return pool_tokens(part, "mean")
