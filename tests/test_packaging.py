"""What pyproject.toml, the workflow, pre-commit and CITATION.cff say of each other."""

import re
import tomllib
from pathlib import Path

import pytest

import elmokit

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CONSTRAINTS = (ROOT / "constraints.txt").read_text(encoding="utf-8")


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def requirements() -> list[str]:
    groups = [PROJECT["project"]["dependencies"], *PROJECT["project"]["optional-dependencies"].values()]
    groups += [group for name, group in PROJECT["dependency-groups"].items() if name != "dev"]
    return [re.match(r"[\w-]+", requirement)[0] for group in groups for requirement in group]


@pytest.mark.parametrize("name", sorted(set(requirements()) - {"ziglang", "flair"}))
def test_every_requirement_is_pinned(name):
    """A loose one could pull another build of torch; ziglang is for users without a compiler and not installed here.

    flair has an environment of its own, with older libraries.
    """
    assert re.search(rf"^{name}==", CONSTRAINTS, re.MULTILINE)


def test_pre_commit_runs_the_same_ruff():
    versions = set(re.findall(r"ruff==([\d.]+)", read(".pre-commit-config.yaml")))
    assert versions == set(re.findall(r"^ruff==([\d.]+)", CONSTRAINTS, re.MULTILINE))


def test_the_citation_has_this_version():
    assert re.search(r"^version: (.*)$", read("CITATION.cff"), re.MULTILINE)[1] == elmokit.__version__


def test_the_workflow_installs_the_extras_of_make():
    extras = re.search(r"^EXTRAS := (.*)$", read("Makefile"), re.MULTILINE)[1]
    assert set(extras.split(",")) <= set(PROJECT["project"]["optional-dependencies"])
    assert read(".github/workflows/ci.yml").count(f".[{extras}]") == 2


def test_every_wheel_limit_is_the_same():
    assert "WHEEL_LIMIT_MB := 95" in read("Makefile")
    assert "95e6" in read(".github/workflows/ci.yml")
