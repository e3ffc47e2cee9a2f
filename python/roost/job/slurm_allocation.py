"""A `SlurmJob` over the nodes of an allocation that somebody else made: by salloc, a batch script of one's own, or srun."""

from __future__ import annotations

import os
import subprocess
import time
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from roost.errors import JobError
from roost.job import slurm_commands as slurm
from roost.job.knowing import Look, last_words
from roost.job.slurm import SlurmJob
from roost.job.slurm_script import step_command

if TYPE_CHECKING:
    from collections.abc import Mapping

    from roost.job.record import Part, Record
    from roost.job.spec import MeshSpec

__all__ = ["SlurmAllocationJob", "allocation_here"]

# How long Slurm may take to begin a step, and how often that is asked.
_BEGIN_S = 60.0
_LOOK_S = 0.2


class SlurmAllocationJob(SlurmJob):
    """The nodes of an allocation, as a job: its agents are a step there, which `kill()` ends; the allocation stays.

    Args:
        meshes: as of `Job`.
        allocation: its number.
        options: as of `SlurmJob`; what sbatch takes makes no difference.
    """

    kind: ClassVar[str] = "slurm allocation"

    def __init__(self, meshes: Mapping[str, int | MeshSpec], *, allocation: str, **options: Any) -> None:
        super().__init__(meshes, **options)
        self._settings["allocation"] = allocation

    def render(self) -> str:
        """There is nothing to submit.

        Raises:
            JobError: always.
        """
        raise JobError(f"nothing is submitted: {self.name} uses the allocation {self._settings['allocation']}")

    def _submit(self, record: Record, wanted: list[Part]) -> list[Part]:
        if len(wanted) != 1 or wanted[0].first:
            self._refuse_to_grow()
        [part] = wanted
        allocation = self._settings["allocation"]
        step = [f"--jobid={allocation}", "--overlap", "--mem=0", f"--job-name={_name(record)}"]
        command = step_command(record, part, self.meshes[part.mesh], self._settings, step)
        # What an outer srun was told is not meant for this one.
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "SRUN_", "PMI"))}
        keep = {key: os.environ[key] for key in ("SLURM_CONF",) if key in os.environ}
        with open(record.driver_log, "ab") as log:
            srun = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={**inherited, **keep, **self._settings["env"], "ROOST_RESTART": "0"},
            )  # fmt: skip
        until = time.monotonic() + _BEGIN_S
        while _step(allocation, record) is None:
            if srun.poll() is not None or time.monotonic() > until:
                raise JobError(f"srun began no step in {allocation}{last_words(record)}")
            time.sleep(_LOOK_S)
        return [part._replace(id=allocation)]

    def _look_at(self, record: Record, found: dict[Part, slurm.SlurmPart | None]) -> Look:
        look = super()._look_at(record, found)
        if look.state != "ended" and _step(self._settings["allocation"], record) is None:
            return Look("ended", "its step has ended", has_run=True)
        return look

    def _end(self, record: Record) -> None:
        step = _step(self._settings["allocation"], record)
        if step is not None:
            slurm.said_by(["scancel", step])

    def _shorten(self, record: Record, part: Part, hosts: int) -> Part:  # noqa: ARG002 - as of all jobs
        self._refuse_to_grow()

    def _refuse_to_grow(self) -> NoReturn:
        raise JobError(
            f"the allocation {self._settings['allocation']} has the nodes that it has: take a slice of the mesh"
        )


def _name(record: Record) -> str:
    return f"roost-{record.run}"


def _step(allocation: str, record: Record) -> str | None:
    """The number of the agents' step, while there is one."""
    text = slurm.said_by(["squeue", "--steps", "--noheader", "--format=%i|%j", "--jobs", allocation])
    steps = dict(line.split("|", 1)[::-1] for line in text.splitlines() if "|" in line)
    return steps.get(_name(record))


def allocation_here(mesh: str, **options: Any) -> SlurmAllocationJob:
    """The allocation that this program runs in.

    Args:
        mesh: what its nodes are to be called.
        options: of `SlurmJob`.

    Raises:
        SystemExit: this is not the first task of `srun python train.py`; the first one drives them all.
        RuntimeError: there is none.
    """
    number = os.environ.get("SLURM_JOB_ID")
    if number is None:
        raise RuntimeError(
            "from_environment() is for programs inside an allocation of Slurm's: SLURM_JOB_ID is not set"
        )
    if int(os.environ.get("SLURM_PROCID") or 0):
        raise SystemExit(0)
    nodes = int(os.environ.get("SLURM_JOB_NUM_NODES") or os.environ["SLURM_NNODES"])
    return SlurmAllocationJob({mesh: nodes}, allocation=number, name=f"slurm-{number}", **options)
