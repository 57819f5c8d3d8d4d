# SPDX-License-Identifier: Apache-2.0
"""POST /v1/images/generations."""

from __future__ import annotations

import base64
import time
from typing import Any

from rivulet import ImageContent, ImageOptions, draw
from rivulet.core.images import Order
from rivulet.gateway.web.exchange import Call, checked
from rivulet.gateway.web.problems import invalid

_MOST_IMAGES = 64


async def create(call: Call) -> Any:
    """PNG images."""
    body = call.body
    name = body.required_text("model")
    body.only("prompt", "")
    count = body.integer("n", 1, _MOST_IMAGES) or 1
    size = body.text("size")
    body.only("response_format", "b64_json")
    body.only("output_format", "png")
    body.only("quality", "auto", "standard")
    for parameter in ("background", "moderation", "style"):
        body.only(parameter, "auto")
    body.only("stream", False)
    body.ignore("user")
    options: ImageOptions = {"model": name, "temperature": body.take("temperature", "number"), "metadata": call.options["metadata"]}
    seed = body.take("seed", "integer")
    body.end()
    checked(lambda: Order("generate_images", count, seed, options), call.names)  # before any call to the server
    model = await call.client.model(name, **call.options)
    if not isinstance(model.content, ImageContent):
        raise invalid("model", f"{name} does not generate images")
    own = f"{model.content.width}x{model.content.height}"
    if size not in (None, "auto", own):
        raise invalid("size", f'only "{own}", the size of the images of {name}, or "auto" is supported; got "{size}"', "UNSUPPORTED_PARAMETER")
    snapshot = None
    snapshots = call.client.stream_images(count, seed=seed, **options)
    try:
        async for snapshot in snapshots:
            pass
    finally:
        await snapshots.aclose()
    assert snapshot is not None  # the last snapshot has the finished images
    pictures = [draw.png(image[None], num_levels=snapshot.num_levels) for image in snapshot.images]
    data = [{"b64_json": base64.b64encode(picture).decode()} for picture in pictures]
    return {"created": int(time.time()), "data": data, "output_format": "png", "size": own}
