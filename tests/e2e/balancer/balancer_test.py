# SPDX-License-Identifier: Apache-2.0
"""Two replicas behind HAProxy, exactly as deploy/haproxy configures it: what comes through, how it spreads, TLS."""

import collections
import pathlib
import socket
import ssl
import subprocess
import tempfile
import unittest
import urllib.request

from authority import Authority
from balancer import CONFIG, LIMIT, SHORT, Balancer, await_true, free_port, generate, grpc, outcome, request, stub, two_replicas
from command import CommandTest, rivulet
import health_check  # of deploy/haproxy, where `balancer` lets Python look

LIMITS = ("RIVULET_MAX_UNANSWERED", "RIVULET_MAX_CONNECTIONS", "RIVULET_MAX_NEW_CONNECTIONS", "RIVULET_MAX_CALLS")


class ConfigurationTest(CommandTest):
    def test_haproxy_has_no_complaint_about_any_way_to_configure_it(self):
        with tempfile.TemporaryDirectory() as folder:
            certificate = make_certificate(folder)
            for variables in (
                {},
                {"RIVULET_REPLICA_3": "127.0.0.1:3", "RIVULET_REPLICA_4": "127.0.0.1:4"},
                {"RIVULET_TLS_LISTEN": "127.0.0.1:5", "RIVULET_TLS_CERT": certificate},
                {"RIVULET_TLS_LISTEN": "127.0.0.1:5", "RIVULET_TLS_CERT": certificate, "RIVULET_TLS_CLIENT_CA": certificate},
                {"RIVULET_REPLICA_TLS_CA": certificate},
                {"RIVULET_REPLICA_TLS_CA": certificate, "RIVULET_REPLICA_TLS_NAME": "a", "RIVULET_REPLICA_TLS_CERT": certificate},
                {"RIVULET_TRUST_TENANT": "1"},
                {"RIVULET_KEYS": "1"},
                {"RIVULET_KEYS": "1", "RIVULET_TRUST_TENANT": "1"},
                dict.fromkeys(LIMITS, "0"),
                dict.fromkeys(LIMITS, "7"),
                {"RIVULET_REPLICAS": "replicas.invalid:6", "RIVULET_DNS": "127.0.0.1:7"},
            ):
                self.assertEqual(Balancer("127.0.0.1:1", "127.0.0.1:2", **variables).check(), "", variables)
            self.assertIn("'nonsense'", Balancer("127.0.0.1:1", RIVULET_STATS="nonsense").check())

    def test_the_bytes_of_the_health_check_are_those_that_the_script_explains(self):
        lines = CONFIG.read_text().splitlines()
        sent = [line.split()[-1] for line in lines if line.strip().startswith("tcp-check send-binary")]
        self.assertEqual(sent, [part.hex() for part in health_check.health_check()])


class StreamTest(CommandTest):
    """What needs two healthy replicas and leaves them so."""

    @classmethod
    def setUpClass(cls):
        context = two_replicas()
        cls.first, cls.second, cls.balancer = context.__enter__()
        cls.addClassCleanup(context.__exit__, None, None, None)

    def test_the_command_gets_the_same_from_the_balancer_as_from_a_replica(self):
        for args in (["generate", "--tokens", 1, "--seed", 5, "--max-tokens", 2000, "--json", "--num-samples", 4], ["models"]):
            direct = self.succeeds(rivulet(*args, "--target", self.first.target))
            through = self.succeeds(rivulet(*args, "--target", self.balancer.target))
            if args[0] == "models":
                self.assertEqual(through.out, direct.out)
            else:
                self.assertEqual(joined(through.lines()), joined(direct.lines()))
        self.succeeds(rivulet("health", "--target", self.balancer.target))
        line = '{"tokens":[1,2,3]}\n'
        score = self.succeeds(rivulet("score", "--input", "-", "--target", self.balancer.target, stdin=line))
        self.assertEqual(score.out, rivulet("score", "--input", "-", "--target", self.first.target, stdin=line).out)

    def test_errors_of_a_replica_come_through_with_their_details(self):
        self.fails(generate(self.balancer.target, 1, 0), 2, "max_tokens")
        with self.balancer.channel() as channel:
            _, error = outcome(stub(channel).Generate(request(1, -1)))
        self.assertEqual(error.code(), grpc.StatusCode.INVALID_ARGUMENT)
        self.assertIn("grpc-status-details-bin", dict(error.trailing_metadata()))

    def test_the_streams_of_one_connection_spread_over_both_replicas(self):
        before = [replica.load().tokens_total for replica in (self.first, self.second)]
        connections = self.connections()
        with self.balancer.channel() as channel:
            # More than HAProxy's own default of streams at once. Nobody reads, so none of them ends.
            calls = [stub(channel).Generate(request(seed)) for seed in range(150)]
            loads = []

            def all_run():
                loads[:] = [replica.load() for replica in (self.first, self.second)]
                return sum(load.slots_used for load in loads) == len(calls)

            await_true("every stream has a slot", all_run)
            self.assertEqual(self.connections(), connections + 1)
            for load, total in zip(loads, before, strict=True):
                self.assertAlmostEqual(load.slots_used, len(calls) / 2, delta=len(calls) / 10)
                self.assertGreater(load.tokens_total, total)
            for call in calls:
                call.cancel()
        await_true("cancelled streams free their slots", lambda: not any(r.load().slots_used for r in (self.first, self.second)))

    def connections(self):
        (row,) = [row for row in self.balancer.rows() if row["pxname"] == "grpc" and row["svname"] == "FRONTEND"]
        return int(row["conn_tot"])

    def test_a_broken_binary_header_of_one_client_harms_no_other(self):
        """gRPC 1.51 closes the connection of such a header, and clients share the connections to the replicas."""
        self.assertEqual(self.raw_health(self.first.target, (b"x-bin", b"%%%")), b"", "the replica bears it by itself")
        self.assertIn(b"\x08\x01", self.raw_health(self.balancer.target, (b"x-bin", b"%%%")))

    def raw_health(self, target, header):
        """The message of an answer to Health/Check with one more header; b"" where the connection ends without one."""
        host, port = target.split(":")
        with socket.create_connection((host, int(port)), timeout=LIMIT) as connection:
            parts = health_check.health_check()
            parts[2] = health_check.call(b"/grpc.health.v1.Health/Check", header)
            connection.sendall(b"".join(parts))
            received = b""
            while b"\x00\x00\x00\x00\x02\x08" not in received[:-1]:
                more = connection.recv(4096)
                if not more:
                    return b""
                received += more
            return received[received.index(b"\x00\x00\x00\x00\x02\x08") + 5 :]

    def test_prometheus_reads_the_statistics(self):
        with urllib.request.urlopen(f"http://{self.balancer.statistics}/metrics", timeout=LIMIT) as page:
            self.assertIn('haproxy_server_status{proxy="replicas",server="replica-2",state="UP"} 1', page.read().decode())


