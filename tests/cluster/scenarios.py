# SPDX-License-Identifier: Apache-2.0
"""A service of replicas with clients, and what happens to it."""

import contextlib
import dataclasses
import functools
import pathlib
import random
import time

import rivulet_wheel  # makes rivulet what is imported below  # noqa: F401

import rivulet
import balancer  # behind rivulet: it makes modules of the same name from proto/ where there are none
from balancer import Balancer, Replica, await_true
from clients import PATIENCE, Conversation, Lone, Script, Tally
from command import BIN_DIR
from stores import CONTINUE, PAUSE

balancer.LIMIT = PATIENCE
REPLICAS = 3


@dataclasses.dataclass(frozen=True)
class Release:
    """What a replica runs."""

    folder: pathlib.Path = BIN_DIR  # of the binary
    flags: tuple[str, ...] = ()

    def put_into(self, replica, *flags):
        """Before the replica's next start."""
        command = Replica(*flags, *self.flags, target=replica.target).command
        replica.command = [str(self.folder / "rivulet-server"), *command[1:]]


@functools.cache
def scripts(count, releases=(Release(),)):
    """What `count` clients ask for, with the answers of a server of each release, without a store, which nothing disturbs."""
    with contextlib.ExitStack() as stack:
        lones = []
        for release in releases:
            replica = Replica()
            release.put_into(replica)
            stack.enter_context(replica)
            lones.append(stack.enter_context(rivulet.Client(replica.target)))
        return [Script(number, lones) for number in range(count)]


@dataclasses.dataclass(frozen=True)
class Options:
    """Of a cluster."""

    releases: tuple[Release, ...] = (Release(),)  # replicas begin with the first one
    seed: int = 0  # of the choice of replicas
    timeout: float = PATIENCE  # of a client's call, in seconds
    leaves: tuple[int, ...] = (len(Script.REPLIES) - 1,)  # turns of a session that go to whichever replica the balancer takes


class Cluster:
    """Replicas that share `store`, a balancer, and one client for each script: two of three have sessions. For a `with` statement,
    whose end waits until every client has finished what it was doing."""

    def __init__(self, store, scripts, options):
        self.store, self.scripts, self.options = store, scripts, options
        self.random = random.Random(options.seed)
        self.tally = Tally()
        # The balancer looks every second, so new calls come for so long after SIGTERM.
        self.flags = ("--session-store", store.flag, "--drain-delay-seconds", "3")

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            self.replicas = [Replica() for _ in range(REPLICAS)]
            for replica in self.replicas:
                self.options.releases[0].put_into(replica, *self.flags)
                stack.enter_context(replica)
            self.balancer = stack.enter_context(Balancer(*(replica.target for replica in self.replicas)))
            self.before = self.store.figures()
            self.clients = [self.client(number, script) for number, script in enumerate(self.scripts)]
            self.open = stack.pop_all()
        return self

    def client(self, number, script):
        given = (number, self.balancer.target, script, self.tally, self.options.timeout)
        return Lone(*given) if number % 3 == 2 else Conversation(*given, self.options.leaves)

    def __exit__(self, *exception):
        with self.open:
            for client in self.clients:
                client.gives_up = exception[0] is not None
                client.stopping.set()
            if exception[0] is None:
                for client in self.clients:
                    client.stop()
                self.check_clients()
                self.check_replicas()

    def check_replicas(self):
        for replica in self.replicas:
            code = replica.process.poll()
            assert code is None, f"{self.name(replica)} has ended with {code}"

    def check_clients(self):
        for client in self.clients:
            if client.failure is not None:
                raise AssertionError(f"{client.name} failed") from client.failure

    def await_turns(self, count=2):
        """Returns once every client has finished as many further turns: the first of them may be older than this call."""
        goals = [(client, client.finished + count) for client in self.clients]
        end = time.monotonic() + PATIENCE
        while late := [client for client, goal in goals if client.finished < goal]:
            self.check_clients()
            doing = [f"{client.name}: {client.doing}" for client in late]
            assert time.monotonic() < end, f"no progress within {PATIENCE} s: {doing}; {self.tally.errors}"
            time.sleep(0.02)

    def busy_replica(self):
        """One that runs replies now."""
        replica = self.random.choice(self.replicas)
        self.await_busy(replica)
        return replica

    def await_busy(self, replica):
        await_true(f"{self.name(replica)} has work", lambda: replica.load().slots_used > 0)

    def roll(self):
        """What replaces the releases of the replicas, one after another, until they have the first one again."""
        return [*self.options.releases[1:], self.options.releases[0]]

    def await_up(self, replica):
        name = self.name(replica)
        await_true(f"the balancer takes {name} back", lambda: self.balancer.state(name) == "UP")

    def await_down(self, replica):
        name = self.name(replica)
        await_true(f"the balancer leaves {name} out", lambda: self.balancer.state(name).startswith("DOWN"))

    def name(self, replica):
        return self.balancer.names[self.replicas.index(replica)]

    def figures(self):
        """What the store has done."""
        return {name: value - self.before[name] for name, value in self.store.figures().items()}


def nothing(cluster, rounds):
    """Nothing happens."""
    cluster.await_turns(8 * rounds)


def kill_replicas(cluster, rounds):
    """One replica after another is killed with work on it, and another one starts in its place."""
    counts = cluster.tally.counts
    end = time.monotonic() + PATIENCE * rounds
    cluster.await_turns()
    while rounds > 0:
        assert time.monotonic() < end, "kills hit no reply"
        replica, before = cluster.busy_replica(), counts["lost calls"]
        replica.kill()
        replica.start()
        cluster.await_up(replica)
        turns = counts["turns"] + len(cluster.clients)
        await_true("as many turns as there are clients", lambda: counts["turns"] >= turns)
        rounds -= counts["lost calls"] > before  # else its replies had just ended
    cluster.await_turns()


