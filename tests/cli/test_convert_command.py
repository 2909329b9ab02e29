"""`elmo info` and `elmo convert`."""

import json

import numpy as np

from elmokit import Elmo
from support.command_line import call


def test_info_and_convert(capsys, tmp_path, model_folder):
    status, out, _ = call(capsys, "info", model_folder)
    assert status == 0
    assert "2 x 13, projected to 6, both directions" in out
    assert "softmax" in out
    status, out, _ = call(capsys, "convert", model_folder, tmp_path / "old", "--to", "bilm")
    assert (status, out) == (0, f"wrote {tmp_path / 'old'}\n")
    assert json.loads((tmp_path / "old" / "options.json").read_text())["char_cnn"]["n_characters"] == 262
    ours, theirs = (Elmo.load(path).encode(["the bank"])[0] for path in (model_folder, tmp_path / "old"))
    np.testing.assert_array_equal(ours, theirs)
    tokens = tmp_path / "tokens.hdf5"
    call(capsys, "convert", model_folder, tokens, "--to", "tokens")
    elmo_words = Elmo.load(model_folder, token_embeddings=tokens, vocab=model_folder / "vocab.txt")
    plain = Elmo.load(model_folder)
    np.testing.assert_array_equal(
        elmo_words.encode(["the bank"], output="layers")[0], plain.encode(["the bank"], output="layers")[0]
    )
