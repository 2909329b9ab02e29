"""Every format gives back what was written, for every shape of vectors and for text that is hard to store."""

import csv
import json
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest

from elmokit.errors import ElmoError, MissingExtraError
from elmokit.output import Summary, embed_lines, read_vectors, writer_for
from elmokit.output.sentence_vectors import shortest_decimals, without_surrogates
from elmokit.output.writers.hdf5 import without_nul
from support.output_samples import AWKWARD, FORMATS, KINDS, LAYERS, SETTINGS, D, embed, encoder, tokenise, vectors_for


def expected_tokens(output, layout):
    tokens = [tokenise(line) for line in AWKWARD]
    if layout == "bilm":
        return [[] for _ in AWKWARD]
    if layout == "allennlp":
        last = {line.strip(): number for number, line in enumerate(AWKWARD)}
        return [
            words if last[line.strip()] == number else []
            for number, (line, words) in enumerate(zip(AWKWARD, tokens, strict=True))
        ]
    if output.suffix == ".h5":
        return [[without_nul(word) for word in words] for words in tokens]
    if output.suffix in (".parquet", ".csv"):
        return [[without_surrogates(word) for word in words] for words in tokens]
    return tokens


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "layout"), FORMATS)
def test_round_trip(tmp_path, name, layout, kind):
    output = tmp_path / name
    summary = embed(iter(AWKWARD), output, kind, layout=layout)
    assert summary == Summary(len(AWKWARD), sum(len(tokenise(line)) for line in AWKWARD), 0)
    assert list(tmp_path.iterdir()) == [output]
    back = list(read_vectors(output))
    assert [tokens for tokens, _ in back] == expected_tokens(output, layout)
    for line, (_, vectors) in zip(AWKWARD, back, strict=True):
        assert vectors.dtype == np.float32
        np.testing.assert_array_equal(vectors, vectors_for(tokenise(line), kind), strict=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "layout"), FORMATS)
@pytest.mark.parametrize("lines", [[], [""], ["", "", "a b", ""]], ids=["nothing", "empty", "mostly-empty"])
def test_little_or_nothing(tmp_path, name, layout, kind, lines):
    embed(lines, tmp_path / name, kind, layout=layout)
    back = list(read_vectors(tmp_path / name))
    assert len(back) == len(lines)
    for line, (_, vectors) in zip(lines, back, strict=True):
        np.testing.assert_array_equal(vectors, vectors_for(line.split(), kind), strict=True)


@pytest.mark.parametrize(("name", "layout"), FORMATS)
def test_every_float_survives(tmp_path, name, layout):
    tiny, huge = np.finfo(np.float32).smallest_subnormal, np.finfo(np.float32).max
    odd = [
        0.0,
        -0.0,
        tiny,
        -tiny,
        huge,
        -huge,
        np.nan,
        np.inf,
        -np.inf,
        1 / 3,
        1e-5,
        16777216,
        7.0385307e-26,
        -7.0385307e-26,
    ]
    random = np.random.default_rng(5).integers(0, 2**32, 6_000, dtype=np.uint32).view(np.float32)
    values = np.concatenate([np.array(odd, np.float32), random[~np.isnan(random)]])[:5_600].reshape(7, 800)
    embed(["a b c d e f g"], tmp_path / name, layout=layout, encode=lambda sentences: (values for _ in sentences))
    ((_, vectors),) = read_vectors(tmp_path / name)
    np.testing.assert_array_equal(vectors, values)
    np.testing.assert_array_equal(np.signbit(vectors), np.signbit(values))


@pytest.mark.parametrize("kind", ["one", "pooled-all"])
@pytest.mark.parametrize(("name", "layout"), FORMATS)
def test_float16_on_the_disk(tmp_path, name, layout, kind):
    embed(AWKWARD, tmp_path / name, kind, layout=layout, store="float16")
    for line, (_, vectors) in zip(AWKWARD, read_vectors(tmp_path / name), strict=True):
        assert vectors.dtype == np.float32
        expected = vectors_for(tokenise(line), kind).astype(np.float16)
        if name.endswith((".jsonl", ".csv")):  # the shortest decimals that give the float16 again
            vectors = vectors.astype(np.float16)
        np.testing.assert_array_equal(vectors, expected.astype(vectors.dtype), strict=True)


