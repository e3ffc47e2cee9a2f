"""`python -m roost host`: the agent of a host, which starts procs there for the drivers that attach it."""

from __future__ import annotations

import argparse
import asyncio
import logging
import math
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

from roost.cli.announcing import announced
from roost.cli.host_settings import ANY_ADDRESS, STDIN, Refusal, Status, calls_of, config_of, shown_address
from roost.cli.program import program

if TYPE_CHECKING:
    from roost._roost import Control
    from roost.cli.calling import Calls

__all__ = ["add_to"]

_logger = logging.getLogger("roost.host")

_EPILOG = f"""\
exit status: 0 ended in order (SIGTERM, SIGINT, a driver's shutdown, its only job over, idle for long, its parent gone);
{Status.USAGE} the command line makes no sense; {Status.KEY} a key or certificate cannot be used;
{Status.LISTEN} it cannot listen there (the port is taken, the address is not this machine's);
{Status.OPEN} it would be open to everybody (beyond loopback without a key);
{Status.ADVERTISE} the advertised address does not lead here; {Status.VERSION} the installed parts of Roost are of different versions.

Two machines:
  python -m roost key cluster.key                                         # once; copy the file to the other machine
  python -m roost host --listen 0.0.0.0:7000 --key-file cluster.key       # on each host
  roost.attach(["hostA:7000", "hostB:7000"], key_file="cluster.key")      # in the driver
"""
# How long the procs of its job have to end when it does.
_CLOSE_S = 15.0


