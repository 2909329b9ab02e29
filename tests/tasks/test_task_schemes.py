"""Tag schemes: found, checked, read as conlleval reads them, and written again as the file spells them."""

from dataclasses import asdict
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmokit.errors import ElmoError
from elmokit.tasks.schemes import (
    BIOES,
    Scheme,
    Span,
    check_scheme,
    detect_scheme,
    find_faults,
    from_bioes,
    spans,
    to_bioes,
    transitions,
)
from elmokit.tasks.tag import TaggedExample, _tags_with_locations

BIO, IOB1, NONE = Scheme("BIO"), Scheme("IOB1"), Scheme()
BMES = Scheme("BIOES", "BMES")
SCHEMES = [BIO, IOB1, BIOES, BMES, Scheme("BIOES", "BILU"), Scheme("BIO", separator="_")]


def sequences(tags, longest):
    return (sequence for length in range(longest + 1) for sequence in product(tags, repeat=length))


def tags_of(letters, types=("X", "Y")):
    return ["O", *(f"{letter}-{kind}" for letter in letters for kind in types)]


def conlleval(tags):
    """Chunks by the rules that the script of the shared task states over pairs of neighbouring tags."""
    ends = {("B", "B"), ("B", "O"), ("I", "B"), ("I", "O"), ("E", "E"), ("E", "I"), ("E", "O"), ("E", "B")}
    starts = {("B", "B"), ("I", "B"), ("O", "B"), ("O", "I"), ("E", "E"), ("E", "I"), ("O", "E"), ("E", "B")}
    pairs = [("O", "")] + [(tag[0], tag[2:]) for tag in tags] + [("O", "")]
    chunks, begun = [], None
    for index in range(1, len(pairs)):
        (before, old), (now, new) = pairs[index - 1], pairs[index]
        changed = old != new
        if begun is not None and ((before, now) in ends or (before != "O" and changed)):
            chunks.append((begun, index - 1, old))
            begun = None
        if (before, now) in starts or (now != "O" and changed):
            begun = index - 1
    return chunks


def sentence(*tags, line=1):
    return TaggedExample(tuple(f"w{n}" for n in range(len(tags))), tags, line)


@pytest.mark.parametrize(
    ("tags", "scheme"),
    [
        ("O B-PER I-PER O B-LOC", BIO),
        ("B-PER O", BIO),
        ("O I-PER I-PER B-PER I-LOC", IOB1),
        ("I-PER O", IOB1),
        ("B-PER E-PER O S-LOC", BIOES),
        ("O S-LOC", BIOES),
        ("B-PER M-PER E-PER O S-LOC", BMES),
        ("B-PER L-PER O U-LOC", Scheme("BIOES", "BILU")),
        ("B-PER M-PER E-PER W-LOC", Scheme("BIOES", "BMEW")),
        ("B_PER I_PER O", Scheme("BIO", separator="_")),
        ("B M E S S B E", BMES),
        ("B I I O", BIO),
        ("NN VB -LRB- O", NONE),
        ("PRON AUX X I", NONE),
        ("O O", NONE),
        ("", NONE),
        ("NN NN NN B-x O", NONE),
        ("S-1 S-2", NONE),
    ],
)
def test_detection(tags, scheme):
    assert detect_scheme([tags.split()]) == scheme


def test_detection_is_not_led_astray_by_a_few_slips():
    right = ["O", "B-X", "I-X", "O"]
    assert detect_scheme([right] * 50 + [["O", "I-X"]] * 3) == BIO
    iob1 = ["O", "I-X", "I-X", "O"]
    assert detect_scheme([iob1] * 50 + [["O", "B-X"]] * 3) == IOB1
    assert detect_scheme([right] * 50 + [["O", "BX"]]) == BIO


def test_spelling_and_storing():
    assert [scheme.spelling for scheme in SCHEMES] == ["BIO", "IOB1", "BIOES", "BMES", "BILOU", "BIO"]
    for scheme in [*SCHEMES, NONE]:
        assert Scheme(**asdict(scheme)) == scheme
    with pytest.raises(ElmoError, match="a tag scheme is"):
        Scheme("IOBES")


@pytest.mark.parametrize(("letters", "scheme", "longest"), [("BI", BIO, 5), ("BI", IOB1, 5), ("BIE", BIOES, 4)])
def test_spans_are_conllevals(letters, scheme, longest):
    for tags in sequences(tags_of(letters), longest):
        assert spans(tags, scheme) == conlleval(tags), tags


def test_known_spans():
    assert spans(["B-X", "I-X", "B-X", "O", "I-Y", "I-Z"], BIO) == [(0, 2, "X"), (2, 3, "X"), (4, 5, "Y"), (5, 6, "Z")]
    assert spans(["S-X", "S-X", "B-X", "S-Y", "I-X", "E-X", "E-X"], BIOES) == [
        Span(0, 1, "X"), Span(1, 2, "X"), Span(2, 3, "X"), Span(3, 4, "Y"), Span(4, 6, "X"), Span(6, 7, "X"),
    ]  # fmt: skip
    assert spans(["B", "M", "E", "S", "O"], BMES) == [(0, 3, ""), (3, 4, "")]
    assert spans(["B-PER.NAM", "I-PER.NAM", "B-A-B"], BIO) == [(0, 2, "PER.NAM"), (2, 3, "A-B")]
    with pytest.raises(ElmoError, match="got 'PER'"):
        spans(["PER"], BIO)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_sound_sequence_makes_the_round_trip(scheme):
    letters = scheme.letters if scheme.name == "BIOES" else scheme.letters[:2]
    tags = [tag.replace("-", scheme.separator) for tag in tags_of(letters)]
    sound = 0
    for sequence in sequences(tags, 4):
        there = to_bioes(sequence, scheme)
        assert not find_faults(there, BIOES)
        assert spans(there, BIOES) == spans(sequence, scheme)
        back = from_bioes(there, scheme)
        assert not find_faults(back, scheme)
        assert spans(back, scheme) == spans(sequence, scheme)
        assert (back == sequence) == (not find_faults(sequence, scheme))
        sound += back == sequence
    assert sound > 100


