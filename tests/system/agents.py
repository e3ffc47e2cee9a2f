"""Agents of hosts, as one starts them on a shell. No pytest here."""

import subprocess
import sys
from contextlib import contextmanager

from roost.keys import make_key


class Agent:
    """One `python -m roost host`."""

    def __init__(self, *arguments, key=None, name=None, program=None):
        more = [*(["--key-file", str(key)] if key else []), *(["--name", name] if name else [])]
        command = [*(program or [sys.executable, "-m", "roost"]), "host", *more, *arguments]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL
        )
        self.line = self.process.stdout.readline()

    @property
    def address(self):
        assert self.line.startswith("listening on "), self.process.stderr.read()
        return self.line.split()[2]

    def end(self, signal=None, within_s=20):
        """Wait until it has ended, sending it this signal first; gives its exit status and what it said."""
        if signal is not None:
            self.process.send_signal(signal)
        said = self.process.communicate(timeout=within_s)
        return self.process.returncode, *said


@contextmanager
def agents(tmp_path, count=1, *arguments):
    """Agents with one key; gives them, and the key's file. What is left of them at the end is killed."""
    key = tmp_path / "key"
    make_key(key)
    started = [Agent(*arguments, key=key, name=f"host{number}") for number in range(count)]
    try:
        yield started, key
    finally:
        for agent in started:
            agent.process.kill()
            agent.process.communicate()
