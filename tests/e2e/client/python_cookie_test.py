# SPDX-License-Identifier: Apache-2.0
"""The number of cookies that the Python client keeps, and the time of repeated attempts. contract/contract_test.py has the rest."""

import unittest
import unittest.mock

import rivulet_wheel  # makes rivulet what is imported below  # noqa: F401

import rivulet
from rivulet.core import cookies


class KeptCookiesTest(unittest.TestCase):
    def setUp(self):
        self.enterContext(unittest.mock.patch.object(cookies, "MOST", 3))
        self.kept = cookies.SessionCookies()

    def set(self, *ids):
        for id in ids:
            self.kept.set(id, f"replica={id}")

    def known(self, *ids):
        return "".join(id for id in ids if self.kept.get(id))

    def test_the_oldest_is_forgotten_beyond_the_most(self):
        self.set(*"abcd")
        self.assertEqual(self.known(*"abcd"), "bcd")

    def test_a_cookie_that_is_set_again_takes_no_second_place(self):
        self.set(*"abbbbc")
        self.kept.set("b", "replica=2")
        self.assertEqual((self.known(*"abc"), self.kept.get("b")), ("abc", "replica=2"))

    def test_a_forgotten_session_takes_no_place(self):
        self.set(*"ab")
        self.kept.forget("b")
        self.kept.forget("never there")
        self.set(*"cd")
        self.assertEqual(self.known(*"abcd"), "acd")
        self.kept.forget("a")
        self.set("a", "e")
        self.assertEqual(self.known(*"acde"), "ade")


class AttemptsTest(unittest.TestCase):
    def test_another_attempt_has_the_rest_of_the_time(self):
        attempts = cookies.Attempts("append", "replica=a", {"timeout": 60.0})
        self.assertEqual(attempts.options(), {"timeout": 60.0})
        attempts.failed(rivulet.Unavailable("lost"))
        self.assertEqual(attempts.cookie, "")
        self.assertLess(attempts.options()["timeout"], 60.0)


if __name__ == "__main__":
    unittest.main()
