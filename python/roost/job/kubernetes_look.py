"""How a `KubernetesJob` is, put together of what its objects and the events about them say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from roost.addresses import joined
from roost.job.knowing import Look
from roost.job.kubernetes_documents import DRIVER, MESH
from roost.job.kubernetes_pods import by_rank, incarnation, is_hopeless, is_preempted, is_up, why_not_up
from roost.job.record import Announced

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from roost.job.documents import Document
    from roost.job.record import Part, Record

__all__ = ["Seen", "look_at"]

# Of what was said of an object, what does not tell why it is not up: an agent that does not listen yet is what probes are for.
_NO_NEWS = ("Unhealthy",)
_DELETED = "its {}s are gone"


class Seen(NamedTuple):
    """What there is of a job."""

    pods: Mapping[str, list[Document]]
    """By mesh, its pods."""
    makers: Sequence[Document] = ()
    """What makes the pods: StatefulSets, or of a batch job Jobs."""
    events: Sequence[Document] = ()
    """The namespace's, without those that are good news."""
    former: Mapping[str, Document] = {}
    """By name, the pods that have gone, as they were last."""
    is_own: bool = True
    """Whether the pods are the job's own, or others'."""
    has_run: bool = False
    """Whether an agent has listened in one of them."""

    @property
    def uids(self) -> dict[str, str]:
        """By mesh, the uid of what makes its pods."""
        return {_mesh_of(one): one["metadata"]["uid"] for one in self.makers}

    @property
    def pod_uids(self) -> set[str]:
        """The uids of all its pods."""
        return {pod["metadata"]["uid"] for pods in self.pods.values() for pod in pods}

    @property
    def driver(self) -> Document | None:
        """The Job of a batch job's driver."""
        return next((one for one in self.makers if _mesh_of(one) == DRIVER), None)

    def ranks(self, mesh: str) -> dict[int, Document]:
        """A mesh's pods by their ranks."""
        return by_rank(self.pods.get(mesh, []))

    def told(self) -> dict[str, tuple[str, str]]:
        """By an object's uid, the reason and the text of the last event about it."""
        found: dict[str, tuple[str, str]] = {}
        for event in sorted(self.events, key=_when):
            if event.get("reason") not in _NO_NEWS:
                found[event["involvedObject"].get("uid", "")] = (
                    event.get("reason", ""),
                    event.get("message", "").strip(),
                )
        return found


def _mesh_of(maker: Document) -> str:
    return str(maker["metadata"]["labels"].get(MESH, ""))


def look_at(record: Record, seen: Seen, settings: Mapping[str, Any]) -> Look:
    """How a job is.

    Args:
        record: the job.
        seen: what there is of it.
        settings: those of the job.
    """
    deleted = _DELETED.format("Job" if settings["driver"] else "StatefulSet")
    if seen.is_own and not seen.makers and not any(seen.pods.values()):
        return Look("ended", deleted, failed=True)
    if settings["driver"] and seen.makers and (end := _end_of_driver(seen)) is not None:
        return end
    there: dict[tuple[str, int], Announced] = {}
    waiting: dict[tuple[str, int], str] = {}
    gone: dict[tuple[str, int], str] = {}
    told, uids = seen.told(), seen.uids
    ranks = {mesh: seen.ranks(mesh) for mesh in {part.mesh for part in record.parts}}
    for part in record.parts:
        for rank in range(part.first, part.first + part.hosts):
            at = part.mesh, rank
            pod = ranks[part.mesh].get(rank)
            if pod is not None and is_up(pod):
                address = joined(pod["status"]["podIP"], settings["port"])
                there[at] = Announced(address, pod["metadata"]["name"], incarnation(pod))
            elif pod is not None and is_hopeless(pod):
                gone[at] = why_not_up(pod, told.get(pod["metadata"]["uid"]))
            elif seen.is_own and part.mesh not in uids:
                gone[at] = deleted
            else:
                waiting[at] = _why_waiting(seen, part, rank, pod, told)
    reasons = {at: why for at, why in {**gone, **waiting}.items() if why}
    preempted = [pod for pods in seen.pods.values() for pod in pods if is_preempted(pod)]
    quiet = sum(not why for why in waiting.values())
    return Look(
        "running" if there else "pending", _reason(preempted, quiet), preempted=bool(preempted), there=there, waiting=waiting,
        gone=gone, known={at: f"Kubernetes: {why}" for at, why in reasons.items()},
    )  # fmt: skip


def _end_of_driver(seen: Seen) -> Look | None:
    """The end of a batch job: that of its driver; None while it lives."""
    if seen.driver is None:
        return Look("ended", "its driver's Job is gone", failed=True)
    conditions = {one["type"]: one for one in seen.driver.get("status", {}).get("conditions") or []}
    if conditions.get("Complete", {}).get("status") == "True":
        return Look("ended", "its driver exited with code 0")
    failed = conditions.get("Failed", {})
    if failed.get("status") != "True":
        return None
    pods = seen.pods.get(DRIVER, [])
    said = [why_not_up(pod, seen.told().get(pod["metadata"]["uid"])) for pod in pods]
    said.append(": ".join(filter(None, (failed.get("reason", ""), failed.get("message", "")))))
    return Look("ended", f"its driver failed: {'; '.join(filter(None, said))}", failed=True)


def _reason(preempted: Sequence[Document], starting: int) -> str:
    """What there is to say of the whole job."""
    if preempted:
        return why_not_up(preempted[0], None)
    return f"waits for pods to start: {starting}" if starting else ""


def _why_waiting(seen: Seen, part: Part, rank: int, pod: Document | None, told: Mapping[str, tuple[str, str]]) -> str:
    """Why a rank has no agent yet; empty while it is about to have one as a matter of course."""
    found = []
    if pod is not None:
        found.append(why_not_up(pod, told.get(pod["metadata"]["uid"])))
    before = seen.former.get(f"{part.id.partition('/')[2]}-{rank}")
    if before is not None:
        found.append(why_not_up(before, told.get(before["metadata"]["uid"]), is_gone=True))
    maker = seen.uids.get(part.mesh, "")
    if pod is None and maker in told:
        found.append(": ".join(told[maker]))
    return "; ".join(dict.fromkeys(filter(None, found)))


def _when(event: Document) -> str:
    return event.get("lastTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp") or ""
