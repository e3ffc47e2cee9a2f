"""`attach_torchrun`: hosts out of a program that torchrun started on each of them."""

from __future__ import annotations

import asyncio
import atexit
import importlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING, Any

from roost.addresses import joined, runtime_folder
from roost.attaching import attach
from roost.keys import make_key, read_key

if TYPE_CHECKING:
    from roost.host_mesh import HostMesh

__all__ = ["attach_torchrun"]

_PREFIX = "roost"
_KEY_BYTES = 64


async def attach_torchrun(*, timeout: float = 300.0) -> HostMesh | None:  # noqa: ASYNC109 - as of `attach`
    """The hosts of a program that torchrun started, as a mesh, in the process of rank 0; None in all others.

    Call it in every rank. The first rank of each host starts an agent, which ends with that process, and tells of it in the c10d
    store; so does rank 0 of the key. The store is torchrun's: whoever can reach it can read the key.

    Args:
        timeout: seconds in which all hosts must be there.

    Raises:
        RuntimeError: torchrun did not start this process.
        TimeoutError: not all hosts have told of their agents in time.
        HostLostError: one of them cannot be reached.
    """
    ranks = [os.environ.get(name) for name in ("RANK", "LOCAL_RANK", "GROUP_RANK", "GROUP_WORLD_SIZE")]
    if None in ranks:
        raise RuntimeError("attach_torchrun() is for programs that torchrun started: RANK and the like are not set")
    rank, local_rank, group, groups = (int(text or 0) for text in ranks)
    store = await asyncio.to_thread(_store, timeout)
    folder = tempfile.mkdtemp(prefix="roost-", dir=runtime_folder())
    try:
        key = os.path.join(folder, "key")
        if rank == 0:
            make_key(key)
            await asyncio.to_thread(store.set, "key", read_key(key))
        if local_rank == 0:
            if rank:
                _write_key(key, await asyncio.to_thread(_get, store, "key"))
            address = await asyncio.to_thread(_start_agent, key)
            await asyncio.to_thread(store.set, f"host{group}", address)
        if rank:
            return None
        names = [f"host{number}" for number in range(groups)]
        addresses = [(await asyncio.to_thread(_get, store, name)).decode() for name in names]
        return await attach(addresses, key_file=key, timeout=timeout)
    finally:
        shutil.rmtree(folder)


def _store(timeout: float) -> Any:
    """The job's store: torch's own where it has one, else torchrun's."""
    from datetime import timedelta

    # By name: it has names that its stubs do not export, and type checkers need no torch.
    torch: Any = importlib.import_module("torch.distributed")

    if torch.is_initialized():
        return torch.PrefixStore(_PREFIX, torch.distributed_c10d._get_default_store())
    # Torchrun's agent keeps it, unless it was told otherwise.
    is_master = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" and os.environ["RANK"] == "0"
    master, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return torch.PrefixStore(_PREFIX, torch.TCPStore(master, port, None, is_master, timedelta(seconds=timeout)))


def _get(store: Any, name: str) -> bytes:
    try:
        return bytes(store.get(name))
    except RuntimeError as error:
        raise TimeoutError(f"nobody told of {name} in torchrun's store: {error}") from error


def _write_key(path: str, key: bytes) -> None:
    if len(key) != _KEY_BYTES:
        raise RuntimeError("what torchrun's store has for a key is none")
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(fd, "wb") as file:
        file.write(key)


def _start_agent(key: str) -> str:
    """Start this host's agent; gives where others find it."""
    own = _own_address()
    command = [
        sys.executable, "-m", "roost", "host", "--listen", joined(own, 0), "--key-file", key, "--quiet",
        "--parent-pid", str(os.getpid()),
    ]  # fmt: skip
    agent = subprocess.Popen(
        command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, start_new_session=True
    )
    atexit.register(_end, agent)
    assert agent.stdout is not None
    line = agent.stdout.readline()
    if not line.startswith("listening on "):
        raise RuntimeError(f"this host's agent did not start: it exited with code {agent.wait()}")
    return line.split()[2]


def _end(agent: subprocess.Popen[str]) -> None:
    agent.terminate()
    agent.wait()


def _own_address() -> str:
    """This host's address towards the first: the one that others can use, too."""
    master = os.environ["MASTER_ADDR"]
    family, _, _, _, address = socket.getaddrinfo(master, 1, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        # Nothing is sent.
        probe.connect(address)
        return str(probe.getsockname()[0])
