import json
from dataclasses import fields
from pathlib import Path
from typing import Literal, get_args, get_origin, get_type_hints

import pytest

from elmokit.options import shown_value
from elmokit.pretrain.recipe import Preset, Recipe, RecipeName, make_recipe, parse_filters, read_config
from support.refusals import refusal

HINTS = get_type_hints(Recipe)
NUMBERS = [item for item in fields(Recipe) if HINTS[item.name] in (int, float)]
CHOICES = [item for item in fields(Recipe) if get_origin(HINTS[item.name]) is Literal]
ORIGINAL = {
    "bidirectional": True,
    "char_cnn": {
        "activation": "relu",
        "embedding": {"dim": 16},
        "filters": [[1, 32], [2, 64]],
        "max_characters_per_token": 40,
        "n_characters": 261,
        "n_highway": 2,
    },
    "dropout": 0.2,
    "lstm": {
        "cell_clip": 3,
        "dim": 512,
        "n_layers": 3,
        "proj_clip": 2,
        "projection_dim": 64,
        "use_skip_connections": True,
    },
    "all_clip_norm_val": 10.0,
    "n_epochs": 7,
    "n_train_tokens": 768648884,
    "batch_size": 128,
    "n_tokens_vocab": 793471,
    "unroll_steps": 20,
    "n_negative_samples_batch": 4096,
}


