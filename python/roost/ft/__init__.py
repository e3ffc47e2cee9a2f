"""Training that goes on while its replicas die: see the guide's chapter on it."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roost.ft.books import Report
    from roost.ft.data import GlobalBatch
    from roost.ft.incidents import Incident
    from roost.ft.job import FaultTolerantJob
    from roost.ft.sync import DiLoCo, EveryStep, LocalSGD
    from roost.ft.trainer import Trainer
    from roost.ft.transport import Shelves, StateTransport

__all__ = [
    "DiLoCo",
    "EveryStep",
    "FaultTolerantJob",
    "GlobalBatch",
    "Incident",
    "LocalSGD",
    "Report",
    "Shelves",
    "StateTransport",
    "Trainer",
]

# torch is imported by none of them; the job's modules only when there is one.
_AT_FIRST_USE = {
    "DiLoCo": "sync", "EveryStep": "sync", "FaultTolerantJob": "job", "GlobalBatch": "data", "Incident": "incidents", "LocalSGD": "sync",
    "Report": "books", "Shelves": "transport", "StateTransport": "transport", "Trainer": "trainer",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    module = _AT_FIRST_USE.get(name)
    if module is not None:
        from importlib import import_module

        return getattr(import_module(f"roost.ft.{module}"), name)
    raise AttributeError(f"module 'roost.ft' has no attribute {name!r}")
