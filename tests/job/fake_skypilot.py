"""A SkyPilot whose clusters are on this machine: a node is an address of 127.0.0.0/8 and a home of its own, where tasks really run.

As SkyPilot's own, tasks are shell scripts with its variables, all nodes' lines are in one log, a node that fails ends its task on all
of them, and the answer to a launch comes when the task has been handed over.
"""

import enum
import itertools
import os
import shutil
import signal
import subprocess
import threading
import time
from contextlib import suppress
from types import SimpleNamespace

from leftovers import processes, stat


class ClusterStatus(enum.Enum):
    INIT = "INIT"
    UP = "UP"
    STOPPED = "STOPPED"


class ResourcesUnavailableError(Exception):
    """By its name, SkyPilot's."""


class ClusterDoesNotExist(Exception):  # noqa: N818 - it is SkyPilot's
    """The same."""


class Cluster:
    """Nodes, and the one task that they were given."""

    def __init__(self, name, folder, addresses):
        self.name, self.folder, self.addresses = name, folder, addresses
        self.status, self.task, self.log = ClusterStatus.INIT, None, []
        self.processes, self.threads = [], []
        self.is_closed, self.watcher = False, None
        self.changed = threading.Condition()

    def run(self, task):
        """Run a task: files first, then what makes a node ready, then the task itself, on all nodes at once."""
        homes = []
        for rank in range(len(self.addresses)):
            home = self.folder / f"node{rank}"
            home.mkdir(parents=True)
            for there, here in task["file_mounts"].items():
                # As it is copied: who may read it there is for the task to say.
                shutil.copyfile(here, home / there.removeprefix("~/"))
            homes.append(home)
        for word, script in (("SETTING_UP", task.get("setup", "")), ("RUNNING", task["run"])):
            with self.changed:
                if self.is_closed:
                    return
                self.task = word
                self.processes = [self._start(rank, home, task, script) for rank, home in enumerate(homes)]
            self.threads = [threading.Thread(target=self._take, args=item) for item in enumerate(self.processes)]
            for thread in self.threads:
                thread.start()
            if word == "SETTING_UP":
                codes = [one.wait() for one in self.processes]
                self._join()
                if any(codes) or self.is_closed:
                    self.tell(task="FAILED_SETUP")
                    return
        self.watcher = threading.Thread(target=self._watch)
        self.watcher.start()

    def tell(self, **what):
        with self.changed:
            vars(self).update(what)
            self.changed.notify_all()

    def _start(self, rank, home, task, script):
        given = {
            "HOME": str(home), "SKYPILOT_NODE_RANK": str(rank), "SKYPILOT_NODE_IPS": "\n".join(self.addresses),
            "SKYPILOT_NUM_NODES": str(len(self.addresses)),
        }  # fmt: skip
        return subprocess.Popen(
            ["bash", "-c", script], cwd=home, env=os.environ | task.get("envs", {}) | given, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True, text=True,
        )  # fmt: skip

    def _take(self, rank, process):
        whose = f"({'head' if not rank else f'worker{rank}'}, rank={rank}, pid={process.pid}) "
        for line in process.stdout:
            with self.changed:
                self.log.append((whose if len(self.addresses) > 1 else "") + line)
                self.changed.notify_all()
        process.stdout.close()

    def _watch(self):
        """A node that fails ends the task on all of them."""
        codes = {}
        while len(codes) < len(self.processes):
            for process in self.processes:
                if process.poll() is not None and process.pid not in codes:
                    codes[process.pid] = process.returncode
                    if process.returncode:
                        self.end()
            time.sleep(0.02)
        self._join()
        self.tell(task="FAILED" if any(codes.values()) else "SUCCEEDED")

    def end(self):
        for process in self.processes:
            if process.poll() is None:
                os.kill(process.pid, signal.SIGTERM)

    def _join(self):
        for thread in self.threads:
            thread.join()

    def close(self):
        """Have everything end, the launch too where that is still at work."""
        with self.changed:
            self.is_closed = True
            self.end()


class FakeSkyPilot:
    """The six calls.

    Args:
        folder: where nodes have their homes.
    """

    def __init__(self, folder):
        self.folder = folder
        self.clusters, self.requests, self.launched, self.made = {}, {}, [], []
        # What a launch, or every call, is to raise; and what is waited for before clusters are made.
        self.refusal = self.silence = None
        self.may_provision = threading.Event()
        self.may_provision.set()
        self._numbers, self._hosts, self._clones = itertools.count(), itertools.count(2), itertools.count()
        self._lock = threading.Lock()

    def _asked(self, work):
        if self.silence is not None:
            raise self.silence
        request = f"request-{next(self._numbers)}"
        self.requests[request] = answer = SimpleNamespace(value=None, error=None)

        def run():
            try:
                answer.value = work()
            except Exception as error:
                answer.error = error

        answer.thread = threading.Thread(target=run)
        answer.thread.start()
        return request

    def launch(self, task, cluster, idle_minutes):
        self.launched.append((task, cluster, idle_minutes))

        def work():
            if self.refusal is not None:
                raise self.refusal
            addresses = [f"127.0.77.{next(self._hosts)}" for _ in range(task["num_nodes"])]
            made = Cluster(cluster, self.folder / f"{cluster}.{next(self._clones)}", addresses)
            self.clusters[cluster] = made
            self.made.append(made)
            self.may_provision.wait()
            if self.clusters.get(cluster) is not made:
                raise ClusterDoesNotExist(f"{cluster} was taken down while it was made")
            made.tell(status=ClusterStatus.UP)
            made.run(task)
            return 1, None

        return self._asked(work)

    def get(self, request):
        if self.silence is not None:
            raise self.silence
        answer = self.requests[request]
        answer.thread.join()
        if answer.error is not None:
            raise answer.error
        return answer.value

    def queue(self, cluster):
        found = self.clusters[cluster]
        tasks = [] if found.task is None else [{"job_id": 1, "status": SimpleNamespace(value=found.task)}]
        return self._asked(lambda: tasks)

    def status(self, cluster):
        found = self.clusters.get(cluster)

        def work():
            if found is None:
                return []
            outside = [(address, address.replace("127.0.77", "127.0.78")) for address in found.addresses]
            return [{"status": found.status, "handle": SimpleNamespace(stable_internal_external_ips=outside)}]

        return self._asked(work)

    def down(self, cluster):
        def work():
            found = self.clusters.pop(cluster, None)
            if found is None:
                raise ClusterDoesNotExist(cluster)
            found.close()
            if found.watcher is not None:
                found.watcher.join()

        return self._asked(work)

    def tail_logs(self, cluster, output, *, follow):
        found = self.clusters.get(cluster)
        if found is None or found.status is not ClusterStatus.UP:
            raise ClusterDoesNotExist(cluster)
        written = 0
        while True:
            with found.changed:
                new, is_over = found.log[written:], found.task not in ("SETTING_UP", "RUNNING")
                if follow and not new and not is_over:
                    found.changed.wait(1)
                    continue
            output.write("".join(new))
            written += len(new)
            if not follow or is_over:
                return

    def close(self):
        """Everything is to be gone already; what ran is taken in."""
        self.may_provision.set()
        for answer in list(self.requests.values()):
            answer.thread.join()
        for cluster in self.made:
            if cluster.watcher is not None:
                cluster.watcher.join()
        # What an agent that was killed has left is this process's.
        theirs = [pid for pid in processes() if (seen := stat(pid)) and seen[:2] == ("Z", os.getpid())]
        for pid in theirs:
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
        assert not self.clusters, f"{list(self.clusters)} are left"
