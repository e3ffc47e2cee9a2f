"""Slurm's commands: what is typed, what is read of them. Only forms that Slurm keeps from release to release: never its JSON."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from roost.errors import JobError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["SilentError", "SlurmPart", "expand", "jobs", "nodes", "said_by"]

# A controller that is busy answers late.
_TIMEOUT_S = 60.0
_UNKNOWN = "Invalid job id specified"
_PENDING = frozenset(
    {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
)
_ENDED = frozenset(
    {
        "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED",
        "TIMEOUT",
    }
)  # fmt: skip
# After these a job that may be started again is, a moment later.
_STARTED_AGAIN_AFTER = frozenset({"PREEMPTED", "NODE_FAIL"})


class SilentError(JobError):
    """Slurm's controller does not answer."""


class SlurmPart(NamedTuple):
    """What Slurm says of a job, or of one component of a heterogeneous one."""

    state: str
    """`pending`, `running` or `ended`."""
    word: str
    """The state as Slurm calls it."""
    why: str
    """Slurm's reason; empty for none."""
    exit_code: str
    """The job's exit code and signal, as `CODE:SIGNAL`."""
    restarts: int
    nodes: str
    """As Slurm writes it: `n[1-4]`; empty for none."""
    time_left_s: float | None
    is_preempted: bool = False
    """Whether others are about to take its place."""

    @property
    def reason(self) -> str:
        """All of it in a few words."""
        code, _, number = self.exit_code.partition(":")
        more = [self.why]
        if self.state == "ended" and code not in ("", "0"):
            more.append(f"exit code {code}")
        if self.state == "ended" and number not in ("", "0"):
            more.append(f"signal {number}")
        shown = ", ".join(one for one in more if one)
        return f"{self.word} ({shown})" if shown else "" if self.word == "RUNNING" else self.word

    @property
    def failed(self) -> bool:
        """Whether it ended otherwise than in order."""
        return self.state == "ended" and self.word != "COMPLETED"


def said_by(command: Sequence[str], given: str | None = None) -> str:
    """What a command of Slurm's writes.

    Args:
        command: the command.
        given: what it reads.

    Raises:
        Unavailable: it is not installed here, or there is no cluster.
        SilentError: the controller does not answer.
        JobError: it refuses; in its words.
    """
    if shutil.which(command[0]) is None:
        raise Unavailable(
            f"there is no Slurm here: {command[0]} is not in PATH. Run this on a login node of the cluster"
        )
    try:
        done = subprocess.run(
            command, input=given or "", capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise SilentError(f"{command[0]} has not answered for {_TIMEOUT_S:g} s") from None
    if done.returncode == 0:
        return done.stdout
    words = "; ".join(line.partition("error: ")[2] or line for line in done.stderr.splitlines() if line.strip())
    if "configuration source" in done.stderr:
        raise Unavailable(
            f"Slurm's commands are here, and no cluster: {words}. Run this on a login node of the cluster"
        )
    if re.search("Unable to contact|Connection refused|timed out|Zero Bytes", done.stderr):
        raise SilentError(f"{command[0]}: {words}")
    raise JobError(f"{command[0]} refuses: {words or f'exit code {done.returncode}'}")


def jobs(number: str) -> dict[str, SlurmPart]:
    """A job's components by their offsets; a plain job has the one "0". None when Slurm has forgotten it."""
    try:
        text = said_by(["scontrol", "show", "job", "--oneliner", number])
    except SilentError:
        raise
    except JobError as error:
        if _UNKNOWN in str(error):
            return _remembered(number)
        raise
    found = {}
    for line in text.splitlines():
        if line.strip():
            found[_field(line, "HetJobOffset") or "0"] = _part_of(line)
    return found


def _field(line: str, name: str) -> str:
    match = re.search(rf"(?:^| ){name}=(\S*)", line)
    return "" if match is None or match[1] in ("(null)", "None", "N/A", "Unknown") else match[1]


def _part_of(line: str) -> SlurmPart:
    word = _field(line, "JobState")
    state = "pending" if word in _PENDING else "ended" if word in _ENDED else "running"
    if word in _STARTED_AGAIN_AFTER and _field(line, "Requeue") == "1":
        state = "pending"
    left = None
    if word == "RUNNING" and _field(line, "TimeLimit") not in ("", "UNLIMITED"):
        left = max(0.0, datetime.fromisoformat(_field(line, "EndTime")).timestamp() - time.time())
    return SlurmPart(
        state, word, _field(line, "Reason"), _field(line, "ExitCode"), int(_field(line, "Restarts") or 0),
        _field(line, "NodeList"), left, state == "running" and bool(_field(line, "PreemptTime")),
    )  # fmt: skip


def _remembered(number: str) -> dict[str, SlurmPart]:
    """What the accounting knows of a job that the controller has forgotten, where there is one."""
    try:
        text = said_by(["sacct", "--noheader", "--parsable2", "-X", "-j", number, "--format=JobID,State,ExitCode"])
    except (JobError, Unavailable):
        return {}
    found = {}
    for line in text.splitlines():
        name, state, code = line.split("|")
        # Such as "CANCELLED by 1000".
        word, _, why = state.partition(" ")
        found[name.partition("+")[2] or "0"] = SlurmPart("ended", word, why, code, 0, "", None)
    return found


def expand(listed: str) -> list[str]:
    """The nodes of a list such as `n[1-4]`."""
    return said_by(["scontrol", "show", "hostnames", listed]).split() if listed else []


def nodes(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """The state and the reason of each node, as Slurm writes them."""
    if not names:
        return {}
    found = {}
    for line in said_by(["scontrol", "show", "node", "--oneliner", ",".join(names)]).splitlines():
        # What somebody wrote as the reason has spaces, and stands last on the line or before this.
        reason = re.search(r" Reason=(.*?)(?: \S+=|$)", line)
        found[_field(line, "NodeName")] = _field(line, "State"), "" if reason is None else reason[1].strip()
    return found
