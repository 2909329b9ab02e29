"""The ONNX file in a real browser, and the explorer without a server: `make test-browser` runs these.

They need Playwright, a Chromium, the extra onnx, and onnxruntime-web: ELMOKIT_ORT is its folder `dist`. Without one of
them they skip with a reason.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: make test-browser")
pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")

CHROMIUM = os.environ.get("ELMOKIT_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
if not CHROMIUM:
    pytest.skip("no Chromium was found: install one, or set ELMOKIT_CHROMIUM", allow_module_level=True)
RUNTIME = os.environ.get("ELMOKIT_ORT")
if not RUNTIME:
    pytest.skip("onnxruntime-web is not here: make test-browser fetches it with npm", allow_module_level=True)
AXE = os.environ.get("ELMOKIT_AXE")
READY = "body[data-ready]:not([aria-busy])"
WAIT = 240_000
"""Milliseconds: far more than needed, for a loaded machine."""
ROOT = Path(__file__).parents[2]
TEXTS = {
    "en": [
        "The bank raised rates.",
        "Mr. Li didn't go to the U.S. in Jan. 2020 — it's 3.5% off!",
        "",
        "A naïve café 👩‍🔬 costs €5 (see https://example.org/a_b?c=1).",
        "word " * 150,
    ],
    "zh": ["我吃了一个苹果。", "苹果公司 2020年 发布了新手机 iPhone！", ["银行", "GPU", "𠀀"]],
}
TEXTS["en-lstm"] = TEXTS["en"]


class _Quiet(SimpleHTTPRequestHandler):
    extensions_map = SimpleHTTPRequestHandler.extensions_map | {".mjs": "text/javascript", ".wasm": "application/wasm"}

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module", params=["en", "zh", "en-lstm"])
def site(request, tmp_path_factory):
    """The folder that the command writes, behind a plain file server."""
    folder = tmp_path_factory.mktemp("site") / "page"
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}
    command = [sys.executable, "-m", "elmokit", "export", "page", request.param, "--runtime", RUNTIME]
    subprocess.run([*command, "--output", str(folder)], check=True, env=environment, timeout=600)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield request.param, folder, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        quiet = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
        opened = started.chromium.launch(executable_path=CHROMIUM, args=quiet)
        yield opened
        opened.close()


@pytest.fixture
def page(browser, site):
    """A page that fails the test if a script fails, a file is missing, or anything is fetched from elsewhere."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce", locale="en-GB")
    page = context.new_page()
    page.set_default_timeout(WAIT)
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    # What cannot be loaded is an error by its address, below; a browser asks for favicon.ico by itself.
    failed = lambda said: said.type == "error" and "Failed to load resource" not in said.text  # noqa: E731
    page.on("console", lambda said: errors.append(said.text) if failed(said) else None)
    absent = lambda answer: answer.status >= 400 and not answer.url.endswith("favicon.ico")  # noqa: E731
    page.on("response", lambda answer: errors.append(answer.url) if absent(answer) else None)
    own = (site[2], "data:", "blob:")
    page.on("request", lambda asked: None if asked.url.startswith(own) else errors.append(asked.url))
    yield page
    context.close()
    assert errors == []


LOAD = """async () => {
    const ort = await import("/ort/ort.wasm.min.mjs"), { OnnxElmo } = await import("/page/elmo.js");
    ort.env.wasm.wasmPaths = new URL("/ort/", location).href;
    ort.env.wasm.numThreads = 1;
    window.own = await OnnxElmo.load(ort, "/elmo.onnx");
}"""
ENCODE = """async ([texts, layer]) =>
    (await own.encode(texts, layer ?? undefined))
        .map(({ tokens, vectors }) => ({ tokens, vectors: vectors.map((v) => [...v]) }))"""
SOME = """async (text) => {
    const [{ vectors }] = await own.encode([text]);
    return [0, 1000, 1100, 2099].map((i) => [...vectors[i]]);
}"""
WRONG = """async () => {
    const { OnnxElmo } = await import("/page/elmo.js");
    return OnnxElmo.load(null, "/page/icon.svg").catch((error) => error.message);
}"""


def test_vectors_in_the_browser_are_pythons(site, page):
    from elmokit.integrations.onnx import OnnxElmo

    model, folder, address = site
    page.goto(f"{address}/page/icon.svg")  # any page of this origin
    page.evaluate(LOAD)
    elmo = OnnxElmo(folder / "elmo.onnx", threads=1)
    for layer in (None, "mix", 0, 1):
        found = page.evaluate(ENCODE, [TEXTS[model], layer])
        for text, each, expected in zip(TEXTS[model], found, elmo.encode(TEXTS[model], layer=layer), strict=True):
            tokens = [token.text for token in elmo.tokenize(text)] if isinstance(text, str) else text
            assert each["tokens"] == tokens
            vectors = np.array(each["vectors"], np.float32).reshape(expected.shape)
            np.testing.assert_allclose(vectors, expected, atol=1e-4)


