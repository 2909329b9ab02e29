"""The sense explorer in a real browser, with the bundled models: `make test-browser` runs these.

They need Playwright and a Chromium that is already on the machine (ELMOKIT_CHROMIUM, or where Debian puts it), and skip
with a reason without them. With ELMOKIT_AXE, the file of axe-core, the page's accessibility is checked too.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: make test-browser")
pytest.importorskip("starlette", reason="the extra serve is not installed")

CHROMIUM = os.environ.get("ELMOKIT_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
if not CHROMIUM:
    pytest.skip("no Chromium was found: install one, or set ELMOKIT_CHROMIUM", allow_module_level=True)
AXE = os.environ.get("ELMOKIT_AXE")
READY = "body[data-ready]:not([aria-busy])"
WAIT = 240_000
"""Milliseconds: far more than needed, for a loaded machine."""


def _serve(model, cache):
    command = [sys.executable, "-m", "elmokit", "serve", model, "--demo", "--port", "0"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    for line in process.stderr:
        if match := re.search(r"http://\S+", line):
            return process, match[0]
    raise AssertionError(f"elmo serve ended with status {process.wait()}")


@pytest.fixture(scope="module", params=["en", "zh"])
def address(request, tmp_path_factory):
    process, address = _serve(request.param, tmp_path_factory.mktemp("cache"))
    yield request.param, address
    process.terminate()
    process.communicate(timeout=120)
    assert process.returncode == 0


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        quiet = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
        opened = started.chromium.launch(executable_path=CHROMIUM, args=quiet)
        yield opened
        opened.close()


@pytest.fixture
def page(browser, request):
    """A page that fails the test if a script fails; `request.param` may have options of the context."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce", bypass_csp=True)
    page = context.new_page()
    page.set_default_timeout(WAIT)
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    # A status that the page shows as a message, such as 503 while the model is loaded, is no error of the page.
    failed = lambda said: said.type == "error" and "Failed to load resource" not in said.text  # noqa: E731
    page.on("console", lambda said: errors.append(said.text) if failed(said) else None)
    yield page
    context.close()
    assert errors == []


WORDS = {"en": ("bank", "We sat on the bank of the river.", 50), "zh": ("苹果", "他吃了一个苹果。", 10)}


def test_from_a_word_to_its_senses(address, page, tmp_path):
    model, url = address
    word, own, least = WORDS[model]
    page.goto(url)
    page.wait_for_selector(READY)
    page.fill("#word", word)
    page.press("#word", "Enter")
    page.wait_for_selector("#legend li")
    page.wait_for_selector(READY)
    points = page.evaluate("elmo.points()")
    assert len(points) == page.locator("#sentences li").count() >= least
    assert "word=" in page.url

    box = page.locator("#map").bounding_box()
    page.mouse.move(box["x"] + points[0][0], box["y"] + points[0][1])
    assert word in page.inner_text("#tip")
    page.mouse.click(box["x"] + points[0][0], box["y"] + points[0][1])
    page.wait_for_selector("#sentences .near")  # cosines of the nearest uses
    assert page.locator("#sentences li").count() <= 11

    page.fill("#own", own)
    page.wait_for_function("document.getElementById('own-result').textContent")
    page.wait_for_selector(READY)

    page.locator("#layer").focus()
    page.keyboard.press("Home")
    bottom = page.evaluate("elmo.points()")
    assert max(abs(x - bottom[0][0]) for x, _ in bottom) < 1  # no context: all uses are one point

    for kind, beginning in [("png", b"\x89PNG"), ("svg", b"<svg"), ("tsv", b"group\t"), ("html", b"<!doctype html>")]:
        page.click("summary")
        with page.expect_download() as download:
            page.click(f"[data-export={kind}]")
        file = tmp_path / f"export.{kind}"
        download.value.save_as(file)
        assert file.read_bytes().startswith(beginning)
    again = page.context.new_page()  # the exported file needs no server
    again.goto((tmp_path / "export.html").as_uri())
    again.wait_for_selector("body[data-ready]")
    again.close()