def test_other_tags_are_left_alone():
    tags = ["NN", "S", "B-thing"]
    assert to_bioes(tags, NONE) == from_bioes(tags, NONE) == ("NN", "S", "B-thing")
    assert not find_faults(tags, NONE)
    assert check_scheme(_tags_with_locations([sentence(*tags)], None), NONE) == []


def test_bare_letters():
    assert to_bioes(["B", "M", "E", "S"], BMES) == ("B", "I", "E", "S")
    assert from_bioes(("B", "I", "E", "S"), BMES) == ("B", "M", "E", "S")
    assert find_faults(["O", "I"], BIO) == [1]


def test_transitions_are_what_bioes_allows():
    tags = tags_of("BIES")
    inner, first, last = transitions(tags, BIOES)
    for sequence in sequences(tags, 3):
        ids = [tags.index(tag) for tag in sequence]
        steps = all(inner[before, after] for before, after in pairwise(ids))
        ends = not ids or (first[ids[0]] and last[ids[-1]])
        assert bool(steps and ends) == (to_bioes(sequence, BIOES) == sequence)


def test_transitions():
    tags = tags_of("BIES")
    inner, first, last = transitions(tags, BIO)
    assert inner.shape == (9, 9)
    assert {tag for tag, good in zip(tags, first, strict=True) if good} == {"O", "B-X", "B-Y", "S-X", "S-Y"}
    assert {tag for tag, good in zip(tags, last, strict=True) if good} == {"O", "E-X", "E-Y", "S-X", "S-Y"}
    assert [tags[n] for n in np.flatnonzero(inner[tags.index("B-X")])] == ["I-X", "E-X"]
    assert all(part.all() for part in transitions(["NN", "VB"], NONE))
    assert [part.shape for part in transitions([], NONE)] == [(0, 0), (0,), (0,)]


def test_a_few_broken_sequences_are_reported():
    examples = [sentence("B-X", "I-X", line=4 * n + 1) for n in range(30)]
    assert check_scheme(_tags_with_locations(examples, "a.conll"), BIO) == []
    examples[7] = sentence("O", "I-X", line=29)
    (message,) = check_scheme(_tags_with_locations(examples, "a.conll"), BIO)
    assert message.startswith("a.conll, line 30: in BIO I-X after O should be B-X (1 such tag, 30 spans);")
    few = examples[7:9]
    with pytest.raises(ElmoError, match=r"a\.conll, line 30: in BIO I-X after O should be B-X"):
        check_scheme(_tags_with_locations(few, "a.conll"), BIO)
    with pytest.raises(ElmoError, match=r"a\.conllu, line 29, token 2 \('w1'\): in BIO"):
        check_scheme(_tags_with_locations(few, "a.conllu"), BIO)
    with pytest.raises(ElmoError, match=r"^line 29, token 2"):
        check_scheme(_tags_with_locations(few, None), BIO)
    assert check_scheme(_tags_with_locations(few, "a.conll"), BIO, refuse=False)[0].startswith(
        "a.conll, line 30: in BIO I-X after O"
    )


@pytest.mark.parametrize(
    ("examples", "scheme", "message"),
    [
        ([sentence("I-X", "O")], BIO, "line 1: in BIO I-X at the start should be B-X"),
        ([sentence("O", "B-X")], IOB1, "line 2: in IOB1 B-X after O should be I-X"),
        ([sentence("O", "B-X")], BIOES, "line 2: in BIOES B-X after O should be S-X"),
        ([sentence("B-X", "E-Y")], BIOES, "line 1: in BIOES B-X at the start should be S-X"),
        ([sentence("B-X", "I-X")], BMES, "line 2: the tags are BMES, which has no 'I-X'"),
        ([sentence("B-X", "E-X")], BIO, "line 2: the tags are BIO, which has no 'E-X'"),
        ([sentence("B-X", "b-X", line=9)], BIO, "line 10: the tags are BIO, which has no 'b-X'"),
        ([sentence("B_X")], BIO, "has no 'B_X'"),
        ([sentence("B-")], BIO, "has no 'B-'"),
    ],
)
def test_files_that_mix_or_break_their_scheme_are_refused(examples, scheme, message):
    with pytest.raises(ElmoError, match=r"a\.conll, ") as caught:
        check_scheme(_tags_with_locations(examples, "a.conll"), scheme)
    assert message in str(caught.value)


def test_letters_of_two_schemes():
    examples = [sentence("B-X", "I-X", "O"), sentence("B-X", "M-X", "E-X", line=5)]
    scheme = detect_scheme(example.tags for example in examples)
    with pytest.raises(ElmoError, match="line 6: the tags are BIOES, which has no 'M-X'"):
        check_scheme(_tags_with_locations(examples[1:], "a.conll"), scheme)


@given(st.lists(st.sampled_from(tags_of("BIES", ("PER", "LOC", "A.B"))), max_size=12))
def test_any_prediction_becomes_sound_tags(tags):
    for scheme in SCHEMES:
        written = from_bioes(tags, scheme)
        assert len(written) == len(tags)
        assert not find_faults(written, scheme)
        assert spans(written, scheme) == spans(tags, BIOES)
