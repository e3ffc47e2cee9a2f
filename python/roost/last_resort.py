"""The last resort of what cannot be freed in any other way."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from typing import NoReturn

__all__ = ["end_process"]


def end_process(who: str, reason: str) -> NoReturn:
    """End this process as a hang is ended, and let its last words say where every thread is.

    Args:
        who: the part of Roost that does it.
        reason: why.
    """
    stderr = sys.__stderr__ or sys.stderr
    stderr.write(f"{who} ends this process: {reason}\n")
    stderr.flush()
    faulthandler.dump_traceback(stderr, all_threads=True)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("nobody outlives SIGKILL")
