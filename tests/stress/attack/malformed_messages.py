# SPDX-License-Identifier: Apache-2.0
"""Bytes that are no message, to every method of rivulet.v1, while another client's replies go on: random bytes, messages that are cut
short or have bits flipped, and text that is not UTF-8. The server must live, every answer must be OK or an error with a reason, and
the other client must get its tokens. Needs the packages of tests/requirements.txt; the methods come from the server's reflection."""

import collections
import random
import sys

import grpc

import victim
from extreme_numbers import UNTYPED, Honest, Reflected, admin_target, verdict

TIMEOUT = 20  # seconds, of any call


def messages(rng: random.Random, count: int):
    """`count` byte strings that are no message or may be one."""
    # An answered Generate of two tokens: fields 2 (tokens) and 4 (max_tokens) of most requests that generate.
    whole = b"\x0a\x04tiny\x12\x04\x0a\x02\x01\x02\x20\x02"
    for i in range(count):
        kind = i % 4
        if kind == 0:
            yield rng.randbytes(rng.randrange(1, 64))
        elif kind == 1:
            yield whole[: rng.randrange(1, len(whole))]
        elif kind == 2:
            flipped = bytearray(whole)
            flipped[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
            yield bytes(flipped)
        else:
            number, text = rng.randrange(1, 16), rng.choice((b"\xff", b"\xc3\x28", b"\xed\xa0\x80", b"\xf5\x80\x80\x80"))
            yield bytes((number << 3 | 2, len(text))) + text


def answer(channel, method, message: bytes) -> tuple[str, str]:
    """(code, reason) of the call's end."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    try:
        for _ in channel.stream_stream(path)(iter((message,)), timeout=TIMEOUT):
            pass
    except grpc.RpcError as error:
        return verdict(error)
    return "OK", ""


def main() -> int:
    parser = victim.arguments(__doc__)
    parser.add_argument("--messages", type=int, default=400, help="for each method")
    parser.add_argument("--seed", type=int, default=0)
    parsed = parser.parse_args()
    rng = random.Random(parsed.seed)
    answers, wrong = collections.Counter(), []
    with victim.Victim.of(parsed, "--admin-listen=127.0.0.1:0") as server, Honest(server.target) as honest:
        listeners = [Reflected(target) for target in (server.target, admin_target(server)) if target]
        for listener in listeners:
            for method in listener.methods():
                for message in messages(rng, parsed.messages):
                    code, reason = answer(listener.channel, method, message)
                    answers[f"{code} {reason}".strip()] += 1
                    # Bytes that are no snapshot are a damaged one.
                    if code != "OK" and (not reason or (code in UNTYPED and reason != "SNAPSHOT_DAMAGED")):
                        wrong.append(f"{method.name} {message.hex()}: {code}")
        survived = server.alive()
    victim.report(
        attack="malformed_messages",
        messages=sum(answers.values()),
        answers=dict(answers.most_common()),
        untyped=len(wrong),
        survived=survived,
        honest_replies=honest.replies,
        honest_failure=honest.failure,
    )
    for line in wrong[:20]:
        print(line, file=sys.stderr)
    return 0 if survived and not wrong and honest.failure is None else 1


if __name__ == "__main__":
    sys.exit(main())
