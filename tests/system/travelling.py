"""Values and errors that travel oddly, or not at all, for the tests of calls. Imported by procs: no pytest here."""

import os


class GoneError(Exception):
    """An error with state of its own."""

    def __init__(self, who, *, since):
        super().__init__(f"{who} is gone")
        self.who = who
        self.since = since

    def __reduce__(self):
        return _gone, (self.who, self.since)


def _gone(who, since):
    return GoneError(who, since=since)


class NeverPickles:
    def __reduce__(self):
        raise RuntimeError("this stays here")


class NeverUnpickles:
    def __reduce__(self):
        return _refuse, ("poison",)


class OnlyThere:
    """What only a worker can unpickle."""

    def __reduce__(self):
        return _refuse_unless, (os.getpid(),)


class EndsWhoLoadsIt:
    """What raises this in any other process that unpickles it."""

    def __init__(self, error):
        self.error = error

    def __reduce__(self):
        return _raise_unless, (os.getpid(), self.error)


def _raise_unless(pid, error):
    if os.getpid() != pid:
        raise error("of a value")


def _refuse(text):
    raise ValueError(text)


def _refuse_unless(pid):
    if os.getpid() != pid:
        raise ValueError("only there")
    return OnlyThere()


class OddError(Exception):
    """Pickles, and fails to unpickle in any other process."""

    def __reduce__(self):
        return _refuse_error, (os.getpid(),)


def _refuse_error(pid):
    if os.getpid() != pid:
        raise ValueError("not here")
    return OddError("odd")
