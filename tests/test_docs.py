"""README and docs as a user reads them: every command and example is run, every link and name exists."""

import importlib.util
import pkgutil
import re
import shlex
import shutil
import subprocess
import tomllib
import zipfile
from contextlib import suppress
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from types import SimpleNamespace

import pytest

from elmokit import Elmo
from elmokit.cli import main
from elmokit.cli.registry import unregister_command
from elmokit.config import CONTEXTS
from elmokit.formats import formats, unregister_format
from elmokit.model.context import unregister_context
from elmokit.output import unregister_writer
from elmokit.tasks import task_names, unregister_task
from support.model_files import make_bilm, make_manylangs, write_manylangs, write_tensorflow
from support.tiny_models import tiny_checkpoint

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
ADAPTERS = sorted((ROOT / "docs" / "integrations").glob("*.md"))  # their tests are in tests/integrations
FOLDERS = ("examples", "benchmarks")
PROSE = [
    *PAGES,
    *ADAPTERS,
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *(ROOT / name / "README.md" for name in FOLDERS),
]
CARDS = sorted((ROOT / "src" / "elmokit" / "models").glob("*/README.md"))
# Plain English uses other words: "stored", "reported", "again", "similar", "int8", "float16", "is in", "per".
UNUSUAL = re.compile(
    r"\b(kept|told|anew|alike|lies? in|stands? in|goes on|8 bits|half precision|come apart|goes astray|went astray"
    r"|(tokens|words|numbers|bytes) an? (second|token|word|row)"
    r"|an? (row|line|word|vector|sentence|paragraph|scale|panel) an? \w+)\b"
)
# A block behind `<!-- before -->` is the code of another system, shown for comparison.
BLOCK = re.compile(r"(?P<before><!-- before -->\n)?```(?P<kind>bash|python)\n(?P<body>.*?)```", re.DOTALL)


def blocks(page: Path) -> list[tuple[str, str]]:
    found = BLOCK.finditer(page.read_text(encoding="utf-8"))
    return [(match["kind"], match["body"]) for match in found if not match["before"]]


