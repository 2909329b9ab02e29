"""The driver pairs lines with vectors, commits in time, and leaves nothing half done."""

import errno
import os
import signal
import stat
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from elmokit.errors import ElmoError
from elmokit.output import Summary, check_output, embed_lines, read_vectors, sentence_vectors
from elmokit.output.embed_lines import Spool
from support.output_samples import FORMATS, SETTINGS, embed, encoder, numbered_lines, tokenise, vectors_for

LINES = numbered_lines(30)


def same(output, lines):
    pairs = zip(lines, read_vectors(output), strict=True)
    return all(np.array_equal(vectors, vectors_for(tokenise(line), "one")) for line, (_, vectors) in pairs)


@pytest.mark.parametrize("window", [1, 4, 1000])
def test_encode_may_read_ahead(tmp_path, window):
    embed(iter(LINES), tmp_path / "o.npz", encode=encoder("one", window))
    assert same(tmp_path / "o.npz", LINES)
    assert [tokens for tokens, _ in read_vectors(tmp_path / "o.npz")] == [line.split() for line in LINES]


def test_encode_must_give_an_array_for_each_sentence(tmp_path):
    def too_few(sentences):
        yield from list(encoder("one")(sentences))[:-1]

    def stops_reading(sentences):
        yield vectors_for(next(iter(sentences)), "one")

    def too_many(sentences):
        yield from encoder("one")(sentences)
        yield np.zeros((1, 8))

    for encode, said in ((too_few, "ended after 29"), (stops_reading, "ended after 1"), (too_many, "more arrays")):
        with pytest.raises(RuntimeError, match=said):
            embed(LINES, tmp_path / f"{encode.__name__}.npz", encode=encode)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ElmoError, ZeroDivisionError])
def test_what_is_whole_is_stored_when_an_exception_ends_the_run(tmp_path, error):
    closed = []

    def breaks(sentences):
        try:
            for number, vectors in enumerate(encoder("one")(sentences)):
                if number == 17:
                    raise error
                yield vectors
        finally:
            closed.append(True)

    with pytest.raises(error):
        embed(LINES, tmp_path / "o.npz", encode=breaks)
    assert closed
    assert not (tmp_path / "o.npz").exists()
    assert embed(LINES, tmp_path / "o.npz", resume=True) == Summary(30, sum(n % 7 for n in range(30)), 17)
    assert same(tmp_path / "o.npz", LINES)


def test_an_interrupt_between_two_writes_of_a_sentence(tmp_path, monkeypatch):
    real = os.write
    for step in range(1, 12):
        calls = 0

        def write(fd, data):
            nonlocal calls
            calls += 1
            if calls == step:  # noqa: B023 - called within this turn of the loop
                real(fd, bytes(data)[:3])
                raise KeyboardInterrupt
            return real(fd, data)

        output = tmp_path / f"{step}.npz"
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", write)
            with pytest.raises(KeyboardInterrupt):
                embed(LINES, output)
        embed(LINES, output, resume=True)
        assert same(output, LINES)


def test_failing_at_once_leaves_no_trace(tmp_path):
    def broken(line):
        raise ElmoError("no model")

    with pytest.raises(ElmoError, match="no model"):
        embed_lines(LINES, tokenise=broken, encode=encoder("one"), output=tmp_path / "o.npz", settings={})
    assert list(tmp_path.iterdir()) == []


def test_commits_by_bytes_and_by_seconds(tmp_path, monkeypatch):
    noted, write_state = [], Spool._write_state

    def noting(spool, done):
        noted.append(done.sentences)
        write_state(spool, done)

    monkeypatch.setattr(Spool, "_write_state", noting)
    embed(LINES, tmp_path / "a.npz", commit_bytes=1, commit_seconds=1e9)
    assert noted == [*range(31), 30]
    noted.clear()
    embed(LINES, tmp_path / "b.npz", commit_bytes=1 << 40, commit_seconds=0)
    assert noted == [*range(31), 30]
    noted.clear()
    embed(LINES, tmp_path / "c.npz", commit_bytes=1 << 40, commit_seconds=1e9)
    assert noted == [0, 30, 30]


def test_progress_counts_everything_done(tmp_path):
    def stop(sentences):
        yield from (vectors for vectors, _ in zip(encoder("one")(sentences), range(10), strict=False))
        raise KeyboardInterrupt

    seen = []
    with pytest.raises(KeyboardInterrupt):
        embed(LINES, tmp_path / "o.npz", encode=stop, on_progress=lambda *done: seen.append(done))
    tokens = np.cumsum([len(line.split()) for line in LINES]).tolist()
    assert seen == [(0, 0), *((number + 1, tokens[number]) for number in range(10))]
    seen.clear()
    embed(LINES, tmp_path / "o.npz", resume=True, on_progress=lambda *done: seen.append(done))
    assert seen == [(number + 1, tokens[number]) for number in range(9, 30)], "the first call reports what was resumed"