def test_a_link_shows_the_same(address, page):
    model, url = address
    word = WORDS[model][0]
    page.goto(f"{url}/#/senses?word={word}&clusters=2&layer=1")
    page.wait_for_selector("#legend li")
    page.wait_for_selector(READY)
    assert page.locator("#legend li").count() == 2
    assert page.input_value("#layer") == "1"
    assert page.input_value("#word") == word


def test_keyboard_filter_and_groups(address, page):
    model, url = address
    page.goto(f"{url}/#/senses?word={WORDS[model][0]}&clusters=2")
    page.wait_for_selector("#legend li")
    page.wait_for_selector(READY)
    everything = page.locator("#sentences li").count()
    page.focus("#map")
    page.keyboard.press("ArrowRight")
    assert WORDS[model][0] in page.inner_text("#map-now")
    page.keyboard.press("Escape")
    page.click("#legend li:first-child button")
    group = page.locator("#sentences li").count()
    assert 0 < group < everything
    page.click("#reset")
    assert page.locator("#sentences li").count() == everything


def test_two_sentences_and_substitutes(address, page):
    _, url = address
    page.goto(f"{url}/#/compare")
    page.wait_for_selector("#heat tbody td")
    rows, columns = page.locator("#heat tbody tr").count(), page.locator("#heat thead th").count()
    assert page.locator("#heat tbody td").count() == rows * columns
    page.click("nav [data-view=substitutes]")
    page.wait_for_selector("#expected li")
    assert page.locator("#expected li").count() == 15
    page.click("#tokens button:first-child")
    page.wait_for_selector("#tokens button:first-child[aria-pressed=true]")


def test_the_words_to_try_of_another_text(address, page):
    model, url = address
    own = {"en": "cranes", "zh": "行"}[model]
    change(page, "**/words", lambda found: found.update(words=[{"word": own, "occurrences": 9}]))
    page.goto(url)
    page.wait_for_selector("#suggestions button")
    assert page.inner_text("#suggestions") == own


def test_a_view_is_as_it_was_left(address, page):
    model, url = address
    page.goto(f"{url}/#/senses?word={WORDS[model][0]}&clusters=2&layer=1")
    page.wait_for_selector("#legend li")
    page.wait_for_selector(READY)
    left = page.url
    page.click("nav [data-view=compare]")
    page.wait_for_selector("#heat tbody td")
    page.click("nav [data-view=senses]")
    page.wait_for_selector("body[data-ready=senses]:not([aria-busy])")
    assert page.url == left
    assert page.input_value("#layer") == "1"
    page.click("#language")  # writes every text again
    page.click("#language")
    page.click("#sentences li:first-child button")
    page.wait_for_selector("#sentences .near")


def test_a_link_shows_nothing_of_the_link_before(address, page):
    model, url = address
    word, own, _ = WORDS[model]
    page.goto(f"{url}/#/senses?word={word}&clusters=2&layer=1&own={own}")
    page.wait_for_function("document.getElementById('own-result').textContent")
    page.wait_for_selector(READY)
    page.evaluate("(link) => { location.hash = link; }", f"#/senses?word={word}&layer=2")
    page.wait_for_function("document.getElementById('layer').value === '2'")
    page.wait_for_selector(READY)
    assert page.input_value("#clusters") == page.input_value("#own") == page.inner_text("#own-result") == ""


def test_the_whole_map_has_no_filter(address, page):
    model, url = address
    page.goto(f"{url}/#/senses?word={WORDS[model][0]}&clusters=2")
    page.wait_for_selector("#legend li")
    page.wait_for_selector(READY)
    everything = page.locator("#sentences li").count()
    page.fill("#filter", "no sentence has this")
    assert page.locator("#sentences li").count() == 0
    page.click("#reset")
    assert page.locator("#sentences li").count() == everything
    assert page.input_value("#filter") == ""


