"""What a `SkyPilotJob` has SkyPilot do: the task of a mesh, and what is read of what it writes."""

from __future__ import annotations

import io
import json
import re
import shlex
from typing import TYPE_CHECKING, Any

from roost.job.agent import agent_command
from roost.job.documents import merged

if TYPE_CHECKING:
    from collections.abc import Mapping

    from roost.job.documents import Document
    from roost.job.record import Part, Record
    from roost.job.spec import MeshSpec

__all__ = ["check_settings", "cluster_name", "lines_of", "listening", "task_of"]

_NAME = re.compile(r"[a-zA-Z]([-.a-zA-Z0-9]*[a-zA-Z0-9])?")
_HIGHEST_PORT = 65535
_MIB_OF_GIB = 1024
# An agent listens where the other nodes find it, and who may be elsewhere reads in the log which node that is.
_SCRIPT = """\
set -e
key=$HOME/{key}
chmod 600 "$key"
own=$(echo "$SKYPILOT_NODE_IPS" | sed -n "$((SKYPILOT_NODE_RANK + 1))p")
echo "roost host $SKYPILOT_NODE_RANK at $own"
case $own in *:*) own="[$own]" ;; esac
{prologue}exec {agent} --listen "$own:{port}" --advertise "$own" --key-file "$key" --name "{cluster}-$SKYPILOT_NODE_RANK"
"""
# In front of a line SkyPilot writes whose it is, where a cluster has several nodes.
_PLACE = re.compile(r"\broost host (\d+) at (\S+)")
_LISTENING = re.compile(r"\blistening on (\S+) advertised as ")
_RANK = re.compile(r"\([^)]*\brank=(\d+)\b[^)]*\)")


def cluster_name(job: str, part: Part) -> str:
    """What the cluster of a part is called."""
    name = f"{job}-{part.mesh.replace('_', '-')}"
    return f"{name}-{part.first}" if part.first else name


def check_settings(name: str, meshes: Mapping[str, MeshSpec], settings: Mapping[str, Any]) -> None:
    """See to it that they can be.

    Args:
        name: the job's name.
        meshes: its meshes.
        settings: those of the job.

    Raises:
        ValueError: they cannot; says which, and what to give instead.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"name={name!r} is no name for SkyPilot: give letters, digits, '-' and '.', a letter first")
    for mesh, spec in meshes.items():
        if spec.gpus and not settings["accelerator"]:
            raise ValueError(f'{mesh} has gpus={spec.gpus}: give accelerator= their kind, such as "MI300X"')
        for argument in spec.args:
            if "=" not in argument:
                raise ValueError(f"args of {mesh}: {argument!r} is no field of SkyPilot's resources: give FIELD=VALUE")
    if settings["port"] > _HIGHEST_PORT:
        raise ValueError(f"SkyPilotJob port={settings['port']} is none: give one up to {_HIGHEST_PORT}")
    if settings["external"] and not settings["port"]:
        raise ValueError("external=True needs port=, which the clusters' firewalls are to let through")
    try:
        json.dumps([settings["resources"], settings["task"]])
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"resources= and task= are to be documents: {error}; give dicts, lists, texts, numbers"
        ) from None


def task_of(job: str, record: Record, part: Part, spec: MeshSpec, settings: Mapping[str, Any]) -> Document:
    """The task whose nodes are the hosts of a part, as SkyPilot's YAML has it.

    Args:
        job: the job's name.
        record: its folders.
        part: the hosts.
        spec: what they are to have.
        settings: those of the job.
    """
    cluster = cluster_name(job, part)
    key = f".roost-{record.run}.key"
    task: Document = {
        "name": cluster, "num_nodes": part.hosts, "resources": _resources(spec, settings),
        "file_mounts": {f"~/{key}": record.key_file},
        "run": _SCRIPT.format(
            key=key, cluster=cluster, port=settings["port"], agent=shlex.join(agent_command(settings["python"], "")),
            prologue="".join(f"{line}\n" for line in settings["prologue"]),
        ),
    }  # fmt: skip
    if settings["env"]:
        task["envs"] = dict(settings["env"])
    if settings["setup"]:
        task["setup"] = "".join(f"{line}\n" for line in settings["setup"])
    whole: Document = merged(task, settings["task"])
    return whole


def _resources(spec: MeshSpec, settings: Mapping[str, Any]) -> Document:
    found: Document = {}
    if settings["infra"] is not None:
        found["infra"] = settings["infra"]
    if spec.gpus:
        found["accelerators"] = f"{settings['accelerator']}:{spec.gpus}"
    if spec.cpus is not None:
        found["cpus"] = f"{spec.cpus}+"
    if spec.memory_mib is not None:
        found["memory"] = f"{spec.memory_mib / _MIB_OF_GIB:g}+"
    if settings["external"]:
        found["ports"] = [settings["port"]]
    more = {key: _value(text) for key, _, text in (argument.partition("=") for argument in spec.args)}
    return {**found, **settings["resources"], **more}


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def listening(text: str) -> dict[int, tuple[str, str]]:
    """Where the agents of a task listen, by rank: the address of the node, and the port.

    Args:
        text: what the task wrote.
    """
    ranks = {address: int(rank) for rank, address in _PLACE.findall(text)}
    found: dict[int, tuple[str, str]] = {}
    for where in _LISTENING.findall(text):
        host, _, port = where.rpartition(":")
        address = host.strip("[]")
        if address in ranks:
            found[ranks[address]] = address, port
    return found


def lines_of(text: str, rank: int) -> str:
    """What one node wrote, and what is nobody's: SkyPilot's log has all nodes' lines.

    Args:
        text: whole lines of it.
        rank: which node.
    """
    kept = []
    # Only "\n" ends a line: behind a progress bar's "\r" no rank is said again.
    for line in io.StringIO(text):
        whose = _RANK.match(_PLAIN.sub("", line))
        if whose is None or int(whose[1]) == rank:
            kept.append(line)
    return "".join(kept)


_PLAIN = re.compile(r"\x1b\[[0-9;]*m")
