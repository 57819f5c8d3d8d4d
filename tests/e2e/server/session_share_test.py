# SPDX-License-Identifier: Apache-2.0
"""How client sessions are shared between tenants: the attack tests/stress/attack/session_hoard.py on a small server, and what refusals say."""

import sys
import time
import unittest

from command import BIN_DIR, SOURCE_DIR

sys.path.insert(0, str(SOURCE_DIR / "tests/stress/attack"))
try:
    import grpc
    import session_hoard
    import victim
    from extreme_numbers import Reflected, verdict
except ImportError as error:
    print(f"skipped: {error}; deploy/setup.sh --tests installs it into build/venv")
    sys.exit(77)

SERVER = BIN_DIR / "rivulet-server"


class SessionShareTest(unittest.TestCase):
    def refused(self, call, *args, **fields):
        """(reason, message, seconds to wait or None) of a call that must be refused with RESOURCE_EXHAUSTED."""
        with self.assertRaises(grpc.RpcError) as raised:
            call(*args, **fields)
        code, reason = verdict(raised.exception)
        self.assertEqual(code, "RESOURCE_EXHAUSTED", raised.exception)
        return reason, raised.exception.details(), session_hoard.retry_delay(raised.exception)

    def test_tenants_that_hoard_leave_room_for_one_that_has_nothing(self):
        with victim.Victim(SERVER, "--max-open-sessions", "1000") as server:
            figures = session_hoard.attack(server, hoarders=3)
            self.assertEqual([figures[f"newcomer_{n}"] for n in (1, 2, 3)], ["OK"] * 3, figures)
            first = figures["hoarder_1"]
            self.assertEqual((first["sessions"], first["refusal"], first["retry_seconds"]), (875, "TENANT_SESSION_LIMIT", None), figures)
            self.assertIn("Close sessions", first["message"])
            self.assertGreater(figures["hoarder_2"]["sessions"], 10, figures)
            self.assertTrue(figures["alive"])

    def test_a_fixed_limit_counts_opened_forked_and_restored_sessions(self):
        with victim.Victim(SERVER, "--max-open-sessions", "10", "--max-tenant-sessions", "3") as server:
            reflected = Reflected(server.target)
            a, b = session_hoard.Tenant(reflected, "a"), session_hoard.Tenant(reflected, "b")
            parent = a.open()
            snapshot = b"".join(part.chunk for part in reflected.do("SnapshotSession", metadata=a.metadata, session_id=parent))
            restore = reflected.method("RestoreSession")
            request = reflected.request(restore)
            request.chunk = snapshot
            fork = {"session": {"session_id": parent}, "count": 3}
            self.assertEqual(self.refused(a.call, "ForkSession", **fork)[0], "TENANT_SESSION_LIMIT")
            self.assertEqual(len(a.call("ListSessions").sessions), 1, "all or none")
            reflected.call(restore, request, metadata=a.metadata)
            a.open()
            self.assertEqual(self.refused(reflected.call, restore, request, metadata=a.metadata)[0], "TENANT_SESSION_LIMIT")
            self.assertEqual(self.refused(a.open)[0], "TENANT_SESSION_LIMIT")
            b.open()
            a.call("CloseSession", session_id=parent)
            a.open()

    def test_a_refusal_says_when_there_is_room_and_it_comes_true(self):
        with victim.Victim(SERVER, "--max-open-sessions", "2") as server:
            reflected = Reflected(server.target)
            a, b = session_hoard.Tenant(reflected, "a"), session_hoard.Tenant(reflected, "b")
            a.open()
            self.assertEqual(a.open() and self.refused(b.open)[::2], ("SESSION_LIMIT", None), "nothing ends for a day")
            a.call("CloseSession", session_id=a.sessions[0])
            a.open(idle="1.5s")
            reason, _, wait = self.refused(b.open)
            self.assertEqual(reason, "SESSION_LIMIT")
            self.assertLessEqual(wait, 1.5)
            time.sleep(wait + 0.05)  # what the refusal says is what is tested
            b.open()


if __name__ == "__main__":
    unittest.main()
