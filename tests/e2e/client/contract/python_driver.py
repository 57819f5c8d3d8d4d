# SPDX-License-Identifier: Apache-2.0
"""python_driver.py sync|async|multiplex: makes calls for the tests of this folder with the Python client. Each line of stdin is a job,
each of stdout its outcome; jobs run at the same time. A job is a step of a client (STEPS), or a list of requests for lost_replies_test.py."""

import asyncio
import json
import sys
from concurrent.futures import ThreadPoolExecutor

import rivulet

KIND = sys.argv[1]
clients, sessions = {}, {}  # by the names that the tests give them


class Awaited:
    """A client for threads, and what it gives, with the interface of one for asyncio."""

    def __init__(self, of):
        self.of = of

    def __getattr__(self, name):
        value = getattr(self.of, name)
        if not callable(value):
            return value
        if name in ("generate", "multiplex"):
            return lambda *arguments, **options: Awaited(value(*arguments, **options))

        async def call(*arguments, **options):
            result = value(*arguments, **options)
            if isinstance(result, list):
                return [Awaited(entry) for entry in result]
            return Awaited(result) if isinstance(result, rivulet.Session) else result

        return call

    def __aiter__(self):
        return self

    async def __anext__(self):
        try:
            return next(self.of)
        except StopIteration:
            raise StopAsyncIteration from None

    async def __aenter__(self):
        self.of.__enter__()
        return self

    async def __aexit__(self, *exception):
        self.of.__exit__(*exception)


def client_of(target, **options):
    return rivulet.AsyncClient(target, **options) if KIND == "async" else Awaited(rivulet.Client(target, **options))


async def gather(coroutines):
    """A client for threads has one for each."""
    return await asyncio.gather(*(c if KIND == "async" else asyncio.to_thread(asyncio.run, c) for c in coroutines))


def line(part):
    proto = part.proto
    said = {"sample_index": part.sample_index, "first_position": part.first_position, "tokens": [int(token) for token in part.tokens]}
    if part.text:
        said["text"] = part.text
    if part.logprobs is not None:
        said["logprobs"] = [float(value) for value in part.logprobs]
    if part.finish is not None:
        said["finish"] = part.finish.reason.name.lower()
    for name in ("seed", "fingerprint"):
        if proto.HasField(name):
            said[name] = getattr(proto, name)
    return said


def usage_line(usage):
    return {"usage": {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens}}


def error_line(error):
    said = {name: getattr(error, name) for name in ("reason", "message", "field", "retry_delay", "metadata")}
    return {"code": error.code.name, **said}


def session_line(session):
    marks, hash = dict(session.marks), str(session.sequence_hash)
    return {"id": session.id, "position": session.position, "sequence_hash": hash, "marks": marks, "cookie": session.cookie}


def durability_line(of):
    told = of.durability
    return told and {"durable": told.durable, "position": told.position, "other_numerics_id": told.other_numerics_id}


# Steps. Each takes the job, and returns what the outcome holds in addition.


async def connect(job):
    clients[job["client"]] = client_of(job["target"], **job["options"])


async def open_session(job):
    sessions[job["session"]] = await clients[job["client"]].open_session(**job["options"])


async def session(job):
    sessions[job["session"]] = await clients[job["client"]].session(job["of"], **job["options"])


async def restore(job):
    sessions[job["session"]] = await clients[job["client"]].restore_session(b"bytes")


async def fork(job):
    return {"forks": [session_line(fork) for fork in await sessions[job["session"]].fork()]}


async def append(job):
    return {"durability": durability_line(await sessions[job["session"]].append(job["content"], **job["options"]))}


async def rewind(job):
    await sessions[job["session"]].rewind(**job["options"])


async def snapshot(job):
    await sessions[job["session"]].snapshot(**job["options"])


async def close(job):
    await sessions[job["session"]].close()


async def score(job):
    return {"num_scored": (await clients[job["client"]].score(job["content"], **job["options"])).num_scored}


async def generate(job):
    """take: how many parts; more are left. "all": by collect()."""
    of = sessions.get(job["session"]) or clients[job["client"]]
    stream = of.generate(job["prompt"], **job["options"])
    parts = job["parts"]
    early = durability_line(stream)
    if job["take"] == "all":
        return {"durability": durability_line(await stream.collect())}
    async for part in stream:
        parts.append(line(part))
        if part.tokens.size:
            print(json.dumps({"saw": job["client"]}), flush=True)
        if len(parts) == job["take"]:
            return None
    parts.append(usage_line(stream.usage))
    return {"early": early, "durability": durability_line(stream)}


STEPS = {f.__name__: f for f in (connect, open_session, session, restore, fork, append, rewind, snapshot, close, score, generate)}


async def step(job):
    outcome = {"parts": job.setdefault("parts", []), "error": None}
    try:
        outcome |= await STEPS[job["step"]](job) or {}
    except rivulet.RivuletError as error:
        outcome["error"] = error_line(error)
    if job["session"] in sessions:
        outcome["session"] = session_line(sessions[job["session"]])
    return outcome


# Replies for lost_replies_test.py.


def options(request, job):
    return {**{name: value for name, value in request.items() if name != "prompt"}, "timeout": job["timeout"], "resume": job["resume"]}


async def replies_of(job):
    async def reply(request):
        said = {"parts": [], "error": None}
        try:
            session = await client.session(job["session"], cookie=job["cookie"]) if job["session"] else None
            stream = (session or client).generate(request["prompt"], **options(request, job))
            async for part in stream:
                said["parts"].append(line(part))
            said["parts"].append(usage_line(stream.usage))
            if session:
                said["session"] = {"position": session.position, "sequence_hash": str(session.sequence_hash)}
        except rivulet.RivuletError as error:
            said["error"] = error_line(error)
        return said

    async with client_of(job["target"], max_attempts=job["max_attempts"]) as client:
        return await gather(map(reply, job["requests"]))


async def multiplexed(job):
    """The timeout is that of the stream, too: a request's own is kept by the server, which may have gone."""
    replies = [{"parts": [], "error": None} for _ in job["requests"]]
    async with (
        client_of(job["target"], max_attempts=job["max_attempts"]) as client,
        client.multiplex(timeout=job["timeout"]) as stream,
    ):
        for request in job["requests"]:
            stream.generate(request["prompt"], **options(request, job))
        try:
            async for part in stream:
                reply = replies[part.key]
                if part.error is not None:
                    reply["error"] = error_line(part.error)
                    continue
                if part.tokens or part.finish or part.usage is None:
                    reply["parts"].append(line(part))
                if part.usage is not None:
                    reply["parts"].append(usage_line(part.usage))
        except rivulet.RivuletError as error:
            for reply in replies:
                if not (reply["error"] or any("usage" in part for part in reply["parts"])):
                    reply["error"] = error_line(error)
    return replies


async def answer(job):
    run = step if "step" in job else multiplexed if KIND == "multiplex" else replies_of
    try:
        outcome = (await gather([run(job)]))[0]
    except Exception as error:  # the client, or this program, has a bug
        outcome = {"parts": [], "error": {"code": type(error).__name__, "reason": str(error)}}
        outcome = outcome if "step" in job else [outcome] * len(job["requests"])
    print(json.dumps({"id": job["id"], "outcome": outcome}), flush=True)


async def main():
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(32))
    async with asyncio.TaskGroup() as group:
        while text := await asyncio.to_thread(sys.stdin.readline):
            group.create_task(answer(json.loads(text)))
    for client in clients.values():
        await client.close()


if __name__ == "__main__":
    asyncio.run(main())
