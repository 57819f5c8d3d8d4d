# SPDX-License-Identifier: Apache-2.0
"""Models loaded and unloaded at run time, by `rivulet models load|unload` at --admin-listen of a real server."""

import json
import pathlib
import shutil
import socket
import subprocess
import tempfile
import unittest

from command import BIN_DIR, CONFORMANCE, CommandTest, Server, rivulet

RFA, ELU, IMAGE = "tiny-rfa", "tiny-elu-relu", "tiny-image"
ADMIN = ["--admin-listen", "127.0.0.1:0"]
ENDLESS = "1000000"
NOBODY = "127.0.0.1:1"


def generate(target, model, *args):
    return ["generate", "--target", target, "--model-name", model, "--seed", "7", *args]


class AdminTest(CommandTest):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.repository = pathlib.Path(folder.name)
        self.put(ELU)
        self.put(IMAGE)

    def put(self, name, source=None):
        shutil.copytree(CONFORMANCE / (source or name), self.repository / name)

    def serve(self, *models, args=()):
        server = Server(*models, args=[*ADMIN, "--model-repository", self.repository, "--threads", "1", "--backend", "cpu", *args])
        self.enterContext(server)
        return server

    def enterContext(self, context):  # of unittest from Python 3.11 on
        result = context.__enter__()
        self.addCleanup(context.__exit__, None, None, None)
        return result

    def names(self, server):
        return [line["name"] for line in self.succeeds(rivulet("models", "--target", server.target, "--json")).lines()]

    def start(self, *command):
        process = subprocess.Popen([BIN_DIR / "rivulet", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)

        def end():
            process.kill()
            process.communicate()

        self.addCleanup(end)
        self.assertTrue(process.stdout.read(1), "a reply has begun")
        return process

    def test_a_model_comes_and_goes_beside_a_running_reply(self):
        server = self.serve(CONFORMANCE / RFA)
        tokens = ["--max-tokens", "60000"]  # more than a pipe holds: it waits here for its reader
        alone = self.succeeds(rivulet(*generate(server.target, RFA, *tokens))).out
        beside = self.start(*generate(server.target, RFA, *tokens))
        loaded = self.succeeds(rivulet("models", "load", ELU, "--target", server.admin, "--json"))
        (line,) = loaded.lines()
        self.assertEqual((line["name"], line["backend"], len(line["weights_sha256"])), (ELU, "cpu", 64))
        self.assertIn(f"loaded {ELU}", loaded.err)
        self.assertEqual(self.names(server), [RFA, ELU])
        health = self.succeeds(rivulet("health", "--target", server.target)).out
        self.assertEqual([row.split() for row in health.splitlines()], [["server", "SERVING"], [RFA, "SERVING"], [ELU, "SERVING"]])
        here = self.succeeds(rivulet("generate", "--model", CONFORMANCE / ELU, "--seed", "7", "--max-tokens", "20", "--tokens", "1"))
        there = self.succeeds(rivulet(*generate(server.target, ELU, "--max-tokens", "20", "--tokens", "1")))
        self.assertEqual(there.out, here.out)
        result = self.succeeds(rivulet("models", "unload", ELU, "--target", server.admin))
        self.assertEqual(result.out, "")
        self.assertEqual(result.err, f"unloaded {ELU}: every reply ended by itself, 0 sessions closed\n")
        self.assertIsNone(beside.poll())
        out, err = beside.communicate(timeout=60)
        self.assertEqual(beside.returncode, 0, err)
        self.assertTrue(alone[0] + out.decode() == alone, "the reply beside it is the one that it is alone")

        self.assertEqual(self.names(server), [RFA])
        self.fails(rivulet(*generate(server.target, ELU, "--max-tokens", "1")), 2, ELU)
        self.fails(rivulet("health", "--target", server.target, "--model-name", ELU), 3, "NOT_SERVING", out=None)
        self.succeeds(rivulet("health", "--target", server.target))

    def test_an_unload_ends_what_runs_at_its_deadline_and_closes_the_sessions(self):
        server = self.serve(CONFORMANCE / RFA, CONFORMANCE / ELU)
        for _ in range(3):
            self.succeeds(rivulet("sessions", "open", "--target", server.target, "--model-name", RFA))
        cut = self.start(*generate(server.target, RFA, "--max-tokens", ENDLESS, "--no-resume"))
        other = self.start(*generate(server.target, ELU, "--max-tokens", ENDLESS))
        unloaded = self.succeeds(rivulet("models", "unload", RFA, "--drain-timeout", "0", "--target", server.admin, "--json"))
        self.assertEqual(unloaded.lines(), [{"name": RFA, "all_ended": False, "sessions_closed": 3}])
        _, err = cut.communicate(timeout=60)
        self.assertEqual(cut.returncode, 3, err)
        self.assertEqual(err.count(b"\n"), 1, err)
        self.assertTrue(other.stdout.read(1000), "another model's reply goes on")
        self.assertIsNone(other.poll())
        # It is loaded again from the directory that the server was started with, and its sessions are gone.
        self.succeeds(rivulet("models", "load", RFA, "--target", server.admin))
        table = self.succeeds(rivulet("sessions", "list", "--target", server.target, "--model-name", RFA)).out
        self.assertEqual(len(table.splitlines()), 1, table)

    def test_every_bad_wish_is_refused_and_changes_nothing(self):
        self.put("renamed", source=IMAGE)
        self.put("broken", source=IMAGE)
        weights = self.repository / "broken/model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1])
        server = self.serve(CONFORMANCE / RFA)
        load = lambda name, *args: rivulet("models", "load", name, "--target", server.admin, *args)
        unload = lambda name, *args: rivulet("models", "unload", name, "--target", server.admin, *args)
        self.fails(load(RFA), 2, RFA, "unload it first")
        self.fails(load("absent"), 2, "absent", str(self.repository))
        self.fails(load("renamed"), 2, "renamed", IMAGE)
        self.fails(load("broken"), 2, "broken", "model.safetensors")
        self.fails(unload(IMAGE), 2, IMAGE)
        for name in ("../tiny-image", "/etc", ".", "..", "", "A", "tiny-image/", "x" * 65):
            with self.subTest(name=name):
                self.fails(load(name), 2, "model is")
                self.fails(unload(name), 2, "model is")
        self.fails(unload(RFA, "--drain-timeout", "86401"), 2, "--drain-timeout")
        self.fails(unload(RFA, "--drain-timeout", "nan"), 2, "--drain-timeout")
        self.fails(unload(RFA, "--drain-timeout", "-1"), 2, "--drain-timeout")
        self.assertEqual(self.names(server), [RFA])
        self.succeeds(rivulet("health", "--target", server.target))

    def test_the_port_for_clients_has_no_such_service(self):
        server = self.serve(CONFORMANCE / RFA)
        elsewhere = "rivulet.v1.AdminService is not served at this address, but at that of --admin-listen"
        self.fails(rivulet("models", "unload", RFA, "--target", server.target), 3, elsewhere)
        self.fails(rivulet("models", "load", IMAGE, "--target", server.target), 3, elsewhere)
        self.assertEqual(self.names(server), [RFA])
        # And that for operators has nothing for clients.
        for command, service in ((["models"], "InferenceService"), (["load"], "InferenceService"), (["sessions", "list"], "SessionService")):
            self.fails(rivulet(*command, "--target", server.admin), 3, f"rivulet.v1.{service} is not served at this address, but at that of --listen")
        self.fails(rivulet("health", "--target", server.admin), 3, "at that of --listen")
        self.fails(rivulet("models", "load", IMAGE, "--target", NOBODY), 3)
        with Server(CONFORMANCE / RFA) as plain:
            self.assertFalse(hasattr(plain, "admin"), "off unless asked for")

    def test_the_log_level_changes_while_the_server_runs(self):
        server = self.serve(CONFORMANCE / RFA)
        level = lambda *args: rivulet("log-level", *args, "--target", server.admin)

        def bad_request():
            self.fails(rivulet(*generate(server.target, RFA, "--temperature", "-1")), 2, "temperature")

        def lines_until(event):
            lines = []
            while not lines or lines[-1]["event"] != event:
                lines.append(json.loads(server.process.stderr.readline()))
            return lines

        self.assertEqual(self.succeeds(level()).out, "info\n")
        bad_request()
        self.assertEqual(self.succeeds(level("error")).err, "the log level was info and is error\n")
        changed = lines_until("log_level")
        self.assertIn("request_error", [line["event"] for line in changed])
        self.assertEqual((changed[-1]["from"], changed[-1]["to"]), ("info", "error"))
        self.assertEqual(self.succeeds(level()).out, "error\n")
        bad_request()
        self.succeeds(level("debug"))
        self.assertEqual(len(lines_until("log_level")), 1, "lines below the level are dropped")
        self.fails(level("loud"), 2, "LEVEL")
        self.fails(rivulet("log-level", "info", "--target", server.target), 3, "--admin-listen")

    def test_a_server_may_begin_and_end_without_a_model(self):
        server = self.serve()
        self.assertEqual(self.names(server), [])
        self.fails(rivulet("health", "--target", server.target), 3, "server is NOT_SERVING", out=None)
        self.succeeds(rivulet("models", "load", IMAGE, "--target", server.admin))
        self.succeeds(rivulet("health", "--target", server.target))
        self.succeeds(rivulet("models", "unload", IMAGE, "--drain-timeout", "0.2", "--target", server.admin))
        self.fails(rivulet("health", "--target", server.target), 3, "server is NOT_SERVING", out=None)
        server.process.terminate()
        server.process.communicate(timeout=60)
        self.assertEqual(server.process.returncode, 0)

    def test_an_idle_connection_does_not_keep_a_server_that_ends(self):
        server = self.serve(CONFORMANCE / RFA)
        host, port = server.admin.split(":")
        with socket.create_connection((host, int(port))) as idle:
            idle.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0")  # and SETTINGS
            self.assertTrue(idle.recv(9), "the server has greeted")
            server.process.terminate()
            server.process.communicate(timeout=60)
        self.assertEqual(server.process.returncode, 0)

    def test_the_settings_are_checked_at_the_start(self):
        for args, mention in (
            (["--model-repository", self.repository], "admin-listen"),
            (["--model-repository", self.repository / "absent", *ADMIN], "absent"),
            (["--model-repository", self.repository / IMAGE / "config.json", *ADMIN], "config.json"),
            (["--admin-listen", "nowhere"], "admin-listen"),
            (["--admin-listen", "127.0.0.1:99999"], "admin-listen"),
            (ADMIN, "no model"),
        ):
            with self.subTest(args=args):
                model = [] if mention == "no model" else ["--model", CONFORMANCE / RFA]
                done = subprocess.run(
                    [BIN_DIR / "rivulet-server", *model, *args, "--listen", "127.0.0.1:0"], capture_output=True, timeout=60
                )
                self.assertEqual(done.returncode, 2, done)
                self.assertIn(mention, done.stderr.decode())
                self.assertEqual(done.stderr.count(b"\n"), 1, done)


if __name__ == "__main__":
    unittest.main()
