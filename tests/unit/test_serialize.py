"""Values become parts and come back the same."""

import asyncio
import pickle
import subprocess
import sys
import threading
from collections import OrderedDict
from typing import NamedTuple

import numpy as np
import pytest

from roost import serialize
from roost.serialize import OUT_OF_BAND_BYTES_MIN, Parts

LARGE = OUT_OF_BAND_BYTES_MIN


class Pair(NamedTuple):
    left: int
    right: int


def there_and_back(value):
    dumped = serialize.dumps(value)
    if isinstance(dumped, bytes):
        return serialize.loads(dumped)
    return serialize.loads(dumped.payload, buffers=[bytearray(buffer) for buffer in dumped.buffers])


def call_there_and_back(args, kwargs=None):
    dumped = serialize.dump_call(args, kwargs)
    if isinstance(dumped, bytes):
        return serialize.load_call(dumped)
    return serialize.load_call(dumped.payload, [bytearray(buffer) for buffer in dumped.buffers])


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        7,
        2**70,
        1.5,
        1j,
        "text",
        b"bytes",
        (),
        (1, "two", [3.0, {"four": b"5"}]),
        {1, 2},
        frozenset({3}),
        OrderedDict(a=1),
        range(3),
        Pair(1, 2),
        type(None),
        ...,
        NotImplemented,
        type(...),
        int,
        len,
    ],
    ids=repr,
)
def test_what_pickles_comes_back(value):
    assert there_and_back(value) == value
    assert isinstance(serialize.dumps(value), bytes)


def test_a_small_value_is_what_pickle_makes_of_it():
    # The data lane pickles plain arguments itself; both ways must be read alike.
    for args in [(), (1,), (1, "a", None, 2.5, b"x", True)]:
        assert serialize.dump_call(args) == pickle.dumps(args, 5)
        assert serialize.load_call(pickle.dumps(args, 5)) == (args, {})


