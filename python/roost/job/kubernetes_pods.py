"""What pods say of themselves, and what was said of them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from roost.job.kubernetes_documents import AGENT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from roost.job.documents import Document

__all__ = [
    "AgentEnd",
    "agent_end",
    "agent_name",
    "by_rank",
    "incarnation",
    "is_hopeless",
    "is_preempted",
    "is_up",
    "why_not_up",
]

_INDICES = ("apps.kubernetes.io/pod-index", "batch.kubernetes.io/job-completion-index")
_ORDINAL = re.compile(r"-(\d+)$")
# What a container waits for as a matter of course.
_USUAL = ("ContainerCreating", "PodInitializing", "")
# What nobody mends by waiting, as far as can be told.
_HOPELESS = frozenset(
    {
        "CrashLoopBackOff", "CreateContainerConfigError", "CreateContainerError", "ErrImageNeverPull", "ErrImagePull",
        "ImageInspectError", "ImagePullBackOff", "InvalidImageName", "RegistryUnavailable", "RunContainerError",
    }
)  # fmt: skip
# Why a pod is not ready as a matter of course.
_STARTING = (None, "ContainersNotReady", "ContainersNotInitialized")
_NO_NODE = "FailedScheduling"
_KILLED = 128


class AgentEnd(NamedTuple):
    """An end of an agent's container."""

    incarnation: str
    previous: bool
    """Whether another one runs in its place by now."""


def by_rank(pods: Iterable[Document]) -> dict[int, Document]:
    """Pods by the index that whoever made them gave them, else by the number at the end of their names, else in the order of these.

    A pod that is on its way out makes room for the one that takes its place.
    """
    living = sorted(pods, key=lambda pod: ("deletionTimestamp" not in pod["metadata"], _natural(_name(pod))))
    for rank_of in (_index, _ordinal):
        ranks = [rank_of(pod) for pod in living]
        found = dict(zip(ranks, living, strict=True))
        names = {(rank, _name(pod)) for rank, pod in zip(ranks, living, strict=True)}
        if None not in found and len(names) == len(found):
            return {int(rank): pod for rank, pod in found.items() if rank is not None}
    return dict(enumerate(sorted(living, key=lambda pod: _natural(_name(pod)))))


def is_up(pod: Document) -> bool:
    """Whether its agent listens."""
    conditions = _conditions(pod)
    return (
        "deletionTimestamp" not in pod["metadata"]
        and pod.get("status", {}).get("phase") == "Running"
        and bool(pod["status"].get("podIP"))
        and bool(conditions.get("Ready", {}).get("status") == "True")
    )


def incarnation(pod: Document) -> str:
    """What changes when its agent is another one: a pod that was made anew, or a container that was started again."""
    return f"{pod['metadata']['uid']}.{_agent(pod).get('restartCount', 0)}"


def agent_end(pod: Document) -> AgentEnd | None:
    """The last time that its agent's container ended otherwise than in order."""
    agent = _agent(pod)
    count = agent.get("restartCount", 0)
    ended = agent.get("state", {}).get("terminated")
    if ended is not None:
        found, previous = (ended, count), False
    else:
        found, previous = (agent.get("lastState", {}).get("terminated"), count - 1), True
    if found[0] is None or not found[0].get("exitCode"):
        return None
    return AgentEnd(f"{pod['metadata']['uid']}.{found[1]}", previous)


def agent_name(pod: Document) -> str:
    """What the container with its agent is called."""
    names: list[str] = [one["name"] for one in pod["spec"]["containers"]]
    return AGENT if AGENT in names else names[0]


def is_hopeless(pod: Document) -> bool:
    """Whether waiting mends it no more."""
    return any(_waiting(status)[0] in _HOPELESS for status in _statuses(pod))


def is_preempted(pod: Document) -> bool:
    """Whether its place is given to others."""
    target = _conditions(pod).get("DisruptionTarget", {})
    return (target.get("status"), target.get("reason")) == ("True", "PreemptionByScheduler")


