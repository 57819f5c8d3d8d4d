# SPDX-License-Identifier: Apache-2.0
"""Clients that have texts of 4 MB tokenized, one after the other, beside an honest client of another tenant. How long do its calls
take: Generate of one token, and Tokenize of 16 KB? How much memory does the server take? `--arithmetic N` for comparison: N processes
that add numbers, in place of the attack."""

import collections
import multiprocessing
import pathlib
import random
import statistics
import sys
import tempfile
import time

from victim import SOURCE_DIR, Victim, arguments, report

sys.path.append(str(SOURCE_DIR / "tests/e2e/support"))

PATIENCE = 300  # seconds that a call may take
GENERATE, SCORE = "/rivulet.v1.InferenceService/Generate", "/rivulet.v1.InferenceService/Score"
TOKENIZE, DETOKENIZE = "/rivulet.v1.InferenceService/Tokenize", "/rivulet.v1.InferenceService/Detokenize"
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]


def text_request(method: str, text: bytes) -> bytes:
    """A request of `method` for the one model that is served; of Generate for one token. Bytes, as a client in Python that makes messages
    would be slower than the server."""
    from tenants import pb as messages

    content = text.decode()
    if method == TOKENIZE:
        return messages.TokenizeRequest(text=content).SerializeToString()
    if method == SCORE:
        return messages.ScoreRequest(text=content).SerializeToString()
    if method == DETOKENIZE:
        return messages.DetokenizeRequest(ids=[i % 25 for i in range(len(text))]).SerializeToString()
    return messages.GenerateRequest(text=content, max_tokens=1).SerializeToString()


def calls(target: str, tenant: str, method: str, request: bytes):
    """A function that makes one call and returns how it ended."""
    import grpc

    from tenants import reason

    channel = grpc.insecure_channel(target, options=OPTIONS)
    stream = method == GENERATE
    call = (channel.unary_stream if stream else channel.unary_unary)(method)

    def once() -> str:
        try:
            reply = call(request, metadata=(("rivulet-tenant", tenant),), timeout=PATIENCE)
            if stream:
                collections.deque(reply, maxlen=0)
        except grpc.RpcError as error:
            return reason(error)
        return "OK"

    return once


def big_text(size: int, seed: int) -> bytes:
    """Words of the alphabet of text_models."""
    draw = random.Random(seed)
    words = ["the", "and", "then", "a", "that", "ten", "bed", "hat.\n"]
    return (" ".join(draw.choice(words) for _ in range(size // 4)) + " " * size)[:size].encode()


def attack(target, tenant, method, size, seed, started, stop, ends):
    once, counts = calls(target, tenant, method, text_request(method, big_text(size, seed))), collections.Counter()
    started.wait()
    while not stop.is_set():
        end = once()
        counts[end] += 1
        if end != "OK":
            stop.wait(0.1)
    ends.put(dict(counts))


def arithmetic(started, stop):
    started.wait()
    while not stop.is_set():
        sum(i * i for i in range(100_000))


def honest(target, seconds, started, times):
    kinds = {
        "generate": calls(target, "honest", GENERATE, text_request(GENERATE, b"the end")),
        "tokenize": calls(target, "honest", TOKENIZE, text_request(TOKENIZE, big_text(16_000, 0))),
    }
    for once in kinds.values():
        once()
    started.wait()
    time.sleep(1)
    found, errors = {name: [] for name in kinds}, collections.Counter()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for name, once in kinds.items():
            begin = time.monotonic()
            result = once()
            found[name].append(time.monotonic() - begin)
            if result != "OK":
                errors[f"{name} {result}"] += 1
        time.sleep(0.005)
    times.put((found, dict(errors)))


def summary(times: list[float]) -> dict[str, float]:
    ordered = sorted(times)
    return {
        "calls": len(ordered), "p50_ms": round(statistics.median(ordered) * 1e3, 2),
        "p99_ms": round(ordered[int(len(ordered) * 0.99)] * 1e3, 1), "longest_ms": round(ordered[-1] * 1e3, 1),
    }  # fmt: skip


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--clients", type=int, default=4, help="of the attack, each on a connection of its own")
    parser.add_argument("--tenants", type=int, default=1, help="that they name, in turn")
    parser.add_argument("--bytes", type=int, default=4_000_000, help="of a text")
    parser.add_argument("--method", choices=["Tokenize", "Detokenize", "Score", "Generate"], default="Tokenize")
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--arithmetic", type=int, metavar="N", help="N processes that add numbers, and no attack")
    parsed = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    started, stop = context.Event(), context.Event()
    ends, times = context.Queue(), context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        import text_models

        model = text_models.with_tokenizer("mamba2", pathlib.Path(folder))
        with Victim.of(parsed, model=model) as victim:
            method = f"/rivulet.v1.InferenceService/{parsed.method}"
            if parsed.arithmetic is None:
                others = [
                    context.Process(target=attack, args=(victim.target, f"attack-{i % parsed.tenants}", method, parsed.bytes, i, started, stop, ends))
                    for i in range(parsed.clients)
                ]
            else:
                others = [context.Process(target=arithmetic, args=(started, stop)) for _ in range(parsed.arithmetic)]
            client = context.Process(target=honest, args=(victim.target, parsed.seconds, started, times))
            for process in [*others, client]:
                process.start()
            time.sleep(3 + parsed.clients)  # until all have made their texts
            before = victim.rss_mib()
            started.set()
            found, errors = times.get(timeout=parsed.seconds + 2 * PATIENCE)
            stop.set()
            counts: collections.Counter[str] = collections.Counter()
            if parsed.arithmetic is None:
                for _ in others:
                    counts.update(ends.get(timeout=2 * PATIENCE))
            for process in [*others, client]:
                process.join()
            report(
                attack="big_texts" if parsed.arithmetic is None else "arithmetic", method=parsed.method, clients=len(others),
                bytes=parsed.bytes, honest={name: summary(spent) for name, spent in found.items()}, honest_errors=errors,
                attack_ends=dict(counts), rss_mib_before=before, peak_rss_mib=victim.peak_rss_mib(), alive=victim.alive(),
            )  # fmt: skip


if __name__ == "__main__":
    main()
