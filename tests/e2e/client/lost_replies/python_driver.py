# SPDX-License-Identifier: Apache-2.0
"""python_driver.py sync|async|multiplex: generates for lost_replies_test.py with the Python client. Each line of stdin is a job, each of
stdout its outcome; jobs run at the same time."""

import asyncio
import json
import sys
from concurrent.futures import ThreadPoolExecutor

import rivulet


def line(part):
    proto = part.proto
    said = {"sample_index": part.sample_index, "first_position": part.first_position, "tokens": [int(token) for token in part.tokens]}
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
    return {"code": error.code.name, "reason": error.reason}


def options(request, job):
    return {**{name: value for name, value in request.items() if name != "prompt"}, "timeout": job["timeout"], "resume": job["resume"]}


def sync_job(job):
    def reply(request):
        parts = []
        try:
            of = client.session(job["session"], cookie=job["cookie"]) if job["session"] else client
            stream = of.generate(request["prompt"], **options(request, job))
            parts.extend(line(part) for part in stream)
            parts.append(usage_line(stream.usage))
        except rivulet.RivuletError as error:
            return {"parts": parts, "error": error_line(error)}
        return {"parts": parts, "error": None}

    with rivulet.Client(job["target"], max_attempts=job["max_attempts"]) as client, ThreadPoolExecutor(8) as pool:
        return list(pool.map(reply, job["requests"]))


async def async_job(job):
    async def reply(request):
        parts = []
        try:
            of = await client.session(job["session"], cookie=job["cookie"]) if job["session"] else client
            stream = of.generate(request["prompt"], **options(request, job))
            async for part in stream:
                parts.append(line(part))
            parts.append(usage_line(stream.usage))
        except rivulet.RivuletError as error:
            return {"parts": parts, "error": error_line(error)}
        return {"parts": parts, "error": None}

    async with rivulet.AsyncClient(job["target"], max_attempts=job["max_attempts"]) as client:
        return await asyncio.gather(*map(reply, job["requests"]))


def multiplex_job(job):
    """The timeout is that of the stream, too: a request's own is kept by the server, which may have gone."""
    replies = [{"parts": [], "error": None} for _ in job["requests"]]
    with (
        rivulet.Client(job["target"], max_attempts=job["max_attempts"]) as client,
        client.multiplex(timeout=job["timeout"]) as stream,
    ):
        for request in job["requests"]:
            stream.generate(request["prompt"], **options(request, job))
        try:
            for part in stream:
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


def answer(job, replies):
    print(json.dumps({"id": job["id"], "replies": replies}), flush=True)


def failed(job, error):
    """The client, or this program, has a bug."""
    answer(job, [{"parts": [], "error": {"code": type(error).__name__, "reason": str(error)}} for _ in job["requests"]])


def run_threads(run):
    def one(job):
        try:
            answer(job, run(job))
        except Exception as error:
            failed(job, error)

    with ThreadPoolExecutor(8) as pool:
        for text in sys.stdin:
            pool.submit(one, json.loads(text))


async def run_tasks():
    async def one(job):
        try:
            answer(job, await async_job(job))
        except Exception as error:
            failed(job, error)

    async with asyncio.TaskGroup() as group:
        while text := await asyncio.to_thread(sys.stdin.readline):
            group.create_task(one(json.loads(text)))


if __name__ == "__main__":
    if sys.argv[1] == "async":
        asyncio.run(run_tasks())
    else:
        run_threads({"sync": sync_job, "multiplex": multiplex_job}[sys.argv[1]])
