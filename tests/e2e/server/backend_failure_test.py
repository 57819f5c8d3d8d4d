#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A server whose CUDA device fails or hangs, on the emulator: replies end with UNAVAILABLE, health says so, the process ends."""

import os
import pathlib
import sys
import tempfile
import time
import unittest

from command import BIN_DIR, CONFORMANCE, CommandTest, Server, rivulet

SERVER = BIN_DIR.parent / "tests/rivulet-server-emulated"


class BackendFailureTest(CommandTest):
    def serve_until(self, fault):
        """Starts a server, arms the fault, and returns (the command's result, the health command's, exit code, log)."""
        with tempfile.TemporaryDirectory() as folder:
            trigger = pathlib.Path(folder) / "fault"
            server = Server(CONFORMANCE / "tiny-elu-relu", args=("--backend", "cuda", "--slots", "4"))
            server.command[0] = SERVER
            os.environ["RIVULET_EMULATOR_FAULT"] = str(trigger)
            try:
                server.__enter__()
            finally:
                del os.environ["RIVULET_EMULATOR_FAULT"]
            try:
                self.succeeds(rivulet("generate", "--target", server.target, "--tokens", "1", "--max-tokens", "4"))
                self.succeeds(rivulet("health", "--target", server.target))
                trigger.with_suffix(".new").write_text(fault)
                trigger.with_suffix(".new").rename(trigger)
                time.sleep(0.1)
                generated = rivulet("generate", "--target", server.target, "--tokens", "1", "--max-tokens", "4", "--deadline", "60")
                deadline = time.monotonic() + 60
                while (health := rivulet("health", "--target", server.target)).code == 0 and time.monotonic() < deadline:
                    time.sleep(0.05)
                log = server.process.stderr.read().decode()
                return generated, health, server.process.wait(60), log
            finally:
                server.process.kill()
                server.process.communicate()

    def check(self, fault, mention):
        generated, health, code, log = self.serve_until(fault)
        self.fails(generated, 3)  # of the backend, or, tried again until then, of a server that has gone
        self.assertEqual((health.code, code), (3, 3), log)
        for event in ('"event":"health"', '"event":"failed"', mention):
            self.assertIn(event, log)

    def test_a_cuda_error_ends_replies_health_and_the_process(self):
        self.check("fail", "illegal memory access")

    def test_a_hung_device_is_noticed_by_missing_progress(self):
        self.check("hang", "the CUDA device hangs")


if __name__ == "__main__":
    if not SERVER.exists():
        print(f"skipped: no {SERVER.name}; this build has no CUDA emulator")
        sys.exit(77)
    unittest.main()