@pytest.fixture
def user_folder(tmp_path, monkeypatch) -> Path:
    """What the pages assume: models of several kinds, texts, examples of tasks."""
    elmo = Elmo(tiny_checkpoint(head=True))
    elmo.save(tmp_path / "some-model")
    elmo.save(tmp_path, format="bilm")
    with zipfile.ZipFile(tmp_path / "model.zip", "w") as archive:
        archive.write(tmp_path / "weights.hdf5", "model.hdf5")
        archive.write(tmp_path / "options.json", "options.json")
    write_manylangs(tmp_path / "manylangs", make_manylangs())
    write_tensorflow(tmp_path / "checkpoint-folder", make_bilm(softmax=True))
    (tmp_path / "text.conllu").write_text("1\tSue\t_\n2\tdrinks\t_\n3\ttea.\t_\n", encoding="utf-8")
    (tmp_path / "sentences.txt").write_text("The bank raised rates .\nA river bank .\n", encoding="utf-8")
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "text.txt").write_text("The bank raised rates. A river bank.\n" * 150, encoding="utf-8")
    (tmp_path / "chinese.txt").write_text("银行提高了利率。河岸上有一只鸟。\n" * 150, encoding="utf-8")
    (tmp_path / "held-out.txt").write_text("A river bank .\n", encoding="utf-8")
    write_task_files(tmp_path)
    monkeypatch.setenv("ELMOKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_task_files(folder: Path) -> None:
    """A file of examples for each kind of task."""
    reviews = "positive\tA warm and funny film .\nnegative\tThe plot is dull .\n" * 10
    (folder / "reviews.tsv").write_text(f"label\ttext\n{reviews}", encoding="utf-8")
    names = "Ada B-PER\nLovelace I-PER\nlived O\nin O\nLondon B-LOC\n\n" * 20
    (folder / "names.conll").write_text(names, encoding="utf-8")
    (folder / "more-names.conll").write_text(names, encoding="utf-8")
    pairs = "A man sleeps .\tA man is awake .\tcontradiction\nA man sleeps .\tA man rests .\tentailment\n" * 10
    (folder / "pairs.tsv").write_text(f"premise\thypothesis\tlabel\n{pairs}", encoding="utf-8")


@pytest.fixture
def _registries():
    """What a page registers is forgotten afterwards."""
    contexts, known, tasks = set(CONTEXTS), {each.name for each in formats()}, set(task_names())
    yield
    for kind in set(CONTEXTS) - contexts:
        unregister_context(kind)
    for name in {each.name for each in formats()} - known:
        unregister_format(name)
    for name in set(task_names()) - tasks:
        unregister_task(name)
    unregister_writer(".toy")
    with suppress(KeyError):
        unregister_command("shout")


@pytest.mark.usefixtures("_registries")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_example_and_command_runs(page, user_folder):
    """In the order of the page: a command may write what an example reads."""
    namespace: dict[str, object] = {"__name__": "example"}
    for number, (kind, body) in enumerate(blocks(page)):
        if kind == "python":
            exec(compile(body, f"{page.name} block {number}", "exec"), namespace)
        else:
            for line in body.replace("\\\n", " ").splitlines():
                if command := line.split(" #")[0].strip():
                    run(command)


def run(command: str) -> None:
    if command.startswith(("make ", "pip ", "git ", "cd ", "torchrun ")):
        check_set_up(command)
        return
    if command.startswith("elmo train "):
        command = shortened(command)
    if command.startswith("elmo task train "):
        command += " --model some-model --hidden 8 --epochs 1"
    assert command.startswith("elmo "), f"the test does not know the command: {command}"
    with pytest.raises(SystemExit) as stop:  # in this process: to start another takes longer than most commands
        main(shlex.split(command)[1:])
    assert not stop.value.code, command


def shortened(command: str) -> str:
    """The same training for two updates of a tiny network; of options given twice the last one counts."""
    if "--resume" in command:
        return f"{command} --steps 3"
    command += " --steps 2 --epochs 0 --minutes 0"
    if "--init" in command:
        return command
    if "--context transformer" in command:
        return f"{command} --size 8 --blocks 2 --heads 2 --inner-size 8 --softmax-size 4 --filters 1:4,2:4"
    return f"{command} --cell-size 12 --output-size 6 --filters 1:4,2:4 --batch-size 4 --window 8"


def check_set_up(command: str) -> None:
    """Set-up cannot be run inside the tests it runs; its targets and extras must exist."""
    if command.startswith("make ") and shutil.which("make"):
        subprocess.run(["make", "-n", "-C", str(ROOT), command.split()[1]], check=True, capture_output=True)
    for extra in re.findall(r"elmokit\[(\w+)\]", command):
        assert re.search(rf"^{extra} = \[", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)


def test_readme_starts_with_what_a_user_does():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text.index("pip install elmokit") < text.index("make demo") < text.index("make test") < 1200


def test_the_six_lines_of_the_readme_print_what_is_below_them(capsys):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    code, printed = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", text, re.DOTALL).groups()
    assert len(code.splitlines()) == 6
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out == printed


def table_under(text: str, beginning: str) -> str:
    """The rows of the table whose heading begins like this."""
    return re.search(rf"^\| {re.escape(beginning)}.*?(?=\n\n)", text, re.DOTALL | re.MULTILINE)[0]


@pytest.mark.parametrize(
    ("table", "source"), [("system |", "docs/speed.md"), ("probe |", "src/elmokit/models/en/README.md")]
)
def test_the_figures_of_the_readme_are_those_that_were_measured(table, source):
    rows = table_under((ROOT / "README.md").read_text(encoding="utf-8"), table).splitlines()[2:]
    figures = {figure for row in rows for figure in re.findall(r"\d+\.\d+|\d+,\d{3}", row.split("|", 2)[2])}
    pages = (ROOT / source).read_text(encoding="utf-8") + (ROOT / "docs" / "quality.md").read_text(encoding="utf-8")
    measured = {Decimal(number.replace(",", "")) for number in re.findall(r"\d[\d,]*(?:\.\d+)?", pages)}
    assert len(figures) > 15
    for figure in figures:
        wanted = Decimal(figure.replace(",", ""))
        assert any(wanted == number.quantize(wanted, ROUND_HALF_UP) for number in measured), figure


def test_the_extras_of_the_readme_are_all_there_are():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    listed = re.search(r"^Extras, .*?(?=\n\n)", text, re.DOTALL | re.MULTILINE)[0]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = set(re.findall(r"elmokit\[(\w+)\]|`([\w-]+)`", listed))
    assert {one or other for one, other in named} == set(project["optional-dependencies"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_options_and_names_in_the_text_exist(page, site_hooks):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    sections = re.split(r"^#+ elmo ?", site_hooks.command_reference(), flags=re.MULTILINE)
    helps = dict(section.split("\n", maxsplit=1) for section in sections[1:])
    for words in map(str.split, re.findall(r"`elmo ([a-z][^`]*)`", text)):
        if words[0] == "shout":  # the page itself adds it
            continue
        both = " ".join(words[:2]).split("|")[0]
        name = both if both in helps else words[0]
        assert name in helps, f"elmo {' '.join(words)}"
        for option in (word.split("=")[0] for word in words if re.match(r"--[a-z]", word)):
            assert re.search(rf"(?<![\w-]){option}(?![\w-])", helps[name]), f"elmo {name} has no {option}"
    for name in re.findall(r"`(elmokit(?:\.[A-Za-z]\w*)+)", text):
        pkgutil.resolve_name(name)


def test_links_between_pages_lead_to_pages_and_headings():
    for page in [*PROSE, *CARDS]:
        for target, heading in re.findall(r"\]\(([^)#:\s]*)#?([^):\s]*)\)", page.read_text(encoding="utf-8")):
            linked = page.parent / target if target else page
            assert linked.exists(), f"{page.name} links to {target}"
            assert not heading or heading in anchors_of(linked), f"{page.name} links to {target}#{heading}"


def anchors_of(page: Path) -> set[str]:
    """The names of a page's headings in links, as GitHub and the site make them."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_the_files_that_the_architecture_names_exist():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    text = re.sub(r"```.*?```", "", page, flags=re.DOTALL)
    named = set(re.findall(r"`([a-z_0-9/]+(?:\.py|/))`", text))
    assert len(named) > 30
    for name in named:
        base = ROOT if name.startswith("tests/") else ROOT / "src" / "elmokit"
        assert (base / name).exists(), f"docs/architecture.md names {name}"
    steps = re.findall(r"^\| (\d+) \|", text, flags=re.MULTILINE)
    assert 5 <= len(steps) <= 10


def test_the_api_reference_names_what_exists():
    names = re.findall(r"^::: ([\w.]+)$", (ROOT / "docs" / "api.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert len(names) > 20
    for name in names:
        assert pkgutil.resolve_name(name).__doc__, name


def test_the_command_reference_has_every_command(site_hooks):
    page = site_hooks.command_reference()
    for command in ("embed", "train", "eval", "convert", "task train", "task predict", "plot similarity", "probe wic"):
        assert re.search(rf"^#+ elmo {command}$", page, re.MULTILINE), command
    assert page.count("Usage: elmo") == len(re.findall(r"^#+ elmo", page, re.MULTILINE)) > 15


def test_links_out_of_the_docs_lead_to_the_repository(site_hooks):
    config = {"extra": {"repository": "https://host/elmokit"}}
    page = site_hooks.on_page_markdown("[a](../examples/demo.py) [b](text.md)", config=config, page=None)
    assert page == "[a](https://host/elmokit/blob/main/examples/demo.py) [b](text.md)"
    below = SimpleNamespace(file=SimpleNamespace(src_uri="integrations/spacy.md"))
    page = site_hooks.on_page_markdown("[a](../../examples/demo.py) [b](../text.md)", config=config, page=below)
    assert page == "[a](https://host/elmokit/blob/main/examples/demo.py) [b](../text.md)"


@pytest.fixture
def site_hooks():
    """docs/hooks.py, which mkdocs loads by its path."""
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs" / "hooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", PROSE, ids=lambda page: str(page.relative_to(ROOT)))
def test_sentences_are_short(page):
    """Plain English: at most 40 words per sentence, counted without code, tables and headings."""
    for sentence in sentences_of(page.read_text(encoding="utf-8")):
        assert len(sentence.split()) <= 40, sentence


@pytest.mark.parametrize("page", [*PROSE, *CARDS], ids=lambda page: str(page.relative_to(ROOT)))
def test_words_are_plain(page):
    """Outside code, which has its own tests."""
    text = re.sub(r"```.*?```|`[^`]*`|<!--.*?-->", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert not [found[0] for found in UNUSUAL.finditer(" ".join(text.split()))]


def sentences_of(text: str) -> list[str]:
    text = re.sub(r"```.*?```|<!--.*?-->|^(?: {4}|\||#|!\[|:::).*?$", "\n\n", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`[^`]*`", "code", text)
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)
    paragraphs = re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", text)
    return [" ".join(part.split()) for block in paragraphs for part in re.split(r"(?<=[.!?])\)?\s+", block)]
