# SPDX-License-Identifier: Apache-2.0
"""Two replicas behind HAProxy under fault: roll-outs under load, a killed replica, one that is not serving, silence."""

import collections
import json
import re
import signal
import subprocess
import threading
import time
import unittest
import urllib.error
import urllib.request

from balancer import (
    ENDLESS,
    LIMIT,
    NO_RETRIES,
    SHORT,
    Balancer,
    NameServer,
    Replica,
    await_true,
    free_port,
    generate,
    grpc,
    outcome,
    request,
    stub,
    tokens,
    two_replicas,
)
from command import BIN_DIR, SOURCE_DIR, CommandTest


class Load:
    """Clients that generate without a pause: some with the command, some over one connection that never retries.

    A `with` statement runs them; `wrong` then holds every reply that was not the expected one, `done` their number.
    """

    LENGTHS = (SHORT, 5000)  # tokens

    def __init__(self, target, expected, options=(NO_RETRIES,)):
        self.target, self.expected = target, expected  # HOST:PORT, {(seed, max_tokens): tokens}
        self.wrong, self.done, self.stop = [], collections.Counter(), threading.Event()
        self.channel = grpc.insecure_channel(target, options=options)
        self.threads = [threading.Thread(target=self.run, args=(ask, i)) for ask in (self.command, self.call) for i in range(3)]

    def command(self, seed, max_tokens):
        result = generate(self.target, seed, max_tokens)
        return [int(token) for token in result.out.split()], result.code and result

    def call(self, seed, max_tokens):
        return outcome(stub(self.channel).Generate(request(seed, max_tokens), timeout=LIMIT))

    def run(self, ask, i):
        while not self.stop.is_set():
            key = (i, self.LENGTHS[self.done[ask.__name__] % 2])
            got, error = ask(*key)
            self.done[ask.__name__] += 1
            if error or got != self.expected[key]:
                self.wrong.append((ask.__name__, key, len(got), error))

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, kind, *_):
        try:
            if kind is None:
                await_true("each kind of client is served", lambda: min(self.done["command"], self.done["call"]) > 5)
        finally:
            self.stop.set()
            for thread in self.threads:
                thread.join()
            self.channel.close()


class BalancerTest(CommandTest):
    def expected(self, replica, keys):
        with grpc.insecure_channel(replica.target) as channel:
            return {key: tokens(stub(channel).Generate(request(*key), timeout=LIMIT)) for key in keys}

    def load(self, replica, target, *options):
        return Load(target, self.expected(replica, [(i, n) for i in range(3) for n in Load.LENGTHS]), *options)

    def direct(self, replica, seed):
        channel = grpc.insecure_channel(replica.target)
        self.addCleanup(channel.close)
        return stub(channel).Generate(request(seed, SHORT), timeout=LIMIT)

    def nothing_failed(self, load):
        self.assertEqual(load.wrong, [])

    def nothing_was_retried(self, balancer):
        # Without a path it is a connection that ended before a request: gRPC 1.51 gives one up where errno was changed (reconnect_test.py).
        streams = [s for s in balancer.streams() if s["path"]]
        bad = [s for s in streams if s["http"] != 200 or s["grpc_status"] != "-" or s["end"] != "--"]
        self.assertEqual(bad, [])


