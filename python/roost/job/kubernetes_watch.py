"""Lists of a cluster's objects that are kept up to date: each change is here as soon as the API server tells it."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from roost.errors import JobError
from roost.job.kubernetes_api import ExpiredError, SilentApiError, events_in

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from roost.job.documents import Document
    from roost.job.kubernetes_api import Api

__all__ = ["View"]

# After how long the server ends a watch, which is then resumed; and how long nobody has to have looked for the view to end.
_WATCH_S, _IDLE_S = 30, 60.0
# Pauses before a watch is resumed that came to nothing: the first and the longest.
_PAUSE_S, _PAUSE_MAX_S = 0.1, 5.0
# How long a thread may take to notice that its view was closed.
_CLOSE_S = 5.0
# Of how many objects that have gone it is known how they were: those of a busy namespace are without end.
_FORMER_MOST = 1000


class View:
    """Lists that are watched, each by a thread of its own, as long as somebody looks.

    Args:
        api: the cluster's.
        lists: by a name, the path of a list and which of its objects are meant.
        optional: names of lists that are done without where the cluster does not let this user see them.
        note: is called with each object, and with it anew as often as it has changed: `objects` has only how they are when it is looked.

    Raises:
        JobError: the first look at a list is refused, or not answered.
    """

    def __init__(
        self, api: Api, lists: Mapping[str, tuple[str, Mapping[str, str]]], *, optional: tuple[str, ...] = (),
        note: Callable[[Document], None],
    ) -> None:  # fmt: skip
        self.api, self.note = api, note
        self._looked_at = time.monotonic()
        self._lists: dict[str, _List] = {}
        for name, (path, query) in lists.items():
            found = _List(self, path, query)
            try:
                found.begin()
            except SilentApiError:
                raise
            except JobError:
                if name not in optional:
                    raise
                continue
            self._lists[name] = found
        for one in self._lists.values():
            one.thread.start()

    @property
    def is_idle(self) -> bool:
        """Whether nobody has looked for so long that it is about to end."""
        return time.monotonic() - self._looked_at > _IDLE_S

    @property
    def is_over(self) -> bool:
        """Whether a list of it is kept up to date no more, or will soon not be: look at a new view."""
        return self.is_idle or not all(one.thread.is_alive() for one in self._lists.values())

    def look(self) -> None:
        """Say that somebody looks.

        Raises:
            SilentApiError: what is here is old, and the server does not answer.
        """
        self._looked_at = time.monotonic()
        for one in self._lists.values():
            if one.trouble:
                raise SilentApiError(one.trouble)

    def objects(self, name: str) -> list[Document]:
        """Those of a list."""
        return list(self._lists[name].objects.values()) if name in self._lists else []

    def former(self, name: str) -> Mapping[str, Document]:
        """How those were that have gone, by their names; of several of one name the last."""
        return self._lists[name].former

    def close(self) -> None:
        """End the threads."""
        for one in self._lists.values():
            one.close()
        for one in self._lists.values():
            one.thread.join(_CLOSE_S)
        self.api.close()


class _List:
    """One list."""

    def __init__(self, view: View, path: str, query: Mapping[str, str]) -> None:
        self._view, self._path, self._query = view, path, query
        self.objects: dict[str, Document] = {}
        self.former: dict[str, Document] = {}
        # Why the server cannot be asked just now.
        self.trouble = ""
        # Up to where everything is known; None when all has to be looked at anew.
        self._version: str | None = None
        self._closed = threading.Event()
        self._response: Any = None
        # A program ends whatever is watched.
        self.thread = threading.Thread(target=self._keep, name=f"roost-watch {path}", daemon=True)

    def begin(self) -> None:
        """Look at all of it."""
        found = self._view.api.get(self._path, **self._query)
        objects: dict[str, Document] = {one["metadata"]["uid"]: one for one in found.get("items") or []}
        before, self.objects = self.objects, objects
        for uid, one in before.items():
            if uid not in objects:
                self._note_gone(one)
        for one in objects.values():
            self._view.note(one)
        self._version = found["metadata"].get("resourceVersion")

    def close(self) -> None:
        """Have the thread end."""
        self._closed.set()
        if self._response is not None:
            with suppress(ValueError, RuntimeError):  # it has ended by itself
                self._response.shutdown()

    def _keep(self) -> None:
        pause_s = _PAUSE_S
        while not self._closed.is_set() and not self._view.is_idle:
            began = time.monotonic()
            if self._follow() or time.monotonic() - began > _PAUSE_MAX_S:
                pause_s = _PAUSE_S
            else:
                self._closed.wait(pause_s)
                pause_s = min(2 * pause_s, _PAUSE_MAX_S)

    def _follow(self) -> bool:
        """Hear of changes until the connection ends, for whatever reason; gives whether there were any."""
        try:
            if self._version is None:
                self.begin()
            version = "" if self._version is None else self._version
            self._response = self._view.api.watch(self._path, _WATCH_S, resourceVersion=version, **self._query)
        except ExpiredError:
            self._version = None
            return False
        except JobError as error:
            self.trouble = str(error)
            return False
        self.trouble = ""
        return self._hear(self._response)

    def _hear(self, response: Any) -> bool:
        heard = False
        try:
            if self._closed.is_set():
                return False
            for kind, one in events_in(response):
                heard = True
                self._version = one["metadata"]["resourceVersion"]
                if kind == "DELETED":
                    self.objects.pop(one["metadata"]["uid"], None)
                    self._note_gone(one)
                elif kind != "BOOKMARK":
                    self.objects[one["metadata"]["uid"]] = one
                    self._view.note(one)
        except SilentApiError:
            pass  # it is resumed from where it was
        except JobError:
            # What it refuses is to go on from there.
            self._version = None
        finally:
            response.close()
            response.release_conn()
        return heard

    def _note_gone(self, one: Document) -> None:
        name = one["metadata"]["name"]
        # The newest last.
        self.former.pop(name, None)
        self.former[name] = one
        if len(self.former) > _FORMER_MOST:
            del self.former[next(iter(self.former))]
