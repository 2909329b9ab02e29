"""One digest for everything that decides a model's vectors: the same in every process, another for other vectors."""

import pickle
import subprocess
import sys
from copy import deepcopy
from dataclasses import replace

import pytest
import torch

from elmokit import Elmo
from elmokit.formats import checkpoint
from elmokit.text.vocab import Vocabulary
from support.tiny_models import WORDS, tiny_checkpoint, tiny_config, word_config


def test_equal_models_share_it_and_others_do_not(make_elmo):
    elmo = make_elmo()
    assert elmo.fingerprint() == make_elmo().fingerprint() == make_elmo(head=True).fingerprint()
    words = tiny_checkpoint(word_config())
    swapped = replace(words, vocab=Vocabulary([*WORDS[:3], *reversed(WORDS[3:])]))
    others = [
        make_elmo(seed=1),
        make_elmo(tiny_config(bidirectional=False)),
        make_elmo(boundaries=True),
        make_elmo().to(torch.bfloat16),
        Elmo(words),
        Elmo(swapped),
    ]
    assert len({model.fingerprint() for model in (elmo, *others)}) == 7


def test_what_does_not_change_a_vector_does_not_count(make_elmo):
    elmo = make_elmo()
    before = elmo.fingerprint()
    elmo.text = {"segment": "english"}
    elmo.notes = "a note"
    elmo.requires_grad_(True).train()
    assert elmo.fingerprint() == before
    for again in (pickle.loads(pickle.dumps(elmo)), deepcopy(elmo)):
        assert again.fingerprint() == before


def test_mixes_count_where_they_are_asked_for(make_elmo):
    elmo, normed = make_elmo(), make_elmo(layer_norm=True)
    assert elmo.fingerprint() == normed.fingerprint() == make_elmo(mixes=2).fingerprint()
    codes = {model.fingerprint(mixes=True) for model in (elmo, normed, make_elmo(mixes=2))}
    assert len(codes | {elmo.fingerprint()}) == 4
    before = elmo.fingerprint()
    with torch.no_grad():
        elmo.mixes[0].weights[0] += 1
    assert elmo.fingerprint() == before
    assert elmo.fingerprint(mixes=True) not in codes


@pytest.mark.parametrize("way", ["in place", "data", "swapped", "loaded", "moved"])
def test_a_change_is_noticed_and_undone(make_elmo, way):
    elmo = make_elmo()
    before, weights = elmo.fingerprint(), deepcopy(elmo.state_dict())
    bias = elmo.bilm.context.forward_lstm.layers[0].bias
    with torch.no_grad():
        if way == "in place":
            bias[0] += 1e-6
        elif way == "data":
            bias.data[3] = -bias.data[3]
        elif way == "swapped":
            bias[:2] = bias[:2].flip(0)
        elif way == "loaded":
            elmo.load_state_dict(make_elmo(seed=1).state_dict())
        else:
            elmo.half()
    assert elmo.fingerprint() != before
    if way != "moved":  # float16 has lost digits
        elmo.load_state_dict(weights)
        assert elmo.fingerprint() == before


def test_the_digest_is_computed_once(make_elmo, monkeypatch):
    elmo = make_elmo()
    known = elmo.fingerprint(), elmo.fingerprint(mixes=True)
    monkeypatch.setattr(checkpoint.Fingerprint, "_compute", None)  # whoever calls it fails
    assert (elmo.fingerprint(), elmo.fingerprint(mixes=True)) == known


def test_it_is_the_same_in_another_process(model_folder):
    code = "import sys; from elmokit import Elmo; print(Elmo.load(sys.argv[1], device='cpu').fingerprint(mixes=True))"
    result = subprocess.run([sys.executable, "-c", code, model_folder], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == Elmo.load(model_folder, device="cpu").fingerprint(mixes=True)
