# SPDX-License-Identifier: Apache-2.0
"""Every scenario of cluster.py in its short form: no client gets a wrong token, and nothing is lost that the server called durable."""

import unittest

import cluster


class ClusterTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scripts = cluster.scenarios.scripts(6)

    def run_scenario(self, name, scripts=None):
        tally = cluster.run(name, scripts or self.scripts).tally
        self.assertEqual(cluster.wrong_faults(name, tally), [], dict(tally.errors))
        self.assertEqual(tally.counts["without durability"], 0)
        self.assertGreater(tally.counts["durable"], 0)
        return tally

    def test_replicas_that_are_killed_with_a_store_in_redis(self):
        tally = self.run_scenario("kill -9 of replicas")
        self.assertGreater(len(tally.resumes), 0)
        self.assertEqual(tally.counts["sessions lost"], 0)

    def test_replicas_that_are_killed_with_a_store_in_a_directory(self):
        tally = self.run_scenario("kill -9 of replicas, dir: store")
        self.assertGreater(len(tally.resumes), 0)
        self.assertEqual(tally.counts["sessions lost"], 0)

    def test_replicas_that_stop_and_go_on(self):
        tally = self.run_scenario("replicas stopped and continued")
        self.assertGreater(tally.counts["deadlines passed"], 0, "calls waited for the replica that stopped")
        self.assertEqual(tally.counts["sessions lost"], 0)

    def test_a_rolling_restart(self):
        tally = self.run_scenario("rolling restart")
        # A write to a busy disk may take longer than a new session waits for it.
        self.assertLessEqual(set(tally.errors), {"open_session: SESSION_STORE"})
        self.assertEqual(tally.counts["sessions lost"], 0)

    def test_replicas_of_another_numerics_id(self):
        name = "another numerics id"
        tally = self.run_scenario(name, cluster.scenarios.scripts(6, cluster.SCENARIOS[name].options.releases))
        self.assertGreater(tally.counts["replies with other numerics"], 0)
        self.assertEqual(tally.counts["sessions lost"], 0)

    def test_redis_that_is_killed_and_started_again(self):
        tally = self.run_scenario("Redis killed and restarted")
        self.assertEqual(tally.counts["sessions lost"], 0)

    def test_redis_that_pauses(self):
        tally = self.run_scenario("Redis paused")
        self.assertEqual(tally.counts["sessions lost"], 0)

    def test_connections_to_redis_that_are_cut(self):
        tally = self.run_scenario("port of Redis cut")
        self.assertEqual(tally.counts["sessions lost"], 0)

    def test_replicas_that_are_killed_with_what_redis_has_not_got(self):
        self.run_scenario("kill -9 of replicas while Redis pauses")

    def test_redis_that_is_emptied(self):
        self.run_scenario("Redis emptied")

    def test_a_failover_that_loses_the_last_writes(self):
        self.run_scenario("Sentinel failover, last writes lost")


if __name__ == "__main__":
    unittest.main()
