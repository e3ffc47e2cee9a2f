"""Which errors may come of another rank's death, and are told after it."""

import asyncio

import pytest

from roost import ActorDied
from roost._exceptions import RemoteTraceback
from roost.echoes import may_echo
from roost.errors import RemoteError

DistBackendError = type("DistBackendError", (RuntimeError,), {"__module__": "torch.distributed.distributed_c10d"})


class UglyError(Exception):
    """One of a user's that raises for what nobody expects to raise."""

    @property
    def __cause__(self):
        raise RuntimeError("no")


def raised_from(cause, error=None):
    try:
        raise (error or ValueError("wrapped")) from cause
    except Exception as raised:
        return raised


def raised_while_handling(first):
    try:
        try:
            raise first
        except Exception:
            raise ValueError("while it was handled")  # noqa: B904 - that is what this is about
    except ValueError as raised:
        return raised


def endless():
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    return one


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError("by a peer"),
        BrokenPipeError(),
        EOFError(),
        asyncio.IncompleteReadError(b"", 4),
        OSError("the device is gone"),
        DistBackendError("NCCL error: remote process exited"),
        RemoteError("torch.distributed.distributed_c10d.DistBackendError", "remote process exited", ""),
        raised_from(ConnectionRefusedError()),
        raised_from(raised_from(EOFError())),
        raised_while_handling(BrokenPipeError()),
        raised_from(
            RemoteTraceback('File "/venv/lib/torch/distributed/distributed_c10d.py", line 2500, in all_reduce')
        ),
    ],
)
def test_an_error_of_a_connection_or_of_a_collective_may_be_an_echo(error):
    assert may_echo(error)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("mine"),
        TimeoutError("slow is not dead"),
        KeyError("distributed"),
        ActorDied("a death is told at once"),
        raised_from(ActorDied("it knows of the death already")),
        RemoteError("mine.Error", "torch.distributed in its text", ""),
        raised_from(RemoteTraceback('File "/home/me/distributed/train.py", line 1')),
        endless(),
        UglyError(),
    ],
)
def test_other_errors_are_told_at_once(error):
    assert not may_echo(error)
