# SPDX-License-Identifier: Apache-2.0
"""Values of messages, as the dataclasses hold them."""

from __future__ import annotations

from typing import Any


def fields(message: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(message, name) for name in names}


def optional(message: Any, name: str) -> Any:
    return getattr(message, name) if message.HasField(name) else None


def seconds(duration: Any) -> float:
    return float(duration.seconds + duration.nanos / 1e9)
