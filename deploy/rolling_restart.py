# SPDX-License-Identifier: Apache-2.0
"""The work of rolling_restart.sh, which says what this shows."""

import argparse
import concurrent.futures
import contextlib
import csv
import itertools
import os
import pathlib
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request

import rivulet

DEPLOY = pathlib.Path(__file__).resolve().parent
PATIENCE = 120  # seconds that anything awaited may take
TOKENS = 300  # of each reply
# What clients ask for, by seed: a request without a session, or a session with a prompt for each of its replies.
PROMPTS = (("ROMEO:",), ("JULIET:\n", "\nNURSE:\n", "\nROMEO:\n"), ("First Citizen:",), ("KING RICHARD II:\n", "\nQUEEN:\n"))
SEEDS = 40
BEGIN = time.monotonic()


def say(text):
    print(f"{time.monotonic() - BEGIN:6.1f} s  {text}", flush=True)


def await_true(what, condition):
    """Errors: SystemExit."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            if condition():
                return
        time.sleep(0.02)
    sys.exit(f"rolling_restart.sh: not within {PATIENCE} s: {what}")


def free_addresses(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]


class Program:
    """A program, whose output goes to a file. For a `with` statement, whose end kills it. Errors: SystemExit, if it ends otherwise."""

    def __init__(self, folder, name, *command, **variables):
        self.name, self.log, self.command = name, folder / f"{name}.log", [str(word) for word in command]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("RIVULET_")}
        self.environment = {**inherited, "TMPDIR": str(folder), **variables}

    def __enter__(self):
        """Starts it; returns once a rivulet-server listens."""
        with self.log.open("w") as log:  # a session of its own: Ctrl-C in the terminal is not for the program
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log, env=self.environment, start_new_session=True)
        if "--listen" in self.command:
            await_true(f"{self.name} listens", lambda: self.check(self.process.poll(), None) or '"event":"listening"' in self.log.read_text())
        return self

    def check(self, code, *expected):
        if code not in expected:
            sys.exit(f"rolling_restart.sh: {self.name} has ended with {code}: {self.log.read_text()[-2000:]}")

    def __exit__(self, *exception):
        self.process.kill()
        self.process.wait()


class Cluster:
    """Redis, replicas, and HAProxy, which calls them replica-1 and so on."""

    def __init__(self, stack, folder, server, count):
        """server: the command of a replica, without its address. stack: ends what is started."""
        redis, self.statistics, self.target, *addresses = free_addresses(count + 3)
        password = folder / "password"
        password.write_text(secrets.token_hex(32))
        start = [DEPLOY / "redis/start.sh", password, "--bind", "127.0.0.1", "--port", redis.partition(":")[2], "--dir", folder]
        stack.enter_context(Program(folder, "redis", *start))
        # HAProxy looks every second, so new calls come for so long after SIGTERM.
        server = [*server, "--session-store", f"redis://rivulet@{redis}", "--session-store-password-file", password, "--drain-delay-seconds", 3]
        variables = {"RIVULET_LISTEN": self.target, "RIVULET_STATS": self.statistics}
        variables |= {f"RIVULET_REPLICA_{i}": address for i, address in enumerate(addresses, 1)}
        self.balancer = stack.enter_context(Program(folder, "haproxy", "haproxy", "-f", DEPLOY / "haproxy/haproxy.cfg", **variables))
        self.replicas = [Program(folder, f"replica-{i}", *server, "--listen", address) for i, address in enumerate(addresses, 1)]
        for replica in self.replicas:
            stack.enter_context(replica)
            self.await_up(replica)

    def statistic(self, replica, column):
        """What HAProxy says about the replica. Errors: OSError."""
        with urllib.request.urlopen(f"http://{self.statistics}/;csv", timeout=PATIENCE) as page:
            rows = csv.DictReader(page.read().decode().removeprefix("# ").splitlines())
        return next(row[column] for row in rows if row["svname"] == replica.name)

    def await_up(self, replica):
        await_true(f"HAProxy sends calls to {replica.name}", lambda: self.statistic(replica, "status") == "UP")

    def restart(self, replica, how, number):
        """Ends a replica that sends replies with this signal, and starts it again."""
        await_true(f"{replica.name} sends replies", lambda: int(self.statistic(replica, "scur")))
        streams, begin = self.statistic(replica, "scur"), time.monotonic()
        replica.process.send_signal(number)
        replica.check(replica.process.wait(PATIENCE), 0 if number == signal.SIGTERM else -number)
        end = time.monotonic()
        replica.__enter__()
        self.await_up(replica)
        say(f"{replica.name}: {how} (streams: {streams}), ended after {end - begin:.1f} s, serves again after {time.monotonic() - end:.1f} s")

    def disturb(self, seconds):
        """Restarts every replica and kills one, again and again for at least so long."""
        end = time.monotonic() + seconds
        for killed in itertools.cycle(self.replicas):
            for replica in self.replicas:
                self.restart(replica, "SIGTERM", signal.SIGTERM)
            self.restart(killed, "kill -9", signal.SIGKILL)
            if time.monotonic() > end:
                return


def open_session(client, seed):
    """The library leaves it to its user to repeat this call, because two sessions might be opened. Errors: rivulet.RivuletError."""
    for _ in range(PATIENCE):
        with contextlib.suppress(rivulet.Unavailable):
            return client.open_session(seed=seed)
        time.sleep(1)
    return client.open_session(seed=seed)


def replies(client, seed):
    """Asks for what belongs to this seed; yields the text of each reply. Errors: rivulet.RivuletError."""
    first, *more = PROMPTS[seed % len(PROMPTS)]
    if not more:
        yield client.generate(first, seed=seed, max_tokens=TOKENS).collect().text
        return
    with open_session(client, seed) as session:
        for prompt in (first, *more):
            yield session.generate(prompt, max_tokens=TOKENS).collect().text


def ask(target, seeds, stopping, asked):
    """A client, until it is stopped. asked: gets each seed with the texts that came."""
    with rivulet.Client(target) as client:
        for seed in itertools.takewhile(lambda _: not stopping.is_set(), seeds):
            texts = []
            asked.append((seed, texts))
            try:
                for text in replies(client, seed):
                    texts.append(text)  # noqa: PERF402  what came before an error counts
            except rivulet.RivuletError as error:
                say(f"lost: reply {len(texts) + 1} to seed {seed}: {error.reason or error.code.name}: {error}")


def run(folder, options):
    """The exit code. Errors: SystemExit, rivulet.RivuletError."""
    server = [options.build / "bin/rivulet-server", "--model", options.model, "--backend", "cpu"]
    asked, stopping, seeds = [], threading.Event(), itertools.cycle(range(SEEDS))
    with contextlib.ExitStack() as stack:
        cluster = Cluster(stack, folder, [*server, "--threads", 1], options.replicas)
        say(f"{options.replicas} replicas behind HAProxy on {cluster.target}, sessions in Redis, {options.clients} clients")
        clients = [threading.Thread(target=ask, args=(cluster.target, seeds, stopping, asked), daemon=True) for _ in range(options.clients)]
        for client in clients:
            client.start()
        cluster.disturb(options.seconds)
        stopping.set()
        await_true("every client has its replies", lambda: not any(client.is_alive() for client in clients))
    say("a server that nothing disturbs gets the same requests")
    (address,) = free_addresses(1)
    with Program(folder, "undisturbed", *server, "--listen", address), rivulet.Client(address) as client:
        with concurrent.futures.ThreadPoolExecutor() as pool:
            undisturbed = list(pool.map(lambda seed: list(replies(client, seed)), range(min(SEEDS, len(asked)))))
    lost = sum(len(undisturbed[seed]) - len(texts) for seed, texts in asked)
    different = sum(text != other for seed, texts in asked for text, other in zip(texts, undisturbed[seed]))
    say("done")
    print(f"replies: {sum(len(texts) for _, texts in asked)}\nsessions: {sum(len(undisturbed[seed]) > 1 for seed, _ in asked)}")
    print("streams cut off:", cluster.balancer.log.read_text().count('"end":"SD"'))  # the server ended the connection while data came
    print(f"replies lost: {lost}\ntexts that differ: {different}", flush=True)
    return 1 if lost or different else 0


def parse(arguments):
    parser = argparse.ArgumentParser(prog="rolling_restart.sh", formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60, help="restarts go on for at least so long")
    parser.add_argument("--replicas", type=int, choices=range(2, 5), default=3, help="servers behind HAProxy")
    parser.add_argument("--clients", type=int, default=8, help="1 to 256")
    parser.add_argument("--build", type=pathlib.Path, default=DEPLOY.parent / "build/release", help="bin/ there has rivulet-server")
    parser.add_argument("--model", type=pathlib.Path, default=DEPLOY.parent / "model/zoo/shakespeare-rfa", help="a model of text")
    options = parser.parse_args(arguments)
    if not 1 <= options.clients <= 256:
        parser.error(f"--clients must be 1 to 256; got {options.clients}")
    if not (options.build / "bin/rivulet-server").exists():
        parser.error(f"{options.build} has no bin/rivulet-server: cmake --build --preset release --target rivulet-server")
    return options


if __name__ == "__main__":
    os.environ["no_proxy"] = "127.0.0.1"
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        sys.exit(run(pathlib.Path(sys.argv[1]), parse(sys.argv[2:])))
    finally:
        shutil.rmtree(sys.argv[1])