def test_a_list_that_is_cut_says_so(address, page):
    model, url = address
    change(page, "**/senses", lambda found: found.update(sentences=found["sentences"] * 40))
    page.goto(f"{url}/#/senses?word={WORDS[model][0]}&clusters=2")
    page.wait_for_selector("#legend li")
    page.wait_for_selector(READY)
    assert page.locator("#sentences li").count() == 300
    assert "300" in page.inner_text("#list-title")


def test_sentences_are_joined_as_they_were_written(address, page):
    model, url = address
    tokens = ["She", "did", "n't", "find", "Sam", "'s", "w", ",", "(", "he", "said", ")", "."]
    change(page, "**/senses", lambda found: found["sentences"].__setitem__(0, {"tokens": tokens, "position": 6}))
    page.goto(f"{url}/#/senses?word={WORDS[model][0]}&clusters=2")
    page.wait_for_selector("#legend li")
    page.wait_for_selector(READY)
    assert page.inner_text("#sentences li:first-child") == "She didn't find Sam's w, (he said)."
    page.focus("#map")
    page.keyboard.press("ArrowRight")  # to the first use
    assert page.inner_text("#tip") == "She didn't find Sam's w, (he said)."


def test_heads_of_columns_can_be_read(address, page):
    _, url = address
    page.goto(f"{url}/#/compare?first=a&second=bank 行 😀")
    page.wait_for_selector("#heat tbody td")
    turned = page.locator("#heat thead th").evaluate_all("all => all.map((each) => getComputedStyle(each).transform)")
    assert turned[0] != "none"
    assert turned[-2:] == ["none", "none"]


def test_a_server_with_a_key_asks_for_it(address, page):
    _, url = address

    def guard(route):
        if route.request.headers.get("authorization") == "Bearer secret":
            return route.continue_()
        return route.fulfill(status=401, json={"error": "the header Authorization is wrong"})

    asked, keys = [], ["clé", "secret"]

    def answer(dialog):
        asked.append(dialog.message)
        dialog.accept(keys.pop(0))

    page.on("dialog", answer)
    page.route("**/info", guard)
    page.goto(url)
    page.wait_for_selector(READY)
    assert len(asked) == 2
    assert not any("Authorization" in each for each in asked)


def test_an_empty_sentence_changes_nothing(address, page):
    _, url = address
    page.goto(f"{url}/#/compare")
    page.wait_for_selector("#heat tbody td")
    page.wait_for_selector(READY)
    page.fill("#second", "")
    page.press("#second", "Enter")
    assert page.is_visible("#heat td >> nth=0")
    assert page.locator("#second:invalid").count() == 1


def test_an_unknown_word_is_a_sentence(address, page):
    _, url = address
    page.goto(f"{url}/")
    page.wait_for_selector(READY)
    page.fill("#word", "xyzzy")
    page.press("#word", "Enter")
    page.wait_for_selector("#message:not([hidden])")
    assert "xyzzy" in page.inner_text("#message")


def test_without_suggestions_the_word_is_shown_and_errors_are_sentences(address, page):
    model, url = address
    page.route("**/words", lambda route: route.abort())
    page.goto(f"{url}/#/senses?word={WORDS[model][0]}&clusters=2")
    page.wait_for_selector("#legend li")
    page.wait_for_selector(READY)
    assert page.is_hidden("#message")
    for wrong in (lambda route: route.fulfill(status=200, body="<h1>Log in</h1>"), lambda route: route.abort()):
        page.route("**/senses", wrong)
        page.fill("#word", "another")
        page.press("#word", "Enter")
        page.wait_for_selector("#message:not([hidden])")
        assert "serve" in page.inner_text("#message")
        assert page.is_hidden("#empty")  # the map of the word before is still there


def change(page, path, function):
    """Change what the server answers on a path."""

    def answer(route):
        found = route.fetch().json()
        function(found)
        route.fulfill(json=found)

    page.route(path, answer)


