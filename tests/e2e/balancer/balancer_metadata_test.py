# SPDX-License-Identifier: Apache-2.0
"""Metadata of many KiB, through HAProxy exactly as deploy/haproxy configures it and without: other streams of the connection go on."""

import sys
import unittest

from balancer import SOURCE_DIR, Balancer, Replica
from command import CommandTest

sys.path.append(str(SOURCE_DIR / "tests/stress/attack"))
import large_metadata
import victim


class LargeMetadataTest(CommandTest):
    """gRPC 1.51 closes the connection over metadata beyond its limit; a balancer puts the calls of many on one connection."""

    def test_what_the_balancer_passes_on_is_answered_and_what_it_refuses_never_reaches_a_replica(self):
        with Replica() as replica, Balancer(replica.target) as balancer:
            with large_metadata.Client(balancer.target, replica.target) as client:
                # In as many fields as HAProxy takes, each of which counts 32 bytes more for gRPC.
                for kib, fields in ((7, 1), (9, 1), (14, 1), (12, 90)):
                    self.assertIsNone(client.attack(kib << 10, fields), f"{kib} KiB in {fields} fields")
                self.assertEqual(client.running(), client.expected)
                for kib in (20, 70):
                    with large_metadata.Client(balancer.target, replica.target, 0) as attacker:
                        self.assertIsNotNone(attacker.attack(kib << 10), f"{kib} KiB")
                refused = [stream["replica"] for stream in balancer.streams() if stream["http"] != 200]
                self.assertEqual(set(refused), {"<NOSRV>"})
                self.assertEqual(client.running(), client.expected)

    def test_a_replica_by_itself_takes_more_than_a_balancer_passes_on(self):
        with Replica() as replica, large_metadata.RawConnection(victim.loopback(replica.target)) as connection:
            self.assertTrue(connection.goes_on())
            for kib in (9, 20, 60):
                self.assertEqual(connection.send_metadata(kib << 10), "answered")
                self.assertTrue(connection.goes_on(), f"{kib} KiB")


if __name__ == "__main__":
    unittest.main()