def written(folder: Path, text: str, name: str = "run.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def options_file(folder: Path, options) -> Path:
    return written(folder, json.dumps(options), "options.json")


@pytest.mark.parametrize("recipe", get_args(RecipeName))
@pytest.mark.parametrize("preset", get_args(Preset))
@pytest.mark.parametrize("kind", ["chars", "words"])
def test_every_preset_goes_with_every_recipe_and_input(preset, recipe, kind):
    values = make_recipe(preset=preset, recipe=recipe, changes={"input": kind})
    config = values.config(1000)
    sizes = {"tiny": (512, 128), "small": (1024, 128), "medium": (2048, 256), "original": (4096, 512)}
    assert (config.lstm.cell_size, config.lstm.output_size) == sizes[preset]
    assert (config.words is None) == (kind == "chars")
    assert config.bidirectional
    assert (values.optimizer, values.window) == (("adagrad", 20) if recipe == "paper" else ("adam", 32))
    assert Recipe(**values.to_dict()) == values
    assert json.loads(json.dumps(values.to_dict())) == values.to_dict()


def test_the_paper_is_the_paper():
    """formats.md, forward pass, 9."""
    paper = make_recipe(preset="original", recipe="paper")
    assert (paper.dropout, paper.optimizer, paper.learning_rate, paper.accumulator) == (0.1, "adagrad", 0.2, 1.0)
    assert (paper.clip_norm, paper.scale_by_window, paper.window, paper.reset) == (10.0, True, 20, 0.0)
    assert (paper.loss, paper.negatives, paper.warmup, paper.decay) == ("sampled", 8192, 0.0, "none")
    config = paper.config(793471)
    assert config.characters.n_filters == 2048
    assert (config.characters.n_highway, config.characters.max_characters, config.characters.embedding_size) == (
        2,
        50,
        16,
    )
    assert (config.lstm.n_layers, config.lstm.cell_clip, config.lstm.projection_clip) == (2, 3.0, 3.0)
    assert config.lstm.skip_connections


def test_a_transformer_has_defaults_of_its_own(tmp_path):
    path = written(tmp_path, 'context = "transformer"\nmask = 0.2\ncausal = "0.5,0.1"\nblocks = 4\n')
    recipe = make_recipe(config=path, changes={"heads": 4})
    assert (recipe.optimizer, recipe.learning_rate, recipe.weight_decay, recipe.clip_norm) == ("muon", 0.005, 0.1, 1.0)
    assert (recipe.warmup, recipe.decay, recipe.final_rate, recipe.beta2, recipe.dropout) == (
        0.01,
        "linear",
        0,
        0.98,
        0.1,
    )
    assert (recipe.mask, recipe.causal, recipe.join, recipe.grow) == ("0.2", "0.5,0.1", 0.5, 0.5)
    context = recipe.config(50).context
    assert (context.size, context.n_blocks, context.n_heads, context.inner_size) == (384, 4, 4, 960)
    assert make_recipe(preset="tiny", changes={"context": "transformer"}).size == 128


def test_later_places_win(tmp_path):
    path = written(tmp_path, 'preset = "tiny"\nrecipe = "paper"\nwindow = 5\nbatch-size = 6\ncell_size = 99\n')
    plain = make_recipe()
    assert (plain.cell_size, plain.optimizer, plain.window) == (1024, "adam", 32)
    from_file = make_recipe(config=path)
    assert (from_file.cell_size, from_file.output_size, from_file.filters) == (99, 128, "1:32,2:32,3:64,4:128")
    assert (from_file.optimizer, from_file.window, from_file.batch_size) == ("adagrad", 5, 6)
    # The command line's preset and recipe win over the file's, and the file's options over theirs.
    named = make_recipe(preset="medium", recipe="modern", config=path)
    assert (named.output_size, named.optimizer, named.window, named.cell_size) == (256, "adam", 5, 99)
    changed = make_recipe(config=path, changes={"window": 8, "cell_size": 7})
    assert (changed.window, changed.cell_size, changed.batch_size) == (8, 7, 6)


def test_a_toml_file_may_hold_every_option(tmp_path):
    wanted = make_recipe(preset="tiny", recipe="paper").to_dict() | {"epochs": 2.5, "shuffle": False, "seed": 9}
    lines = [
        f"{name} = {json.dumps(value) if not isinstance(value, bool) else str(value).lower()}"
        for name, value in wanted.items()
    ]
    assert make_recipe(config=written(tmp_path, "\n".join(lines))).to_dict() == wanted


def test_options_of_bilm_tf_are_understood(tmp_path):
    path = options_file(tmp_path, ORIGINAL)
    recipe = make_recipe(recipe="paper", config=path)
    assert (recipe.cell_size, recipe.output_size, recipe.layers) == (512, 64, 3)
    assert (recipe.filters, recipe.character_size, recipe.max_characters) == ("1:32,2:64", 16, 40)
    assert (recipe.highways, recipe.activation, recipe.skip_connections) == (2, "relu", True)
    assert (recipe.cell_clip, recipe.projection_clip, recipe.clip_norm) == (3.0, 2.0, 10.0)
    assert (recipe.dropout, recipe.epochs, recipe.batch_size, recipe.window) == (0.2, 7.0, 128, 20)
    assert (recipe.negatives, recipe.vocab_size, recipe.input, recipe.loss) == (4096, 793471, "chars", "sampled")
    assert make_recipe(config=path, changes={"layers": 1}).layers == 1
    full = options_file(tmp_path, {**ORIGINAL, "sample_softmax": False, "learning_rate": 0.1})
    assert (make_recipe(config=full).loss, make_recipe(config=full).learning_rate) == ("full", 0.1)


def test_what_options_of_bilm_tf_leave_out_is_as_there(tmp_path):
    """No clips, no skip connections, one layer, no highway: the defaults of bilm-tf, not ours."""
    bare = {
        "lstm": {"dim": 32, "projection_dim": 8},
        "char_cnn": {key: value for key, value in ORIGINAL["char_cnn"].items() if key != "n_highway"},
    }
    recipe = make_recipe(config=options_file(tmp_path, bare))
    assert (recipe.layers, recipe.highways, recipe.skip_connections) == (1, 0, False)
    assert (recipe.cell_clip, recipe.projection_clip) == (0.0, 0.0)
    assert recipe.config(10).lstm.cell_clip is None
    words = make_recipe(config=options_file(tmp_path, {"lstm": bare["lstm"], "share_embedding_softmax": True}))
    assert (words.input, words.tie_softmax, words.output_size) == ("words", True, 8)


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ([1], ["named values"]),
        (None, ["named values"]),
        ({}, ["lstm"]),
        ({"lstm": 3}, ["lstm"]),
        ({"lstm": {"dim": 3}}, ["lstm.projection_dim"]),
        ({**ORIGINAL, "char_cnn": {}}, ["char_cnn.filters"]),
        ({**ORIGINAL, "char_cnn": {**ORIGINAL["char_cnn"], "filters": [3]}}, ["filters"]),
        ({**ORIGINAL, "char_cnn": {**ORIGINAL["char_cnn"], "embedding": 16}}, ["embedding.dim"]),
        ({**ORIGINAL, "bidirectional": False}, ["bidirectional"]),
        ({**ORIGINAL, "dropout": "much"}, ["dropout", "'much'"]),
        ({**ORIGINAL, "share_embedding_softmax": True}, ["tie_softmax"]),
    ],
    ids=str,
)
def test_wrong_options_of_bilm_tf_are_reported_in_a_sentence(tmp_path, options, facts):
    path = options_file(tmp_path, options)
    refusal(lambda: make_recipe(config=path), *facts)