def test_float16_takes_half_the_space(tmp_path):
    lines = ["a b c d e f g h"] * 200
    for name in ("out.h5", "out.npz", "out.npy", "out.parquet", "out.jsonl", "out.csv"):
        sizes = []
        for store in ("float32", "float16"):
            embed(lines, tmp_path / name, store=store)
            sizes.append((tmp_path / name).stat().st_size)
        assert sizes[1] < 0.85 * sizes[0], name  # the vectors here are short: the text counts too


def test_every_float16_has_decimals_of_its_own():
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    every = every[np.isfinite(every)]
    back = np.array(shortest_decimals(every), np.float64).astype(np.float32).astype(np.float16)
    np.testing.assert_array_equal(back.view(np.uint16), every.view(np.uint16))


def test_a_number_beyond_float16_is_refused(tmp_path):
    large = np.full((1, D), 70_000, np.float32)
    with pytest.raises(ElmoError, match=r"store must be float32 .*70000"):
        embed(["a"], tmp_path / "o.npz", encode=lambda sentences: (large for _ in sentences), store="float16")


@pytest.mark.parametrize("kind", KINDS)
def test_an_npy_file_needs_numpy_alone(tmp_path, kind):
    embed(AWKWARD, tmp_path / "out.npy", kind)
    with (tmp_path / "out.npy").open("rb") as file:
        vectors = np.load(file)
        head, *tokens = map(json.loads, file)
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy", mmap_mode="r"), vectors)
    assert head["pooled"] == ("pooled" in kind)
    assert head["settings"] == SETTINGS
    assert tokens == [tokenise(line) for line in AWKWARD]
    assert len(vectors) == (len(AWKWARD) if head["pooled"] else sum(map(len, tokens)))
    np.save(tmp_path / "other.npy", np.zeros((2, 3), np.float32))
    with pytest.raises(ElmoError, match="no tokens after it"):
        list(read_vectors(tmp_path / "other.npy"))


@pytest.mark.parametrize("kind", ["one", "pooled", "all"])
def test_a_spreadsheet_runs_no_token_of_a_csv_file(tmp_path, kind):
    tokens = ["=1+2", "+1", "-1", "@SUM", "'=1", "''@", "'tis", "＝1", "\tx", "a=b", "'"]
    given = {
        "tokenise": lambda line: tokens if line == "all" else [line],
        "encode": lambda sentences: (vectors_for(words, kind) for words in sentences),
    }
    embed_lines(["all", *tokens], output=tmp_path / "o.csv", settings={}, pooled=kind == "pooled", **given)
    with (tmp_path / "o.csv").open(encoding="utf-8", newline="") as file:
        head, *rows = csv.reader(file)
    place = head.index("tokens" if kind == "pooled" else "token")
    assert not any(row[place][0] in "=+-@＝＋－＠\t\r\n" for row in rows)
    assert head[-1] == f"d{D}"
    found = list(read_vectors(tmp_path / "o.csv"))
    assert [words for words, _ in found] == [tokens, *([token] for token in tokens)]


def test_other_dtypes_and_strides_are_stored_as_float32(tmp_path):
    wide = np.arange(48, dtype=np.float64).reshape(3, 16)[:, ::2]
    arrays = [wide, wide.astype(np.float16), np.asfortranarray(wide), wide.astype(">f4")]
    embed(
        ["a b c"] * 4,
        tmp_path / "out.npz",
        encode=lambda sentences: (a for a, _ in zip(arrays, sentences, strict=True)),
    )
    for _, vectors in read_vectors(tmp_path / "out.npz"):
        np.testing.assert_array_equal(vectors, wide.astype(np.float32), strict=True)


@pytest.mark.parametrize("kind", KINDS)
def test_hdf5_elmokit_layout(tmp_path, kind):
    embed(AWKWARD, tmp_path / "out.h5", kind)
    tokens = sum(len(tokenise(line)) for line in AWKWARD)
    rows = len(AWKWARD) if "pooled" in kind else tokens
    with h5py.File(tmp_path / "out.h5") as file:
        assert sorted(file) == ["offsets", "sentences", "tokens", "vectors"]
        assert file["vectors"].shape == ((rows, LAYERS, D) if "all" in kind else (rows, D))
        assert file["vectors"].chunks is None, "contiguous, so that a sentence is one read"
        assert file["offsets"].dtype == np.int64
        assert file["offsets"][:].tolist() == np.cumsum([0, *(len(tokenise(line)) for line in AWKWARD)]).tolist()
        assert file["tokens"].shape == (tokens,)
        assert file["sentences"].asstr()[:].tolist() == [without_nul(line) for line in AWKWARD]
        assert (file.attrs["format"], file.attrs["version"]) == ("elmokit-vectors", 1)
        assert json.loads(file.attrs["settings"]) == SETTINGS