class RollOutTest(BalancerTest):
    """Replicas and HAProxy itself are replaced under load, and no client notices."""

    FLAGS = ("--drain-delay-seconds", "3", "--drain-seconds", "30")

    def test_each_replica_in_turn_stops_and_comes_back(self):
        with two_replicas(*self.FLAGS) as (first, second, balancer):
            with self.load(first, balancer.target) as load:
                for name, replica in (("replica-1", first), ("replica-2", second), ("replica-1", first)):
                    self.restart(name, replica, balancer)
            self.nothing_failed(load)
            self.nothing_was_retried(balancer)

    def restart(self, name, replica, balancer):
        replica.terminate()
        await_true(f"{name} drains", lambda: balancer.state(name).startswith("NOLB"))
        _, log = replica.process.communicate(timeout=LIMIT)
        self.assertEqual(replica.process.returncode, 0)
        self.assertIn(b'"all_replies_ended":true', log)
        await_true(f"{name} is seen to be gone", lambda: balancer.state(name) == "DOWN")
        replica.start()
        await_true(f"{name} is back", lambda: balancer.state(name) == "UP")
        done = replica.load().tokens_total
        await_true(f"{name} gets streams again", lambda: replica.load().tokens_total > done)

    def test_a_replica_that_sends_its_clients_away_fails_none_of_them(self):
        with Replica("--max-connection-age-seconds", "1") as replica:
            with self.load(replica, replica.target) as load:
                time.sleep(4)
            self.nothing_failed(load)

    def test_clients_that_balance_by_themselves_see_a_replica_leave(self):
        """With the service config of deploy/k8s/README.md, and no retries."""
        found = re.search(r'^ *(\{"loadBalancingConfig".*\})$', (SOURCE_DIR / "deploy/k8s/README.md").read_text(), re.M)
        options = (NO_RETRIES, ("grpc.service_config", found.group(1)))
        with Replica(*self.FLAGS) as first, Replica(*self.FLAGS) as second:
            target = f"ipv4:{first.target},{second.target}"
            with self.load(first, target, options) as load:
                await_true("both get calls", lambda: min(r.load().tokens_total for r in (first, second)) > 2000)
                second.terminate()
                second.process.communicate(timeout=LIMIT)
            self.assertEqual(load.wrong, [])

    def test_haproxy_itself_is_replaced(self):
        with two_replicas() as (first, _, balancer):
            with self.load(first, balancer.target) as load:
                held = stub(load.channel).Generate(request(7))
                read = [*next(held).tokens]
                old, balancer.process = balancer.process, balancer.spawn("-sf", str(balancer.process.pid))
                self.addCleanup(old.kill)
                time.sleep(2)
                self.assertIsNone(old.poll(), "the old process left a stream that runs")
                while len(read) < 100000:
                    read += next(held).tokens
                held.cancel()
                # That it ends is what counts: 2.6.12 was once seen to crash in its exit, after its last stream.
                old.wait(LIMIT)
            self.nothing_failed(load)
            self.assertEqual(read[:SHORT], self.expected(first, [(7, SHORT)])[7, SHORT])


class NameTest(BalancerTest):
    """Replicas come and go by the addresses of a DNS name, as those of a headless Service do."""

    def test_a_name_leads_to_every_replica_and_an_address_that_goes_takes_no_stream_along(self):
        port = free_port()
        first, second = (Replica(target=f"127.0.0.{i}:{port}") for i in (1, 2))
        with first, second, NameServer("127.0.0.1", "127.0.0.2") as names:
            with Balancer(RIVULET_REPLICAS=f"replicas.test:{port}", RIVULET_DNS=names.target) as balancer:
                await_true("both replicas are up", lambda: self.up(balancer) == 2)
                with balancer.channel(NO_RETRIES) as channel:
                    calls = [stub(channel).Generate(request(seed)) for seed in range(2)]
                    read = [[*next(call).tokens] for call in calls]
                    self.assertEqual([first.load().slots_used, second.load().slots_used], [1, 1])
                    names.addresses = ["127.0.0.2"]
                    await_true("the address is gone", lambda: self.up(balancer) == 1)
                    total = first.load().tokens_total
                    for call, got in zip(calls, read, strict=True):
                        while len(got) < 20000:
                            got += next(call).tokens
                    for seed in range(10):
                        tokens(stub(channel).Generate(request(seed, SHORT), timeout=LIMIT))
                    self.assertEqual([first.load().slots_used, second.load().slots_used], [1, 1])
                    self.assertLess(total, first.load().tokens_total)
                    names.addresses = ["127.0.0.1", "127.0.0.2"]
                    await_true("it is back", lambda: self.up(balancer) == 2)

    def up(self, balancer):
        return sum(row["status"] == "UP" for row in balancer.servers().values())


