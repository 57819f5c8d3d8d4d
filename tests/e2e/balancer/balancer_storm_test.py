# SPDX-License-Identifier: Apache-2.0
"""HAProxy, exactly as deploy/haproxy configures it, between replicas and a client that wants to harm others: its limits of one source."""

import contextlib
import sys
import unittest

from balancer import LIMIT, NO_RETRIES, SOURCE_DIR, Balancer, Replica, await_true, grpc, pb, stub
from command import KEPT_BACK_MIB, CommandTest, rivulet

sys.path.append(str(SOURCE_DIR / "tests/stress/attack"))
import reset_storm
import victim

ATTACKER = "127.0.0.2"  # its own address; everybody else has 127.0.0.1
MOST_MIB = 300  # that a replica may grow by: less than a tenth of what it grew by without the limit


class ResetStormTest(CommandTest):
    def test_a_source_that_resets_its_calls_is_cut_off_and_a_bulk_client_beside_it_is_served(self):
        with Replica() as replica, Balancer(replica.target) as balancer:
            for method in ("unknown", "message"):
                with self.subTest(method):
                    before = memory_mib(replica)
                    attack = reset_storm.Attack(victim.loopback(balancer.target), method, LIMIT, ATTACKER, late=True)
                    with reset_storm.Storm(attack, 2) as storm:
                        await_true("the attacker's connections are closed", lambda: storm.closed > 10)
                        self.bulk(balancer)
                    self.assertLess(memory_mib(replica) - before, MOST_MIB + KEPT_BACK_MIB)

    def test_a_bulk_client_is_not_limited_however_fast_it_is(self):
        with Replica() as replica, Balancer(replica.target, RIVULET_MAX_UNANSWERED="100") as balancer:
            self.bulk(balancer, calls=3000)

    def bulk(self, balancer, calls=2000):
        """A client that always has 64 requests open. Each succeeds."""
        flags = ("--concurrency", 64, "--requests", calls, "--warmup-requests", 1, "--max-tokens", 4, "--fail-on-error")
        self.succeeds(rivulet("bench", "--target", balancer.target, *flags, timeout=4 * LIMIT))


class SourceLimitTest(CommandTest):
    @classmethod
    def setUpClass(cls):
        cls.replica = Replica()
        cls.replica.__enter__()
        cls.addClassCleanup(cls.replica.__exit__, None, None, None)

    def balancer(self, **variables):
        return Balancer(self.replica.target, **variables)

    def answers(self, balancer):
        """Whether somebody else's call succeeds."""
        with balancer.channel() as channel:
            return bool(stub(channel).GetLoad(pb.GetLoadRequest(), timeout=LIMIT).models)

    def test_connections_at_once(self):
        with self.balancer(RIVULET_MAX_CONNECTIONS="2") as balancer, contextlib.ExitStack() as stack:
            kept = [attackers_connection(balancer) for _ in range(2)]
            for connection in kept:
                self.assertIsNotNone(connection)
                stack.callback(connection.close)
            self.assertIsNone(attackers_connection(balancer))
            self.assertTrue(self.answers(balancer))
            kept[0].close()
            await_true("there is room for another one", lambda: self.opens(balancer))

    def test_new_connections(self):
        with self.balancer(RIVULET_MAX_NEW_CONNECTIONS="3") as balancer:
            self.assertEqual([self.opens(balancer) for _ in range(5)], [True, True, True, False, False])
            self.assertTrue(self.answers(balancer))

    def opens(self, balancer):
        connection = attackers_connection(balancer)
        if connection is not None:
            connection.close()
        return connection is not None

    def test_calls(self):
        with self.balancer(RIVULET_MAX_CALLS="10") as balancer:
            with balancer.channel(NO_RETRIES) as channel:
                for _ in range(10):
                    stub(channel).GetLoad(pb.GetLoadRequest(), timeout=LIMIT)
                with self.assertRaises(grpc.RpcError) as raised:
                    stub(channel).GetLoad(pb.GetLoadRequest(), timeout=LIMIT)
                self.assertIn(raised.exception.code(), (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE))
            self.assertTrue(self.opens(balancer), "another source is not limited")

    def test_nothing_is_limited_where_the_variables_say_so(self):
        off = dict.fromkeys(("RIVULET_MAX_UNANSWERED", "RIVULET_MAX_CONNECTIONS", "RIVULET_MAX_NEW_CONNECTIONS", "RIVULET_MAX_CALLS"), "0")
        with self.balancer(**off) as balancer:
            self.assertEqual([self.opens(balancer) for _ in range(5)], [True] * 5)
            self.assertTrue(self.answers(balancer))


def attackers_connection(balancer):
    """One that HAProxy has greeted with its SETTINGS; None where it was closed instead."""
    try:
        connection = reset_storm.Attack(victim.loopback(balancer.target), "known", 0, ATTACKER).connect()
    except ConnectionError:
        return None
    connection.settimeout(LIMIT)
    with contextlib.suppress(ConnectionError):
        if connection.recv(1 << 16):
            return connection
    connection.close()
    return None


def memory_mib(replica):
    process = victim.Victim("")
    process.pid = replica.process.pid
    return process.rss_mib()


if __name__ == "__main__":
    unittest.main()
