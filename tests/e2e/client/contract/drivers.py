# SPDX-License-Identifier: Apache-2.0
"""The clients by which the tables of this folder are proved: programs that make the calls of jobs."""

import asyncio
import itertools
import json
import os
import pathlib
import shutil
import subprocess

import rivulet_wheel  # makes rivulet what the Python client imports

from command import BIN_DIR, SANITIZER_FLAGS, SOURCE_DIR

HERE = pathlib.Path(__file__).parent
MODULES = SOURCE_DIR / "build/typescript/node_modules"


class Driver:
    """A program that makes the calls of jobs: a line of JSON each, on its stdin and stdout (python_driver.py). saw: called with the name
    of a client for each part with tokens that a step gets."""

    def __init__(self, *command, **env):
        self.command, self.env = [str(part) for part in command], os.environ | env
        self.answers, self.saw = {}, lambda client: None
        self.ids = itertools.count()

    async def start(self):
        pipe = asyncio.subprocess.PIPE
        self.process = await asyncio.create_subprocess_exec(*self.command, stdin=pipe, stdout=pipe, env=self.env, limit=1 << 26)
        self.reading = asyncio.create_task(self.read())

    async def read(self):
        async for text in self.process.stdout:
            answer = json.loads(text)
            if "saw" in answer:
                self.saw(answer["saw"])
            elif not (waiting := self.answers.pop(answer["id"])).done():
                waiting.set_result(answer["outcome"])
        for answer in self.answers.values():
            if not answer.done():
                answer.set_exception(RuntimeError(f"{self.command} has ended"))

    async def run(self, job):
        id = next(self.ids)
        self.answers[id] = asyncio.get_running_loop().create_future()
        self.process.stdin.write(json.dumps({"id": id, **job}).encode() + b"\n")
        return await self.answers[id]

    async def stop(self):
        self.process.stdin.close()
        if self.answers:  # of a client that hangs
            self.process.kill()
        await self.reading
        await self.process.wait()


class Command:
    """`rivulet generate --json`, a process for each job. Its errors say neither code nor reason."""

    CODES = {2: ("INVALID_ARGUMENT", "FAILED_PRECONDITION"), 3: ("UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "CANCELLED", "ABORTED"),
             1: ("INTERNAL", "UNKNOWN")}  # fmt: skip

    async def start(self):
        pass

    async def stop(self):
        pass

    async def run(self, job):
        return await asyncio.gather(*(self.reply(job, request) for request in job["requests"]))

    async def reply(self, job, request):
        flags = ["--target", job["target"], "--deadline", f"{job['timeout']:g}", "--json"]
        flags += ["--tokens", ",".join(map(str, request["prompt"]))]
        flags += [] if job["resume"] else ["--no-resume"]
        flags += ["--session", job["session"]] if job["session"] else []
        flags += ["--cookie", job["cookie"]] if job["cookie"] else []
        flags += ["--position", "0"] if "position" in job["messages"][0].get("session", ()) else []
        for name, value in request.items():
            flag = "--" + {"stop_token_ids": "stop-token"}.get(name, name.replace("_", "-"))
            if value is True:
                flags.append(flag)
            elif name != "prompt":
                flags += [flag, ",".join(map(str, value)) if isinstance(value, list) else str(value)]
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(BIN_DIR / "rivulet", "generate", *flags, stdout=pipe, stderr=pipe)
        out, error = await process.communicate()
        parts = [json.loads(text) for text in out.splitlines()]
        for part in parts:
            if "finish" in part:
                part["finish"] = part["finish"]["reason"]
        return {"parts": parts, "error": None if process.returncode == 0 else {"exit": process.returncode, "said": error.decode()}}


def typescript_client(folder):
    """Builds the client of client/typescript in a folder, without a network."""
    built = folder / "client/typescript"
    shutil.copytree(SOURCE_DIR / "client/typescript", built, ignore=shutil.ignore_patterns("node_modules", "dist", "gen", "LICENSE"))
    (built / "node_modules").symlink_to(MODULES)
    for name in ("proto", "LICENSE"):
        (folder / name).symlink_to(SOURCE_DIR / name)
    done = subprocess.run(["npm", "run", "build"], cwd=built, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    return built


def drivers(folder):
    """The clients by name. None: what it needs is absent. Under a sanitizer only the clients that are compiled."""
    python, cpp = (rivulet_wheel.PYTHON, HERE / "python_driver.py"), BIN_DIR.parent / "tests/contract_driver"
    made = {f"c++ {kind}": Driver(cpp, kind) if cpp.exists() else None for kind in ("wait", "async", "multiplex")}
    made["command"] = Command()
    if SANITIZER_FLAGS:
        return made
    made |= {f"python {kind}": Driver(*python, kind) for kind in ("sync", "async", "multiplex")}
    made["typescript"] = None
    if shutil.which("npm") and shutil.which("protoc") and MODULES.is_dir():
        made["typescript"] = Driver("node", HERE / "typescript_driver.js", typescript_client(folder))
    return made