class LossTest(BalancerTest):
    """What becomes of the streams of a replica that ends without a word, and of one that must not be used."""

    def test_streams_of_a_killed_replica_end_and_a_retry_gets_the_same_tokens(self):
        with two_replicas() as (first, second, balancer), balancer.channel(NO_RETRIES) as channel:
            calls = {seed: stub(channel).Generate(request(seed), timeout=LIMIT) for seed in range(8)}
            got = {seed: list(next(call).tokens) for seed, call in calls.items()}
            self.assertEqual([first.load().slots_used, second.load().slots_used], [4, 4])
            first.kill()
            # Nothing of a call that was never begun is lost: connections that fail are tried on the other replica.
            for seed in range(20):
                self.succeeds(generate(balancer.target, seed))
            await_true("the replica is seen to be gone", lambda: balancer.state("replica-1") == "DOWN")
            lost = {}
            while len(lost) < 4:
                for seed in set(calls) - set(lost):
                    try:
                        got[seed] += next(calls[seed]).tokens
                    except grpc.RpcError as error:
                        lost[seed] = error
            for seed, error in lost.items():
                self.is_lost(error)
                again = tokens(stub(channel).Generate(request(seed, len(got[seed])), timeout=LIMIT))
                self.assertEqual(again, got[seed])
            for seed in set(calls) - set(lost):
                next(calls[seed])
                calls[seed].cancel()

    def is_lost(self, error):
        """HAProxy 2.6 ends such a stream without a status, which gRPC calls UNKNOWN. Replicas attach details to every error."""
        self.assertIn(error.code(), (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNKNOWN), error)
        self.assertNotIn("grpc-status-details-bin", dict(error.trailing_metadata() or ()))

    def generate_while_its_replica_is_killed(self, max_tokens, *flags):
        """Exit code, tokens and stderr of the command, and the same tokens from the replica that is left."""
        bulky = ("--json", "--logprobs", "--top-logprobs", "20")  # what nobody reads stops the reply, so it cannot end before the kill
        with two_replicas() as (first, second, balancer):
            command = [BIN_DIR / "rivulet", "generate", "--target", balancer.target, "--tokens", "1", "--seed", "3", *bulky, *flags]
            with subprocess.Popen([*command, "--max-tokens", str(max_tokens)], stdout=-1, stderr=-1, text=True) as process:
                begun = process.stdout.read(1000)
                (replica,) = [replica for replica in (first, second) if replica.load().slots_used]
                replica.kill()
                tokens = [token for line in (begun + process.stdout.read()).splitlines() for token in json.loads(line)["tokens"]]
                error = process.stderr.read()
            again = self.succeeds(generate(balancer.target, 3, len(tokens)))
            return process.returncode, tokens, error, [int(token) for token in again.out.split()]

    def test_the_command_goes_on_at_the_other_replica_where_its_own_is_killed(self):
        code, tokens, error, again = self.generate_while_its_replica_is_killed(15_000)
        self.assertEqual((code, len(tokens)), (0, 15_000), error)
        self.assertEqual(tokens, again)

    def test_the_command_without_resume_fails_where_its_replica_is_killed(self):
        code, tokens, error, again = self.generate_while_its_replica_is_killed(ENDLESS, "--no-resume")
        self.assertEqual(code, 3, error)
        self.assertRegex(error, r"\Arivulet: the call ended without a status of the server.*\n\Z")
        self.assertEqual(tokens, again)

    def test_without_a_replica_calls_end_in_unavailable(self):
        with Replica() as only, Balancer(only.target) as balancer, balancer.channel(NO_RETRIES) as channel:
            only.kill()
            for _ in range(2):  # before and after HAProxy knows
                _, error = outcome(stub(channel).Generate(request(1), timeout=LIMIT))
                self.assertEqual(error.code(), grpc.StatusCode.UNAVAILABLE)
                self.assertIn("balancer: no replica is available", error.details())
                await_true("the replica is seen to be gone", lambda: balancer.state("replica-1") == "DOWN")
            self.fails(generate(balancer.target, 1), 3, "no replica is available")
            self.assertEqual(self.healthz(balancer), 503)
            only.start()
            await_true("the replica is back", lambda: self.healthz(balancer) == 200)
            self.succeeds(generate(balancer.target, 1))

    def healthz(self, balancer):
        try:
            with urllib.request.urlopen(f"http://{balancer.statistics}/healthz", timeout=LIMIT) as page:
                return page.status
        except urllib.error.HTTPError as error:
            return error.code

    def test_a_replica_that_is_not_serving_keeps_its_streams_and_gets_no_more(self):
        with two_replicas("--drain-delay-seconds", "600") as (first, second, balancer), balancer.channel(NO_RETRIES) as channel:
            calls = [stub(channel).Generate(request(seed)) for seed in range(2)]
            begun = [list(next(call).tokens) for call in calls]
            first.terminate()
            await_true("it gets no more", lambda: balancer.state("replica-1").startswith("NOLB"))
            total = second.load().tokens_total
            for seed in range(20):
                tokens(stub(channel).Generate(request(seed, SHORT), timeout=LIMIT))
            self.assertEqual(second.load().tokens_total - total >= 20 * SHORT, True)
            self.assertEqual(first.load().slots_used, 1)
            self.assertEqual(len(tokens(self.direct(first, 99))), SHORT)  # it would have answered
            for seed, call in enumerate(calls):
                while len(begun[seed]) < 20000:
                    begun[seed] += next(call).tokens
                call.cancel()
                self.assertEqual(begun[seed][:SHORT], tokens(self.direct(second, seed)))


