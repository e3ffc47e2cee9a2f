"""A job's folder: the state file, which outlives the program, and for each run of the job its key, its hosts, its logs."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from roost._roost import __version__
from roost.errors import JobError
from roost.keys import make_key

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "Announced",
    "Part",
    "Record",
    "announced",
    "default_folder",
    "exclusively",
    "new_record",
    "read_record",
    "tell_of",
]

_FORMAT = 1
_FILE = "job.json"
# An announcement is one short line.
_ANNOUNCEMENT_BYTES_MAX = 4096


class Part(NamedTuple):
    """Hosts of one mesh that were asked for together."""

    mesh: str
    first: int
    """The rank of the first of them."""
    hosts: int
    id: str
    """What the scheduler calls it."""

    @property
    def label(self) -> str:
        """Names its files."""
        return f"{self.mesh}-{self.first}"


class Announced(NamedTuple):
    """What an agent told of itself."""

    address: str
    name: str
    agent: str
    """What tells it from others that have listened at this address."""


class Record:
    """What the state file says of one run of a job."""

    def __init__(self, folder: str, fields: dict[str, Any]) -> None:
        self.folder = folder
        self._fields = fields
        self.kind: str = fields["kind"]
        self.name: str = fields["name"]
        self.run: str = fields["run"]
        self.spec: dict[str, Any] = fields["spec"]
        self.parts = [Part(*part) for part in fields["parts"]]
        # What the job came to, once that is known: schedulers forget.
        self.ended: dict[str, Any] | None = fields.get("ended")

    @property
    def run_folder(self) -> str:
        """What belongs to this run."""
        return os.path.join(self.folder, self.run)

    @property
    def key_file(self) -> str:
        """The key of its hosts."""
        return os.path.join(self.run_folder, "key")

    def hosts_folder(self, part: Part, restarts: int | str) -> str:
        """Where the agents of a part tell of themselves, a file each."""
        return os.path.join(self.run_folder, "hosts", part.label, str(restarts))

    def log_file(self, part: Part, place: int | str) -> str:
        """What the agent at this place of a part writes, and its procs where nobody reads them."""
        return os.path.join(self.run_folder, "logs", f"{part.label}.{place}.log")

    @property
    def driver_log(self) -> str:
        """What the job's own script writes, and the driver of a batch job."""
        return os.path.join(self.run_folder, "logs", "driver.log")

    def make_folders(self) -> None:
        """For a new run: nobody else is to read them."""
        os.makedirs(os.path.join(self.run_folder, "logs"), mode=0o700)
        make_key(self.key_file)

    def to_json(self) -> dict[str, Any]:
        """What the state file says."""
        return self._fields | {"spec": self.spec, "parts": [list(part) for part in self.parts], "ended": self.ended}

    def write(self) -> None:
        """Put it where a later program finds it, whole or not at all."""
        path = os.path.join(self.folder, _FILE)
        new = f"{path}.{os.getpid()}"
        with open(new, "w", encoding="utf-8") as file:
            json.dump(self.to_json(), file, indent=2)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)


def default_folder(name: str) -> str:
    """Where a job lives when nobody says otherwise: the home is what hosts of a cluster share."""
    return os.path.join(os.path.expanduser("~"), ".roost", "jobs", name)


def new_record(folder: str, kind: str, name: str, spec: dict[str, Any]) -> Record:
    """A record of a run that begins now."""
    run = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(3)}"
    fields = {
        "format": _FORMAT,
        "roost": __version__,
        "kind": kind,
        "name": name,
        "run": run,
        "spec": spec,
        "parts": [],
    }
    return Record(folder, fields)


def read_record(folder: str) -> Record | None:
    """What a folder says of a job; None when it says nothing.

    Raises:
        JobError: it is no state file, or one that another version wrote.
    """
    path = os.path.join(folder, _FILE)
    try:
        with open(path, encoding="utf-8") as file:
            fields = json.load(file)
        written = fields["format"]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise JobError(f"{path} is no state file of a job ({error}): see to its job, then remove it") from None
    if written != _FORMAT:
        raise JobError(
            f"{path} was written by roost {fields.get('roost')} (format {written}, and this is {_FORMAT}): use that version "
            "for this job, or remove the file once the job is over"
        )
    try:
        return Record(folder, fields)
    except (KeyError, TypeError) as error:
        raise JobError(f"{path} is no state file of a job ({error!r}): see to its job, then remove it") from None


def announced(folder: str) -> dict[int, Announced]:
    """What agents have told of themselves in a folder, by their place."""
    found: dict[int, Announced] = {}
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return found
    for name in names:
        if not name.isdigit():
            continue  # somebody is writing it
        try:
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                fields = json.loads(file.read(_ANNOUNCEMENT_BYTES_MAX))
            found[int(name)] = Announced(fields["address"], fields["name"], str(fields["pid"]))
        except FileNotFoundError:
            continue  # it has just ended
    return found


def tell_of(folder: str, place: int, address: str, name: str) -> None:
    """Say in a folder where the agent at a place listens, in its stead: it cannot write there.

    Args:
        folder: as of `announced`.
        place: its place.
        address: where it listens.
        name: what it calls itself.
    """
    os.makedirs(folder, mode=0o700, exist_ok=True)
    path = os.path.join(folder, str(place))
    new = f"{path}.{os.getpid()}.new"
    with open(new, "w", encoding="utf-8") as file:
        json.dump({"address": address, "name": name, "pid": 0}, file)
    os.replace(new, path)


@contextmanager
def exclusively(folder: str, purpose: str) -> Iterator[None]:
    """Be the only one who does this to a job, on any host that shares the folder.

    Raises:
        JobError: somebody else does it.
    """
    os.makedirs(folder, mode=0o700, exist_ok=True)
    fd = os.open(os.path.join(folder, f"{purpose}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(fd, 200).decode(errors="replace")
            raise JobError(f"the job in {folder} is in use ({purpose}) by {holder or 'another process'}") from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"process {os.getpid()} on {os.uname().nodename}".encode(), 0)
        yield
    finally:
        os.close(fd)
