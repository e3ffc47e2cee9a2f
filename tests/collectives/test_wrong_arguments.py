"""What is no use to a public function of tensors and memory is refused by Roost's own words, for every argument of each of them.

An error that comes out of torch or of the interpreter says what it stumbled over, and not what to give instead.
"""

import dis

import pytest

from roost import Reply, rdma
from roost.errors import Unavailable

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")
from roost import kernels  # noqa: E402 (needs torch)
from roost.kernels import Quantised  # noqa: E402 (needs torch)

pytestmark = pytest.mark.asyncio(loop_scope="module")

WRONG = {
    "a text": "x",
    "bytes": b"abc",
    "a whole number": 5,
    "a fraction": 1.5,
    "no number": float("nan"),
    "below 0": -1,
    "beyond 64 bits": 2**70,
    "beyond floats": 2**2000,
    "True": True,
    "None": None,
    "a list of a tensor": [torch.ones(4)],
    "a list": [1, 2],
    "a dict": {"a": 1},
    "an object": object(),
    "an array": numpy.ones(4),
    "a tensor": torch.ones(4),
    "of another shape": torch.ones(3, 5),
    "without a dimension": torch.tensor(1.0),
    "of another dtype": torch.ones(4, dtype=torch.int16),
    "not contiguous": torch.ones(2, 2).t(),
    "sparse": torch.ones(4).to_sparse(),
    "nowhere": torch.empty(4, device="meta"),
    "negated": torch.ones(1, dtype=torch.complex64).conj().imag,
    "conjugated": torch.ones(4, dtype=torch.complex64).conj(),
    "a dtype": torch.bfloat16,
    "another dtype": torch.int64,
}
NUMBERS = {"a whole number", "a fraction", "below 0", "beyond 64 bits"}
TENSORS = {"a tensor", "of another shape", "without a dimension", "of another dtype"}


def four():
    return torch.ones(4)


def eight_bits():
    return kernels.quantise(torch.ones(2, 4))


def buffer():
    return rdma.Buffer(rdma.empty(64))


