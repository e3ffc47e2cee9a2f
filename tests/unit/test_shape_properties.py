"""Shapes against numpy, whose views of `arange` give the same ranks in the same order."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from roost.shape import Shape
from roost.value_mesh import ValueMesh

NAMES = ("a", "b", "c", "d")

sizes = st.lists(st.integers(1, 5), max_size=4).map(lambda lengths: dict(zip(NAMES, lengths, strict=False)))


def whole(sizes: dict[str, int]) -> np.ndarray:
    return np.arange(int(np.prod([*sizes.values()], dtype=int))).reshape(tuple(sizes.values()))


@st.composite
def views(draw: st.DrawFn) -> tuple[Shape, np.ndarray]:
    """A shape after a few slices, splits and flattenings, and numpy's ranks after the same."""
    lengths = draw(sizes)
    shape, oracle = Shape(lengths), whole(lengths)
    fresh = iter(f"n{number}" for number in range(100))
    for step in draw(st.lists(st.sampled_from(["slice", "split", "flatten", "rename"]), max_size=4)):
        if step == "slice":
            shape, oracle = sliced(draw, shape, oracle)
        elif step == "split" and shape.names:
            shape, oracle = split(draw, shape, oracle, (next(fresh), next(fresh)))
        elif step == "flatten":
            shape, oracle = shape.flatten(next(fresh)), oracle.reshape(-1)
        elif step == "rename" and shape.names:
            shape = shape.rename(**{draw(st.sampled_from(shape.names)): next(fresh)})
    return shape, oracle


def sliced(draw: st.DrawFn, shape: Shape, oracle: np.ndarray) -> tuple[Shape, np.ndarray]:
    selections: dict[str, int | slice] = {}
    for name, length in shape.sizes.items():
        kind = draw(st.sampled_from(["all", "number", "slice"]))
        if kind == "number":
            selections[name] = draw(st.integers(-length, length - 1))
        elif kind == "slice":
            start = draw(st.integers(0, length - 1))
            stop = draw(st.integers(start + 1, length + 2))
            step = draw(st.integers(1, 3))
            selections[name] = slice(start - length if draw(st.booleans()) else start, stop, step)
    index = tuple(selections.get(name, slice(None)) for name in shape.names)
    return shape.slice(**selections), oracle[index]


def split(draw: st.DrawFn, shape: Shape, oracle: np.ndarray, names: tuple[str, str]) -> tuple[Shape, np.ndarray]:
    axis = draw(st.integers(0, len(shape.names) - 1))
    length = shape.lengths[axis]
    inner = draw(st.sampled_from([size for size in range(1, length + 1) if length % size == 0]))
    parts = (*shape.lengths[:axis], length // inner, inner, *shape.lengths[axis + 1 :])
    return shape.split(**{shape.names[axis]: names, names[1]: inner}), oracle.reshape(parts)


@given(views())
@settings(deadline=None)
def test_ranks_run_as_numpy_lays_them_out(view: tuple[Shape, np.ndarray]) -> None:
    shape, oracle = view
    assert shape.lengths == oracle.shape
    assert list(shape.ranks()) == oracle.reshape(-1).tolist()
    assert [shape.base_rank(rank) for rank in range(len(shape))] == oracle.reshape(-1).tolist()


@given(views())
@settings(deadline=None)
def test_runs_tell_the_same_ranks(view: tuple[Shape, np.ndarray]) -> None:
    shape, oracle = view
    ranks = [first + stride * step for first, count, stride in shape.runs() for step in range(count)]
    assert ranks == oracle.reshape(-1).tolist()
    assert all(count >= 1 and stride >= 1 for _, count, stride in shape.runs())


@given(views())
@settings(deadline=None)
def test_points_are_numpys_indices(view: tuple[Shape, np.ndarray]) -> None:
    shape, oracle = view
    for point, index in zip(shape.points(), np.ndindex(oracle.shape), strict=True):
        assert tuple(point.values()) == index
        assert tuple(point) == shape.names


@given(views())
@settings(deadline=None)
def test_iterating_gives_each_rank_alone(view: tuple[Shape, np.ndarray]) -> None:
    shape, oracle = view
    assert [list(shape.at(rank).ranks()) for rank in range(len(shape))] == [[rank] for rank in oracle.reshape(-1)]


@given(sizes, st.data())
@settings(deadline=None)
def test_value_meshes_slice_as_arrays_do(lengths: dict[str, int], data: st.DataObject) -> None:
    mesh, oracle = ValueMesh(lengths, whole(lengths).reshape(-1).tolist()), whole(lengths)
    shape, part = sliced(data.draw, Shape(lengths), oracle)
    selections = {name: data.draw(st.integers(-length, length - 1)) for name, length in lengths.items()}
    assert mesh.item(**selections) == oracle[tuple(selections.values())]
    values = ValueMesh(shape.sizes, part.reshape(-1).tolist())
    assert list(values.flatten("all")) == part.reshape(-1).tolist()
