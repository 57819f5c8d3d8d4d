# SPDX-License-Identifier: Apache-2.0
"""The tasks that draw the images of one call of AsyncClient. threads/drawing.py has the threads of Client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING

from rivulet.core import images
from rivulet.model_replies import Model

if TYPE_CHECKING:
    from rivulet.aio.streams import AsyncGenerateStream


async def snapshots(
    order: images.Order, model: Callable[..., Awaitable[Model]], generate: Callable[..., AsyncGenerateStream]
) -> AsyncGenerator[images.Snapshot, None]:
    """As in threads/drawing.py, but asks for the model in the first iteration."""
    canvas = images.Canvas(order, await model(order.model, **order.call_options()))
    left = canvas.plan()[::-1]

    async def work() -> None:
        while left:
            request = left.pop()
            prompt, options = canvas.generate_arguments(request)
            async with generate(prompt, **options) as parts:
                async for part in parts:
                    canvas.add(request, part)

    tasks = {asyncio.create_task(work()) for _ in range(min(len(left), images.REQUESTS_AT_ONCE))}
    running = tasks
    try:
        while running:
            done, running = await asyncio.wait(running, timeout=order.interval)
            for task in done:
                task.result()
            if not done or not running:
                yield canvas.snapshot()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
