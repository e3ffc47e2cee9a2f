"""Plain builtins pickled in Rust: the same values as `pickle` writes and reads."""

from __future__ import annotations

import math
import pickle

from hypothesis import given
from hypothesis import strategies as st

from roost._roost import plain_dumps, plain_loads

PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=300),
    st.binary(max_size=300),
)
VALUES = st.one_of(PLAIN, st.lists(PLAIN, max_size=16).map(tuple))


def same(left: object, right: object) -> bool:
    if isinstance(left, tuple) and isinstance(right, tuple):
        return len(left) == len(right) and all(same(one, other) for one, other in zip(left, right, strict=True))
    if isinstance(left, float) and isinstance(right, float) and math.isnan(left):
        return math.isnan(right)
    return type(left) is type(right) and left == right


@given(VALUES)
def test_what_is_written_is_what_pickle_reads(value: object) -> None:
    written = plain_dumps(value)
    assert written is not None
    assert same(pickle.loads(written), value)
    assert same(plain_loads(written), value)


@given(VALUES)
def test_what_pickle_writes_is_read_alike_or_left_to_pickle(value: object) -> None:
    read = plain_loads(pickle.dumps(value, 5))
    assert read is None or same(read, value)


@given(
    st.one_of(st.lists(PLAIN), st.dictionaries(st.text(), PLAIN), st.tuples(st.tuples(PLAIN)), st.sets(st.integers()))
)
def test_other_values_are_left_to_pickle(value: object) -> None:
    assert plain_dumps(value) is None
    read = plain_loads(pickle.dumps(value, 5))
    assert read is None or same(read, value)


@given(st.binary(max_size=64))
def test_any_bytes_are_refused_or_read_as_pickle_reads_them(data: bytes) -> None:
    read = plain_loads(b"\x80\x05" + data)
    if read is not None:
        assert same(pickle.loads(b"\x80\x05" + data), read)


def test_subclasses_and_large_values_are_left_to_pickle() -> None:
    class Count(int):
        pass

    for value in (Count(1), 1 << 70, "x" * 5000, "\ud800", (1, [2]), tuple(range(17))):
        assert plain_dumps(value) is None