def stop_replicas(cluster, rounds, seconds=0):
    """A replica stops for longer than its leases last, until its clients have got their replies elsewhere; then it goes on."""
    cluster.await_turns()
    for _ in range(rounds):
        replica = cluster.busy_replica()
        end = time.monotonic() + seconds
        replica.process.send_signal(PAUSE)
        try:
            cluster.await_down(replica)
            cluster.await_turns()
            while time.monotonic() < end:
                cluster.await_turns(1)
        finally:
            replica.process.send_signal(CONTINUE)
        cluster.await_up(replica)
        cluster.await_turns()


def restart_replicas(cluster, rounds):
    """A new version: every replica ends with SIGTERM and starts again, one after another. Where there is another release, then back."""
    cluster.await_turns()
    for release in cluster.roll() * rounds:
        for replica in cluster.replicas:
            replica.terminate()
            _, log = replica.process.communicate(timeout=PATIENCE)
            assert replica.process.returncode == 0, f"{replica.process.returncode}: {log[-2000:]}"
            release.put_into(replica, *cluster.flags)
            replica.start()
            cluster.await_up(replica)
        cluster.await_turns()


def change_numerics(cluster, rounds):
    """One replica after another is killed with work on it and starts with another numerics id, until all have it; then back. A reply
    that is cut by the last of them cannot go on anywhere."""
    errors = cluster.tally.errors
    end = time.monotonic() + PATIENCE * rounds
    cluster.await_turns()
    while rounds > 0:
        assert time.monotonic() < end, f"kills cut no reply that has begun; {cluster.tally.faults[:4]}"
        before = errors["generate: RESUME_MISMATCH"]
        for release in cluster.roll():
            for replica in cluster.replicas:
                cluster.await_busy(replica)
                replica.kill()
                release.put_into(replica, *cluster.flags)
                replica.start()
                cluster.await_up(replica)
            cluster.await_turns()
        rounds -= errors["generate: RESUME_MISMATCH"] > before


def restart_redis(cluster, rounds):
    """Redis is killed, and started again once a reply has said that it is not durable."""
    disturb_store(cluster, rounds, lambda store: store.server.kill(), lambda store: store.server.start())


def pause_redis(cluster, rounds, seconds=0):
    """Redis stops answering for a while, at least until a reply has said that it is not durable."""
    disturb_store(cluster, rounds, lambda store: store.server.signal(PAUSE), lambda store: store.server.signal(CONTINUE), seconds)


def fill_disk(cluster, rounds):
    """The store's disk is full, until a reply has said that it is not durable."""
    disturb_store(cluster, rounds, lambda store: store.fill_disk(), lambda store: store.disk.free())


def disturb_store(cluster, rounds, begin, end, seconds=0):
    counts = cluster.tally.counts
    conversations = [client for client in cluster.clients if isinstance(client, Conversation)]
    cluster.await_turns()
    for _ in range(rounds):
        before, limit = counts["not durable"], time.monotonic() + PATIENCE
        while counts["not durable"] == before:
            assert time.monotonic() < limit, f"not within {PATIENCE} s: a reply that is not durable"
            # Without the store no session is opened: one must be in use. If its reply ends before the store does, that is tried again.
            await_true("a reply on a session", lambda: any(client.replying for client in conversations))
            begun = time.monotonic()
            begin(cluster.store)
            try:
                while time.monotonic() < begun + PATIENCE / 8 and counts["not durable"] == before:
                    time.sleep(0.02)
                while time.monotonic() < begun + seconds:
                    time.sleep(0.1)
            finally:
                end(cluster.store)
            cluster.await_turns()


def kill_while_redis_pauses(cluster, rounds):
    """A replica is killed that has what Redis has not got: clients give it again."""

    def end(store):
        replica = cluster.random.choice(cluster.replicas)
        replica.kill()
        store.server.signal(CONTINUE)
        replica.start()
        cluster.await_up(replica)

    disturb_store(cluster, rounds, lambda store: store.server.signal(PAUSE), end)


def empty_redis(cluster, rounds):
    """FLUSHALL while sessions are in use."""
    cluster.await_turns()
    for _ in range(rounds):
        cluster.busy_replica()
        cluster.store.server.command("FLUSHALL")
        cluster.await_turns(4)


def restore_redis(cluster, rounds):
    """Redis starts again with what it had some turns ago, and a replica is killed that has what was lost."""
    cluster.await_turns()
    server = cluster.store.server
    for _ in range(rounds):
        server.keep_data()
        cluster.await_turns()
        replica = cluster.busy_replica()
        server.kill()
        replica.kill()
        server.put_data_back()
        server.start()
        replica.start()
        cluster.await_up(replica)
        cluster.await_turns(4)


def fail_over(cluster, rounds):
    """Sentinels put a Redis in place of another that does not have its last writes, and a replica is killed that has what was lost."""
    assert rounds == 1, "there is one replica of Redis"
    counts = cluster.tally.counts
    cluster.await_turns()
    cluster.store.cut_replication()
    before = counts["durable"]
    await_true("writes that will be lost", lambda: counts["durable"] > before + len(cluster.clients))
    replica = cluster.busy_replica()
    replica.kill()
    cluster.store.fail_over()
    replica.start()
    cluster.await_turns(4)
