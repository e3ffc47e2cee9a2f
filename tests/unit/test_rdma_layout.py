import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roost.rdma.errors import BufferGone, VersionError
from roost.rdma.layout import Layout, contiguous
from roost.rdma.lent import lend

SLICES = st.slices(5)
PLACES = st.lists(st.one_of(st.integers(-3, 2), st.slices(3)), max_size=3)


def layout_of(view: np.ndarray, whole: np.ndarray) -> Layout:
    offset = view.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
    return Layout(offset if view.size else 0, view.shape, view.strides, view.itemsize, view.dtype.name)


@given(PLACES, st.integers(0, 3))
def test_indexing_is_that_of_numpy(places, ellipsis_at):
    whole = np.arange(3 * 3 * 3, dtype="i4").reshape(3, 3, 3)
    index = tuple(places) if ellipsis_at > len(places) else (*places[:ellipsis_at], ..., *places[ellipsis_at:])
    cut, expected = contiguous((3, 3, 3), 4, "int32").cut(index), layout_of(whole[index], whole)
    assert cut.shape == expected.shape
    if expected.size:
        assert cut.strides == expected.strides
        assert cut.offset == expected.offset
        assert cut.is_contiguous == whole[index].flags.c_contiguous


def test_views_are_cut_again():
    layout = contiguous((8, 6), 2, "float16").cut((slice(2, 8), slice(1, None, 2))).cut((-1, 0))
    assert (layout.offset, layout.shape, layout.size) == ((7 * 6 + 1) * 2, (), 2)


@pytest.mark.parametrize("index", [3, -4, (0, 0, 0), (..., ...), (0, 3)])
def test_what_is_outside_is_refused(index):
    with pytest.raises(IndexError):
        contiguous((3, 3), 1, "").cut(index)


@pytest.mark.parametrize("index", [1.5, "a", None, [0, 1], np.array([0, 1])])
def test_what_is_no_basic_index_is_refused(index):
    with pytest.raises(TypeError, match="whole numbers, slices and an ellipsis"):
        contiguous((3, 3), 1, "").cut(index)


@given(st.lists(SLICES, min_size=2, max_size=2))
def test_an_extent_holds_all_elements(places):
    whole = np.zeros((5, 5), "i2")
    whole[tuple(places)] = 1
    first, end = contiguous((5, 5), 2, "int16").cut(tuple(places)).extent
    touched = np.flatnonzero(whole)
    if touched.size:
        assert (first, end) == (touched[0] * 2, touched[-1] * 2 + 2)
    else:
        assert first == end


def test_memory_of_any_kind_is_described():
    array = np.zeros((4, 3), "f8")
    assert lend(array.T, "it").layout == Layout(0, (3, 4), (8, 24), 8, "float64")
    assert lend(array[:, 1], "it").address == array.ctypes.data + 8
    assert lend(np.zeros((), ">i4"), "it").layout.dtype == ">i4"
    assert lend(memoryview(array), "it").layout == lend(array, "it").layout
    assert lend(memoryview(array), "it").address == array.ctypes.data
    assert not lend(b"abc", "it").is_writable
    array.flags.writeable = False
    assert not lend(array, "it").is_writable


class OnGpu:
    __cuda_array_interface__ = ()


def test_what_has_no_memory_here_is_refused_by_name():
    from roost import errors

    with pytest.raises(TypeError, match="dst must be a tensor, an array or a buffer such as a memoryview, not int"):
        lend(3, "dst")
    with pytest.raises(ValueError, match="dst is an array of Python objects"):
        lend(np.array([object()]), "dst")
    with pytest.raises(errors.Unavailable, match="dst lies in the memory of a GPU"):
        lend(OnGpu(), "dst")


@pytest.mark.parametrize("error", [BufferGone("dropped"), VersionError(3, 2)])
def test_errors_come_back_from_a_pickle(error):
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (type(error), str(error))
    assert again.__dict__ == error.__dict__


def test_a_version_error_says_both():
    assert str(VersionError(3, 2)) == "the buffer has version 2, and at least 3 was asked for"
