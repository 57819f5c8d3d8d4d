# SPDX-License-Identifier: Apache-2.0
"""A client that resets its calls as soon as they begin (CVE-2023-44487), against a server without a balancer before it."""

import sys
import unittest

from balancer import ENDLESS, LIMIT, SOURCE_DIR, await_true, grpc, pb, request, stub
from command import BIN_DIR, KEPT_BACK_MIB, CommandTest

sys.path.append(str(SOURCE_DIR / "tests/stress/attack"))
import reset_storm
import victim

ATTACKER = "127.0.0.2"  # its own address; everybody else has 127.0.0.1
MOST_MIB = 700  # more than what two connections cost until they are closed, less than what they cost in 6 s otherwise


class ResetStormTest(CommandTest):
    def test_the_attackers_connections_are_closed_and_others_are_served(self):
        for method in reset_storm.METHODS:
            with self.subTest(method), victim.Victim(BIN_DIR / "rivulet-server") as server:
                attack = reset_storm.Attack(server.address, method, LIMIT, ATTACKER, late=True)
                with reset_storm.Storm(attack, 2) as storm, grpc.insecure_channel(server.target) as channel:

                    def closed():
                        self.assertLess(server.rss_mib(), MOST_MIB + KEPT_BACK_MIB)
                        list(stub(channel).Generate(request(1, 4), timeout=LIMIT))
                        return load(channel).connections_closed_total >= 2

                    await_true("the attacker's connections are closed", closed)
                    self.assertGreater(storm.sent, 0)
                    for _ in range(50):
                        list(stub(channel).Generate(request(1, 4), timeout=LIMIT))
                    self.assertLess(server.rss_mib(), MOST_MIB + KEPT_BACK_MIB)
                    if KEPT_BACK_MIB > 0:  # under ASan a busy machine may be too slow for a storm, which would go on until LIMIT
                        storm.stop.set()
                    await_true("only the others' connection is left", lambda: load(channel).connections == 1)
                    if KEPT_BACK_MIB == 0:
                        self.assertTrue(storm.runs(), "the server has closed the attacker's, not the attacker")

    def test_a_client_that_cancels_many_calls_is_no_attacker(self):
        with victim.Victim(BIN_DIR / "rivulet-server") as server, grpc.insecure_channel(server.target) as channel:
            for _ in range(10):
                calls = [stub(channel).Generate(request(seed, ENDLESS)) for seed in range(500)]
                for call in calls:
                    call.cancel()
                self.assertEqual(load(channel).connections_closed_total, 0)
            self.assertEqual(load(channel).connections_total, 1)


def load(channel):
    """A ServerLoad."""
    return stub(channel).GetLoad(pb.GetLoadRequest(), timeout=LIMIT).server


if __name__ == "__main__":
    unittest.main()