def test_an_old_output_stays_until_the_new_one_is_whole(tmp_path):
    embed(["old"], tmp_path / "o.npz")

    def breaks(sentences):
        yield vectors_for(next(iter(sentences)), "one")
        assert same(tmp_path / "o.npz", ["old"])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        embed(LINES, tmp_path / "o.npz", encode=breaks)
    assert same(tmp_path / "o.npz", ["old"])
    embed(LINES, tmp_path / "o.npz", resume=True)
    assert same(tmp_path / "o.npz", LINES)


def test_the_layout_may_change_on_resume(tmp_path):
    def stop(sentences):
        yield from encoder("one")(sentences)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        embed(LINES, tmp_path / "o.h5", encode=stop, layout="allennlp")
    embed(LINES, tmp_path / "o.h5", resume=True, layout="elmokit")
    assert same(tmp_path / "o.h5", LINES)


def test_a_link_stays_a_link_to_the_output(tmp_path):
    (tmp_path / "big").mkdir()
    (tmp_path / "o.npz").symlink_to(tmp_path / "big" / "real.npz")
    embed(LINES, tmp_path / "o.npz")
    assert (tmp_path / "o.npz").is_symlink()
    assert same(tmp_path / "big" / "real.npz", LINES)


def test_the_output_has_the_usual_mode(tmp_path):
    (tmp_path / "plain").touch()
    for name, layout in FORMATS:
        embed(LINES, tmp_path / name, layout=layout)
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)


def denied(path, **_):
    raise PermissionError(errno.EACCES, "Permission denied", str(path))


def test_outputs_that_cannot_be(tmp_path, monkeypatch):
    unread = iter(lambda: pytest.fail("read"), None)
    with pytest.raises(ElmoError, match="must be a file, got the folder"):
        embed(unread, tmp_path)
    with pytest.raises(ElmoError, match="the folder of output must exist"):
        embed(unread, tmp_path / "missing" / "o.npz")
    with pytest.raises(ElmoError, match="must be a regular file"):
        check_output("/dev/null")
    with pytest.raises(ElmoError, match="must end in one of"):
        embed(unread, tmp_path / "o.doc")
    for name in ("loop.npz", "other.npz"):
        (tmp_path / name).symlink_to(tmp_path / ("other.npz" if name == "loop.npz" else "loop.npz"))
    with pytest.raises(ElmoError, match=r"can be used, got .*loop\.npz \("):
        embed(unread, tmp_path / "loop.npz")
    for name in ("loop.npz", "other.npz"):
        (tmp_path / name).unlink()
    with pytest.raises(ElmoError, match="File name too long"):
        embed(unread, tmp_path / f"{'o' * 250}.npz")
    with pytest.raises(ElmoError, match="File name too long"):  # only that of the folder .partial is
        embed(unread, tmp_path / f"{'o' * 244}.npz")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", denied)
        with pytest.raises(ElmoError, match=r"got .* \(Permission denied\)"):
            check_output(tmp_path / "o.npz")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(ElmoError, match="must be writable"):
        embed(unread, tmp_path / "o.npz")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("layout", ["elmokit", "bilm"])
def test_ctrl_c_within_hdf5(tmp_path, layout, monkeypatch):
    real, calls = sentence_vectors.SentenceVectors._read, []

    def read(self, file, rows):
        calls.append(rows)
        if len(calls) == 1:
            signal.raise_signal(signal.SIGINT)
        return real(self, file, rows)

    with monkeypatch.context() as patch:
        patch.setattr(sentence_vectors.SentenceVectors, "_read", read)
        patch.setattr(sentence_vectors, "BLOCK_BYTES", 1)
        with pytest.raises(KeyboardInterrupt):
            embed(LINES, tmp_path / "o.h5", layout=layout)
    assert len(calls) == 1, "it takes effect before the next write"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    embed(LINES, tmp_path / "o.h5", layout=layout, resume=True)
    assert same(tmp_path / "o.h5", LINES)


@pytest.mark.parametrize(("name", "layout"), FORMATS)
def test_memory_does_not_grow_with_the_input(tmp_path, name, layout, monkeypatch):
    monkeypatch.setattr(sentence_vectors, "BLOCK_BYTES", 1 << 18)
    if name.endswith("parquet"):
        monkeypatch.setattr("elmokit.output.writers.parquet.GROUP_BYTES", 1 << 18)
    dim = 16 if name.endswith("jsonl") else 512
    vector = np.ones((10, dim), np.float32)
    count = 600 if layout != "elmokit" else 1_200
    line = " ".join(["word"] * 10)

    def run(sentences):
        embed((line for _ in range(sentences)), tmp_path / name, layout=layout, encode=lambda s: (vector for _ in s))
        return sum(len(tokens) for tokens, _ in read_vectors(tmp_path / name))

    run(20)  # imports and caches
    tracemalloc.start()
    try:
        tokens = run(count)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert tokens == (0 if layout == "bilm" else 10 if layout == "allennlp" else 10 * count)
    assert peak < 3 << 20, f"{peak} bytes for {count * vector.nbytes} of vectors"


def test_settings_may_hold_what_json_does_not(tmp_path):
    embed(["a"], tmp_path / "o.npz", settings={**SETTINGS, "path": tmp_path, "dtype": np.dtype("f4")})
    assert same(tmp_path / "o.npz", ["a"])