def test_arguments_and_keywords():
    assert call_there_and_back((1, [2]), {"three": 3}) == ((1, [2]), {"three": 3})
    assert call_there_and_back((), {}) == ((), {})
    assert call_there_and_back(([1], {}), None) == (([1], {}), {})
    assert call_there_and_back(((1, 2),)) == (((1, 2),), {})


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_large_bytes_leave_the_pickle_and_keep_their_type(kind):
    value = kind(bytes(range(256)) * (LARGE // 256))
    dumped = serialize.dumps(value)
    assert isinstance(dumped, Parts)
    assert len(dumped.payload) < 200
    assert [buffer.nbytes for buffer in dumped.buffers] == [LARGE]
    back = there_and_back(value)
    assert type(back) is kind
    assert back == value
    args, kwargs = call_there_and_back((1, value), {"more": value})
    assert [type(args[1]), type(kwargs["more"])] == [kind, kind]
    assert args == (1, value)
    assert kwargs == {"more": value}


def test_bytes_below_the_limit_stay_in_the_pickle():
    assert isinstance(serialize.dumps(b"x" * (LARGE - 1)), bytes)
    assert isinstance(serialize.dump_call((b"x" * (LARGE - 1), bytearray(LARGE - 1))), bytes)
    assert isinstance(serialize.dumps(np.zeros(LARGE - 1, np.uint8)), bytes)
    assert isinstance(serialize.dumps(np.zeros(LARGE, np.uint8)), Parts)


def test_memoryviews_keep_shape_and_format():
    view = memoryview(np.arange(12, dtype=np.int32).reshape(3, 4))
    back = there_and_back([view])[0]
    assert (back.shape, back.format, back.tolist()) == (view.shape, view.format, view.tolist())
    strided = memoryview(bytes(range(10)))[::3]
    assert there_and_back(strided).tolist() == [0, 3, 6, 9]


def test_the_buffers_are_not_copies():
    array = np.zeros(LARGE, np.uint8)
    buffers = serialize.dumps(array).buffers
    array[5] = 77
    assert buffers[0][5] == 77


BASE = np.arange(40_000, dtype=np.float64).reshape(40, 1000)


@pytest.mark.parametrize(
    "array",
    [
        BASE,
        np.asfortranarray(BASE),
        BASE.T,
        BASE[::2],
        BASE[:, ::3],
        BASE[::-1],
        BASE.reshape(40, 10, 100).transpose(1, 0, 2),
        np.broadcast_to(BASE, (3, 40, 1000)),
        BASE.astype("datetime64[s]"),
        BASE.astype("complex64"),
        BASE.astype(">f4"),
        np.zeros((0, 3)),
        np.array(5),
        np.array(["a", "bb"]),
        np.array(["a", None], dtype=object),
        np.zeros(2000, dtype=[("id", "i4"), ("at", "f8"), ("name", "S20")]),
        np.zeros(3),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
@pytest.mark.parametrize("writeable", [True, False])
def test_arrays_arrive_equal_writable_and_private(array, writeable):
    if not writeable:
        array = array.view()
        array.flags.writeable = False
    back = there_and_back(array)
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    np.testing.assert_array_equal(back, array)
    assert back.flags.writeable
    assert not np.shares_memory(back, array)
    if array.nbytes >= LARGE and not array.dtype.hasobject:
        assert len(serialize.dumps(array).payload) < 400


def test_fortran_order_is_kept():
    assert there_and_back(np.asfortranarray(BASE)).flags.f_contiguous


def test_one_array_named_twice_is_one_array():
    first, second = there_and_back([BASE, BASE])
    assert first is second
    assert len(serialize.dumps([BASE, BASE]).buffers) == 1


def test_a_reused_pickler_remembers_nothing():
    # A memo kept from one value to the next would name objects that the receiver never got.
    shared = ["only once"]
    assert serialize.dumps([shared]) == serialize.dumps([shared])
    for _ in range(3):
        assert there_and_back([shared, shared]) == [["only once"], ["only once"]]
    with pytest.raises(TypeError):
        serialize.dumps([shared, threading.Lock()])
    assert there_and_back([shared]) == [["only once"]]


def test_values_may_pickle_values():
    class Nested:
        def __reduce__(self):
            return serialize.loads, (serialize.dumps([1, 2]),)

    assert there_and_back([Nested(), Nested()]) == [[1, 2], [1, 2]]


def test_threads_do_not_share_a_pickler():
    values = [{"thread": [at] * 50} for at in range(8)]
    wrong = []

    def work(value):
        wrong.extend(1 for _ in range(300) if there_and_back(value) != value)

    threads = [threading.Thread(target=work, args=(value,)) for value in values]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_an_argument_that_does_not_pickle_is_named():
    args = (1, threading.Lock())
    with pytest.raises(TypeError) as failed:
        serialize.dump_call(args)
    explained = serialize.explain(failed.value, "Trainer.step", args, {}, ["first", "batch"])
    assert str(explained) == "argument 'batch' of Trainer.step cannot be pickled: _thread.lock"
    explained = serialize.explain(failed.value, "Trainer.step", (1,), {"batch": [{"deep": args[1]}]}, ["first"])
    assert str(explained) == "argument 'batch' of Trainer.step cannot be pickled: _thread.lock"
    explained = serialize.explain(failed.value, "Trainer.step", args, {})
    assert str(explained) == "argument 2 of Trainer.step cannot be pickled: _thread.lock"


def test_what_a_reduce_raises_is_told():
    class Broken:
        def __reduce__(self):
            raise ValueError("not today")

    explained = serialize.explain(ValueError(), "A.b", (Broken(),), {}, ["x"])
    assert str(explained) == "argument 'x' of A.b cannot be pickled: ValueError: not today"


async def test_what_was_not_awaited_is_refused():
    async def work():
        pass

    async def items():
        yield 1

    coroutine = work()
    future = asyncio.get_running_loop().create_future()
    for value in [future, coroutine, items()]:
        with pytest.raises(TypeError, match="await it first"):
            serialize.dumps([value])
        explained = serialize.explain(TypeError(), "A.b", (value,), {}, ["x"])
        assert str(explained) == f"argument 'x' of A.b is a {type(value).__name__} that was not awaited: await it first"
    coroutine.close()


def test_alone_needs_nothing_beside_it():
    array = np.arange(LARGE, dtype=np.uint8)
    np.testing.assert_array_equal(serialize.loads(serialize.dumps_alone([array]))[0], array)
    assert serialize.loads(serialize.dumps_alone({"a": 1})) == {"a": 1}


def test_errors_of_unpickling_come_as_they_are():
    class Sour:
        def __reduce__(self):
            return int, ("no number",)

    with pytest.raises(ValueError, match="no number"):
        serialize.loads(serialize.dumps(Sour()))


def test_the_import_is_cheap():
    code = "import sys, roost.serialize; print([m for m in ('numpy', 'torch', 'cloudpickle') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
