# SPDX-License-Identifier: Apache-2.0
"""What measured figures stand beside: the rate of a device's memory, and figures that others have published."""

MEMORY_GB_PER_S = {"H200": 4800, "H100": 3350}  # as the maker says, by a part of the device's name
# Tokens/s that others have published (deploy/BENCHMARKS.md): RWKV-7 7.2B of Albatross on an RTX 5090, Qwen3.5 0.8B of SGLang on an H100.
RECORDS = {"rwkv7-7.2b 1": 145.8, "rwkv7-7.2b 8": 938, "rwkv7-7.2b 64": 5483, "rwkv7-7.2b 256": 13134, "qwen3.5-0.8b 1 after 8192 tokens": 1147,
           "qwen3.5-0.8b 16 after 8192 tokens": 7819, "qwen3.5-0.8b 1024 after 8192 tokens": 9965}  # fmt: skip


def memory(device: str) -> int | None:
    """GB/s of a device's memory as its maker says."""
    return next((rate for part, rate in MEMORY_GB_PER_S.items() if part in device), None)