def test_the_tokens_of_real_text_are_pythons(site, page):
    """Splitting is written twice, in Python and in JavaScript: all example sentences, and what is hard about text."""
    from elmokit.integrations.onnx import OnnxElmo

    model, folder, address = site
    texts = (ROOT / "src" / "elmokit" / "serve" / "demo" / f"{model[:2]}.txt").read_text(encoding="utf-8").splitlines()
    texts += (ROOT / "examples" / "corpus.txt").read_text(encoding="utf-8").splitlines()[:2000]
    texts += Path(__file__).read_text(encoding="utf-8").splitlines()
    texts += ["J.R.R. Tolkien vs. C. S. Lewis, No. 5, p. 3; plan B. The U.S.-led '90s rock'n'roll will-o'-the-wisp."]
    page.goto(f"{address}/page/icon.svg")
    page.evaluate(LOAD)
    elmo = OnnxElmo(folder / "elmo.onnx", threads=1)
    found = page.evaluate("(texts) => texts.map((text) => own.tokenize(text))", texts)
    assert found == [elmo.text_policy.split(text) for text in texts]


def test_a_long_text_and_a_wrong_file(site, page):
    from elmokit.integrations.onnx import OnnxElmo

    model, folder, address = site
    page.goto(f"{address}/page/icon.svg")
    page.evaluate(LOAD)
    if model == "en":  # longer than a piece: more than four times what a token sees
        text = [f"word{n % 50}" for n in range(2100)]
        [expected] = OnnxElmo(folder / "elmo.onnx").encode([text])
        np.testing.assert_allclose(page.evaluate(SOME, text), expected[[0, 1000, 1100, 2099]], atol=1e-3)
    assert re.search("ONNX|metadata", page.evaluate(WRONG))


WORDS = {"en": ("bank", "We sat on the bank of the river."), "zh": ("苹果", "他吃了一个苹果。")}
WORDS["en-lstm"] = WORDS["en"]


def test_the_explorer_without_a_server(site, page, tmp_path):
    model, folder, address = site
    word, own = WORDS[model]
    page.goto(address)
    page.wait_for_selector(READY)
    page.click(f"#suggestions button:text-is('{word}')")
    page.wait_for_selector("#legend li")
    page.wait_for_selector(READY)
    about = json.loads((folder / "data" / "info.json").read_text(encoding="utf-8"))
    uses = {each["word"]: each["occurrences"] for each in about["words"]}
    assert len(page.evaluate("elmo.points()")) == page.locator("#sentences li").count() == uses[word] > 10

    page.fill("#own", own)
    page.wait_for_function("document.getElementById('own-result').textContent")
    page.wait_for_selector(READY)
    page.screenshot(path=tmp_path / "page.png")
    nearest = page.inner_text("#own-result")
    # A sentence of the page is its own nearest use.
    sentence = page.evaluate("elmo.senses().sentences[0]")
    page.fill("#own", ("" if model == "zh" else " ").join(sentence["tokens"]))
    changed = "(before) => ![before, ''].includes(document.getElementById('own-result').textContent)"
    page.wait_for_function(changed, arg=nearest)
    assert "1.00" in page.inner_text("#own-result")

    page.fill("#own", "xyzzy")
    page.wait_for_selector("#message:not([hidden])")
    assert word in page.inner_text("#message")
    page.click("nav [data-view=compare]")
    page.wait_for_selector("#heat tbody td")
    assert page.locator("#heat tbody td").count() >= 30
    assert not page.locator("nav [data-view=substitutes]").is_visible()  # needs the softmax
    page.goto(f"{address}/#/senses?word=xyzzy")
    page.reload()
    page.wait_for_selector("#message:not([hidden])")
    assert word in page.inner_text("#message")


@pytest.mark.skipif(not AXE, reason="axe-core is not here: make test-browser fetches it with npm")
def test_accessibility(site, page):
    model, _, address = site
    for view in (f"#/senses?word={WORDS[model][0]}", "#/compare"):
        page.goto(f"{address}/{view}")
        page.reload()
        page.wait_for_selector(READY)
        page.evaluate(Path(AXE).read_text(encoding="utf-8"))
        found = page.evaluate("axe.run()")
        assert [(each["id"], each["nodes"][0]["html"]) for each in found["violations"]] == []
