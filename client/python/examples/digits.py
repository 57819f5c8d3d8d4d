# SPDX-License-Identifier: Apache-2.0
"""Keeps the upper half of one digit and lets the model finish it several times, with asyncio:
python digits.py [--target HOST:PORT] [--model NAME] [--out FILE.png]"""

from __future__ import annotations

import argparse
import asyncio

import numpy as np

import rivulet


async def draw(target: str, model: str, count: int, seed: int, out: str | None) -> None:
    async with rivulet.AsyncClient(target) as client:
        original = await client.generate_images(1, model=model, seed=seed)  # [1, height, width]
        upper = original[0, : original.shape[1] // 2]  # [height / 2, width]
        finished = await client.generate_images(
            count, model=model, seed=seed + 1, prompt=upper, on_progress=rivulet.draw.live()
        )
    lower = finished[:, len(upper) :]
    print(f"{len(np.unique(lower, axis=0))} different endings of one digit")
    if out is not None:
        rivulet.draw.save_png(np.concatenate([original, finished]), out)


def main() -> None:
    parser = argparse.ArgumentParser(description="Finishes one digit several times.")
    parser.add_argument("--target", default="127.0.0.1:50051", metavar="HOST:PORT")
    parser.add_argument("--model", default="mnist-linear", help="a model of gray images; default: %(default)s")
    parser.add_argument("--count", type=int, default=7)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", metavar="FILE.png")
    arguments = parser.parse_args()
    try:
        asyncio.run(draw(arguments.target, arguments.model, arguments.count, arguments.seed, arguments.out))
    except (rivulet.RivuletError, ValueError, OSError) as error:
        parser.error(str(error))  # prints the usage, too


if __name__ == "__main__":
    main()
