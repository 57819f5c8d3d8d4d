# SPDX-License-Identifier: Apache-2.0
"""Which replica holds a session: the cookies that a balancer set in the replies that opened it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from rivulet import requests

MOST = 100_000  # sessions; beyond, the oldest cookie is forgotten: sessions may end without a word
_OPENING = ("open_session", "fork_session", "restore_session")


class SessionCookies:
    """Thread: any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cookies: OrderedDict[str, str] = OrderedDict()

    def get(self, id: str) -> str:
        """The "cookie" to send with a call on the session; "" for none."""
        with self._lock:
            return self._cookies.get(id, "")

    def set(self, id: str, cookie: str) -> None:
        if not cookie:
            return
        with self._lock:
            self._cookies[id] = cookie
            if len(self._cookies) > MOST:
                self._cookies.popitem(last=False)

    def of_call(self, message: Any) -> requests.Metadata:
        """The metadata that a call with this message sends beside the others."""
        cookie = self.get(_session_id(message))
        return {"cookie": cookie} if cookie else {}

    @staticmethod
    def opens(method: str) -> bool:
        """Whether the reply of this method is to be shown to opened()."""
        return method in _OPENING

    def opened(self, message: Any, reply: Any, metadata: Iterable[Any] | None) -> None:
        """A call with `message` gave `reply` and this initial metadata: its sessions are where the balancer says, else where the
        session of the message is."""
        pairs = [value for key, value in metadata or () if key == "set-cookie"]
        cookie = "; ".join(pair.partition(";")[0].strip() for pair in pairs) or self.get(_session_id(message))
        for session in reply.sessions if hasattr(reply, "sessions") else (reply.session,):
            self.set(session.session_id, cookie)

    def forget(self, id: str) -> None:
        with self._lock:
            self._cookies.pop(id, None)


def _session_id(message: Any) -> str:
    """That a request is about; "" for none."""
    if hasattr(message, "session_id"):
        return str(message.session_id)
    return str(message.session.session_id) if hasattr(message, "session") else ""
