# SPDX-License-Identifier: Apache-2.0
"""What to expect of a GPU before one was measured: the estimates of deploy/BENCHMARKS.md (rehearsal_test.py compares them) and limits."""

MEMORY_GB_PER_S = {"H200": 4800, "H100": 3350}  # as the maker says, by a part of the device's name
# Of an H100: MB that a step moves through memory, and us, lowest and highest. Of a prompt: us.
STEPS = {
    "mnist-linear": {"1 latency": (0, 45, 60), "1": (0, 95, 115), "64": (47, 100, 140), "1024": (566, 340, 430), "4096": (2225, 930, 1080),
                     "prompt of 784": (0, 190, 210)},
    "rwkv7-0.4b": {"1": (780, 850, 1200), "64": (1600, 1200, 1600), "1024": (14100, 7900, 10000), "prompt of 4096": (0, 24800, 32800)},
    "mamba2-130m": {"1": (296, 420, 600), "64": (2740, 1250, 1600), "1024": (40000, 15000, 18000), "prompt of 4096": (0, 20000, 25900)},
    "granite-350m": {"1": (775, 950, 1300), "64": (3600, 2000, 2600), "1024": (47000, 19000, 24000), "prompt of 4096": (0, 35600, 48200)},
}  # fmt: skip
CLUSTERS = (65, 80)  # us a step of mnist-linear at 64 rows with one cluster kernel a layer
# Tokens/s that others have published (deploy/BENCHMARKS.md): RWKV-7 7.2B of Albatross on an RTX 5090, Qwen3.5 0.8B of SGLang on an H100.
RECORDS = {"rwkv7-7.2b 1": 145.8, "rwkv7-7.2b 8": 938, "rwkv7-7.2b 64": 5483, "rwkv7-7.2b 256": 13134, "qwen3.5-0.8b 1 after 8192 tokens": 1147,
           "qwen3.5-0.8b 16 after 8192 tokens": 7819, "qwen3.5-0.8b 1024 after 8192 tokens": 9965}  # fmt: skip


def microseconds(what: str, device: str) -> tuple[float, float] | None:
    """The estimate for a step or prompt, lowest and highest: that of an H100, less what the device's memory is faster."""
    model, _, which = what.partition(" ")
    rate = memory(device)
    if rate is None or which not in STEPS.get(model, {}):
        return None
    mb, lowest, highest = STEPS[model][which]
    faster = mb * (1000 / MEMORY_GB_PER_S["H100"] - 1000 / rate)
    return lowest - faster, highest - faster


def memory(device: str) -> int | None:
    """GB/s of a device's memory as its maker says."""
    return next((rate for part, rate in MEMORY_GB_PER_S.items() if part in device), None)
