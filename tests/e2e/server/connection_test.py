# SPDX-License-Identifier: Apache-2.0
"""Connections of a real server: silent ones, too many, those whose clients have vanished, and a listener that is stuck."""

import ctypes
import json
import os
import pathlib
import resource
import signal
import socket
import subprocess
import sys
import time
import unittest
import urllib.error
import urllib.request

from command import BIN_DIR, CONFORMANCE, SOURCE_DIR, rivulet

sys.path.insert(0, str(SOURCE_DIR / "tests/stress/attack"))
import http2
from victim import Victim

SERVER = BIN_DIR / "rivulet-server"
LIMIT = 30  # seconds that anything awaited may take


def serve(*flags, descriptors=None):
    """A server, for a `with` statement; `descriptors`: soft and hard limit that it starts with."""
    limit = descriptors and (lambda: resource.setrlimit(resource.RLIMIT_NOFILE, descriptors))
    return Victim(SERVER, "--threads", "1", *flags, preexec=limit)


def generate(server, seconds=LIMIT):
    """A new client's reply of five tokens. Errors: subprocess.TimeoutExpired."""
    flags = ["--model-name", "tiny-elu-relu", "--tokens", "1", "--max-tokens", "5", "--seed", "1"]
    return rivulet("generate", "--target", server.target, *flags, timeout=seconds)


def closed(connection):
    """Waits until the server has closed it; False if it is open after LIMIT seconds."""
    return http2.receive(connection, LIMIT)[1]


def is_open(connection, seconds=0.1):
    return not http2.receive(connection, seconds)[1]


def event(server, name):
    """The fields of the first log line of this event, which must come within LIMIT seconds."""
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        for line in list(server.log):
            fields = json.loads(line)
            if fields["event"] == name:
                return fields
        time.sleep(0.01)
    raise AssertionError(f"no event {name}: {server.log}")


class ConnectionTest(unittest.TestCase):
    def enterContext(self, context):  # of unittest from Python 3.11 on
        self.addCleanup(context.__exit__, None, None, None)
        return context.__enter__()

    def connect(self, server, source="127.0.0.1"):
        return self.enterContext(socket.create_connection(server.address, LIMIT, (source, 0)))

    def assert_served(self, server):
        result = generate(server)
        self.assertEqual(result.code, 0, result)
        self.assertRegex(result.err, r"^5 tokens in ")


class DescriptorTest(ConnectionTest):
    def test_the_soft_limit_is_raised_to_the_hard_one(self):
        server = self.enterContext(serve(descriptors=(100, 1000)))
        limits = pathlib.Path(f"/proc/{server.pid}/limits").read_text()
        self.assertRegex(limits, r"Max open files +1000 +1000 ")
        self.assertEqual([event(server, "descriptors")[name] for name in ("limit", "limit_before")], [1000, 100])
        # Two descriptors each, a quarter of all kept back, and those that are open already.
        self.assertAlmostEqual(event(server, "listening")["max_connections"], (1000 - 250) / 2, delta=25)

    def test_silent_connections_that_end_leave_the_listener_as_it_was(self):
        server = self.enterContext(serve(descriptors=(64, 64)))
        silent = [self.connect(server) for _ in range(100)]
        for connection in silent:
            connection.close()
        self.assert_served(server)
        self.assertGreater(event(server, "connections_refused")["open"], 0)

    def test_more_connections_than_descriptors_are_refused_at_the_start(self):
        command = [SERVER, "--model", CONFORMANCE / "tiny-elu-relu", "--listen", "127.0.0.1:0", "--max-connections", "5000"]
        limit = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))  # noqa: E731
        done = subprocess.run(command, capture_output=True, text=True, preexec_fn=limit, timeout=LIMIT)
        self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1), done)
        self.assertRegex(done.stderr, r"max-connections is 5000; there are descriptors for \d+, as this process may open 1024")


