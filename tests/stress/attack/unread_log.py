# SPDX-License-Identifier: Apache-2.0
"""A log that nobody reads: the pipe behind stderr is full, and so with --fifo is that behind the request log. How long does a call
wait, beside as many calls with a bad field, each of which is a line; and how long does the end take after SIGTERM?"""

import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request

import victim

sys.path.append(str(victim.SOURCE_DIR / "tests/e2e/support"))

TIMEOUT = 10  # seconds of a call


def longest_calls(target: str, seconds: float) -> dict[str, object]:
    """Calls for so long; how many were answered, and the longest wait in seconds."""
    import balancer  # of tests/e2e/support: grpc and the stubs

    good, bad = balancer.request(1, 1), balancer.request(1, 1)
    bad.sampling.top_p = 2
    answered, unanswered, longest = 0, 0, 0.0
    end = time.monotonic() + seconds
    with balancer.grpc.insecure_channel(target) as channel:
        while time.monotonic() < end:
            for request in (bad, good):
                begin = time.monotonic()
                try:
                    list(balancer.stub(channel).Generate(request, timeout=TIMEOUT))
                    answered += 1
                except balancer.grpc.RpcError as error:
                    refused = error.code() == balancer.grpc.StatusCode.INVALID_ARGUMENT
                    answered, unanswered = answered + refused, unanswered + (not refused)
                longest = max(longest, time.monotonic() - begin)
    return {"answered": answered, "unanswered": unanswered, "longest_s": round(longest, 3)}


def lines_dropped(metrics: str) -> dict[str, float] | None:
    """By log; None where /metrics is not answered."""
    try:
        with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=TIMEOUT) as page:
            text = page.read().decode()
    except OSError:
        return None
    return {name: float(count) for name, count in re.findall(r'^rivulet_(\w+)_lines_total{result="dropped"} (\S+)$', text, re.M)}


def main() -> None:
    parser = victim.arguments(__doc__)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--fifo", action="store_true", help="a request log on a FIFO, which is full as well")
    parsed = parser.parse_args()
    if parsed.target is not None:
        raise SystemExit("unread_log.py: the log of a running server is another's; leave --target out")
    from unread_pipe import Pipe

    with tempfile.TemporaryDirectory() as folder:
        log, pipes = Pipe(), []
        flags = ["--metrics-listen", "127.0.0.1:0"]
        if parsed.fifo:
            pipes.append(Pipe(os.path.join(folder, "fifo")))
            flags += ["--request-log", os.path.join(folder, "fifo")]
        command = [*victim.Victim(parsed.server, *flags, *parsed.flag).command]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log.writer)
        started = log.read_until(b'"event":"listening"')
        metrics, target = (
            "127.0.0.1:" + re.search(rf'"event":"{event}".*"port":(\d+)', started).group(1) for event in ("metrics_listening", "listening")
        )
        for pipe in (log, *pipes):
            pipe.fill()
        figures = longest_calls(target, parsed.seconds)
        dropped = lines_dropped(metrics)
        begin = time.monotonic()
        process.terminate()
        try:
            code = process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            code = None
        victim.report(attack="unread log", **figures, lines_dropped=dropped, exit_code=code, end_s=round(time.monotonic() - begin, 2))


if __name__ == "__main__":
    main()