class TlsTest(CommandTest):
    def test_tls_ends_at_the_balancer(self):
        with tempfile.TemporaryDirectory() as folder:
            certificate = make_certificate(folder)
            port = free_port()
            with two_replicas(RIVULET_TLS_LISTEN=f"127.0.0.1:{port}", RIVULET_TLS_CERT=certificate) as (first, _, _):
                secure, ca = f"127.0.0.1:{port}", f"{folder}/ca.pem"  # no name: looking one up leaks 10 bytes of c-ares
                through = self.succeeds(generate(secure, 5, SHORT, "--tls", "--tls-ca", ca))
                self.assertEqual(through.out, generate(first.target, 5).out)
                self.fails(generate(secure, 5, SHORT, "--tls"), 3)
                self.fails(generate(secure, 5), 3)
                self.assertEqual(self.protocol(port, ca, "h2"), "h2")
                self.assertIsNone(self.protocol(port, ca, "http/1.1"))

    def test_replicas_are_reached_over_tls(self):
        with tempfile.TemporaryDirectory() as folder:
            authority = Authority(pathlib.Path(folder), "authority")
            stranger = Authority(pathlib.Path(folder), "stranger")
            cert, key = authority.sign("replica")
            flags = ["--tls-cert", cert, "--tls-key", key, "--tls-client-ca", authority.pem]
            both = pathlib.Path(folder) / "both.pem"
            both.write_text("".join(path.read_text() for path in authority.sign("balancer")))
            known = {"RIVULET_REPLICA_TLS_CA": str(authority.pem), "RIVULET_REPLICA_TLS_CERT": str(both)}
            with two_replicas(*map(str, flags), **known, RIVULET_REPLICA_TLS_NAME="rivulet.test") as (first, second, balancer):
                direct = generate(first.target, 5, SHORT, "--tls-ca", authority.pem, "--tls-cert", cert, "--tls-key", key)
                self.assertEqual(self.succeeds(generate(balancer.target, 5)).out, self.succeeds(direct).out)
                # Replicas that the balancer does not trust, or that do not know it, get no streams.
                for wrong in (
                    known | {"RIVULET_REPLICA_TLS_CA": str(stranger.pem)},
                    known | {"RIVULET_REPLICA_TLS_NAME": "other.test"},
                    {"RIVULET_REPLICA_TLS_CA": str(authority.pem)},
                    {},
                ):
                    untrusting = Balancer(first.target, second.target, **wrong)
                    untrusting.names = []
                    with untrusting:
                        await_true("both replicas are down", lambda: all(untrusting.state(name).startswith("DOWN") for name in ("replica-1", "replica-2")))
                        self.fails(generate(untrusting.target, 5), 3)

    def protocol(self, port, ca, offered):
        """What HAProxy chooses of the one protocol that a client offers."""
        context = ssl.create_default_context(cafile=ca)
        context.set_alpn_protocols([offered])
        with socket.create_connection(("127.0.0.1", port), timeout=LIMIT) as plain:
            with context.wrap_socket(plain, server_hostname="localhost") as secure:
                return secure.selected_alpn_protocol()


def joined(lines):
    """{sample: tokens} of the JSON lines of `rivulet generate`, whose parts depend on timing."""
    samples = collections.defaultdict(list)
    for line in lines:
        samples[line["sample_index"]] += line["tokens"]
    return dict(samples)


def make_certificate(folder):
    """A self-signed certificate of localhost with its key; returns the path of the PEM file that holds both."""
    path = f"{folder}/localhost.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", path, "-out", f"{folder}/ca.pem"]
    subprocess.run(command, check=True, capture_output=True)
    with open(path, "a") as both, open(f"{folder}/ca.pem") as certificate:
        both.write(certificate.read())
    return path


if __name__ == "__main__":
    unittest.main()
