import json

import pytest

from elmokit import ElmoConfig, ElmoError
from elmokit.config import CharacterConfig, LstmConfig, WordConfig
from support.tiny_models import tiny_config, word_config


@pytest.mark.parametrize("config", [tiny_config(), word_config(), tiny_config(bidirectional=False)])
def test_json_and_back(config):
    assert ElmoConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_sizes():
    config = tiny_config()
    assert (config.parts_size, config.n_directions, config.vector_size, config.n_outputs) == (15, 2, 12, 3)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: LstmConfig(0, 4), "cell_size must be from 1 to 2,147,483,647, got 0"),
        (lambda: LstmConfig(8, 4.5), "output_size must be a whole number"),
        (lambda: LstmConfig(10**12, 4), "cell_size must be from 1 to 2,147,483,647, got 1000000000000"),
        (lambda: LstmConfig(8, 4, cell_clip=2**70), "cell_clip must be from 1e-18 to 1e.18"),
        (lambda: CharacterConfig(filters=((1, 2),), max_characters=10**6), "max_characters must be from 3 to 65,536"),
        (lambda: LstmConfig(8, 4, projection=False), r"must equal cell_size \(8\) without a projection"),
        (lambda: LstmConfig(8, 4, cell_clip=-1), "cell_clip must be from 1e-18 to 1e.18, got -1"),
        (lambda: LstmConfig(8, 4, projection_clip=float("inf")), "projection_clip must be"),
        (lambda: LstmConfig(8, 4, forget_bias=0.5), "forget_bias must be 0 or 1"),
        (lambda: LstmConfig(8, 4, skip_connections=1), "skip_connections must be true or false"),
        (lambda: CharacterConfig(filters=()), "filters must name 1 to 1000 convolutions, got 0"),
        (lambda: LstmConfig(8, 4, n_layers=1001), "n_layers must be from 1 to 1,000, got 1001"),
        (lambda: CharacterConfig(filters=((1, 2, 3),)), "pairs of width and count"),
        (lambda: CharacterConfig(filters=((60, 2),)), "width must be from 1 to 50, got 60"),
        (lambda: CharacterConfig(filters=((1, 2),), max_characters=2), "max_characters must be from 3 to"),
        (lambda: CharacterConfig(filters=((1, 2),), activation="gelu"), "activation must be one of relu, tanh"),
        (lambda: CharacterConfig(filters=((1, 2),), n_characters=300), "n_characters must be 262"),
        (lambda: WordConfig(0, 4), "n_words must be"),
        (lambda: ElmoConfig(LstmConfig(8, 4)), "a character part, a word part or both, got neither"),
        (lambda: tiny_config(token_projection=False), "must have size 6"),
        (lambda: ElmoConfig.from_dict({}), "needs the key lstm"),
        (lambda: ElmoConfig.from_dict({"lstm": {"cell_size": 3}}), "lstm needs the key output_size"),
        (lambda: ElmoConfig.from_dict({"lstm": {"cell_size": 3, "output_size": 2, "x": 1}}), "lstm has no key x"),
        (lambda: ElmoConfig.from_dict({"lstm": 3}), "lstm must be an object"),
        (
            lambda: ElmoConfig.from_dict({"lstm": {"cell_size": 3, "output_size": 2}, "characters": {"filters": 3}}),
            "filters must be pairs",
        ),
    ],
)
def test_a_wrong_value_is_named_with_its_rule(build, message):
    with pytest.raises(ElmoError, match=message):
        build()
