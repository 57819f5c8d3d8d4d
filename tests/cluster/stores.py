# SPDX-License-Identifier: Apache-2.0
"""Stores of sessions that replicas share: a Redis, a Redis with a replica and three Sentinels, a directory. Each is for a `with`
statement; `flag` is the value of --session-store, `server` what scenarios stop and kill, `disk` what fill_disk() fills, if there is one."""

import errno
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

from balancer import await_true, free_port

if shutil.which("redis-server") is None:
    print("skipped: redis-server is not installed; deploy/setup.sh --tests installs it")
    sys.exit(77)


class Directory:
    """dir:PATH."""

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory()
        self.flag = f"dir:{self.folder.name}"
        return self

    def __exit__(self, *exception):
        self.folder.cleanup()

    def figures(self):
        return {}


class SmallDisk:
    """A file system in memory, for a `with` statement. Errors: PermissionError, because only root may mount it."""

    MIB = 512

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory()
        command = ["mount", "-t", "tmpfs", "-o", f"size={self.MIB}m", "tmpfs", self.folder.name]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            self.folder.cleanup()
            raise PermissionError(done.stderr.strip())
        self.path = pathlib.Path(self.folder.name, "store")
        self.path.mkdir()
        self.ballast = pathlib.Path(self.folder.name, "ballast")
        return self

    def fill(self):
        try:
            with self.ballast.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(1 << 16))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise

    def free(self):
        self.ballast.unlink()

    def __exit__(self, *exception):
        subprocess.run(["umount", self.folder.name], check=True)
        self.folder.cleanup()


class SmallDirectory:
    """dir:PATH on a small disk. Errors: those of SmallDisk."""

    def __enter__(self):
        self.disk = SmallDisk().__enter__()
        self.flag = f"dir:{self.disk.path}"
        return self

    def __exit__(self, *exception):
        self.disk.__exit__(*exception)

    def fill_disk(self):
        self.disk.fill()

    def figures(self):
        return {}


class Nothing(Directory):
    """No store: what the assertions must notice."""

    def __enter__(self):
        super().__enter__()
        self.flag = "none"
        return self


class RedisError(Exception):
    """An error that Redis answered."""