def add_to(commands: Any) -> None:
    """Say what the command takes."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "host",
        help="be the agent of this host",
        description="Start procs on this host for the drivers that attach it, one driver at a time.\n"
        "When it listens, one line on stdout says so: `listening on ADDRESS:PORT advertised as NAME:PORT`.\n"
        "All else goes to stderr.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--listen", metavar="ADDR", default="127.0.0.1:0",
        help="where to listen: HOST:PORT, [V6]:PORT or unix:PATH; port 0 lets the system choose, 0.0.0.0 and [::] are all of this "
        "machine's addresses (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--advertise", metavar="NAME[:PORT]", help="how other hosts find this one, where that is not what it listens on"
    )
    parser.add_argument(
        "--join", metavar="ADDR",
        help="call a driver there, HOST:PORT, whenever none has this host, and tell it where this host listens: for drivers that wait "
        "for hosts with attach(listen=...), and know none of their addresses; wants --key-file",
    )  # fmt: skip
    parser.add_argument("--key-file", metavar="FILE", help="the key that drivers must have: see `python -m roost key`")
    parser.add_argument(
        "--key-stdin", action="store_true",
        help="the key is the first line of standard input, whose end, or another line, ends this: for who starts it by ssh",
    )  # fmt: skip
    parser.add_argument(
        "--name",
        help="what this host is called in failures and events (default: its host name); $NAME in it is that variable",
    )
    parser.add_argument("--one-job", action="store_true", help="end when the first driver that attached it has gone")
    parser.add_argument(
        "--idle", metavar="SECONDS", type=_seconds, help="end when no driver has had this host for so long"
    )
    tls = parser.add_argument_group(
        "certificates of your own, in place of those that each job makes for itself (PEM files)"
    )
    tls.add_argument("--tls-ca", metavar="FILE", help="the authorities that a driver's certificate may be from")
    tls.add_argument("--tls-certificate", metavar="FILE", help="this host's certificate")
    tls.add_argument("--tls-key", metavar="FILE", help="its private key")
    parser.add_argument(
        "--insecure-plaintext", action="store_true",
        help="do without TLS: whoever is on the way can read and change everything",
    )  # fmt: skip
    parser.add_argument(
        "--announce", metavar="FILE",
        help="write the address and the name to this file once it listens, and remove it at the end; $NAME in it is that variable",
    )  # fmt: skip
    parser.add_argument("--quiet", action="store_true", help="say only what somebody has to know: warnings")
    parser.add_argument("--parent-pid", metavar="PID", type=int, help="end when this process, which started it, does")
    parser.set_defaults(run=_run)


def _seconds(text: str) -> float:
    found = float(text)
    if not 0 < found < math.inf:
        raise ValueError
    return found


def _run(options: argparse.Namespace) -> int:
    level = logging.WARNING if options.quiet else logging.INFO
    logging.basicConfig(stream=sys.stderr, level=level, format="%(asctime)s %(levelname)s %(message)s")
    try:
        return asyncio.run(_Agent(options).live())
    except Refusal as refusal:
        print(f"{program()} host: {refusal}", file=sys.stderr)  # noqa: T201 - what a command says
        return refusal.status


class _Agent:
    """The command at work."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._ended = asyncio.Event()
        self._listening: asyncio.Future[str]
        self._control: Control
        self._calls: Calls | None = None
        self._idle: asyncio.TimerHandle | None = None

    async def live(self) -> int:
        """Listen, until something ends it."""
        loop = asyncio.get_running_loop()
        self._listening = loop.create_future()
        config = config_of(self._options)
        self._calls = calls_of(self._options, config)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end, signal.Signals(number).name)
        parent = self._watch_parent(loop)
        self._watch_starter(loop)
        self._control = _start(config)
        loop.add_reader(self._control.fd, self._hear)
        try:
            address = await self._listening
            shown = await shown_address(self._options.advertise, config["advertised"], address)
            print(f"listening on {address} advertised as {shown}", flush=True)  # noqa: T201 - what its starter waits for
            self._wait_for_driver()
            with announced(self._options.announce, shown, config["name"]):
                await self._until_ended(address if self._options.advertise is None else shown)
        except ValueError as error:
            raise Refusal(Status.USAGE, str(error)) from None
        finally:
            loop.remove_reader(self._control.fd)
            self._control.close(_CLOSE_S)
            loop.remove_reader(STDIN)
            if parent is not None:
                loop.remove_reader(parent)
                os.close(parent)
        return 0

    async def _until_ended(self, found_at: str) -> None:
        if self._calls is None:
            await self._ended.wait()
            return
        host, _, port = found_at.rpartition(":")
        calling = asyncio.ensure_future(self._calls.go_on(f":{port}" if host in ANY_ADDRESS else found_at))
        try:
            await self._ended.wait()
        finally:
            calling.cancel()

    def _end(self, why: str) -> None:
        if self._ended.is_set():
            # Whoever says so twice does not want to wait.
            os._exit(1)
        _logger.info("ending: %s", why)
        self._ended.set()

    def _watch_parent(self, loop: asyncio.AbstractEventLoop) -> int | None:
        pid = self._options.parent_pid
        if pid is None:
            return None
        try:
            parent = os.pidfd_open(pid)
        except OSError:
            parent = -1
        if parent < 0 or os.getppid() != pid:
            raise Refusal(
                Status.USAGE, f"--parent-pid {pid}: that is not the process which started this one, or it has ended"
            )
        loop.add_reader(parent, self._parent_ended, parent)
        return parent

    def _parent_ended(self, parent: int) -> None:
        asyncio.get_running_loop().remove_reader(parent)
        self._end("the process that started it has ended")

    def _watch_starter(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._options.key_stdin:
            return
        try:
            loop.add_reader(STDIN, self._starter_ended)
        except PermissionError:
            raise Refusal(
                Status.USAGE, "--key-stdin: a file is no connection that ends: give it as --key-file"
            ) from None

    def _starter_ended(self) -> None:
        asyncio.get_running_loop().remove_reader(STDIN)
        self._end("the connection by which it was started has ended")

    def _has_driver(self, has: bool) -> None:
        if self._calls is not None:
            self._calls.has_driver(has)
        if self._idle is not None:
            self._idle.cancel()
        if not has:
            self._wait_for_driver()

    def _wait_for_driver(self) -> None:
        after_s = self._options.idle
        if after_s is not None:
            why = f"no driver has had it for {after_s:g} s"
            self._idle = asyncio.get_running_loop().call_later(after_s, self._end, why)

    def _hear(self) -> None:
        for what, *details in self._control.drain():
            if what == "listening":
                self._listening.set_result(details[0])
            elif what == "client":
                _logger.info("job %s attached this host from %s", *details)
                self._has_driver(True)
            elif what == "client_ended":
                _logger.info("job %s has gone: %s", *details)
                self._has_driver(False)
            elif what == "warning":
                _logger.warning("%s", details[0])
            elif what == "done" and not self._ended.is_set():
                self._end("its work is over")


def _start(config: dict[str, Any]) -> Control:
    try:
        from roost._roost import Control

        start = Control.start_station
    except (ImportError, AttributeError):
        raise Refusal(
            Status.VERSION, "the installed parts of Roost are of different versions: install it anew"
        ) from None
    try:
        return start(config)
    except OSError as error:
        raise Refusal(Status.LISTEN, f"cannot listen on {config['listen']}: {error.strerror or error}") from None
    except ValueError as error:
        raise Refusal(Status.KEY, str(error)) from None