def test_hdf5_is_readable_by_the_libraries_of_2008(tmp_path):
    embed(AWKWARD, tmp_path / "out.h5")
    with h5py.File(tmp_path / "out.h5") as file:
        assert file.id.get_create_plist().get_version()[0] <= 2, "the superblock of HDF5 1.8"


def test_bilm_and_allennlp_keys(tmp_path):
    embed(AWKWARD, tmp_path / "bilm.h5", "all", layout="bilm")
    embed(AWKWARD, tmp_path / "allen.h5", "all", layout="allennlp")
    with h5py.File(tmp_path / "bilm.h5") as bilm, h5py.File(tmp_path / "allen.h5") as allen:
        assert set(bilm) == {str(number) for number in range(len(AWKWARD))}
        assert set(allen) == set(bilm) | {"sentence_to_index"}
        assert bilm["1"].shape == (LAYERS, 3, D)
        assert allen["sentence_to_index"].shape == (1,)
        index = json.loads(allen["sentence_to_index"][0])
    assert index["same words"] == "9", "the last of equal sentences counts"
    assert index[AWKWARD[4]] == "4"
    assert index[AWKWARD[5]] == "5"


def test_allennlp_reader_leaves_out_tokens_it_cannot_know(tmp_path):
    embed_lines(
        ["日本語"], tokenise=list, encode=encoder("one"), output=tmp_path / "o.h5", layout="allennlp", settings={}
    )
    ((tokens, vectors),) = read_vectors(tmp_path / "o.h5")
    assert tokens == []
    assert vectors.shape == (3, D)


def test_npz_through_numpy(tmp_path):
    embed(AWKWARD, tmp_path / "out.npz", "all")
    with np.load(tmp_path / "out.npz") as file:
        vectors, offsets = file["vectors"], file["offsets"]
        lines = file["tokens.jsonl"].decode("ascii").split("\n")[:-1]
        assert json.loads(file["settings.json"])["settings"] == SETTINGS
    assert [json.loads(line) for line in lines] == [tokenise(line) for line in AWKWARD]
    for number, line in enumerate(AWKWARD):
        mine = vectors[offsets[number] : offsets[number + 1]]
        np.testing.assert_array_equal(mine.swapaxes(0, 1), vectors_for(tokenise(line), "all"))


def test_npz_of_equal_contents_are_equal_files(tmp_path):
    embed(AWKWARD, tmp_path / "a.npz")
    embed(AWKWARD, tmp_path / "b.npz")
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_parquet_columns_and_row_groups(tmp_path, kind, monkeypatch):
    pq = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr("elmokit.output.writers.parquet.GROUP_ROWS", 5)
    embed(AWKWARD, tmp_path / "out.parquet", kind)
    vector = f"fixed_size_list<element: float>[{D}]"
    with pq.ParquetFile(tmp_path / "out.parquet") as file:
        assert file.num_row_groups == 4
        schema = file.schema_arrow
        names = [f"layer_{layer}" for layer in range(LAYERS)] if "all" in kind else ["vectors"]
        assert schema.names == ["index", "sentence", "tokens", *names]
        for name in names:
            column = str(schema.field(name).type)
            assert column.startswith("fixed_size_list<" if "pooled" in kind else "list<element: fixed_size_list<")
            assert column.count(f"[{D}]") == 1, vector
        table = file.read()
    assert table["index"].to_pylist() == list(range(len(AWKWARD)))
    assert table["sentence"].to_pylist() == [without_surrogates(line) for line in AWKWARD]
    shown = np.array(table[names[-1]].to_pylist()[1], dtype=np.float32)
    given = vectors_for(tokenise(AWKWARD[1]), kind)
    np.testing.assert_array_equal(shown, given[-1] if "all" in kind else given)


@pytest.mark.parametrize(
    ("kind", "key"), [("one", "vectors"), ("all", "layers"), ("pooled", "vector"), ("pooled-all", "vector")]
)
def test_jsonl_is_plain_json(tmp_path, kind, key):
    embed(AWKWARD, tmp_path / "out.jsonl", kind)
    lines = (tmp_path / "out.jsonl").read_bytes().decode("ascii").split("\n")
    assert lines.pop() == ""
    for number, (line, text) in enumerate(zip(lines, AWKWARD, strict=True)):
        entry = json.loads(line, parse_constant=pytest.fail)
        assert set(entry) == {"index", "dim", "tokens", key}
        assert (entry["index"], entry["tokens"]) == (number, tokenise(text))
    assert str(vectors_for(tokenise(AWKWARD[1]), kind).ravel()[0]) in lines[1], (
        "the shortest that means the same float32"
    )


