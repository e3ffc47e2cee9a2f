"""Jobs: hosts for a program, from a scheduler or from this machine, with the same few verbs."""

from roost.errors import JobError
from roost.job.job import Job
from roost.job.kubernetes import KubernetesJob
from roost.job.local import LocalJob
from roost.job.logs import LogLines
from roost.job.opening import JobState
from roost.job.processes import ProcessJob
from roost.job.skypilot import SkyPilotJob
from roost.job.slurm import SlurmJob
from roost.job.spec import MeshSpec
from roost.job.ssh import SshJob
from roost.job.status import HostStatus, JobEvent, JobStatus

__all__ = [
    "HostStatus",
    "Job",
    "JobError",
    "JobEvent",
    "JobState",
    "JobStatus",
    "KubernetesJob",
    "LocalJob",
    "LogLines",
    "MeshSpec",
    "ProcessJob",
    "SkyPilotJob",
    "SlurmJob",
    "SshJob",
]
