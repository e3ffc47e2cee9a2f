"""What procs of the tests do with their lives: each function is the `setup` of a proc. No pytest here."""

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

kept = []


def tell(path, text):
    """Add a line to a file, in one write."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, f"{text}\n".encode())
    os.close(fd)


def raises(text):
    raise ValueError(text)


def exits(code, text=""):
    print(text, file=sys.stderr)
    sys.stderr.flush()
    os._exit(code)


def soon(call, *args):
    """Do it once the proc is up."""

    async def later():
        # This turn of the loop ends with the notice that the proc is up, which its control thread then sends.
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.call_later, 0.1, call, *args)

    return later()


def leave(code, text=""):
    """End in this way after coming up."""
    return soon(exits, code, text)


def by_incarnation(path, *calls):
    """Note the incarnation; then live as its number says."""
    incarnation = int(os.environ["ROOST_PROC"].rsplit("/", 1)[1], 16)
    tell(path, incarnation)
    if incarnation < len(calls) and calls[incarnation] is not None:
        function, *args = calls[incarnation]
        return function(*args)
    return None


def describe(path):
    """What a proc finds at its start."""
    import random

    numpy = sys.modules.get("numpy")
    text = {
        "cwd": os.getcwd(),
        "mark": os.environ["ROOST_PROC"],
        "shown": os.environ["ROOST_PROC"].encode() in Path("/proc/self/environ").read_bytes(),
        "group": os.getpgid(0) == os.getpid(),
        "stdin": os.readlink("/proc/self/fd/0"),
        "blocked": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        "random": random.random(),
        "numpy": None if numpy is None else numpy.random.rand(),
        "TESTED": os.environ.get("TESTED"),
    }
    tell(path, repr(text))


def expects_tested(value):
    assert os.environ["TESTED"] == value


def list_descriptors(path):
    """What a program sees that the proc executes, without closing anything for it."""
    script = (
        "import os\n"
        "for fd in sorted(os.listdir('/proc/self/fd'), key=int)[3:]:\n"
        "    try: print(fd, os.readlink(f'/proc/self/fd/{fd}'))\n"
        "    except OSError: pass  # The one that lists them.\n"
    )
    listed = subprocess.run([sys.executable, "-c", script], close_fds=False, capture_output=True, check=True)
    tell(path, listed.stdout.decode().split())


def hold(mebibytes):
    """Touch every page of so much memory."""
    block = bytearray(mebibytes << 20)
    block[::4096] = b"\1" * len(block[::4096])
    kept.append(block)


def fork_and_sleep(path):
    """A worker that holds copies of everything, as a DataLoader's does."""
    pid = os.fork()
    if pid == 0:
        time.sleep(1000)
    tell(path, pid)


def descend(path):
    """Descendants of every kind; note their process ids."""

    def note(pid):
        tell(path, pid)

    sleep = [sys.executable, "-c", "import time; time.sleep(1000)"]
    # In the group, in a session of its own, without our variables.
    note(subprocess.Popen(sleep).pid)
    note(subprocess.Popen(sleep, start_new_session=True).pid)
    note(
        subprocess.Popen(
            sleep, start_new_session=True, env={"ROOST_TEST_SESSION": os.environ["ROOST_TEST_SESSION"]}
        ).pid
    )
    # Forked, and away from us twice: a daemon.
    if os.fork() == 0:
        os.setsid()
        pid = os.fork()
        if pid == 0:
            time.sleep(1000)
        note(pid)
        os._exit(0)
    # A chain.
    script = (
        f"import subprocess, time\nprint(subprocess.Popen({sleep!r}, start_new_session=True).pid, flush=True)\n"
        "time.sleep(1000)\n"
    )
    chain = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True)
    note(chain.pid)
    note(int(chain.stdout.readline()))
    kept.append(chain)


def ignore_sigterm(path):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return block_loop(path)


def block_loop(path):
    """Never answer anything any more, and note when that begins."""

    def block():
        tell(path, "deaf")
        time.sleep(1000)

    return soon(block)


def hold_gil(path):
    """No Python runs any more in this process; note when that begins."""

    def hold():
        tell(path, "deaf")
        ctypes.PyDLL(None).sleep(1000)

    return soon(threading.Thread(target=hold, daemon=True).start)


def replace_program():
    """Become another program, which is no proc."""
    return soon(os.execv, sys.executable, [sys.executable, "-c", "import time; time.sleep(1000)"])


def say(*texts):
    """Print each of these to stdout, and its upper-case form to stderr."""
    for text in texts:
        print(text)
        print(text.upper(), file=sys.stderr)


def say_much(count, width):
    for number in range(count):
        print(f"{number:08} {'x' * width}")


def say_and_die(text):
    """Its last words are in the pipe when it is killed."""

    def die():
        os.write(2, text.encode())
        os.kill(os.getpid(), signal.SIGKILL)

    return soon(die)
