# SPDX-License-Identifier: Apache-2.0
"""What to expect of a GPU before one was measured: the estimates of deploy/BENCHMARKS.md (rehearsal_test.py compares them) and limits."""

import re

DEVICE = "H200"  # which the estimates are of
MEMORY_GB_PER_S = {"H200": 4800, "H100": 3350}  # by a part of the device's name
# Tokens/s, lowest and highest, by rows of a step, and of a prompt.
FAMILY = {
    "rwkv7-0.4b": {"1": (750, 1200), "32": (20e3, 32e3), "256": (80e3, 135e3), "1024": (108e3, 157e3), "prompt of 4096": (125e3, 165e3)},
    "granite-350m": {"1": (750, 1100), "32": (17e3, 24e3), "256": (47e3, 67e3), "1024": (55e3, 74e3), "prompt of 4096": (85e3, 115e3)},
    "mamba2-130m": {"1": (1700, 2600), "32": (32e3, 47e3), "256": (67e3, 87e3), "1024": (78e3, 97e3), "prompt of 4096": (158e3, 205e3)},
}
# Microseconds of a step or prompt, under the names of report.py. One row is that of plan latency.
MICROSECONDS = {"mnist-linear 1": (45, 60), "mnist-linear 64": (95, 135), "mnist-linear 1024": (260, 340), "mnist-linear 4096": (730, 880),
                "mnist-linear prompt of 784": (190, 210)}  # fmt: skip
CLUSTERS = (65, 80)  # us a step of mnist-linear at 64 rows with one cluster kernel a layer


def microseconds(what: str) -> tuple[float, float] | None:
    """The estimate for a step or prompt, lowest and highest."""
    if what == "mnist-linear 1 throughput":
        return None
    what = re.sub(" (latency|throughput)$", "", what)
    if what in MICROSECONDS:
        return MICROSECONDS[what]
    model, _, which = what.partition(" ")
    if which not in FAMILY.get(model, {}):
        return None
    lowest, highest = FAMILY[model][which]
    tokens = 1e6 * int(which.split()[-1])
    return tokens / highest, tokens / lowest


def memory(device: str) -> int | None:
    """GB/s of a device's memory as its maker says."""
    return next((rate for part, rate in MEMORY_GB_PER_S.items() if part in device), None)
