"""The batch script of a `SlurmJob`."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING, Any

from roost.job.agent import agent_command

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from roost.job.record import Part, Record
    from roost.job.spec import MeshSpec

__all__ = ["script", "step_command"]

# That of one that failed, if one did.
_WAIT = """\
status=0
for step in $(jobs -p); do
    wait "$step" || status=$?
done"""
# Slurm asks who is preempted to end. One that is gone when it comes to kill it counts as completed, and is not started again.
_STAY = """\
if scontrol show job --oneliner "$SLURM_JOB_ID" | grep --quiet ' PreemptTime=[0-9]'; then
    sleep infinity
fi"""
_DRIVER = """\
{driver}
status=$?
# Their agents end what they have, and then themselves.
kill $(jobs -p)
wait
exit $status
"""


def script(
    name: str, record: Record, wanted: Sequence[Part], specs: Mapping[str, MeshSpec], settings: Mapping[str, Any]
) -> str:
    """What is given to sbatch: one component for each mesh, on each node of it an agent.

    Args:
        name: the job's name.
        record: the job's folders.
        wanted: the hosts to ask for.
        specs: what they are to have, by mesh.
        settings: those of the job.
    """
    lines = ["#!/bin/bash"]
    for number, part in enumerate(wanted):
        if number:
            lines.append("#SBATCH hetjob")
        lines += [f"#SBATCH {one}" for one in _options(part, specs[part.mesh], settings)]
        if not number:
            lines += [f"#SBATCH {one}" for one in _options_of_all(name, record, settings)]
    lines += ["", "export ROOST_RESTART=${SLURM_RESTART_COUNT:-0}", f"export ROOST_JOB={shlex.quote(record.folder)}"]
    lines += [f"export {key}={shlex.quote(value)}" for key, value in settings["env"].items()]
    lines += [*settings["prologue"], ""]
    for number, part in enumerate(wanted):
        group = [f"--het-group={number}"] if len(wanted) > 1 else []
        lines.append(f"{shlex.join(step_command(record, part, specs[part.mesh], settings, group))} &")
    if settings["driver"] and all(part.first == 0 for part in wanted):
        lines.append(_DRIVER.format(driver=shlex.join(settings["driver"])))
    else:
        lines.append(_WAIT)
        if settings["requeue"]:
            lines.append(_STAY)
        lines.append("exit $status\n")
    return "\n".join(lines)


def _options_of_all(name: str, record: Record, settings: Mapping[str, Any]) -> list[str]:
    return [
        f"--job-name={name}", f"--output={record.driver_log}", "--open-mode=append", f"--comment=roost:{record.folder}",
        f"--chdir={settings['cwd']}", "--requeue" if settings["requeue"] else "--no-requeue",
    ]  # fmt: skip


def _options(part: Part, spec: MeshSpec, settings: Mapping[str, Any]) -> list[str]:
    found = [f"--nodes={part.hosts}", "--ntasks-per-node=1", "--no-kill"]
    given = {option: settings[option] for option in ("partition", "account", "qos", "time")}
    found += [f"--{option}={value}" for option, value in given.items() if value is not None]
    if settings["exclusive"]:
        found.append("--exclusive")
    if spec.gpus:
        found.append(f"--gpus-per-node={spec.gpus}")
    if spec.cpus is not None:
        found.append(f"--cpus-per-task={spec.cpus}")
    if spec.memory_mib is not None:
        found.append(f"--mem={spec.memory_mib}M")
    return [*found, *settings["args"], *spec.args]


def step_command(
    record: Record, part: Part, spec: MeshSpec, settings: Mapping[str, Any], more: Sequence[str] = ()
) -> list[str]:
    """Start the agents of a mesh. A node that dies, or an agent that fails, is to end no other.

    Args:
        record: the job's folders.
        part: the hosts.
        spec: what they have.
        settings: those of the job.
        more: other arguments of srun.
    """
    announce = os.path.join(record.hosts_folder(part, "$ROOST_RESTART"), "$SLURM_PROCID")
    cpus = [] if spec.cpus is None else [f"--cpus-per-task={spec.cpus}"]  # srun does not take it over from sbatch
    return [
        "srun", *more, f"--nodes={part.hosts}", f"--ntasks={part.hosts}", "--ntasks-per-node=1", *cpus,
        "--no-kill", "--kill-on-bad-exit=0", "--wait=0", f"--output={record.log_file(part, '%t')}", "--open-mode=append",
        *settings["srun_args"],
        *agent_command(
            settings["python"], settings["listen"], key_file=record.key_file, announce=announce, name="$SLURMD_NODENAME"
        ),
    ]  # fmt: skip
