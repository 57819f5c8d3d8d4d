# SPDX-License-Identifier: Apache-2.0
"""TLS of a real server: who connects, what a start with bad files says, and files that change while it serves."""

import json
import os
import pathlib
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

from authority import Authority
from command import BIN_DIR, CONFORMANCE, SOURCE_DIR, CommandTest, rivulet

sys.path.insert(0, str(SOURCE_DIR / "tests/stress/attack"))
from victim import Victim

SERVER = BIN_DIR / "rivulet-server"
MODEL = CONFORMANCE / "tiny-elu-relu"
LIMIT = 60  # seconds that anything awaited may take
UNAVAILABLE = 3  # exit code of the command


class TlsTest(CommandTest):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="rivulet-tls-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.authority = Authority(self.folder, "authority")
        self.stranger = Authority(self.folder, "stranger")
        self.cert, self.key = self.authority.sign("server")

    def serve(self, *flags):
        server = Victim(SERVER, "--threads", "1", "--tls-cert", str(self.cert), "--tls-key", str(self.key), *flags, model=MODEL)
        server.__enter__()
        self.addCleanup(server.__exit__, None, None, None)
        return server

    def health(self, server, *flags):
        return rivulet("health", "--target", server.target, *flags, timeout=LIMIT)

    def events(self, server, name):
        return [fields for fields in (json.loads(line) for line in list(server.log)) if fields["event"] == name]

    def await_event(self, server, name, count=1):
        """Waits until the server has logged `count` such events."""
        end = time.monotonic() + LIMIT
        while len(self.events(server, name)) < count:
            self.assertLess(time.monotonic(), end, server.log)
            time.sleep(0.05)
        return self.events(server, name)[-1]

    def refused(self, result):
        return self.fails(result, UNAVAILABLE, out=None)

    def start_fails(self, *flags):
        """What a start with these flags says, on one line."""
        command = [SERVER, "--model", MODEL, "--listen", "127.0.0.1:0", *(str(flag) for flag in flags)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
        self.assertNotEqual(done.returncode, 0, done)
        self.assertEqual(done.stderr.count("\n"), 1, done)
        return done.stderr

    def test_clients_that_know_the_authority_are_served(self):
        server = self.serve()
        self.assertEqual(self.events(server, "listening")[0]["tls"], "server")
        flags = ["--tokens", "1", "--max-tokens", "5", "--seed", "1"]
        over_tls = rivulet("generate", "--target", server.target, "--tls-ca", self.authority.pem, *flags)
        self.assertEqual(self.succeeds(over_tls).out, self.succeeds(rivulet("generate", "--model", MODEL, *flags)).out)
        self.refused(self.health(server, "--tls-ca", self.stranger.pem))
        self.refused(self.health(server, "--tls"))  # the system's authorities do not know ours
        plaintext = self.refused(self.health(server))
        self.assertIn("use --tls", plaintext.err)
        self.refused(self.health(server, "--tls-ca", self.authority.pem, "--tls-server-name", "other.test"))
        self.succeeds(self.health(server, "--tls-ca", self.authority.pem, "--tls-server-name", "rivulet.test"))

    def test_with_client_authorities_only_their_clients_are_served(self):
        server = self.serve("--tls-client-ca", str(self.authority.pem), "--admin-listen", "127.0.0.1:0")
        self.assertEqual(self.events(server, "listening")[0]["tls"], "mutual")
        cert, key = self.authority.sign("client")
        known = ["--tls-ca", self.authority.pem, "--tls-cert", cert, "--tls-key", key]
        self.succeeds(self.health(server, *known))
        self.refused(self.health(server, "--tls-ca", self.authority.pem))
        cert, key = self.stranger.sign("strange client")
        self.refused(self.health(server, "--tls-ca", self.authority.pem, "--tls-cert", cert, "--tls-key", key))
        # The listener for operators asks for the same.
        admin = f"127.0.0.1:{self.events(server, 'admin_listening')[0]['port']}"
        self.succeeds(rivulet("models", "unload", "tiny-elu-relu", "--target", admin, *known))
        self.refused(rivulet("models", "unload", "tiny-elu-relu", "--target", admin, "--tls-ca", self.authority.pem))

    def connect(self, server):
        """A TCP connection, and the name that the server has for its peer."""
        connection = socket.create_connection(server.address, LIMIT)
        self.addCleanup(connection.close)
        return connection, f"ipv4:127.0.0.1:{connection.getsockname()[1]}"

    def fail_handshake(self, connection, authority, tls=ssl.TLSVersion.TLSv1_3):
        """Shows no certificate, and trusts those of `authority` alone."""
        context = ssl.create_default_context(cafile=authority.pem)
        context.minimum_version = context.maximum_version = tls
        context.set_alpn_protocols(["h2"])
        with self.assertRaises(OSError):
            # With TLS 1.3 a client may think that all is well until it reads.
            with context.wrap_socket(connection, server_hostname="rivulet.test") as over_tls:
                if not over_tls.recv(1):
                    raise OSError("the server has closed the connection")

    def failures(self, server, count):
        self.await_event(server, "tls_failed", count)
        return {event["peer"]: event["reason"] for event in self.events(server, "tls_failed")}

    def test_the_log_names_who_failed_to_connect_and_why(self):
        server = self.serve("--tls-client-ca", str(self.authority.pem))
        cert, key = self.authority.sign("client")
        self.succeeds(self.health(server, "--tls-ca", self.authority.pem, "--tls-cert", cert, "--tls-key", key))
        # Other connections are open and silent meanwhile, and answers come in another order than connections.
        (plain, plain_peer), _, (old, old_peer), (bare, bare_peer), (wary, wary_peer) = (self.connect(server) for _ in range(5))
        self.fail_handshake(wary, self.stranger)
        self.fail_handshake(bare, self.authority)
        self.fail_handshake(old, self.authority, ssl.TLSVersion.TLSv1_2)
        plain.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        self.assertEqual(plain.recv(1), b"")
        no_certificate = "peer did not return a certificate"
        self.assertEqual(self.failures(server, 4), {
            plain_peer: "what the client sent is not TLS",
            old_peer: no_certificate,
            bare_peer: no_certificate,
            wary_peer: "the client says: unknown CA",
        })  # fmt: skip
        self.assertEqual(len(self.events(server, "tls_failed")), 4, server.log)
        with self.assertRaises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(f"http://{server.target}/v1/models", timeout=LIMIT)
        self.assertRegex(caught.exception.read().decode(), r'^\{"error": \{"message": "This port speaks gRPC over TLS, not HTTP/1\.1; .*\n$')
        self.assertIn("the client speaks HTTP/1.1", self.failures(server, 5).values())

    def test_changed_files_are_used_for_new_connections(self):
        server = self.serve()
        # A reply that is running keeps its connection.
        generate = [BIN_DIR / "rivulet", "generate", "--target", server.target, "--tls-ca", self.authority.pem]
        with subprocess.Popen([*generate, "--tokens", "1", "--max-tokens", "20000", "--seed", "1", "--json"],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:  # fmt: skip
            begun = running.stdout.readline()
            # The key has not been renewed yet: the server keeps the pair that it has.
            cert, key = self.stranger.sign("renewed")
            os.replace(cert, self.cert)
            self.assertIn("is not the key of the certificate", self.await_event(server, "tls_reload_failed")["reason"])
            self.succeeds(self.health(server, "--tls-ca", self.authority.pem))
            os.replace(key, self.key)
            self.await_event(server, "tls_reloaded")
            self.succeeds(self.health(server, "--tls-ca", self.stranger.pem))
            self.refused(self.health(server, "--tls-ca", self.authority.pem))
            rest, errors = running.communicate(timeout=LIMIT)
            self.assertEqual(running.returncode, 0, errors)
        self.assertGreater(len(begun + rest), 20000)
        os.remove(self.key)
        self.assertIn("tls-key", self.await_event(server, "tls_reload_failed", 2)["reason"])
        self.succeeds(self.health(server, "--tls-ca", self.stranger.pem))

    def test_a_chain_that_is_cut_off_is_refused(self):
        server = self.serve()
        renewed, key = self.stranger.sign("renewed")
        whole = renewed.read_text() + self.stranger.pem.read_text()
        cut = self.folder / "cut.pem"
        cut.write_text(whole[: -len(self.stranger.pem.read_text()) // 2])
        os.replace(key, self.key)
        os.replace(cut, self.cert)
        end = time.monotonic() + LIMIT
        while not any("is cut off or damaged" in event["reason"] for event in self.events(server, "tls_reload_failed")):
            self.assertLess(time.monotonic(), end, server.log)
            time.sleep(0.05)
        self.assertEqual(self.events(server, "tls_reloaded"), [])
        self.succeeds(self.health(server, "--tls-ca", self.authority.pem))
        cut.write_text(whole)
        os.replace(cut, self.cert)
        self.await_event(server, "tls_reloaded")
        self.succeeds(self.health(server, "--tls-ca", self.stranger.pem))

    def test_a_start_with_files_that_cannot_be_used_says_which(self):
        absent = self.folder / "absent.pem"
        self.assertIn(f"tls-cert {absent}", self.start_fails("--tls-cert", absent, "--tls-key", self.key))
        self.assertIn(f"tls-client-ca {absent}", self.start_fails("--tls-cert", self.cert, "--tls-key", self.key, "--tls-client-ca", absent))
        self.assertIn("is not the key of the certificate", self.start_fails("--tls-cert", self.cert, "--tls-key", self.authority.key("stranger")))
        self.assertIn("tls-cert is given without tls-key", self.start_fails("--tls-cert", self.cert))
        self.assertIn("tls-key is given without tls-cert", self.start_fails("--tls-key", self.key))
        self.assertIn("tls-client-ca is given without tls-cert", self.start_fails("--tls-client-ca", self.cert))


if __name__ == "__main__":
    unittest.main()
