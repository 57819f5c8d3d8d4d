# SPDX-License-Identifier: Apache-2.0
"""Draws many images with few requests. Image i is sample i % size of the request with seed `seed + i // size`, where
size is 64, or the server's max_num_samples if that is less. `rivulet generate --count N --out FILE` has the same rule,
so the same seed draws the same images."""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rivulet.core import requests
from rivulet.core.reply_repeat import Deadline
from rivulet.errors import Internal
from rivulet.model_replies import ImageContent, Model
from rivulet.replies import Part

REQUESTS_AT_ONCE = 4
_MOST_SAMPLES = 64  # of a request


@dataclass(frozen=True, eq=False)
class Snapshot:
    """Images drawn so far.

    images: uint8 [count, height, width], or [count, height, width, channels] for several channels; values are 0 to
    num_levels - 1, and 0 for pixels that are not drawn yet. The array is a copy that the caller owns.
    done, total: number of values drawn so far, and of all values, including given ones. seed: draws the same images
      again.
    """

    images: NDArray[np.uint8]
    done: int
    total: int
    seed: int
    num_levels: int


class Order:
    """What to draw: the arguments of a call, checked before anything is sent. Errors: TypeError, ValueError."""

    def __init__(self, call: str, count: int, seed: int | None, options: requests.ImageOptions) -> None:
        requests.refuse_unknown(call, options, requests.ImageOptions)
        self.count = requests.count("count", count)
        self.seed = secrets.randbits(32) if seed is None else requests.uint64("seed", seed)
        self.model = requests.text("model", options.get("model", ""))
        temperature = options.get("temperature")
        self.temperature = None if temperature is None else requests.real("temperature", temperature)
        self.prompt: Any = options.get("prompt", ())
        self.interval = requests.real("interval", options.get("interval", 0.1))
        if not 0.001 <= self.interval <= 3600:
            raise ValueError(f"interval: must be 0.001 to 3600 seconds; got {self.interval}")
        self._deadline = Deadline(options.get("timeout"))
        self._metadata = requests.metadata(options.get("metadata", ()))

    def call_options(self) -> requests.CallOptions:
        """Options of a call that begins now, with the rest of the timeout."""
        return {"timeout": self._deadline.left(), "metadata": self._metadata}


@dataclass(frozen=True)
class Request:
    """One request of a drawing, for images first to first + size - 1."""

    first: int
    size: int
    seed: int


class Canvas:
    """The images of one order, drawn so far. Thread: one at a time; callers that share it must lock it."""

    def __init__(self, order: Order, model: Model) -> None:
        """Errors: ValueError (a model that does not generate images or has too many levels, a prompt that does not fit)."""
        self._order = order
        self._name = model.summary.name
        if not isinstance(model.content, ImageContent):
            raise ValueError(f"model: {self._name} does not generate images")
        self._shape = (model.content.height, model.content.width, model.content.channels)
        self._num_levels = num_levels(model)
        if self._num_levels > 256:
            raise ValueError(f"model: {self._name} has {self._num_levels} levels, but uint8 holds 256; use generate()")
        self._size = max(1, min(model.limits.max_num_samples, _MOST_SAMPLES))
        self._given = _given(order.prompt, self._shape)
        self._values = np.zeros((order.count, math.prod(self._shape)), np.uint8)
        self._values[:, : len(self._given)] = np.frombuffer(self._given, np.uint8)
        self._done = order.count * len(self._given)

    def plan(self) -> list[Request]:
        """The requests that draw all images."""
        count, size = self._order.count, self._size
        return [
            Request(first, min(size, count - first), (self._order.seed + first // size) % 2**64)
            for first in range(0, count, size)
        ]

    def generate_arguments(self, request: Request) -> tuple[bytes | tuple[()], requests.GenerateOptions]:
        """Prompt and options of generate() for a request that begins now."""
        call = self._order.call_options()
        options: requests.GenerateOptions = {
            "model": self._name, "num_samples": request.size, "seed": request.seed, "temperature": self._order.temperature,
            "timeout": call["timeout"], "metadata": call["metadata"],
        }  # fmt: skip
        return self._given or (), options

    def add(self, request: Request, part: Part) -> None:
        """Draws a part of the reply to `request`. Errors: Internal (values outside the images)."""
        begin = len(self._given) + part.first_position
        end = begin + part.tokens.size
        if not (0 <= part.sample_index < request.size and len(self._given) <= begin <= end <= self._values.shape[1]):
            raise Internal(f"the server sent values {begin} to {end} of sample {part.sample_index} of {request.size}")
        if part.tokens.size and not 0 <= part.tokens.min() <= part.tokens.max() < self._num_levels:
            raise Internal(f"the server sent a value outside 0 to {self._num_levels - 1}")
        self._values[request.first + part.sample_index, begin:end] = part.tokens
        self._done += part.tokens.size

    def snapshot(self) -> Snapshot:
        shape = self._shape[:2] if self._shape[2] == 1 else self._shape
        images = self._values.copy().reshape(self._order.count, *shape)
        return Snapshot(images, self._done, self._values.size, self._order.seed, self._num_levels)


def num_levels(model: Model) -> int:
    """Number of levels n of an image model: a value is 0 to n - 1."""
    size = model.architecture
    if size.mixture is not None:
        return size.mixture.num_levels
    return size.vocab_size - (size.bos_token_id == size.vocab_size - 1)  # a bos is no level


def _given(prompt: Any, shape: tuple[int, int, int]) -> bytes:
    """The values with which every image begins: [n], or whole rows, [rows, width] or [rows, width, channels]."""
    if isinstance(prompt, np.ndarray) and prompt.ndim > 1:
        _, width, channels = shape
        row = (width,) if channels == 1 else (width, channels)
        if prompt.shape[1:] != row and prompt.shape[1:] != (width, channels):
            raise ValueError(f"prompt: rows must have the shape {list(row)}; got an array of shape {list(prompt.shape)}")
        prompt = prompt.reshape(-1)
    values = requests.image_values("prompt", prompt)
    if values is None:
        values = bytes(requests.integers("prompt", prompt, lambda name, value: requests.integer(name, value, 0, 255)))
    if len(values) >= math.prod(shape):
        raise ValueError(f"prompt: must leave a value to draw of the {math.prod(shape)} of an image; got {len(values)} values")
    return values
