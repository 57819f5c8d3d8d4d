# SPDX-License-Identifier: Apache-2.0
"""Some tenants open all the sessions that they can get, by forks, with the longest idle_timeout; then another asks for its first one.
Needs the packages of tests/requirements.txt."""

import sys
import time

import grpc

import victim
from extreme_numbers import Reflected, verdict
from google.rpc import error_details_pb2, status_pb2

FORKS = 256  # at once, the most that a request may ask for
MOST_CALLS = 1000  # of one tenant


def retry_delay(error):
    """Seconds that the server says to wait; None where it does not."""
    for key, value in error.trailing_metadata() or ():
        if key != "grpc-status-details-bin":
            continue
        for detail in status_pb2.Status.FromString(value).details:
            info = error_details_pb2.RetryInfo()
            if detail.Unpack(info):
                return info.retry_delay.ToTimedelta().total_seconds()
    return None


class Tenant:
    """The sessions of one tenant, opened through its own calls."""

    def __init__(self, server, name):
        self.server, self.metadata = server, (("rivulet-tenant", name),)
        self.sessions = []

    def call(self, name, **fields):
        (reply,) = self.server.do(name, metadata=self.metadata, **fields)
        return reply

    def open(self, idle="86400s"):
        self.sessions.append(self.call("OpenSession", idle_timeout=idle).session.session_id)
        return self.sessions[-1]

    def hoard(self):
        """Forks until not even one more is given. Returns the figures of it."""
        began, count, refusal = time.monotonic(), FORKS, None
        try:
            parent = self.open()
        except grpc.RpcError as error:
            return {"sessions": 0, "refusal": verdict(error)[1], "retry_seconds": retry_delay(error)}
        for _ in range(MOST_CALLS):
            try:
                forked = self.call("ForkSession", session={"session_id": parent}, count=count)
                self.sessions += [session.session_id for session in forked.sessions]
            except grpc.RpcError as error:
                refusal = error
                if count == 1:
                    break
                count //= 2
        return {
            "sessions": len(self.sessions),
            "refusal": refusal and verdict(refusal)[1],
            "message": refusal and refusal.details(),
            "retry_seconds": refusal and retry_delay(refusal),
            "seconds": round(time.monotonic() - began, 2),
        }


def first_session(server, name):
    """Whether a tenant that has nothing gets a session: "OK", or why not and for how long."""
    try:
        Tenant(server, name).open(idle="1s")
        return "OK"
    except grpc.RpcError as error:
        return f"{verdict(error)[1]}, retry in {retry_delay(error)} s"


def attack(server, hoarders=3):
    """Attacks a victim.Victim. Returns the figures."""
    reflected = Reflected(server.target)
    figures = {}
    for number in range(1, hoarders + 1):
        figures[f"hoarder_{number}"] = Tenant(reflected, f"hoarder-{number}").hoard()
        figures[f"newcomer_{number}"] = first_session(reflected, f"newcomer-{number}")
    return {**figures, "alive": server.alive()}


def main():
    parsed = victim.arguments(__doc__).parse_args()
    with victim.Victim.of(parsed) as server:
        figures = attack(server)
    victim.report(**figures)
    return 0 if figures["alive"] and all(value == "OK" for key, value in figures.items() if key.startswith("newcomer")) else 1


if __name__ == "__main__":
    sys.exit(main())
