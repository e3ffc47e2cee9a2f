"""`SlurmJob`: hosts from Slurm, 22.05 and newer."""

from __future__ import annotations

import os
import re
import sys
import time
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from roost.errors import JobError
from roost.job import slurm_commands as slurm
from roost.job.job import Job
from roost.job.knowing import Look
from roost.job.record import Part, Record, announced, default_folder
from roost.job.slurm_script import script
from roost.job.spec import check_job_name, lists_of_texts, tables

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self

    from roost.job.slurm_commands import SlurmPart
    from roost.job.spec import MeshSpec

__all__ = ["SlurmJob"]

# Slurm reads % and \ in names of files as patterns, and has no way to quote a space everywhere.
_FOLDER = re.compile(r"[A-Za-z0-9._/+@=,~-]+")
_COMMENT = "roost:"
# How long Slurm may be busy with a job that is to be changed.
_BUSY_S, _ASK_AGAIN_S = 10.0, 0.5
_FORGOTTEN = "Slurm does not know it any more: it has ended, nobody knows how"


class SlurmJob(Job):
    """Hosts from Slurm: each mesh is a component of one job, with its own nodes and what they are to have.

    Args:
        meshes: how many nodes, or a `MeshSpec`, by name.
        name: the job's name, for Slurm too.
        folder: where the job lives; a folder that all nodes share.
        sync: as of `Job`.
        partition: as of sbatch, as are the next four.
        account: see there.
        qos: see there.
        time: the limit, as minutes or as Slurm writes it: "1-12:00:00".
        exclusive: whether nodes are shared with nobody.
        args: more arguments of sbatch, for all meshes.
        srun_args: more arguments of srun, such as those of a container: `["--container-image=…"]`.
        python: the interpreter on the nodes; this one when left out.
        prologue: lines of shell that come first: `["module load rocm"]`.
        env: environment variables for the agents, besides those of the program that applies the job.
        cwd: the working directory; this program's when left out.
        listen: what the agents listen on.
        requeue: whether Slurm is to start it again when it was preempted or a node failed.
        driver: a command that is run on the first node, beside the agents: the job ends with it. There `SlurmJob.from_environment()` is
            this job.
        warn_s: as of `Job`.

    Raises:
        ValueError: names or numbers that cannot be.
    """

    kind: ClassVar[str] = "slurm"

    def __init__(
        self,
        meshes: Mapping[str, int | MeshSpec],
        *,
        name: str = "roost",
        folder: str | os.PathLike[str] | None = None,
        sync: str | os.PathLike[str] | None = None,
        partition: str | None = None,
        account: str | None = None,
        qos: str | None = None,
        time: int | str | None = None,
        exclusive: bool = False,
        args: Sequence[str] = (),
        srun_args: Sequence[str] = (),
        python: str | None = None,
        prologue: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        listen: str = "0.0.0.0:0",
        requeue: bool = False,
        driver: Sequence[str] = (),
        warn_s: float = 300.0,
    ) -> None:
        super().__init__(
            meshes, name=name, folder=folder, sync=sync, warn_s=warn_s, partition=partition, account=account, qos=qos, time=time,
            exclusive=exclusive, python=python or sys.executable, cwd=cwd or os.getcwd(), listen=listen,
            requeue=requeue, **tables("SlurmJob", env=env),
            **lists_of_texts("SlurmJob", args=args, srun_args=srun_args, prologue=prologue, driver=driver),
        )  # fmt: skip
        if not _FOLDER.fullmatch(self.folder):
            raise ValueError(
                f"folder={self.folder!r}: Slurm cannot write logs there; give letters, digits and ._/+@=,-"
            )
        # What Slurm said last, for when it does not answer.
        self._last: Look = Look("pending")

    @classmethod
    def connect(cls, name: str, *, folder: str | os.PathLike[str] | None = None) -> Self:
        """The job that an earlier program applied.

        Args:
            name: its name, or its number in Slurm's queue.
            folder: where it lives, if not in `~/.roost/jobs/NAME`; where it was is looked up in Slurm's queue.

        Raises:
            LookupError: there is none.
            JobError: it is of another kind, or of another version of Roost.
        """
        if folder is None and (name.isdigit() or not os.path.exists(default_folder(check_job_name(name)))):
            folder = _folder_in_queue(name)
        return super().connect(name, folder=folder)

    @classmethod
    def from_environment(
        cls,
        mesh: str = "hosts",
        *,
        folder: str | os.PathLike[str] | None = None,
        sync: str | os.PathLike[str] | None = None,
        srun_args: Sequence[str] = (),
        python: str | None = None,
        env: Mapping[str, str] | None = None,
        listen: str = "0.0.0.0:0",
    ) -> SlurmJob:
        """The job that this program is the `driver` of; in any other allocation (salloc, a batch script, srun), one over its nodes.

        `apply()` starts agents there as a step of their own, and `kill()` ends that; the allocation stays. Of `srun python train.py`
        the first task goes on, and drives all nodes; the others end here, in order.

        Args:
            mesh: what the nodes of an allocation are to be called; a job's meshes have names.
            folder: as of `SlurmJob`, as are all others.
            sync: see there.
            srun_args: see there.
            python: see there.
            env: see there.
            listen: see there.

        Raises:
            RuntimeError: it is in no allocation.
        """
        job = os.environ.get("ROOST_JOB")
        if job is not None and "SLURM_JOB_ID" in os.environ:
            return cls.connect(os.environ["SLURM_JOB_ID"], folder=job)
        from roost.job.slurm_allocation import allocation_here

        return allocation_here(
            mesh, folder=folder, sync=sync, srun_args=srun_args, python=python, env=env, listen=listen
        )  # fmt: skip

    def render(self) -> str:
        """The batch script."""
        # Of a run that is not there yet.
        fields: dict[str, Any] = {"kind": self.kind, "name": self.name, "run": "RUN", "spec": {}, "parts": []}
        wanted = [Part(name, 0, spec.hosts, "") for name, spec in self.meshes.items()]
        return script(self.name, Record(self.folder, fields), wanted, self.meshes, self._settings)

    def _submit(self, record: Record, wanted: list[Part]) -> list[Part]:
        text = script(self.name, record, wanted, self.meshes, self._settings)
        number = slurm.said_by(["sbatch", "--parsable"], text).strip().partition(";")[0]
        if len(wanted) == 1:
            return [wanted[0]._replace(id=number)]
        return [part._replace(id=f"{number}+{offset}") for offset, part in enumerate(wanted)]

    def _look(self, record: Record) -> Look:
        try:
            found = self._found(record)
            self._last = self._look_at(record, found)
        except slurm.SilentError as error:
            # It goes on without its controller.
            return self._last._replace(reason=f"Slurm does not answer: {error}")
        return self._last

    def _found(self, record: Record) -> dict[Part, SlurmPart | None]:
        numbers = {part.id.partition("+")[0] for part in record.parts}
        said = {number: slurm.jobs(number) for number in numbers}
        return {part: said[(cut := part.id.partition("+"))[0]].get(cut[2] or "0") for part in record.parts}

    def _look_at(self, record: Record, found: dict[Part, SlurmPart | None]) -> Look:
        found = {part: _of_its_life(record, part, one) for part, one in found.items()}
        states = {"ended" if one is None else one.state for one in found.values()}
        reasons = [_FORGOTTEN if one is None else one.reason for one in found.values()]
        reason = "; ".join(dict.fromkeys(one for one in reasons if one))
        failed = any(one is None or one.failed for one in found.values())
        # The accounting does not know how often, and nor does who has forgotten it.
        before = self._last.restarts
        restarts = {
            part.id: max(before.get(part.id, 0), 0 if one is None else one.restarts) for part, one in found.items()
        }
        if states == {"ended"}:
            # What never had nodes has none in its books, and nor has what waits to be started again.
            has_run = any(one is not None and one.nodes for one in found.values())
            return Look("ended", reason, failed, restarts=restarts, has_run=has_run)
        gone, known = _nodes_of(record, found)
        left = [one.time_left_s for one in found.values() if one is not None and one.time_left_s is not None]
        return Look(
            "running" if "running" in states else "pending", reason, time_left_s=min(left, default=None),
            restarts=restarts,
            preempted=any(one is not None and one.is_preempted for one in found.values()), gone=gone, known=known,
        )  # fmt: skip

    def _end(self, record: Record) -> None:
        for number in dict.fromkeys(part.id.partition("+")[0] for part in record.parts):
            slurm.said_by(["scancel", number])

    def _shorten(self, record: Record, part: Part, hosts: int) -> Part:
        kept = _kept(record, part, self._found(record)[part], hosts) if hosts else "none"
        if kept == "none" and "+" in part.id:
            raise JobError(f"{part.mesh} cannot be taken out of job {part.id}, which it is a component of")
        if kept == "none":
            slurm.said_by(["scancel", part.id])
        elif kept != "all":
            _update(part, kept)
        return part._replace(hosts=hosts)