class SilenceTest(BalancerTest):
    """A stream on which nothing moves lives as long as RIVULET_STREAM_TIMEOUT allows, whatever the other times are."""

    SECONDS = 3  # of silence

    def unread(self, **variables):
        """The tokens and the error of a stream that nobody reads for a while."""
        with Replica() as replica, Balancer(replica.target, **variables) as balancer, balancer.channel(NO_RETRIES) as channel:
            stream = stub(channel).Generate(request(1, bulky=True), timeout=60)
            read = [*next(stream).tokens]
            self.silence(replica)
            try:
                while len(read) < 50000:
                    read += next(stream).tokens
            except grpc.RpcError as error:
                return read, error
            stream.cancel()
            return read, None

    def waiting(self, is_cut, **variables):
        """The tokens and the error of a stream that waits for its first token, and the tokens that it is to get."""
        # One slot, which its holder keeps: it is of the same tenant, and the command reads it fast.
        with Replica("--slots", "1") as replica, Balancer(replica.target, **variables) as balancer:
            command = [BIN_DIR / "rivulet", "generate", "--target", replica.target, "--tokens", "1", "--max-tokens", str(ENDLESS)]
            holder = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            self.addCleanup(holder.wait)
            self.addCleanup(holder.kill)
            with balancer.channel(NO_RETRIES) as channel:
                await_true("the holder has its slot", lambda: replica.load().slots_used)
                stream = None

                def waits():
                    nonlocal stream
                    # A busy machine may read the holder too slowly: it then lends its slot, and the stream ends at once.
                    if stream is None or stream.done():
                        stream = stub(channel).Generate(request(2, SHORT), timeout=60)
                    return replica.load().queued

                await_true("it waits for a slot", waits)
                replica.process.send_signal(signal.SIGSTOP)
                if is_cut:
                    got, error = outcome(stream)  # however long the balancer takes to notice
                else:
                    time.sleep(self.SECONDS)
                replica.process.send_signal(signal.SIGCONT)
                holder.kill()
                if not is_cut:
                    got, error = outcome(stream)
            return got, error, tokens(self.direct(replica, 2))

    def silence(self, replica):
        def pauses():
            before = replica.load().tokens_total
            time.sleep(0.2)
            return replica.load().tokens_total == before

        await_true("the replica pauses the reply that nobody reads", pauses)
        time.sleep(self.SECONDS)

    def test_silence_does_not_cut_a_stream(self):
        variables = {"RIVULET_TIMEOUT": "1s", "RIVULET_IDLE_TIMEOUT": "1s"}
        read, error = self.unread(**variables)
        self.assertIsNone(error)
        self.assertGreaterEqual(len(read), 50000)
        got, error, expected = self.waiting(False, **variables)
        self.assertEqual((got, error), (expected, None))

    def test_the_time_that_a_stream_may_be_silent_is_the_one_that_is_set(self):
        read, error = self.unread(RIVULET_STREAM_TIMEOUT="1s")
        self.assertIsNotNone(error)
        self.assertLess(len(read), 50000)
        _, error, _ = self.waiting(True, RIVULET_STREAM_TIMEOUT="1s")
        self.assertEqual(error.code(), grpc.StatusCode.UNAVAILABLE)
        self.assertIn("balancer: the replica was silent for too long", error.details())


if __name__ == "__main__":
    unittest.main()