@pytest.mark.parametrize("item", NUMBERS, ids=lambda item: item.name)
def test_a_wrong_number_is_reported_by_its_name(item):
    whole = HINTS[item.name] is int
    least, most = item.metadata["least"], item.metadata["most"]
    wrong = ["3", None, True, [1], float("nan"), float("inf"), 10**400, *([1.5] if whole else [])]
    for value in wrong:
        refusal(lambda value=value: Recipe(**{item.name: value}), f"{item.name} must be a", "number", "got ")
    assert least is not None
    refusal(lambda: Recipe(**{item.name: least - 1}), f"{item.name} must be", f"{least:g}", "got ")
    if most is not None:
        refusal(lambda: Recipe(**{item.name: most + 1}), f"{item.name} must be from", f"to {shown_value(most)}")
    assert getattr(Recipe(**{item.name: least}), item.name) == least


@pytest.mark.parametrize("item", CHOICES, ids=lambda item: item.name)
def test_a_wrong_choice_is_reported_with_the_choices(item):
    for value in ("nonsense", 3, None, ["adam"], {}):
        refusal(
            lambda value=value: Recipe(**{item.name: value}), f"{item.name} must be one of", *get_args(HINTS[item.name])
        )


def test_wrong_flags_and_texts_are_reported():
    for item in fields(Recipe):
        if HINTS[item.name] is bool:
            refusal(lambda name=item.name: Recipe(**{name: 1}), f"{item.name} must be true or false, got 1")
    refusal(lambda: Recipe(filters=3), "filters must be a text")
    for text in ("", "1", "1:", "1:2;3:4", "a:b", "1:-2", "1:2,"):
        refusal(lambda text=text: Recipe(filters=text), "filters must look like", repr(text))
    assert parse_filters(" 1:32 , 2 : 64") == ((1, 32), (2, 64))


def test_whole_numbers_may_be_written_as_floats_and_become_whole():
    recipe = Recipe(steps=3.0, epochs=2)
    assert (recipe.steps, type(recipe.steps), type(recipe.epochs)) == (3, int, float)


def test_a_tied_softmax_needs_words_of_its_size():
    refusal(lambda: Recipe(tie_softmax=True), "tie_softmax", "input words")
    refusal(lambda: Recipe(tie_softmax=True, input="words", word_size=7), "tie_softmax", "word_size", "128", "7")
    config = Recipe(tie_softmax=True, input="words").config(50)
    assert (config.words.n_words, config.words.embedding_size, config.token_projection) == (50, 128, False)
    assert Recipe(input="words", word_size=300).config(50).token_projection


def test_shapes_without_projections():
    config = Recipe(cell_size=128, output_size=128, filters="1:64,2:64", cell_clip=0, projection_clip=0).config(5)
    assert not config.lstm.projection
    assert not config.token_projection
    assert config.lstm.cell_clip is config.lstm.projection_clip is None


@pytest.mark.parametrize("name", ["preset", "recipe"])
@pytest.mark.parametrize("value", ['"huge"', "3", '["tiny"]', "{tiny = {}}"])
def test_an_unknown_preset_or_recipe_is_reported_with_the_known(tmp_path, name, value):
    path = written(tmp_path, f"{name} = {value}")
    refusal(lambda: make_recipe(config=path), f"{name} must be one of", "tiny" if name == "preset" else "modern, paper")


def test_a_file_that_cannot_be_used_is_reported(tmp_path):
    for path, *facts in (
        (tmp_path / "none.toml", "none.toml", "cannot be read", "No such file"),
        (tmp_path, "cannot be read"),
        (written(tmp_path, "window = = 3"), "run.toml", "not valid TOML"),
        (written(tmp_path, "{", "a.json"), "a.json", "not valid JSON"),
        (written(tmp_path, "windw = 3", "b.toml"), "b.toml", "'windw'", "--help"),
        (written(tmp_path, "[network]\ncell_size = 3", "c.toml"), "'network'"),
        (written(tmp_path, 'window = "long"', "d.toml"), "window must be a whole number, got 'long'"),
    ):
        refusal(lambda path=path: make_recipe(config=path), *facts)
    (tmp_path / "latin.toml").write_bytes(b"# \xe9\n")
    refusal(lambda: read_config(tmp_path / "latin.toml"), "latin.toml", "cannot be read")