def _update(part: Part, change: str) -> None:
    """Have Slurm change a part; while it is busy with the job itself, say when a node has died, it asks to be asked again."""
    until = time.monotonic() + _BUSY_S
    while True:
        try:
            slurm.said_by(["scontrol", "update", f"JobId={part.id}", change])
        except JobError as error:
            if "try again" not in str(error) or time.monotonic() > until:
                raise
            time.sleep(_ASK_AGAIN_S)
        else:
            return


def _kept(record: Record, part: Part, one: SlurmPart | None, hosts: int) -> str:
    """Which nodes a part keeps that is to have only its first hosts, as scontrol takes it; or "all" that it has, or "none".

    Nodes that died are not among those that Slurm counts.
    """
    if one is None or one.state == "ended":
        return "all"
    there = slurm.expand(one.nodes) if one.state == "running" else []
    told = announced(record.hosts_folder(part, one.restarts))
    if not there or any(place not in told for place in range(hosts, part.hosts)):
        # Not all have begun: then none has died.
        return f"NumNodes={hosts}"
    dropped = {told[place].name for place in range(hosts, part.hosts)}
    kept = [name for name in there if name not in dropped]
    return "none" if not kept else "all" if kept == there else f"NodeList={','.join(kept)}"


def _folder_in_queue(name: str) -> str:
    """The folder of the user's job of this name or number, which Slurm keeps as the job's comment."""
    which = ["--jobs", name] if name.isdigit() else ["--name", name, "--me"]
    try:
        text = slurm.said_by(["squeue", "--noheader", "--format=%i|%k", *which])
    except slurm.SilentError:
        raise
    except JobError:
        text = ""
    folders = {line.partition("|")[2].removeprefix(_COMMENT) for line in text.splitlines() if f"|{_COMMENT}" in line}
    if not folders:
        raise LookupError(
            f"Slurm's queue has no job of Roost's {name}: look with `squeue --me`, or give the folder= that it lives in"
        )
    if len(folders) > 1:
        raise LookupError(
            f"Slurm's queue has several jobs {name}: give the folder= of one of {', '.join(sorted(folders))}"
        )
    return folders.pop()


