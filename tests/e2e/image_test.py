#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The container images that deploy/image_test.sh built, one of them from the wheel, looked into and run. That script starts this one, as root in a
network of its own.

A container here is what a runtime would make of the image's configuration, with the host's own tools: mount, PID, IPC
and UTS namespaces of its own, the image as a read-only root (a bind mount remounted `ro`), models bound read-only, the
configured user without capabilities and with no_new_privs, the configured environment, and the server as process 1.
Stricter than docker: /dev holds nothing (the gateway's: urandom, which gRPC for Python reads), /proc is the one mount
beside. Not here: cgroups and seccomp.
The container and this process share a network that has only loopback, all of 127.0.0.0/8.
"""

import fcntl
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
import unittest
import urllib.request

from command import BIN_DIR, SOURCE_DIR, ZOO

NAMES = ("RIVULET_IMAGE_BUILDAH", "RIVULET_IMAGE_BASE", "RIVULET_IMAGE", "RIVULET_IMAGE_WITH_MODEL", "RIVULET_IMAGE_GATEWAY", "RIVULET_IMAGE_WHEEL")
if not all(name in os.environ for name in NAMES):
    print("image_test.py: skipped: deploy/image_test.sh starts this test", file=sys.stderr)
    sys.exit(77)
BUILDAH, BASE, IMAGE, IMAGE_WITH_MODEL, IMAGE_GATEWAY, IMAGE_WHEEL = (os.environ[name] for name in NAMES)
# Bound by the image to every address: 127.0.0.2 answers only where the server listens beyond 127.0.0.1.
TARGET = "127.0.0.2:50051"
LIMIT_BYTES = 150_000_000

def buildah(*args: str) -> str:
    """Stdout of one buildah command; raises CalledProcessError with its stderr shown."""
    return subprocess.run([*BUILDAH.split(), *args], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


class Image:
    """An image, its files in `root` (a working container's, writable, so only namespaces keep it read-only)."""

    def __init__(self, name: str):
        self.config = json.loads(buildah("inspect", "--type", "image", name))["Docker"]["config"]
        self.container = buildah("from", "--pull-never", name)
        self.root = pathlib.Path(buildah("mount", self.container))

    def remove(self) -> None:
        buildah("rm", self.container)

    def files(self) -> dict[str, os.stat_result]:
        """lstat of every path, by its path from the root."""
        found = {}
        for folder, folders, files in os.walk(self.root):
            for name in folders + files:
                path = pathlib.Path(folder, name)
                found[str(path.relative_to(self.root))] = path.lstat()
        return found


class Container:
    """A running image, for a `with` statement. `models`: mounted read-only at /models; `args`: in place of CMD; `devices`: of the
    host's, in /dev."""

    SCRIPT = """set -e
    $MOUNT --bind $ROOT $ROOT
    if [ -n "$MODELS" ]; then $MOUNT --bind $MODELS $ROOT/models; $MOUNT -o remount,bind,ro $ROOT/models; fi
    for device in $DEVICES; do $MOUNT --bind /dev/$device $ROOT/dev/$device; done
    $MOUNT -o remount,bind,ro $ROOT
    $MOUNT -t proc -o nosuid,nodev,noexec proc $ROOT/proc
    exec "$@"
    """

    def __init__(self, image: Image, models: pathlib.Path | None = None, args: list[str] | None = None,
                 devices: tuple[str, ...] = ()):
        self.image, config = image, image.config
        if models:
            (image.root / "models").mkdir(exist_ok=True)  # as runtimes do before the root turns read-only
        for device in devices:
            (image.root / "dev" / device).touch()
        script = self.SCRIPT.replace("$MOUNT", tool("mount")).replace("$ROOT", str(image.root)).replace("$DEVICES", " ".join(devices))
        self.command = [
            *(tool("unshare"), "--mount", "--pid", "--ipc", "--uts", "--fork"),
            *(tool("bash"), "-c", script.replace("$MODELS", str(models or "")), "container"),
            *(tool("setpriv"), "--no-new-privs"),
            *(tool("chroot"), f"--userspec={config['User']}", "--groups=", image.root),
            *config["Entrypoint"],
            *((config.get("Cmd") or []) if args is None else args),
        ]
        self.environment = dict(entry.split("=", 1) for entry in config["Env"])

    def run(self) -> subprocess.CompletedProcess:
        """Runs to the end, for a start that fails."""
        return subprocess.run(self.command, env=self.environment, capture_output=True, text=True, timeout=60)

    def __enter__(self) -> "Container":
        began = time.monotonic()
        self.log = pathlib.Path(os.environ["TMPDIR"], f"{self.image.container}.log")
        with self.log.open("w") as log:
            self.process = subprocess.Popen(self.command, env=self.environment, stderr=log)
        while '"event":"listening"' not in self.log.read_text() or self.health().returncode != 0:
            if self.process.poll() is not None or time.monotonic() > began + 60:
                self.__exit__()
                raise RuntimeError(f"the container does not serve: {self.log.read_text()}")
            time.sleep(0.01)
        self.start_seconds = time.monotonic() - began
        return self

    @property
    def pid(self) -> int:
        """The server's process, as this side numbers it: the one child of unshare."""
        return int(pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text())

    def health(self) -> subprocess.CompletedProcess:
        """The image's health check, as a runtime runs it: in the container, as its user."""
        kind, *check = self.image.config["Healthcheck"]["Test"]
        assert kind == "CMD", kind
        user, group = self.image.config["User"].split(":")
        enter = [tool("nsenter"), f"--target={self.pid}", "--mount", "--pid", "--ipc", "--uts", "--root", "--wd=/"]
        return subprocess.run([*enter, f"--setuid={user}", f"--setgid={group}", *check], env=self.environment,
                              capture_output=True, text=True, timeout=30)

    def status(self) -> dict[str, list[str]]:
        """/proc/PID/status of process 1 of the container."""
        lines = pathlib.Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return {line.split(":")[0]: line.split(":")[1].split() for line in lines}

    def figures(self) -> str:
        resident_kib = int(self.status()["VmRSS"][0])
        return f"start to SERVING {self.start_seconds:.2f} s, {resident_kib / 1024:.0f} MiB resident"

    def stop(self) -> tuple[int, str]:
        """The configured signal to process 1; exit code and log."""
        os.kill(self.pid, getattr(signal, self.image.config["StopSignal"]))
        return self.process.wait(timeout=120), self.log.read_text()

    def __exit__(self, *exception) -> None:
        if self.process.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
        self.process.wait(timeout=60)


def tool(name: str) -> str:
    """Path of a program of the host: the container's PATH must not decide it."""
    path = shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin:/sbin")
    assert path, f"{name} is not installed"
    return path


def rivulet(*args: str) -> subprocess.Popen:
    """The host's `rivulet` against the container."""
    return subprocess.Popen([BIN_DIR / "rivulet", *args, "--target", TARGET], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)


def loopback_up() -> None:
    """SIOCSIFFLAGS on lo; a new network namespace has it down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, 0x8914, struct.pack("16sh14x", b"lo", 0x1 | 0x40))


def report(text: str) -> None:
    print(f"image_test.py: {text}", file=sys.stderr)


class ImageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        loopback_up()
        cls.image = Image(IMAGE)
        cls.addClassCleanup(cls.image.remove)
        base = Image(BASE)
        cls.addClassCleanup(base.remove)
        cls.files, cls.base_files = cls.image.files(), base.files()

    def succeeds(self, process: subprocess.Popen) -> str:
        out, err = process.communicate(timeout=300)
        self.assertEqual(process.returncode, 0, err)
        return out

    def test_it_adds_at_most_150_mb_to_its_base_in_one_folder(self):
        added = set(self.files) - set(self.base_files)
        self.assertEqual({path for path in added if not re.match(r"opt/rivulet(/|$)", path)}, set())
        size = sum(self.files[path].st_size for path in added if stat.S_ISREG(self.files[path].st_mode))
        report(f"{size / 1e6:.1f} MB in {len(added)} paths beyond the base")
        self.assertLessEqual(size, LIMIT_BYTES)
        self.assertGreater(size, 5_000_000, "server and libraries are not in it")
        kept = ("st_mode", "st_uid", "st_gid", "st_size")
        changed = [p for p, old in self.base_files.items()
                   if stat.S_ISREG(old.st_mode) and (p not in self.files or any(
                       getattr(old, k) != getattr(self.files[p], k) for k in kept))]
        self.assertEqual(changed, [])

    def test_it_holds_no_tools_of_the_build_and_nothing_with_rights(self):
        status = (self.image.root / "var/lib/dpkg/status").read_text()
        packages = re.findall(r"^Package: (.*)$", status, re.M)
        self.assertIn("libc6", packages)
        tools = re.compile(r".*-dev$|(g\+\+|gcc|cpp|clang|binutils|make|cmake|ninja-build|protobuf-compiler)(-\d+)?$")
        self.assertEqual([p for p in packages if tools.match(p)], [])
        programs = re.compile(r"(.*-)?(gcc|g\+\+|cc|c\+\+|cpp|ld|as|clang|make|cmake|ninja|protoc|nvcc)(-\d+)?$")
        folders = re.compile(r"(usr/|usr/local/|opt/rivulet/)?s?bin/")
        executables = [p for p, s in self.files.items() if folders.match(p) and s.st_mode & 0o111]
        self.assertIn("opt/rivulet/bin/rivulet-server", executables)
        self.assertEqual([p for p in executables if programs.match(pathlib.Path(p).name)], [])
        self.assertEqual([p for p in self.files if p.endswith((".h", ".a", ".o"))], [])
        for path in set(self.files) - set(self.base_files):
            found = self.files[path]
            self.assertFalse(found.st_mode & (stat.S_ISUID | stat.S_ISGID | stat.S_IWGRP | stat.S_IWOTH)
                             and not stat.S_ISLNK(found.st_mode), path)
            self.assertEqual((found.st_uid, found.st_gid), (0, 0), path)

    def test_every_library_comes_with_its_licence(self):
        folder = self.image.root / "opt/rivulet"
        licences = {path.name for path in (folder / "licenses").iterdir() if path.stat().st_size > 0}
        owners = {"libgrpc.so": "libgrpc29", "libprotobuf.so": "libprotobuf32", "libcrypto.so": "libssl3",
                  "libabsl_base.so": "libabsl20220623", "libhwy.so": "libhwy1", "libstdc++.so": "libstdc++6"}
        for name, package in owners.items():
            self.assertTrue(any(path.name.startswith(name) for path in (folder / "lib").iterdir()), name)
            self.assertIn(package, licences)
        self.assertIn("Apache License", (folder / "LICENSE").read_text())

    def test_its_configuration_is_what_the_dockerfile_says(self):
        config = self.image.config
        self.assertRegex(config["User"], r"^[1-9]\d*:[1-9]\d*$")
        self.assertEqual(list(config["ExposedPorts"]), ["50051/tcp"])
        self.assertEqual(config["StopSignal"], "SIGTERM")
        self.assertEqual(config["Entrypoint"][0], "rivulet-server")
        self.assertEqual(config["Cmd"], ["--model", "/models"])
        self.assertEqual(config["Healthcheck"]["Test"], ["CMD", "rivulet", "health", "--target", "127.0.0.1:50051"])
        self.assertFalse(config.get("Volumes"))
        labels = {key.rpartition(".")[2]: value for key, value in config["Labels"].items()}
        project = re.search(r"project\(rivulet VERSION ([\d.]+)", (SOURCE_DIR / "CMakeLists.txt").read_text()).group(1)
        self.assertEqual(labels["version"], project, "VERSION of the Dockerfile is not that of CMakeLists.txt")
        self.assertEqual((labels["title"], labels["licenses"]), ("Rivulet", "Apache-2.0"))
        self.assertEqual(Container(self.image, args=["--version"]).run().stdout.strip(), f"rivulet-server {project}")

    def test_it_serves_mounted_models_without_rights_on_a_read_only_root(self):
        models = ["--model", "/models/mnist-linear", "--model", "/models/shakespeare-rfa"]
        with Container(self.image, ZOO, models) as container:
            status = container.status()
            user, group = self.image.config["User"].split(":")
            self.assertEqual((status["Uid"], status["Gid"], status["Groups"]), ([user] * 4, [group] * 4, []))
            self.assertEqual({status[name][0] for name in ("CapPrm", "CapEff", "CapInh", "CapAmb")}, {"0" * 16})
            self.assertEqual((status["NSpid"][-1], status["NoNewPrivs"]), ("1", ["1"]))
            root = pathlib.Path(f"/proc/{container.pid}/root")
            for path in ("", "models", "tmp", "var", "opt/rivulet"):
                self.assertTrue(os.statvfs(root / path).f_flag & os.ST_RDONLY, path)
            with self.assertRaisesRegex(OSError, "Read-only"):  # whoever writes: this process is root
                (root / "tmp/x").touch()
            report(f"both models mounted: {container.figures()}")
            names = self.succeeds(rivulet("models"))
            self.assertIn("mnist-linear", names)
            self.assertIn("shakespeare-rfa", names)
            text = self.succeeds(rivulet("generate", "--model-name", "shakespeare-rfa", "--prompt", "ROMEO:",
                                         "--max-tokens", "50", "--seed", "1"))
            self.assertGreaterEqual(len(text), 50)
            self.assertEqual(container.stop()[0], 0)

    def test_a_reply_goes_on_to_its_end_after_the_stop_signal(self):
        request = ("generate", "--model-name", "shakespeare-rfa", "--prompt", "A", "--max-tokens", "1000", "--seed=1")
        # However busy this machine is, the reply must not outlast the drain.
        args = ["--model", "/models", "--threads", "1", "--drain-seconds", "300"]
        with Container(self.image, ZOO / "shakespeare-rfa", args) as container:
            whole = self.succeeds(rivulet(*request))
            reply = rivulet(*request)
            first = os.read(reply.stdout.fileno(), 1).decode()  # nothing may stay in a buffer here
            code, log = container.stop()
            self.assertEqual(code, 0, log)
            self.assertEqual(first + self.succeeds(reply), whole)
            self.assertGreater(len(whole), 900)
            self.assertLess(log.index('"event":"draining"'), log.index('"event":"stopped"'))

    def test_the_health_check_fails_where_the_server_does_not_serve(self):
        with Container(self.image, ZOO / "mnist-linear") as container:
            self.assertEqual(container.health().returncode, 0)
            os.kill(container.pid, signal.SIGSTOP)
            check = container.health()
            os.kill(container.pid, signal.SIGCONT)
            self.assertNotEqual(check.returncode, 0)

    def test_a_start_without_a_model_says_what_is_missing(self):
        done = Container(self.image).run()
        self.assertEqual(done.returncode, 2, done)
        self.assertRegex(done.stderr, r"^rivulet-server: /models\b.*\n$")

    def test_flags_win_over_the_image_and_keep_its_address(self):
        def settings(*flags: str) -> tuple[str, int]:
            args = ["--model", "/models", "--print-config", *flags]
            printed = json.loads(Container(self.image, ZOO / "mnist-linear", args).run().stdout)
            return printed["listen"], printed["threads"]

        self.assertEqual(settings("--threads", "1"), ("0.0.0.0:50051", 1))
        self.assertEqual(settings("--listen", "0.0.0.0:1"), ("0.0.0.0:1", 0))

    def test_a_baked_in_model_is_served_without_any_argument(self):
        image = Image(IMAGE_WITH_MODEL)
        self.addCleanup(image.remove)
        for path in (image.root / "models").rglob("*"):
            self.assertEqual(path.stat().st_mode & 0o7777, 0o755, path)
        with Container(image) as container:
            out = pathlib.Path(os.environ["TMPDIR"], "digit.png")
            self.succeeds(rivulet("generate", "--model-name", "mnist-linear", "--seed", "1", "--out", str(out)))
            self.assertEqual(out.read_bytes()[:4], b"\x89PNG")
            report(f"mnist-linear baked in: {container.figures()}")
            self.assertEqual(container.stop()[0], 0)


class WheelTest(unittest.TestCase):
    """The wheel of deploy/wheel.sh on a system that has Python and none of our libraries."""

    def test_it_serves_and_the_command_reaches_it(self):
        loopback_up()
        image = Image(IMAGE_WHEEL)
        self.addCleanup(image.remove)
        packages = re.findall(r"^Package: (.*)$", (image.root / "var/lib/dpkg/status").read_text(), re.M)
        self.assertEqual([name for name in packages if re.match(r"lib(grpc|protobuf|absl|hwy|re2|isal|png)", name)], [])
        with Container(image, ZOO / "shakespeare-rfa", ["--model", "/models"]) as container:  # its health check is `rivulet`
            self.assertRegex(os.readlink(f"/proc/{container.pid}/exe"), r"/site-packages/rivulet_server/bin/rivulet-server$")
            out, err = rivulet("generate", "--prompt", "ROMEO:", "--max-tokens", "50", "--seed", "1").communicate(timeout=300)
            self.assertGreaterEqual(len(out), 50, err)
            report(f"wheel: {container.figures()}")
            self.assertEqual(container.stop()[0], 0)


class GatewayImageTest(unittest.TestCase):
    """The image of deploy/gateway.Dockerfile."""

    URL = "http://127.0.0.2:8000"  # beyond its own loopback, as TARGET

    @classmethod
    def setUpClass(cls) -> None:
        loopback_up()
        cls.image, cls.server = Image(IMAGE_GATEWAY), Image(IMAGE)
        cls.addClassCleanup(cls.image.remove)
        cls.addClassCleanup(cls.server.remove)

    def fetch(self, path: str, body: dict | None = None) -> tuple[int, bytes]:
        data, headers = (None, {}) if body is None else (json.dumps(body).encode(), {"content-type": "application/json"})
        request = urllib.request.Request(self.URL + path, data, headers)
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=300) as answer:
            return answer.status, answer.read()

    def test_it_answers_for_the_server_without_rights_on_a_read_only_root(self):
        with Container(self.server, ZOO / "shakespeare-rfa") as server:
            with Container(self.image, args=["--target", TARGET], devices=("urandom",)) as gateway:
                status = gateway.status()
                user, group = self.image.config["User"].split(":")
                self.assertEqual((status["Uid"], status["Gid"], status["Groups"]), ([user] * 4, [group] * 4, []))
                self.assertEqual({status[name][0] for name in ("CapPrm", "CapEff", "CapInh", "CapAmb")}, {"0" * 16})
                self.assertTrue(os.statvfs(pathlib.Path(f"/proc/{gateway.pid}/root") / "tmp").f_flag & os.ST_RDONLY)
                report(f"gateway: {gateway.figures()}")
                body = {"model": "shakespeare-rfa", "prompt": "A", "max_tokens": 20, "seed": 1}
                (choice,) = json.loads(self.fetch("/v1/completions", body)[1])["choices"]
                self.assertEqual(len(choice["text"]), 20)
                self.assertIn(b"<title>Rivulet</title>", self.fetch("/")[1])
                self.assertEqual(server.stop()[0], 0)
                self.assertNotEqual(gateway.health().returncode, 0)
                self.assertEqual(gateway.stop()[0], 0)

    def test_a_start_without_a_target_says_what_is_missing(self):
        done = Container(self.image).run()
        self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1), done)
        self.assertIn("--target", done.stderr)

    def test_it_holds_no_tools_of_the_build(self):
        packages = re.findall(r"^Package: (.*)$", (self.image.root / "var/lib/dpkg/status").read_text(), re.M)
        self.assertIn("python3", packages)
        self.assertEqual([p for p in packages if re.match(r"(.*-dev|gcc|g\+\+|binutils|python3-(pip|venv).*)$", p)], [])
        installed = {path.name for path in (self.image.root / "opt/rivulet-gateway/lib/python3.11/site-packages").iterdir()}
        self.assertIn("rivulet", installed)
        self.assertFalse(installed & {"pip", "setuptools", "grpc_tools", "hatchling"})
        files = self.image.files()
        size = sum(one.st_size for path, one in files.items() if stat.S_ISREG(one.st_mode) and path.startswith("opt/"))
        report(f"gateway: {size / 1e6:.1f} MB in /opt")
        for path, one in files.items():
            writable = one.st_mode & (stat.S_ISUID | stat.S_IWGRP | stat.S_IWOTH) and not stat.S_ISLNK(one.st_mode)
            self.assertFalse(path.startswith("opt/") and writable, path)


if __name__ == "__main__":
    unittest.main(verbosity=2)
