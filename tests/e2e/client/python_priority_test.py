# SPDX-License-Identifier: Apache-2.0
"""priority of the Python client's calls and of the command: the real server, whose only slot is taken, counts them."""

import asyncio
import subprocess
import time
import unittest

import rivulet_wheel  # makes rivulet what is imported below  # noqa: F401

import rivulet
from command import BIN_DIR, ZOO, Server
from python_clients import tokens_of
from rivulet import Priority

MODEL = "shakespeare-rfa"  # slow enough


class PriorityTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        args = ("--slots", "1", "--threads", "1", "--backend", "cpu")
        cls.server = cls.enterClassContext(Server(ZOO / MODEL, args=args))
        cls.client = cls.enterClassContext(rivulet.Client(cls.server.target))

    def setUp(self):
        # Not read, it would give its slot to whoever waits.
        self.holder = subprocess.Popen(self.command("generate", "--prompt", "a", "--max-tokens", str(1 << 20)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.await_load(lambda load: load.slots_used == 1)

    def tearDown(self):
        self.holder.kill()
        self.holder.wait()
        self.assertTrue(rivulet_wheel.await_idle(self.client, MODEL))

    def command(self, *args):
        return [BIN_DIR / "rivulet", *args, "--target", self.server.target, "--model-name", MODEL]

    def await_load(self, condition):
        end = time.monotonic() + 30
        while not condition((load := self.client.load(MODEL)[0])):
            self.assertLess(time.monotonic(), end, f"{load}")
            self.assertIsNone(self.holder.poll(), "the slot is taken")
            time.sleep(0.01)

    def await_queued(self, low, normal, high):
        self.await_load(lambda load: (load.queued_low, load.queued_normal, load.queued_high) == (low, normal, high))

    def test_the_command_says_how_urgent_it_is(self):
        waiting = []
        try:
            session = self.client.open_session()
            for *args, queued in (
                ("generate", "--tokens", "1", "--max-tokens", "1", "--priority", "low", (1, 0, 0)),
                ("generate", "--tokens", "1", "--max-tokens", "1", (1, 1, 0)),
                ("sessions", "append", session.id, "--tokens", "1,2,3", "--priority", "high", (1, 1, 1)),
                ("generate", "--tokens", "1", "--max-tokens", "1", "--priority", "normal", (1, 2, 1)),
                ("score", "--input", "-", "--priority", "low", (2, 2, 1)),
            ):
                process = subprocess.Popen(self.command(*args), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                waiting.append(process)
                process.stdin.write(b'{"tokens":[1,2]}\n')
                process.stdin.flush()
                self.await_queued(*queued)
        finally:
            for process in waiting:
                process.kill()
                process.communicate()

    def test_calls_say_how_urgent_they_are(self):
        async def run():
            async with rivulet.AsyncClient(self.server.target) as client:
                session, other = await client.open_session(), await client.open_session()
                tasks = []
                for begin, queued in (
                    (lambda: client.generate([1], max_tokens=1, priority=Priority.LOW).collect(), (1, 0, 0)),
                    (lambda: client.generate([1], max_tokens=1).collect(), (1, 1, 0)),
                    (lambda: client.score([1, 2], priority=Priority.HIGH), (1, 1, 1)),
                    (lambda: session.append([1, 2, 3], priority=Priority.HIGH), (1, 1, 2)),
                    (lambda: tokens_of(other.generate([1], max_tokens=1, priority=Priority.LOW)), (2, 1, 2)),
                ):
                    tasks.append(asyncio.ensure_future(begin()))
                    await asyncio.to_thread(self.await_queued, *queued)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run(run())


if __name__ == "__main__":
    unittest.main()