class LimitTest(ConnectionTest):
    def test_beyond_the_limit_a_connection_is_closed_and_clients_inside_go_on(self):
        server = self.enterContext(serve("--max-connections", "3", "--listener-timeout-seconds", "1"))
        inside = self.enterContext(
            subprocess.Popen(
                [BIN_DIR / "rivulet", "generate", "--target", server.target, "--model-name", "tiny-elu-relu", "--tokens", "1",
                 "--max-tokens", "1000000", "--num-samples", "4", "--seed", "1", "--json"],
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            )
        )  # fmt: skip
        self.addCleanup(inside.kill)
        inside.stdout.read(1)
        silent = [self.connect(server) for _ in range(2)]
        beyond = self.connect(server)
        self.assertTrue(closed(beyond))
        self.assertEqual(event(server, "connections_refused")["reason"], "max-connections")
        self.assertTrue(all(map(is_open, silent)))
        end = time.monotonic() + 3  # the listener's time-out passes more than once, and its own calls are answered
        while time.monotonic() < end:
            self.assertNotEqual(os.read(inside.stdout.fileno(), 1 << 20), b"")
        self.assertTrue(server.alive())
        for connection in silent:
            connection.close()
        self.assert_served(server)

    def test_an_address_has_a_limit_of_its_own(self):
        server = self.enterContext(serve("--max-connections-per-address", "2"))
        first = [self.connect(server, "127.0.0.2") for _ in range(2)]
        self.assertTrue(closed(self.connect(server, "127.0.0.2")))
        self.assertEqual(event(server, "connections_refused")["reason"], "max-connections-per-address")
        self.assertTrue(all(map(is_open, first)))
        self.assert_served(server)


class HttpTest(ConnectionTest):
    def test_a_client_of_http_is_told_what_the_port_speaks(self):
        server = self.enterContext(serve())
        with self.assertRaises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(f"http://{server.target}/v1/chat/completions", b"x" * 1_000_000, timeout=LIMIT)
        with caught.exception as answer:
            self.assertEqual((answer.code, answer.headers["content-type"]), (400, "application/json"))
            body = answer.read().decode()
            self.assertRegex(json.loads(body)["error"]["message"], r"^This port speaks gRPC, not HTTP/1\.1; .*`rivulet serve`.*$")
            self.assertTrue(body.endswith("}\n"), body)
        self.assertEqual(event(server, "not_grpc")["level"], "warning")
        self.assert_served(server)


class SilenceTest(ConnectionTest):
    def test_one_that_never_begins_http2_is_closed(self):
        server = self.enterContext(serve())
        begun = time.monotonic()
        self.assertTrue(closed(self.connect(server)))
        self.assertGreater(time.monotonic() - begun, 5)

    def test_one_without_requests_gets_goaway_where_so_set(self):
        server = self.enterContext(serve("--max-connection-idle-seconds", "1"))
        connection = self.enterContext(http2.connect(server.address))
        connection.sendall(http2.frame(http2.SETTINGS, 1, 0))
        got, ended = http2.receive(connection, LIMIT)
        self.assertTrue(ended)
        self.assertIn(http2.frame(http2.GOAWAY, 0, 0, b"\0" * 8)[3:5], got)


def stop_listening(server):
    """Shuts the socket that the server listens on from outside: what it looks like when nobody accepts any more."""
    libc = ctypes.CDLL(None, use_errno=True)
    pidfd_open, pidfd_getfd = 434, 438  # on x86 and Arm
    process = libc.syscall(pidfd_open, server.pid, 0)
    for name in os.listdir(f"/proc/{server.pid}/fd"):
        fd = libc.syscall(pidfd_getfd, process, int(name), 0)
        if fd < 0:
            raise unittest.SkipTest(f"pidfd_getfd: {os.strerror(ctypes.get_errno())}")
        try:
            with socket.socket(fileno=fd) as sock:
                if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # no socket
    os.close(process)


class StuckTest(ConnectionTest):
    def test_a_listener_that_answers_nobody_ends_the_process(self):
        server = self.enterContext(serve("--listener-timeout-seconds", "1"))
        self.assert_served(server)
        stop_listening(server)
        self.assertEqual(server.process.wait(LIMIT), 3)
        health = event(server, "health")
        self.assertEqual((health["serving"], health["level"]), (False, "error"))
        self.assertIn("the listener answers nobody", health["reason"])
        self.assertEqual(event(server, "failed")["exit_code"], 3)

    def test_a_process_that_was_stopped_goes_on(self):
        server = self.enterContext(serve("--listener-timeout-seconds", "1"))
        self.assert_served(server)
        os.kill(server.pid, signal.SIGSTOP)
        time.sleep(3)
        os.kill(server.pid, signal.SIGCONT)
        self.assert_served(server)
        time.sleep(2)
        self.assertTrue(server.alive())


if __name__ == "__main__":
    unittest.main()
