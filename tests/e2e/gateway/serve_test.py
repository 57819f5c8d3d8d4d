# SPDX-License-Identifier: Apache-2.0
"""rivulet serve: both programs as one, from start to end, and models by their name in the cache of Hugging Face."""

import contextlib
import hashlib
import http.server
import io
import json
import os
import pathlib
import re
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock
import urllib.error
import urllib.parse
import urllib.request

import rivulet_wheel
from authority import Authority
from command import BIN_DIR, ZOO, rivulet
from gateway import PATIENCE, environment

from rivulet import Client, __version__
from rivulet.gateway import serve
from rivulet.gateway.process import hub


def words(*args):
    return [str(word) for word in (BIN_DIR / "rivulet", "serve", *args)]


def surroundings(**more):
    return {**environment(), "RIVULET_PYTHON": str(rivulet_wheel.PYTHON), **more}


def run(*args, **more):
    """Exit code, stdout and stderr of a start that fails."""
    done = subprocess.run(words(*args), capture_output=True, text=True, timeout=PATIENCE, env=surroundings(**more))
    return done.returncode, done.stdout, done.stderr


def children(pid):
    return [int(word) for word in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid):
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False


class Serve:
    """A running `rivulet serve` on free ports. http, grpc: its addresses; server, gateway: pids."""

    def __init__(self, *args, **more):
        self.command = words(*args, "--http", "127.0.0.1:0", "--listen", "127.0.0.1:0")
        self.more = more

    def __enter__(self):
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            self.command, stdout=subprocess.PIPE, stderr=self.errors, text=True, env=surroundings(**self.more)
        )
        line = self.process.stdout.readline()
        found = re.fullmatch(r"The page is (\S+)/, OpenAI's API is \1/v1, gRPC is (\S+)\. Ctrl-C ends all\.\n", line)
        if not found:
            self.process.kill()
            raise RuntimeError(f"it did not start: {line}{self.log()}")
        self.url, self.target = found.groups()
        self.server, self.gateway = children(self.process.pid)
        return self

    def log(self):
        self.errors.seek(0)
        return self.errors.read()

    def end(self, number):
        """Sends the signal; the exit code."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)

    def __exit__(self, *exception):
        if self.process.returncode is None:
            self.end(signal.SIGTERM)
        self.process.stdout.close()
        self.errors.close()


def completion(served, **options):
    body = json.dumps({"model": "shakespeare-rfa", "prompt": "ROMEO:", "max_tokens": 20, "seed": 1, **options}).encode()
    return urllib.request.Request(f"{served.url}/v1/completions", body, {"content-type": "application/json"})


# One thread, and a drain that also a server with sanitizers ends in time.
SLOW = ("--threads", "1", "--drain-seconds", "100", "--http-drain-seconds", "100")


class ServeTest(unittest.TestCase):
    def gone(self, *pids):
        end = time.monotonic() + PATIENCE
        while any(map(alive, pids)):
            self.assertLess(time.monotonic(), end, pids)
            time.sleep(0.05)

    def test_both_serve_and_a_signal_ends_the_gateway_first_after_its_answers(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            with self.subTest(number=number), Serve(ZOO / "shakespeare-rfa", *SLOW) as served:
                with Client(served.target) as client:
                    over_grpc = client.generate("ROMEO:", max_tokens=20, seed=1).collect().text
                with urllib.request.urlopen(completion(served)) as answer:
                    self.assertEqual(json.load(answer)["choices"][0]["text"], over_grpc)
                with urllib.request.urlopen(completion(served, max_tokens=1500, stream=True)) as stream:
                    stream.readline()
                    served.process.send_signal(number)
                    self.assertTrue(stream.read().endswith(b"data: [DONE]\n\n"))
                self.assertEqual(served.process.wait(PATIENCE), 0, served.log())
                events = [json.loads(line)["event"] for line in served.log().splitlines()]
                self.assertEqual([event for event in events if event in ("listening", "stopped", "draining")],
                                 ["listening", "listening", "stopped", "draining", "stopped"])  # fmt: skip

    def test_the_end_of_one_drains_the_other_and_is_an_error(self):
        for victim, number, expected in (("server", signal.SIGKILL, 137), ("gateway", signal.SIGKILL, 137), ("gateway", signal.SIGTERM, 1)):
            serve_one = Serve(ZOO / "shakespeare-rfa", *SLOW)
            with self.subTest(victim=victim, number=number), serve_one as served, Client(served.target) as client:
                reply = iter(client.generate("ROMEO:", max_tokens=1500, seed=1))
                tokens = len(next(reply).tokens)
                os.kill(getattr(served, victim), number)
                if victim == "gateway":
                    self.assertEqual(tokens + sum(len(part.tokens) for part in reply), 1500)
                self.assertEqual(served.process.wait(PATIENCE), expected, served.log())
                self.gone(served.server, served.gateway)
                self.assertIn('"event":"stopped"', served.log())  # of the other one

    def test_kill_9_leaves_no_process(self):
        with Serve(ZOO / "shakespeare-rfa", "--http-workers", "2") as served:
            with urllib.request.urlopen(completion(served)):
                workers = children(served.gateway)
            helpers = [pid for worker in workers for pid in children(worker)]
            self.assertEqual((len(workers), len(helpers)), (2, 4))
            self.assertEqual(served.end(signal.SIGKILL), -9)
            self.gone(served.server, served.gateway, *workers, *helpers)

    def test_a_second_signal_ends_it_at_once(self):
        with Serve(ZOO / "shakespeare-rfa", "--threads", "1") as served, urllib.request.urlopen(
            completion(served, max_tokens=1 << 20, stream=True)
        ) as stream:
            stream.readline()
            served.process.send_signal(signal.SIGINT)
            time.sleep(0.2)
            self.assertEqual(served.end(signal.SIGINT), 130)
            self.gone(served.server, served.gateway)

    def test_tls_and_keys_of_both(self):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        authority = Authority(folder, "authority")
        cert, key = authority.sign("server")
        keys = folder / "keys.json"
        made = rivulet("keys", "new", "--keys-file", keys, "app")
        secret = made.out.strip().splitlines()[-1]
        tls = ("--tls-cert", cert, "--tls-key", key)
        code, _, error = run(ZOO / "shakespeare-rfa", *tls)
        self.assertEqual((code, "--http-tls-ca" in error, error.count("\n")), (2, True, 1), error)
        self.assertEqual(run(ZOO / "shakespeare-rfa", *tls, "--check-config"), (code, "", error))
        https = ("--http-tls-ca", authority.pem, "--http-https-cert", cert, f"--http-https-key={key}")
        with Serve(ZOO / "shakespeare-rfa", *tls, "--keys-file", keys, *https) as served:
            context = ssl.create_default_context(cafile=authority.pem)
            request = completion(served)
            with self.assertRaises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(request, context=context)
            self.assertEqual(refused.exception.code, 401)
            request.add_header("authorization", f"Bearer {secret}")
            with urllib.request.urlopen(request, context=context) as answer:
                self.assertEqual(json.load(answer)["usage"]["completion_tokens"], 20)

    def test_an_error_of_the_start_is_one_line(self):
        rfa = ZOO / "shakespeare-rfa"
        with socket.create_server(("127.0.0.1", 0)) as taken:
            busy = f"127.0.0.1:{taken.getsockname()[1]}"
            cases = {
                (rfa, "--http", busy): (3, f"rivulet serve: --http: cannot listen on {busy}: Address already in use"),
                (rfa, "--listen", busy): (3, f"rivulet serve: --listen: cannot listen on {busy}: Address already in use"),
                (rfa, "--http", "x"): (2, "rivulet serve: --http: must be HOST:PORT"),
                (rfa, "--http-workers=0"): (2, "rivulet serve: --http-workers: must be a whole number"),
                (rfa, "--http", "127.0.0.1:1", "--listen=127.0.0.1:1"): (2, "rivulet serve: --http: 127.0.0.1:1 is the address of --listen, too"),
                (rfa, "--http-bogus"): (2, "rivulet serve: unrecognized arguments: --http-bogus"),
                (rfa, "--http-https-cert", rfa): (2, "rivulet serve: --http-https-cert: needs --http-https-key too"),
                (rfa, "--http-target", "a:1"): (2, "rivulet serve: --http-target: "),
                (rfa, "--port", "8000"): (2, "rivulet serve: --port: --http HOST:PORT is the address of the HTTP server"),
                (rfa, "--slot", "1"): (2, "--slots"),
                (rfa, "-c", "4096"): (2, "rivulet-server: unknown option -c; did you mean --max-context?"),
                (): (2, "rivulet serve: no model is given"),
                ("-hf", "o/n"): (2, "rivulet serve: unknown option -hf: a model stands alone"),
                ("./nowhere",): (2, "rivulet serve: ./nowhere: there is no such directory or file"),
                ("nowhere",): (2, "rivulet serve: nowhere: there is no such directory or file"),
            }
            for arguments, (expected, said) in cases.items():
                with self.subTest(arguments=arguments):
                    code, out, error = run(*arguments, **{"HF_HUB_CACHE": "/nonexistent"})
                    self.assertEqual((code, out, error.count("\n"), said in error), (expected, "", 1, True), error)

    def test_without_the_python_part(self):
        code, out, error = run(ZOO / "shakespeare-rfa", RIVULET_PYTHON=sys.executable, PYTHONPATH="")
        self.assertEqual((code, out, error.count("\n"), "rivulet-client[gateway]" in error), (2, "", 1, True), error)
        code, out, error = run(ZOO / "shakespeare-rfa", RIVULET_PYTHON="/nowhere/python")
        self.assertEqual((code, out, error.count("\n"), "/nowhere/python" in error), (2, "", 1, True), error)

    def test_a_virtual_environment_beside_the_programs_is_found(self):
        prefix = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(dir=BIN_DIR.parent)))
        (prefix / "bin").mkdir()
        (prefix / "bin/rivulet").hardlink_to(BIN_DIR / "rivulet")
        (prefix / "gateway/bin").mkdir(parents=True)
        for name, script in (("bin/rivulet-server", ""), ("gateway/bin/python3", 'echo "$1 $4 $5"')):
            (prefix / name).write_text(f"#!/bin/sh\n{script}\n")
            (prefix / name).chmod(0o755)
        kept = {name: value for name, value in surroundings().items() if name != "RIVULET_PYTHON"}
        done = subprocess.run([prefix / "bin/rivulet", "serve", "MODEL"], capture_output=True, text=True, timeout=PATIENCE, env=kept)
        self.assertEqual((done.returncode, done.stdout), (0, f"-c {prefix / 'bin/rivulet-server'} MODEL\n"), done)

    def test_versions_must_agree(self):
        with self.assertRaises(SystemExit) as ended, contextlib.redirect_stderr(io.StringIO()) as error:
            serve.main("9.9.9", "/nowhere", [])
        self.assertEqual((ended.exception.code, "9.9.9" in error.getvalue()), (2, True), error.getvalue())

    def test_the_settings_and_the_version_are_printed(self):
        code, out, error = run(ZOO / "shakespeare-rfa", "--print-config", "--slots", "3")
        self.assertEqual((code, json.loads(out)["slots"], error), (0, 3, ""))
        self.assertEqual(run("--version"), (0, f"rivulet serve {__version__}\n", ""))

    def test_check_config_prints_all_errors(self):
        good = run(ZOO / "shakespeare-rfa", "--check-config", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0")
        self.assertEqual(good, (0, "the configuration is good\n", ""))
        code, out, error = run(ZOO / "shakespeare-rfa", "--check-config", "--slots", "2", "--tls-key", "/nowhere", "--http-workers", "0", "--http-tls-ca", "/no")
        self.assertEqual((code, out), (2, ""))
        for said in ("tls-key", "--http-workers: ", "--http-tls-ca: "):
            self.assertIn(said, error)


class HubTest(unittest.TestCase):
    def setUp(self):
        self.cache = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.enterContext(unittest.mock.patch.dict(os.environ, {"HF_HUB_CACHE": str(self.cache)}))

    def repository(self, name, *files, revision="main"):
        """Puts a repository into the cache; the folder of its files."""
        folder = self.cache / f"models--{name.replace('/', '--')}"
        snapshot = folder / "snapshots" / f"c0ffee{revision}"
        (folder / "refs").mkdir(parents=True, exist_ok=True)
        (folder / "refs" / revision).write_text(snapshot.name)
        for file in files:
            (snapshot / file).parent.mkdir(parents=True, exist_ok=True)
            (snapshot / file).write_text("")
        return snapshot

    def refused(self, text, *mentions, download=False):
        with self.assertRaises(hub.NotFound) as error:
            hub.find(text, download)
        for mention in mentions:
            self.assertIn(mention, str(error.exception))

    def test_a_path_wins(self):
        self.repository("owner/name", "model.safetensors")
        with contextlib.chdir(self.enterContext(tempfile.TemporaryDirectory())):
            self.assertIn("models--owner--name", hub.find("owner/name", False))
            os.makedirs("owner/name")
            self.assertEqual(hub.find("owner/name", False), "owner/name")
            self.assertEqual(hub.find("a=owner/name", False), "a=owner/name")

    def test_revisions_and_files(self):
        main = self.repository("o/n", "config.json", "model.safetensors")
        other = self.repository("o/n", "model.safetensors", revision="v1")
        self.assertEqual(hub.find("o/n", False), f"n={main}")
        self.assertEqual(hub.find("o/n@v1", False), f"n={other}")
        self.assertEqual(hub.find("o/n@c0ffeev1", False), f"n={other}")
        self.refused("o/n@v2", "o/n@v2", str(self.cache), "--download")
        files = ("x-Q4_K_M.gguf", "sub/x-Q8_0-00001-of-00002.gguf", "sub/x-Q8_0-00002-of-00002.gguf")
        many = self.repository("o/gguf", *files)
        self.refused("o/gguf", "2 GGUF files", "o/gguf:sub/x-Q8_0-00001-of-00002.gguf", "x-Q4_K_M.gguf")
        self.assertEqual(hub.find("o/gguf:x-Q4_K_M.gguf", False), f"gguf={many / files[0]}")
        self.refused("o/gguf:y.gguf", "y.gguf", "--download")
        one = self.repository("o/one", "y.gguf")
        self.assertEqual(hub.find("o/one", False), f"one={one / 'y.gguf'}")
        self.refused("o/none", "o/none", "--download")
        self.repository("o/empty", "README.md")
        self.refused("o/empty", "no .safetensors and no .gguf file")

    def test_where_the_cache_is(self):
        for names, expected in (
            ({"HF_HUB_CACHE": "/a", "HF_HOME": "/b"}, "/a"), ({"HF_HOME": "/b"}, "/b/hub"), ({"XDG_CACHE_HOME": "/c"}, "/c/huggingface/hub"),
            ({"HOME": "/d"}, "/d/.cache/huggingface/hub"),
        ):  # fmt: skip
            with self.subTest(names=names), unittest.mock.patch.dict(os.environ, names, clear=True):
                self.assertEqual(str(hub.cache()), expected)

    def test_download_from_an_endpoint(self):
        weights = (ZOO / "shakespeare-rfa/model.safetensors").read_bytes()[:1000]
        files = {"config.json": b"{}", "model.safetensors": weights, "x.gguf": b"GGUF", "training.bin": b"x"}
        commit = "0123456789abcdef0123456789abcdef01234567"

        class Hub(http.server.BaseHTTPRequestHandler):
            def do_HEAD(self):
                self.answer(head=True)

            def do_GET(self):
                self.answer(head=False)

            def answer(self, head):
                asked.append(self.path)
                path = urllib.parse.unquote(self.path.partition("?")[0])
                if path.startswith("/api/models/o/n"):
                    siblings = [{"rfilename": name} for name in files]
                    body, etag = json.dumps({"id": "o/n", "sha": commit, "siblings": siblings, "private": False, "tags": []}).encode(), None
                    if "/tree/" in path:
                        body = json.dumps([{"type": "file", "path": name, "size": len(data), "oid": "0" * 40} for name, data in files.items()]).encode()
                elif path.startswith("/o/n/resolve/") and (name := path.rsplit("/", 1)[1]) in files:
                    body = files[name]
                    etag = hashlib.sha256(body).hexdigest()
                else:
                    self.send_error(404)
                    return
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                self.send_header("x-repo-commit", commit)
                if etag:
                    self.send_header("etag", f'"{etag}"')
                self.end_headers()
                if not head:
                    self.wfile.write(body)

            def log_message(self, *_):
                pass

        asked = []
        endpoint = self.enterContext(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub))
        threading.Thread(target=endpoint.serve_forever, daemon=True).start()
        # The package reads the variables when it is imported.
        program = "import sys; from rivulet.gateway.process import hub; print(hub.find(sys.argv[1], True))"
        variables = surroundings(HF_ENDPOINT=f"http://127.0.0.1:{endpoint.server_port}", HF_HUB_DISABLE_XET="1", HF_HUB_DISABLE_PROGRESS_BARS="1")

        def found(name):
            done = subprocess.run(
                [rivulet_wheel.PYTHON, "-c", program, name], capture_output=True, text=True, timeout=PATIENCE, env=variables
            )
            return done.stdout.strip() or done.stderr

        snapshot = self.cache / "models--o--n/snapshots" / commit
        self.assertEqual(found("o/n"), f"n={snapshot}", asked)
        self.assertEqual(sorted(path.name for path in snapshot.iterdir()), ["config.json", "model.safetensors"])
        self.assertEqual((snapshot / "model.safetensors").read_bytes(), weights)
        before = len(asked)
        self.assertEqual(found("o/n"), f"n={snapshot}")
        self.assertEqual(len(asked), before)  # what the cache has is not asked for
        self.assertEqual(found("o/n:x.gguf"), f"n={snapshot / 'x.gguf'}", asked)
        self.assertIn("rivulet.gateway.process.hub.NotFound: --download: o/other", found("o/other"))
        endpoint.shutdown()
        endpoint.server_close()
        self.assertIn("rivulet.gateway.process.hub.NotFound: --download: o/away", found("o/away"))


if __name__ == "__main__":
    unittest.main()