# The function, arguments that are right, and of each what is right besides.
CALLS = {
    "pack": (
        kernels.pack,
        {"tensors": lambda: [four()], "bucket": lambda: None, "dtype": lambda: None, "scale": lambda: 1.0},
        {
            "tensors": {"a list of a tensor"},
            "bucket": {"None", "a tensor"},
            "dtype": {"None", "a dtype"},
            "scale": NUMBERS,
        },
    ),
    "pack's tensor": (lambda tensor: kernels.pack([four(), tensor]), {"tensor": four}, {"tensor": TENSORS - {"of another dtype"}}),
    "unpack": (
        kernels.unpack,
        {"bucket": four, "tensors": lambda: [four()], "scale": lambda: 1.0},
        {"bucket": {"a tensor"}, "tensors": {"a list of a tensor"}, "scale": NUMBERS},
    ),
    "unpack's tensor": (lambda tensor: kernels.unpack(four(), [tensor]), {"tensor": four}, {"tensor": {"a tensor", "without a dimension"}}),
    "quantise": (
        kernels.quantise,
        {"numbers": four, "format": lambda: "ocp"},
        {"numbers": {"a tensor", "of another shape"}},
    ),
    "dequantise": (
        kernels.dequantise,
        {"quantised": eight_bits, "out": lambda: None, "dtype": lambda: None},
        {"out": {"None"}, "dtype": {"None", "a dtype"}},
    ),
    "Quantised": (
        lambda **given: kernels.dequantise(Quantised(**given)),
        {"codes": lambda: eight_bits().codes, "scales": lambda: eight_bits().scales, "format": lambda: "ocp"},
        {},
    ),
    "pseudo_gradient": (
        kernels.pseudo_gradient,
        {"outer": four, "local": four, "out": lambda: None, "dtype": lambda: None},
        {"outer": {"a tensor"}, "local": {"a tensor"}, "out": {"None", "a tensor"}, "dtype": {"None", "a dtype"}},
    ),
    "outer_step": (
        kernels.outer_step,
        {
            "outer": four, "velocity": four, "local": four, "gradient": four, "learning_rate": lambda: 0.5,
            "momentum": lambda: 0.9, "share": lambda: 1.0,
        },
        {
            "outer": {"a tensor"}, "velocity": {"a tensor"}, "local": {"a tensor"}, "gradient": {"a tensor", "None"},
            "learning_rate": NUMBERS - {"below 0"}, "momentum": NUMBERS - {"below 0"}, "share": NUMBERS - {"below 0"},
        },
    ),
    "checksum": (kernels.checksum, {"tensor": four}, {"tensor": TENSORS}),
    "empty": (rdma.empty, {"nbytes": lambda: 64}, {"nbytes": {"a whole number"}}),
    "Buffer": (
        lambda memory: rdma.Buffer(memory).drop(),
        {"memory": lambda: rdma.empty(64)},
        {"memory": {*TENSORS, "an array"}},
    ),
    "read_into": (
        lambda **given: buffer().read_into(**given),
        {"dst": lambda: bytearray(64), "offset": lambda: 0, "timeout": lambda: 1.0, "version": lambda: None, "checksum": lambda: False},
        {
            "offset": {"a whole number"}, "timeout": {"a whole number", "a fraction"},
            "version": {"a whole number", "None"}, "checksum": {"True"},
        },
    ),
    "write_from": (
        lambda **given: buffer().write_from(**given),
        {"src": lambda: bytes(4), "offset": lambda: 0, "timeout": lambda: 1.0, "checksum": lambda: False},
        {
            "src": {*TENSORS, "an array", "bytes"}, "offset": {"a whole number"},
            "timeout": {"a whole number", "a fraction"}, "checksum": {"True"},
        },
    ),
    "update": (
        lambda version: buffer().update(version=version).__enter__(),
        {"version": lambda: 1},
        {"version": {"a whole number"}},
    ),
    "Buffers.update": (
        lambda version: rdma.Buffers([numpy.ones(3)]).update(version=version).__enter__(),
        {"version": lambda: 1},
        {"version": {"a whole number"}},
    ),
    "Batch.read": (
        lambda src, dst: rdma.Batch().read(src, dst),
        {"src": buffer, "dst": lambda: bytearray(64)},
        {},
    ),
    "Batch.write": (
        lambda dst, src: rdma.Batch().write(dst, src),
        {"dst": buffer, "src": lambda: bytes(4)},
        {"src": {*TENSORS, "an array", "bytes"}},
    ),
    "Batch.submit": (
        lambda **given: rdma.Batch().submit(**given),
        {"timeout": lambda: 1.0, "version": lambda: None, "checksum": lambda: False},
        {"timeout": {"a whole number", "a fraction"}, "version": {"a whole number", "None"}, "checksum": {"True"}},
    ),
}  # fmt: skip
PLACES = [(name, argument) for name, (_, right, _) in CALLS.items() for argument in right]


def is_raised_by_roost(error):
    """By a `raise` of its own, and not by what it has called."""
    traceback = error.__traceback__
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    code = traceback.tb_frame.f_code
    return "/roost/" in code.co_filename and code.co_code[traceback.tb_lasti] == dis.opmap["RAISE_VARARGS"]


@pytest.mark.parametrize(("name", "argument"), PLACES)
async def test_every_wrong_argument_is_refused_in_roosts_own_words(name, argument):
    call, right, besides = CALLS[name]
    for what, value in WRONG.items():
        given = {other: made() for other, made in right.items()} | {argument: value}
        refusal = None
        try:
            begun = call(**given)
        except (TypeError, ValueError, MemoryError, Unavailable) as error:
            refusal = error
        if refusal is None:
            assert what in besides.get(argument, ()), f"{argument}, {what}, was taken"
            if isinstance(begun, Reply):
                begun.cancel()
        else:
            assert is_raised_by_roost(refusal), f"{argument}, {what}: {refusal!r}"
            assert what not in besides.get(argument, ()), f"{argument}, {what}, is right: {refusal!r}"


async def test_a_raw_error_is_told_from_roosts_own():
    with pytest.raises(TypeError) as raw:
        torch.ones(4) + object()
    with pytest.raises(TypeError) as own:
        kernels.checksum("x")
    assert not is_raised_by_roost(raw.value)
    assert is_raised_by_roost(own.value)
