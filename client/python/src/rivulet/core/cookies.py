# SPDX-License-Identifier: Apache-2.0
"""Cookies that lead a balancer to the replica of a session. The balancer sets them in replies about the session."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from rivulet import errors
from rivulet.core import requests
from rivulet.core.reply_repeat import Deadline

MOST = 100_000  # sessions; beyond, the oldest cookie is dropped: a session may end without notice
_OPENING = ("open_session", "fork_session", "restore_session")
_REPEATED = ("append", "rewind_session", "snapshot_session", "close_session", "get_session")  # a repetition has no further effect


class SessionCookies:
    """Thread: any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cookies: OrderedDict[str, str] = OrderedDict()

    def get(self, id: str) -> str:
        """The "cookie" to send with a call on the session; "": none."""
        with self._lock:
            return self._cookies.get(id, "")

    def set(self, id: str, cookie: str) -> None:
        if not cookie or not id:
            return
        with self._lock:
            self._cookies[id] = cookie
            if len(self._cookies) > MOST:
                self._cookies.popitem(last=False)

    def of_call(self, message: Any) -> str:
        """The cookie of the session that a call with this message uses."""
        return self.get(_session_id(message))

    @staticmethod
    def concerns(method: str, message: Any) -> bool:
        """Whether answered() must be called with the reply of this call."""
        return method in _OPENING or bool(_session_id(message))

    def answered(self, method: str, message: Any, reply: Any, metadata: Iterable[Any] | None, sent: str) -> None:
        """Notes that a call with `message` and the cookie `sent` returned `reply` and this initial metadata. Its sessions get the
        balancer's new cookie, or else `sent`."""
        cookie = given(metadata) or sent
        self.set(_session_id(message), cookie)
        if method in _OPENING:
            for session in reply.sessions if hasattr(reply, "sessions") else (reply.session,):
                self.set(session.session_id, cookie)

    def forget(self, id: str) -> None:
        with self._lock:
            self._cookies.pop(id, None)


class Attempts:
    """The attempts of a call on a session. If its replica drains or the session has moved, the call is made once more without the
    cookie; also if the call is lost, unless it makes a session ("Lost replies" in client/README.md)."""

    def __init__(self, method: str, cookie: str, options: requests.CallOptions) -> None:
        self._method = method
        self._options = options
        self.deadline = Deadline(options.get("timeout"))
        self._first: errors.RivuletError | None = None
        self.cookie = cookie  # of the next attempt

    def options(self) -> requests.CallOptions:
        """Options of the next attempt."""
        if self._first is None:
            return self._options
        return {**self._options, "timeout": self.deadline.left()}

    def failed(self, error: errors.RivuletError) -> None:
        """Called when an attempt has failed. Errors: the error of the call, unless another attempt is to be made."""
        if self._first is not None:
            raise self._first if error.reason == "SESSION_NOT_FOUND" else error
        lost = self._method in _REPEATED and isinstance(error, errors.Unavailable)
        leaves = bool(self.cookie) and (lost or errors.leaves_replica(error))
        if not leaves and error.reason != "SESSION_MOVED":
            raise error
        self._first, self.cookie = error, ""


def given(metadata: Iterable[Any] | None) -> str:
    """The cookie that a balancer set in the initial metadata of a reply; "": none."""
    pairs = [value for key, value in metadata or () if key == "set-cookie"]
    return "; ".join(pair.partition(";")[0].strip() for pair in pairs)


def _session_id(message: Any) -> str:
    """The session id in a request; "": none."""
    if hasattr(message, "session_id"):
        return str(message.session_id)
    return str(message.session.session_id) if hasattr(message, "session") else ""