def why_not_up(pod: Document, told: tuple[str, str] | None, *, is_gone: bool = False) -> str:
    """Why its agent does not listen, in Kubernetes' own words; empty while it is about to as a matter of course.

    Args:
        pod: the pod.
        told: the reason and the text of the last event about it that is no good news.
        is_gone: whether this is how it was last.
    """
    status = pod.get("status", {})
    conditions = _conditions(pod)
    found = []
    target = conditions.get("DisruptionTarget", {})
    if target.get("status") == "True":
        found.append(_said(target))
    if status.get("phase") == "Failed":
        found.append(_said(status) or "its pod failed")
    found += [_ill(one) for one in _statuses(pod)]
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        found.append(_said(scheduled))
    # What was said of it while it had no node is not so any more.
    is_old = told is not None and told[0] == _NO_NODE and scheduled.get("status") != "False"
    if told is not None and not is_old and not any(told[1] in one for one in found):
        found.append(_worded(*told))
    if is_gone:
        found.append("its pod was deleted")
    elif "deletionTimestamp" in pod["metadata"]:
        found.append("its pod is being deleted")
    ready = conditions.get("Ready", {})
    if not any(found) and ready.get("status") == "False":
        if _statuses(pod) and all(one.get("ready") for one in _statuses(pod)):
            # Its node said so last; since then somebody else has said otherwise.
            found.append("its node does not answer")
        elif ready.get("reason") not in _STARTING:
            found.append(_said(ready))
    return "; ".join(dict.fromkeys(filter(None, found)))


def _name(pod: Document) -> str:
    return str(pod["metadata"]["name"])


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _index(pod: Document) -> int | None:
    marks: Mapping[str, str] = {**pod["metadata"].get("annotations", {}), **pod["metadata"].get("labels", {})}
    return next((int(marks[name]) for name in _INDICES if marks.get(name, "").isdigit()), None)


def _ordinal(pod: Document) -> int | None:
    found = _ORDINAL.search(_name(pod))
    return int(found[1]) if found else None


def _statuses(pod: Document) -> list[Document]:
    status = pod.get("status", {})
    return [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]


def _agent(pod: Document) -> Document:
    """The status of the container with the agent: in pods that others made, the first."""
    statuses: list[Document] = pod.get("status", {}).get("containerStatuses") or []
    return next((one for one in statuses if one["name"] == AGENT), statuses[0] if statuses else {})


def _conditions(pod: Document) -> dict[str, Any]:
    return {one["type"]: one for one in pod.get("status", {}).get("conditions") or []}


def _waiting(status: Document) -> tuple[str, str]:
    waiting = status.get("state", {}).get("waiting") or {}
    return waiting.get("reason", ""), waiting.get("message", "")


def _ill(status: Document) -> str:
    """Why a container does not run."""
    reason, message = _waiting(status)
    found = [] if reason in _USUAL else [_worded(reason, message)]
    state = status.get("state", {})
    if "running" not in state:
        ended = state.get("terminated") or status.get("lastState", {}).get("terminated")
        if ended is not None and (ended.get("exitCode") or status["name"] == AGENT):
            found.append(_ending(status["name"], ended))
    return ", ".join(found)


def _ending(name: str, ended: Document) -> str:
    code = ended.get("exitCode", 0)
    number = ended.get("signal") or (code - _KILLED if code > _KILLED else 0)
    how = f"was killed by signal {number}" if number else f"exited with code {code}"
    reason = ended.get("reason", "")
    why = "" if reason in ("", "Error", "Completed") else f" ({reason})"
    return f"its container {name} {how}{why}"


def _said(of: Document) -> str:
    return _worded(of.get("reason", ""), of.get("message", ""))


def _worded(reason: str, message: str) -> str:
    return ": ".join(filter(None, (reason, message)))