_Places: TypeAlias = "dict[tuple[str, int], str]"


def _of_its_life(record: Record, part: Part, one: SlurmPart | None) -> SlurmPart | None:
    """A part as it is in the life that Slurm counts.

    While the nodes of a life that was taken back are still being freed, Slurm counts the next one already: that waits.
    """
    if (
        one is None
        or one.word != "COMPLETING"
        or not one.restarts
        or os.path.isdir(record.hosts_folder(part, one.restarts))
    ):
        return one
    return one._replace(state="pending")


def _nodes_of(record: Record, found: dict[Part, SlurmPart | None]) -> tuple[_Places, _Places]:
    """By mesh and rank, why a node is lost, or how it is."""
    gone: _Places = {}
    there: dict[tuple[str, int], tuple[str, list[str]]] = {}
    for part, one in found.items():
        if one is None or one.state == "ended":
            why = _FORGOTTEN if one is None else one.reason
            gone |= {(part.mesh, part.first + place): why for place in range(part.hosts)}
        elif one.state == "running":
            # A node that died and came back is another part's now, or nobody's.
            theirs = slurm.expand(one.nodes)
            told = announced(record.hosts_folder(part, one.restarts))
            there |= {(part.mesh, part.first + place): (agent.name, theirs) for place, agent in told.items()}
    nodes = slurm.nodes(sorted({name for name, _ in there.values()}))
    known: _Places = {}
    for at, (name, theirs) in there.items():
        state, reason = nodes.get(name, ("not known to it", ""))
        said = f"Slurm: node {name} is {state}{reason and ', '}{reason}"
        if name not in theirs:
            gone[at] = f"Slurm took it out of the job; {said}"
        elif state.startswith(("DOWN", "FAIL")):
            gone[at] = said
        else:
            known[at] = said
    return gone, known
