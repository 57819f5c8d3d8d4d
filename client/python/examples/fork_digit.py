# SPDX-License-Identifier: Apache-2.0
"""Draws the upper half of one digit, forks the session and lets every fork finish it in its own way, live in the terminal:
python fork_digit.py [--target HOST:PORT] [--model NAME] [--out FILE.png]"""

from __future__ import annotations

import argparse
import asyncio
import time

import numpy as np

import rivulet


class Picture:
    """All images side by side, shown at most ten times a second."""

    def __init__(self, count: int, content: rivulet.ImageContent, levels: int, seed: int) -> None:
        self._values = np.zeros((count, content.height, content.width), np.uint8)
        self._flat = self._values.reshape(count, -1)
        self._levels = levels
        self._seed = seed
        self._show = rivulet.draw.live()
        self._next = 0.0
        self._done = 0

    def add(self, rows: slice, first: int, values: np.ndarray) -> None:
        """Values [n], from value `first` on, of the images `rows`."""
        self._flat[rows, first : first + len(values)] = values
        self._done += len(self._flat[rows]) * len(values)
        if time.monotonic() >= self._next or self._done == self._flat.size:
            self._show(rivulet.Snapshot(self._values.copy(), self._done, self._flat.size, self._seed, self._levels))
            self._next = time.monotonic() + 0.1

    def save(self, path: str) -> None:
        rivulet.draw.save_png(self._values, path, columns=4, num_levels=self._levels)

    def endings(self) -> int:
        return len(np.unique(self._flat, axis=0))


async def draw(target: str, name: str, count: int, seed: int, temperature: float, out: str | None) -> None:
    async with rivulet.AsyncClient(target) as client:
        model = await client.model(name)
        content, mixture = model.content, model.architecture.mixture
        if not isinstance(content, rivulet.ImageContent) or content.channels != 1 or mixture is None:
            raise ValueError(f"--model: {model.summary.name} draws no gray images")
        picture = Picture(count, content, mixture.num_levels, seed)
        async with await client.open_session(model=model.summary.name, seed=seed) as session:
            half = content.height // 2 * content.width
            position = 0
            async for part in session.generate(max_tokens=half, temperature=temperature):
                picture.add(slice(None), position, part.tokens)  # of all images alike
                position = session.position

            async def finish(index: int, fork: rivulet.AsyncSession) -> None:
                position = fork.position
                async with fork:
                    async for part in fork.generate(temperature=temperature):
                        picture.add(slice(index, index + 1), position, part.tokens)
                        position = fork.position

            forks = await session.fork(count, seed=seed + 1)
            await asyncio.gather(*(finish(index, fork) for index, fork in enumerate(forks)))
    print(f"{picture.endings()} different endings of one digit")
    if out is not None:
        picture.save(out)


def main() -> None:
    parser = argparse.ArgumentParser(description="Finishes one half-drawn digit several times.")
    parser.add_argument("--target", default="127.0.0.1:50051", metavar="HOST:PORT")
    parser.add_argument("--model", default="mnist-linear", help="a model of gray images; default: %(default)s")
    parser.add_argument("--count", type=int, default=16, help="1 to 256")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--out", metavar="FILE.png")
    arguments = parser.parse_args()
    try:
        asyncio.run(
            draw(arguments.target, arguments.model, arguments.count, arguments.seed, arguments.temperature, arguments.out)
        )
    except (rivulet.RivuletError, ValueError, OSError) as error:
        parser.error(str(error))  # prints the usage, too


if __name__ == "__main__":
    main()
