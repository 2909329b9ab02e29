"""`elmo export page`: the sense explorer as a folder of files for any file server.

The maps are computed at export. The vectors of the user's own sentences are computed in the browser, by onnxruntime-web
with the ONNX file of the model.
"""

from __future__ import annotations

import json
import re
import shutil
from base64 import b64encode
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from elmokit.errors import ElmoError
from elmokit.formats.bundled import name_of
from elmokit.serve.maps import DEMO_WORDS, demo_index, demo_language, layer_maps, layer_of, senses_object
from elmokit.storage.atomic import check_new_folder, new_folder

if TYPE_CHECKING:
    from elmokit.analyse import OccurrenceIndex
    from elmokit.elmo import Elmo
    from elmokit.integrations.onnx_graph import Dtype

RUNTIME_FILES = ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm")
"""The files of onnxruntime-web's folder `dist` that a page needs."""
_HERE = Path(__file__).parent


def export_page(elmo: Elmo, folder: Path, *, runtime: str, dtype: Dtype = "float16") -> str:
    """Write the page into a new folder, and return a sentence about its size and precision.

    `runtime`: the folder `dist` of the npm package onnxruntime-web, which is copied, or the URL of such a folder.
    """
    from elmokit.integrations.onnx_export import export_onnx

    remote = re.match(r"https?://", runtime)
    missing = [] if remote else [name for name in RUNTIME_FILES if not (Path(runtime) / name).is_file()]
    if missing:
        raise ElmoError(
            f"runtime must be a URL or the folder dist of onnxruntime-web, got {runtime} without {missing[0]}: "
            "get it with npm pack onnxruntime-web",
            "runtime",
        )
    if elmo.segment == "jieba":
        raise ElmoError("a page without a server cannot tokenise with jieba: export a model with another text policy")
    check_new_folder(folder)
    with new_folder(folder, "index.html") as target:
        report = export_onnx(elmo, target / "elmo.onnx", dtype=dtype)
        shutil.copytree(_HERE / "page", target / "page", ignore=shutil.ignore_patterns("index.html"))
        for name in ("api.js", "elmo.js"):
            shutil.copy(_HERE / "static" / name, target / "page" / name)
        if not remote:
            (target / "ort").mkdir()
            for name in RUNTIME_FILES:
                shutil.copy(Path(runtime) / name, target / "ort" / name)
        (target / "data").mkdir()
        _write_words(elmo, target / "data", f"{runtime.rstrip('/')}/" if remote else "ort/")
        shutil.copy(_HERE / "page" / "index.html", target / "index.html")
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6
    return f"{size:.1f} MB; largest difference from elmokit {report.difference:.1e}, worst cosine {report.cosine:.6f}"


def _write_words(elmo: Elmo, folder: Path, runtime: str) -> None:
    """The occurrences of the demo's words, one file per word, and the file that the page reads first."""
    index = demo_index(elmo)
    words: list[dict[str, Any]] = []
    for word in DEMO_WORDS[demo_language(elmo)]:
        if not len(index.rows_of(word)):
            continue
        answer = _word(elmo, index, word)
        _write_json(folder / f"word-{len(words)}.json", answer)
        words.append({"word": word, "occurrences": len(answer["sentences"])})
    about = {
        "served_model_name": name_of(elmo.where),
        "segment": elmo.segment,
        "layers": elmo.config.n_outputs,
        "indexes": [{"name": "demo", "occurrences": len(index), "words": len(words), "layer": layer_of(index)}],
        "predicts_words": False,
        "without_server": True,
        "runtime": runtime,
        "words": words,
    }
    _write_json(folder / "info.json", about)


def _word(elmo: Elmo, index: OccurrenceIndex, word: str) -> dict[str, Any]:
    """The server's response of /senses for all layers, and the vectors of the occurrences in the index's layer."""
    from elmokit.analyse.index import normalised
    from elmokit.analyse.senses import find_senses

    found = find_senses(index, word)
    uses = [index.occurrence(row) for row in found.rows.tolist()]
    encoded = elmo.encode([list(use.tokens) for use in uses], output="layers")
    vectors = normalised(np.stack([each[:, use.position] for each, use in zip(encoded, uses, strict=True)], axis=1))
    layer = layer_of(index)
    number = layer if isinstance(layer, int) else elmo.config.n_outputs - 1
    values = b64encode(vectors[number].astype("<f4").tobytes()).decode()
    shown = senses_object(found, index, uses) | layer_maps(vectors, found, number)
    return shown | {"vectors": {"layer": number, "values": values}}


def _write_json(path: Path, value: object) -> None:
    def plain(each: Any) -> Any:  # noqa: ANN401 - json calls it with any value that it does not know
        return each.tolist() if isinstance(each, np.ndarray | np.generic) else list(each)

    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=plain)
    path.write_text(text, encoding="utf-8", newline="\n")