class RedisProcess:
    """A redis-server, or with `sentinel` a Sentinel, with a folder of its own, which a restart keeps."""

    def __init__(self, *settings, sentinel=""):
        """settings: lines of its configuration, which win over those here."""
        self.port = free_port()
        self.folder = tempfile.TemporaryDirectory()
        self.config = pathlib.Path(self.folder.name, "redis.conf")
        # "always": a write that was answered outlives the process.
        lines = [sentinel] if sentinel else ["appendonly yes", "appendfsync always", 'save ""']
        lines = [f"port {self.port}", "bind 127.0.0.1", f"dir {self.folder.name}", *lines, *settings]
        self.config.write_text("\n".join(lines) + "\n")
        self.flags = ["--sentinel"] if sentinel else []

    def start(self):
        command = ["redis-server", str(self.config), *self.flags]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        await_true(f"Redis answers on port {self.port}", self.answers)

    def answers(self):
        try:
            return self.command("PING") == "PONG"
        except (OSError, RedisError):  # a RedisError: it is still loading
            return False

    def command(self, *words):
        """What Redis answers: a str, an int, None or a list of these. Errors: OSError, RedisError."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as connection, connection.makefile("rb") as answer:
            parts = [str(word).encode() for word in words]
            connection.sendall(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts))
            return read_answer(answer)

    def info(self, section):
        return dict(line.split(":", 1) for line in self.command("INFO", section).splitlines() if ":" in line)

    def keep_data(self):
        """Copies what it has written so far."""
        self.command("CONFIG", "SET", "auto-aof-rewrite-percentage", 0)  # no file vanishes meanwhile
        shutil.copytree(f"{self.folder.name}/appendonlydir", f"{self.folder.name}/kept")

    def put_data_back(self):
        """Replaces what it has written by the copy. Before start()."""
        shutil.rmtree(f"{self.folder.name}/appendonlydir")
        pathlib.Path(self.folder.name, "kept").rename(f"{self.folder.name}/appendonlydir")

    def signal(self, number):
        self.process.send_signal(number)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        if self.process.poll() is None:
            self.kill()
        self.folder.cleanup()


def read_answer(answer):
    line = answer.readline()
    if not line.endswith(b"\r\n"):
        raise ConnectionError("Redis closed the connection")
    kind, rest = line[:1], line[1:-2].decode()
    if kind == b"-":
        raise RedisError(rest)
    if kind == b"$":
        return None if rest == "-1" else answer.read(int(rest) + 2)[:-2].decode()
    if kind == b"*":
        return None if rest == "-1" else [read_answer(answer) for _ in range(int(rest))]
    return int(rest) if kind == b":" else rest


class Redis:
    """One redis-server."""

    def __enter__(self):
        self.server = RedisProcess(*self.settings())
        self.server.start()
        self.flag = f"redis://127.0.0.1:{self.server.port}"
        return self

    def settings(self):
        return ()

    def __exit__(self, *exception):
        self.server.stop()

    def figures(self):
        return redis_figures(self.server)


def redis_figures(server):
    """Commands and bytes since Redis started."""
    calls = {name: int(re.match(r"calls=(\d+)", value)[1]) for name, value in server.info("commandstats").items()}
    stats = server.info("stats")
    return {
        "commands": calls.get("cmdstat_eval", 0) + calls.get("cmdstat_mget", 0),  # else: what scripts call, and a new connection
        "bytes in": int(stats["total_net_input_bytes"]),
        "bytes out": int(stats["total_net_output_bytes"]),
    }


class Link:
    """A TCP proxy to the port `target` of loopback. Stopped, it forwards nothing while connections stay open, and forwards late what was
    sent meanwhile. Killed, it cuts all connections."""

    def __init__(self, target):
        self.port, self.target = free_port(), target

    def start(self):
        program = str(pathlib.Path(__file__).with_name("link.py"))
        self.process = subprocess.Popen([sys.executable, program, str(self.port), str(self.target)], stdout=subprocess.PIPE)
        assert self.process.stdout.readline() == b"listening\n", "the proxy did not start"

    def signal(self, number):
        self.process.send_signal(number)

    def kill(self):
        self.process.kill()
        self.process.communicate()


class LinkedRedis(Redis):
    """One redis-server behind a proxy, which is what scenarios stop and kill."""

    def __enter__(self):
        super().__enter__()
        self.redis = self.server
        self.server = Link(self.redis.port)
        self.server.start()
        self.flag = f"redis://127.0.0.1:{self.server.port}"
        return self

    def __exit__(self, *exception):
        self.server.kill()
        self.redis.stop()

    def figures(self):
        return redis_figures(self.redis)


class SmallRedis(Redis):
    """One redis-server whose file is on a small disk, with "everysec": with "always" Redis ends where the disk is full. Errors: those
    of SmallDisk."""

    def __enter__(self):
        self.disk = SmallDisk().__enter__()
        return super().__enter__()

    def fill_disk(self):
        self.disk.fill()
        await_true("Redis refuses writes", lambda: self.server.info("persistence")["aof_last_write_status"] == "err")

    def settings(self):
        return (f"dir {self.disk.path}", "appendfsync everysec")

    def __exit__(self, *exception):
        super().__exit__(*exception)
        self.disk.__exit__(*exception)


class SentinelRedis:
    """A Redis with one replica, and three Sentinels that know them as "rivulet"."""

    def __enter__(self):
        self.first = RedisProcess()
        self.second = RedisProcess(f"replicaof 127.0.0.1 {self.first.port}")
        monitor = f"sentinel monitor rivulet 127.0.0.1 {self.first.port} 2\nsentinel down-after-milliseconds rivulet 1000\n"
        monitor += "sentinel failover-timeout rivulet 10000"
        self.sentinels = [RedisProcess(sentinel=monitor) for _ in range(3)]
        for process in (self.first, self.second, *self.sentinels):
            process.start()
        await_true("the replica is up to date", lambda: self.second.info("replication")["master_link_status"] == "up")
        await_true("the Sentinels know each other and the replica", lambda: all(map(self.knows_all, self.sentinels)))
        self.flag = "redis+sentinel://" + ",".join(f"127.0.0.1:{one.port}" for one in self.sentinels) + "/rivulet"
        return self

    def __exit__(self, *exception):
        for process in (self.first, self.second, *self.sentinels):
            process.stop()

    @staticmethod
    def knows_all(sentinel):
        return "slaves=1,sentinels=3" in sentinel.command("INFO", "sentinel")

    def cut_replication(self):
        """The replica gets no further writes, as if the network between the two were cut."""
        self.first.command("ACL", "SETUSER", "default", "-psync", "-sync", "-replconf")
        self.first.command("CLIENT", "KILL", "TYPE", "replica")

    def fail_over(self):
        """The Redis in use is killed; returns once the replica, which knows nothing of the last writes, is in its place."""
        self.first.kill()
        await_true("the Sentinels chose the replica", self.second_is_master)

    def second_is_master(self):
        try:
            return self.second.info("replication")["role"] == "master"
        except ConnectionError:  # a Sentinel closes every connection of the Redis that it promotes
            return False

    def figures(self):
        return {}


PAUSE, CONTINUE = signal.SIGSTOP, signal.SIGCONT
