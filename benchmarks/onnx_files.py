"""ONNX files in ONNX Runtime against elmokit's own kernels, in one run and on the same sentences, one thread.

    python benchmarks/onnx_files.py [--models en en-lstm] [--turns 5] [--runtime DIST]

Every file is first exported, which also compares it with elmokit; then the two systems are timed in turns. DIST is the
folder `dist` of onnxruntime-web: with it, one sentence is also timed in Chromium (this needs Playwright).
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path

import onnxruntime
import torch

import elmokit
from elmokit import Elmo
from elmokit.integrations.onnx import OnnxElmo
from elmokit.integrations.onnx_export import export_onnx

TOKENS, MANY = 20, 64
STATIC = Path(elmokit.__file__).parent / "serve" / "static"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["en", "en-lstm"])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--runtime", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, onnxruntime {onnxruntime.__version__}, one thread")
    print(
        "| file | MB | largest difference | worst cosine | one sentence, ms | ratio | many, tokens/s | ratio "
        "| browser, ms |"
    )
    text = Path(__file__).parents[1] / "examples" / "corpus.txt"
    with tempfile.TemporaryDirectory() as folder, text.open(encoding="utf-8") as lines:
        words = [word for line in islice(lines, 1000) for word in line.split()]
        sentences = [words[start : start + TOKENS] for start in range(0, MANY * TOKENS, TOKENS)]
        for name in arguments.models:
            # Without the cache of words, which the ONNX file does not have: both read the characters of every word.
            own = Elmo.load(name, dtype="float32", device="cpu", type_cache_mb=0)
            for dtype in ("float32", "float16", "int8"):
                path = Path(folder) / "elmo.onnx"
                report = export_onnx(own, path, dtype=dtype)  # type: ignore[arg-type]
                other = OnnxElmo(path, threads=1)
                one, ours_one = fastest(
                    arguments.turns, partial(other.encode, sentences[:1]), partial(own.encode, sentences[:1])
                )
                many, ours_many = fastest(
                    arguments.turns, partial(other.encode, sentences), partial(own.encode, sentences)
                )
                web = in_browser(Path(folder), arguments.runtime, sentences[0]) if arguments.runtime else float("nan")
                print(
                    f"| {name} {dtype} | {report.megabytes:.1f} | {report.difference:.1e} | {report.cosine:.6f} "
                    f"| {1000 * one:.1f} | {one / ours_one:.2f} | {MANY * TOKENS / many:,.0f} | {ours_many / many:.2f} "
                    f"| {web:.0f} |",
                    flush=True,
                )


def fastest(turns: int, *runs: Callable[[], object]) -> list[float]:
    """The shortest time of each run in seconds, after one call to warm up."""
    best = [float("inf")] * len(runs)
    for turn in range(turns + 1):
        for number, run in enumerate(runs):
            begin = time.perf_counter()
            run()
            if turn:
                best[number] = min(best[number], time.perf_counter() - begin)
    return best


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves files without a log."""

    extensions_map = SimpleHTTPRequestHandler.extensions_map | {".mjs": "text/javascript", ".wasm": "application/wasm"}

    def log_message(self, *_: object) -> None:
        """Write no log."""


def in_browser(folder: Path, runtime: Path, sentence: list[str]) -> float:
    """The shortest of ten times for one sentence in Chromium with one thread, in milliseconds."""
    from playwright.sync_api import sync_playwright

    shutil.copytree(runtime, folder / "ort", dirs_exist_ok=True)
    shutil.copy(STATIC / "elmo.js", folder)
    (folder / "index.html").write_text("<!doctype html><title>elmokit</title>", encoding="utf-8")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{server.server_port}/index.html")
        script = """async (sentence) => {
            const ort = await import("/ort/ort.wasm.min.mjs"), { OnnxElmo } = await import("/elmo.js");
            ort.env.wasm.wasmPaths = new URL("/ort/", location).href;
            ort.env.wasm.numThreads = 1;
            const elmo = await OnnxElmo.load(ort, "/elmo.onnx");
            let best = Infinity;
            for (let i = 0; i < 10; i++) {
                const begin = performance.now();
                await elmo.encode([sentence]);
                best = Math.min(best, performance.now() - begin);
            }
            return best;
        }"""
        found = float(page.evaluate(script, sentence))
        browser.close()
    server.shutdown()
    return found


if __name__ == "__main__":
    main()