def test_an_ending_must_be_known(tmp_path):
    endings = r"\.csv, \.h5, \.hdf5, \.jsonl, \.npy, \.npz, \.parquet, \.txt"
    with pytest.raises(ElmoError, match=endings + r", got .*out\.doc"):
        writer_for(tmp_path / "out.doc")
    with pytest.raises(ElmoError, match=r"got out$"):
        writer_for((tmp_path / "out").relative_to(tmp_path))
    assert writer_for(tmp_path / "OUT.H5") is writer_for(tmp_path / "x.hdf5")


def test_a_layout_must_be_known_and_fit_the_ending(tmp_path):
    with pytest.raises(ElmoError, match="one of allennlp, bilm, elmokit, manylangs, got keys"):
        writer_for(tmp_path / "out.h5", "keys")
    for name in ("out.npz", "out.parquet", "out.jsonl"):
        with pytest.raises(ElmoError, match=r"output must end in \.h5, \.hdf5 for the layout bilm"):
            writer_for(tmp_path / name, "bilm")


def test_parquet_without_pyarrow_says_so_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"Writing parquet needs the package pyarrow: .*elmokit\[parquet\]"):
        embed(iter(lambda: pytest.fail("read"), None), tmp_path / "out.parquet")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "layout"), FORMATS)
def test_a_damaged_file_is_one_sentence(tmp_path, name, layout):
    embed(AWKWARD, tmp_path / name, layout=layout)
    whole = (tmp_path / name).read_bytes()
    # The last rows of a table may be missing without a trace.
    for length in (9, len(whole) // 2, *([] if name.endswith(".csv") else [len(whole) - 9])):
        (tmp_path / name).write_bytes(whole[:length])
        with pytest.raises(ElmoError, match=name):
            list(read_vectors(tmp_path / name))


def test_reading_what_is_no_file_of_vectors(tmp_path):
    with pytest.raises(ElmoError, match="cannot read"):
        read_vectors(tmp_path / "missing.h5")
    with pytest.raises(ElmoError, match="cannot read"):
        read_vectors(tmp_path)
    (tmp_path / "text.h5").write_text("hello there", encoding="ascii")
    with pytest.raises(ElmoError, match="must have one of the formats"):
        read_vectors(tmp_path / "text.h5")
    (tmp_path / "other.jsonl").write_text('{"text": 1}\n', encoding="ascii")
    with pytest.raises(ElmoError, match=r"line 1 of .* must have tokens"):
        list(read_vectors(tmp_path / "other.jsonl"))
    with zipfile.ZipFile(tmp_path / "other.npz", "w") as archive:
        archive.writestr("x", "y")
    with pytest.raises(ElmoError, match=r"must contain vectors\.npy"):
        list(read_vectors(tmp_path / "other.npz"))
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["char_embed"] = np.zeros(3)
    with pytest.raises(ElmoError, match="must be sentence numbers"):
        list(read_vectors(tmp_path / "other.h5"))


def test_many_keys(tmp_path):
    count = 5_000
    one = np.zeros((1, 2), np.float32)
    embed(map(str, range(count)), tmp_path / "out.h5", layout="bilm", encode=lambda sentences: (one for _ in sentences))
    assert sum(1 for _ in read_vectors(tmp_path / "out.h5")) == count


@pytest.mark.parametrize(
    "name", ["elmokit.h5", "bilm.h5", "allennlp.h5", "vectors.npz", "vectors.parquet", "vectors.jsonl"]
)
def test_files_of_an_earlier_release_are_read(name):
    lines = ["The bank raised rates .", "", "我 爱 茶"]
    back = list(read_vectors(Path(__file__).parent / "samples" / name))
    assert [tokens for tokens, _ in back] == ([[]] * 3 if name == "bilm.h5" else [line.split() for line in lines])
    for number, (line, (_, vectors)) in enumerate(zip(lines, back, strict=True)):
        count = len(line.split())
        expected = np.arange(2 * count * 3, dtype=np.float32).reshape(2, count, 3) / 4 + number
        np.testing.assert_array_equal(vectors, expected, strict=True)