def test_long_words_do_not_widen_the_page(address, page):
    model, url = address
    long = "x" * 300
    change(page, "**/senses", lambda found: [sense.update(typical=[long, long]) for sense in found["senses"]])
    change(page, "**/words", lambda found: found["words"].append({"word": long, "occurrences": 1}))
    page.set_viewport_size({"width": 360, "height": 740})
    sentence = f"{long}%20b%20{long}"
    for view, shown in [
        (f"senses?word={WORDS[model][0]}&clusters=2&layer=0", "#legend li"),
        (f"compare?first={sentence}&second={sentence}", "#heat td"),
        (f"substitutes?sentence={sentence}&position=1", "#expected li"),
    ]:
        page.goto(f"{url}/#/{view}")
        page.wait_for_selector(shown)
        page.wait_for_selector(READY)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.goto(f"{url}/#/compare?first={sentence}&second=b")
    page.wait_for_function("document.querySelectorAll('#heat thead th').length == 1")
    assert page.locator("#heat tbody th").first.bounding_box()["width"] < 330


def test_a_sentence_that_is_there_twice_is_two_uses(address, page):
    model, url = address
    tokens = ["w", "and", "w"]
    uses = [{"tokens": tokens, "position": 0}, {"tokens": tokens, "position": 2}, {"tokens": tokens, "position": 0}]
    change(page, "**/senses", lambda found: found["sentences"].__setitem__(slice(3), uses))
    change(page, "**/neighbours", lambda found: found.update(neighbours=[{**use, "similarity": 1} for use in uses]))
    page.goto(f"{url}/#/senses?word={WORDS[model][0]}&clusters=2")
    page.wait_for_selector("#legend li")
    page.wait_for_selector(READY)
    page.fill("#filter", "w and w")
    page.click("#sentences li:first-child button")
    page.wait_for_selector("#sentences .near")
    assert [text.split(" 1.00")[0] for text in page.locator("#sentences li").all_inner_texts()] == ["w and w"] * 3
    found = page.locator("#sentences li button").evaluate_all("all => all.map((each) => each.innerHTML)")
    assert [each.startswith("<b>w</b>") for each in found] == [True, False, True]
    assert page.locator("#sentences [aria-current=true]").count() == 1


def test_text_from_the_right(address, page):
    _, url = address
    page.goto(f"{url}/#/substitutes?sentence=ذهبت إلى البنك.")
    page.wait_for_selector("#tokens button")
    first, last = (page.locator(f"#tokens button:{place}-child").bounding_box() for place in ("first", "last"))
    assert first["x"] > last["x"]
    assert page.locator("#sentence").evaluate("(each) => getComputedStyle(each).direction") == "rtl"


def test_a_map_of_very_many_uses(address, page):
    _, url = address
    page.goto(url)
    page.wait_for_selector(READY)
    box = page.evaluate(
        """async () => {
          const { WordMap } = await import("/page/map.js"), make = (name) => document.createElement(name);
          const map = new WordMap(make("canvas"), make("div"), {});
          const points = Array.from({ length: 300000 }, (_, i) => [i, -i]);
          map.draw = () => {};
          map.setData({ points: [points], labels: [], names: [] }, 0);
          return map.box;
        }"""
    )
    assert box[0]["half"] == 149999.5


@pytest.mark.skipif(not AXE, reason="axe-core is not here: make test-browser fetches it with npm")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_accessibility(address, browser, scheme, width):
    model, url = address
    context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme, bypass_csp=True)
    page = context.new_page()
    page.set_default_timeout(WAIT)
    for view in (f"#/senses?word={WORDS[model][0]}&clusters=2", "#/compare", "#/substitutes"):
        page.goto(f"{url}/{view}")
        page.reload()
        page.wait_for_selector(READY)
        page.evaluate(Path(AXE).read_text(encoding="utf-8"))
        found = page.evaluate("axe.run()")
        assert [(each["id"], each["nodes"][0]["html"]) for each in found["violations"]] == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    context.close()
