"""A driver without a runtime: spawns procs through `Control` and reads its notices."""

import functools
import os
import pickle
import random
import select
import sys
import time
from pathlib import Path

from roost import serialize
from roost._roost import Control
from roost.config import Config

MESH = 7


def policy(limit, within_s=60.0, backoff_s=(0.01, 0.05), when="failed"):
    return (limit, within_s, *backoff_s, "one", when, "fail", "same_host")


class Driver:
    """The agent of this host, in this process."""

    def __init__(self, **config):
        self.job = os.urandom(16)
        self.id = random.getrandbits(63) | 1
        self.host = random.getrandbits(63) | 1
        self.control = Control.start_agent(self.job, self.id, {"host": self.host, **config})
        self.notices = []
        self.fds = {}
        self.asked = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.control.close()
        self.read(0)
        # A failed test keeps this object in its traceback, but should not keep the descriptors.
        del self.control
        for fd in self.fds.values():
            os.close(fd)
        self.fds.clear()

    def spec(self, proc, setup, environ=None, rank=0):
        return pickle.dumps(
            {
                "job": self.job,
                "proc": proc,
                "owner": self.id,
                "owner_incarnation": 0,
                "driver": self.id,
                "host": self.host,
                "host_name": "here",
                "mesh": MESH,
                "mesh_name": "w",
                "name": f"w[{rank}]",
                "sizes": {},
                "rank": rank,
                "sys_path": sys.path,
                "argv": sys.argv,
                "cwd": os.getcwd(),
                "environ": dict(os.environ) if environ is None else environ,
                "changes": None,
                "preload": [],
                "setup": serialize.dumps_alone(setup) if setup else None,
                "actors": [],
                "config": Config().as_builtins(),
                "cpus": None,
                "bind": None,
                "says_folder": True,
            },
            5,
        )

    def spawn(self, count=1, setup=None, *, policy=None, preload=(), cold=False, command=None, logs=False, ask=False):
        """Start procs; gives their ids. `setup` is (function, arguments…) of `lives`."""
        if setup is not None:
            setup = functools.partial(*setup) if isinstance(setup, tuple) else setup
        procs = [random.getrandbits(63) | 1 for _ in range(count)]
        environ = dict(os.environ)
        cold = cold or command is not None
        ranks = [
            (proc, f"w[{rank}]", self.spec(proc, setup, rank=rank), environ if cold else None, command, self.host)
            for rank, proc in enumerate(procs)
        ]
        template = None if cold else (list(preload), sys.path, environ)
        self.control.spawn_procs(MESH, "w", ranks, template, policy, self.id, logs, ask)
        return procs

    def up(self, *args, **kwargs):
        """Start procs and wait until they are up; gives the ids and the process ids."""
        procs = self.spawn(*args, **kwargs)
        return procs, [self.wait(proc, "up")["pid"] for proc in procs]

    def read(self, timeout_s):
        """Take in what has come."""
        if timeout_s and not select.select([self.control.fd], [], [], timeout_s)[0]:
            return
        for notice in self.control.drain():
            assert notice[0] != "warning" or "bug in roost" not in notice[1], notice
            self.notices.append((time.monotonic(), notice))
            if notice[0] == "connected":
                _, proc, incarnation, fd, _ = notice
                self.fds[proc, incarnation] = fd

    def until(self, condition, timeout_s=60.0):
        """The first notice for which this holds, with the time at which it was read."""
        end = time.monotonic() + timeout_s
        looked = 0
        while True:
            for at, notice in self.notices[looked:]:
                if condition(notice):
                    return at, notice
            looked = len(self.notices)
            left = end - time.monotonic()
            assert left > 0, f"it never came; what came: {[notice for _, notice in self.notices]}"
            self.read(left)

    def wait(self, proc, status, incarnation=0):
        """The details of the notice that tells this status."""
        return self.when(proc, status, incarnation)[1]

    def when(self, proc, status, incarnation=0):
        """The same, with the time at which it was read."""
        want, ends = (proc, incarnation, status), () if status == "gone" else ("failed", "stopped")

        def told(notice):
            return notice[0] == "member" and (notice[2:5] == want or (notice[2] == proc and notice[4] in ends))

        at, notice = self.until(told)
        # It may end long after the one that is asked for: then that is still to be found before it.
        assert notice[2:5] == want, f"{proc:x} has ended instead: {notice[3:]}"
        return at, notice[5]

    def story(self, proc):
        """(incarnation, status) of all that was told of a proc."""
        self.read(0)
        return [notice[3:5] for _, notice in self.notices if notice[0] == "member" and notice[2] == proc]

    def warnings(self):
        return [notice[1] for _, notice in self.notices if notice[0] == "warning"]


def lines(path, count, timeout_s=10.0):
    """The lines of a file that procs write, once there are so many."""
    end = time.monotonic() + timeout_s
    while True:
        text = path.read_text() if path.exists() else ""
        if text.count("\n") >= count:
            return text.splitlines()
        assert time.monotonic() < end, f"{path} has {text!r}"
        os.sched_yield()


def template_pid(of_job):
    """The process of the template of this job."""
    mark = f"ROOST_PROC={of_job.hex()}/{0:016x}/{0:08x}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    return int(entry.name)
            except OSError:
                continue
    return None
