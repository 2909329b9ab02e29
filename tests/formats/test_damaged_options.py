"""options.json that is wrong in every way a hand or a disk can make it: one sentence, and no memory asked for."""

import json

import pytest

from elmokit import Elmo
from support.model_files import Bilm, make_bilm, refusal, write_bilm

HUGE = [10**12, 2**31 - 1]


@pytest.fixture
def bilm(tmp_path):
    return write_bilm(tmp_path, make_bilm())


def changed(model: Bilm, key: str, value: object) -> dict:
    options = json.loads(json.dumps(model.options))
    *sections, leaf = key.split(".")
    place = options
    for section in sections:
        place = place[section]
    if value is KeyError:
        del place[leaf]
    else:
        place[leaf] = value
    return options


NEEDED = [
    "lstm",
    "lstm.dim",
    "lstm.projection_dim",
    "char_cnn.filters",
    "char_cnn.embedding",
    "char_cnn.embedding.dim",
    "char_cnn.max_characters_per_token",
    "char_cnn.activation",
]


@pytest.mark.parametrize("key", NEEDED)
def test_a_missing_key(bilm, key):
    (bilm / "options.json").write_text(json.dumps(changed(make_bilm(), key, KeyError)))
    refusal(bilm, str(bilm / "options.json"), f"needs the key {key}")


WRONG = {
    "lstm": (5, [], "x"),
    "lstm.dim": ("7", 7.0, True, None, -1, 0, [7]),
    "lstm.projection_dim": ("5", 5.5, False, -3, 0),
    "lstm.n_layers": ("2", 2.5, True, None, 0, -1),
    "lstm.cell_clip": ("3", -3, [3], float("nan"), float("inf")),
    "lstm.proj_clip": ("3", -0.5, {}),
    "lstm.use_skip_connections": ("false", 2, []),
    "char_cnn": (5, "x", [], {}),
    "char_cnn.filters": (
        "x",
        [],
        [[1]],
        [[1, 2, 3]],
        [["1", 3]],
        [1, 2],
        [[0, 3]],
        [[1, -3]],
        [[60, 3]],
        [[1, [2]]],
        {},
    ),
    "char_cnn.embedding": (4, "x"),
    "char_cnn.embedding.dim": ("4", -4, 4.0),
    "char_cnn.max_characters_per_token": ("50", 2, -1, 5e9),
    "char_cnn.activation": ("gelu", 5, None, ["relu"]),
    "char_cnn.n_highway": ("1", -1, 1.5, [1]),
    "char_cnn.n_characters": (100, "262", 263, []),
}


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key, values in WRONG.items() for value in values], ids=repr
)
def test_a_wrong_value(bilm, key, value):
    (bilm / "options.json").write_text(json.dumps(changed(make_bilm(), key, value)))
    refusal(bilm, str(bilm / "options.json"))


def test_the_sentence_says_what_was_wrong(bilm):
    (bilm / "options.json").write_text(json.dumps(changed(make_bilm(), "char_cnn.activation", "gelu")))
    message = refusal(bilm)
    assert message == f"{bilm / 'options.json'}: activation must be one of relu, tanh, got 'gelu'"


@pytest.mark.parametrize("value", HUGE)
@pytest.mark.parametrize(
    "key",
    [
        "lstm.dim",
        "lstm.projection_dim",
        "lstm.n_layers",
        "char_cnn.embedding.dim",
        "char_cnn.max_characters_per_token",
        "char_cnn.n_highway",
    ],
)
def test_a_huge_size_is_refused_before_memory_is_taken(bilm, key, value):
    (bilm / "options.json").write_text(json.dumps(changed(make_bilm(), key, value)))
    refusal(bilm, str(bilm))


@pytest.mark.parametrize("value", HUGE)
def test_a_huge_filter(bilm, value):
    (bilm / "options.json").write_text(json.dumps(changed(make_bilm(), "char_cnn.filters", [[1, value]])))
    refusal(bilm, str(bilm))


TEXTS = {
    "empty": b"",
    "cut": b'{"lstm": {"dim": 7, "proj',
    "a list": b"[1, 2]",
    "a number": b"7",
    "nested without end": b"[" * 100_000,
    "a number without end": b'{"lstm": ' + b"9" * 5000 + b"}",
    "no UTF-8": b'{"lstm": "\xff"}',
    "UTF-16": '{"lstm": 1}'.encode("utf-16"),
    "HTML": b"<html>404 not found</html>",
}


@pytest.mark.parametrize("text", TEXTS)
def test_not_a_json_object(bilm, text):
    (bilm / "options.json").write_bytes(TEXTS[text])
    message = refusal(bilm, str(bilm / "options.json"))
    assert len(message) < 400


def test_a_byte_order_mark_is_no_damage(bilm):
    text = (bilm / "options.json").read_text()
    (bilm / "options.json").write_text("\ufeff" + text, encoding="utf-8")
    assert (bilm / "options.json").read_bytes().startswith(b"\xef\xbb\xbf{")
    assert Elmo.load(bilm).kind == "bilm"


def test_no_options(bilm):
    (bilm / "options.json").unlink()
    refusal(bilm, str(bilm / "weights.hdf5"), "needs its options.json")


def test_options_are_a_folder(bilm):
    (bilm / "options.json").unlink()
    (bilm / "options.json").mkdir()
    refusal(bilm, str(bilm / "weights.hdf5"), "needs its options.json")
    refusal(bilm, str(bilm / "options.json"), "not a file", options=bilm / "options.json")


@pytest.mark.parametrize("argument", ["options", "vocab", "token_embeddings"])
@pytest.mark.parametrize("name", ["gone", "x" * 5000, "a\0b"], ids=["gone", "too long", "zero byte"])
def test_files_that_are_named_and_not_there(bilm, argument, name):
    refusal(bilm, str(bilm / name)[:100], **{argument: bilm / name})


def test_options_go_with_their_formats_only(bilm):
    Elmo.load(bilm).save(bilm / "ours")
    refusal(
        bilm / "ours",
        "the format tensorflow or bilm",
        "the format elmokit",
        options=bilm / "options.json",
    )
