# SPDX-License-Identifier: Apache-2.0
"""Pictures: drawn live in a terminal or a notebook, and as PNG files (with Pillow)."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Callable
from os import PathLike
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from rivulet.core.images import Snapshot

_GAP = 64  # gray between the images of a grid


def grid(images: NDArray[np.uint8], *, columns: int = 8, num_levels: int = 256) -> NDArray[np.uint8]:
    """Images [count, height, width] or [count, height, width, channels] side by side, with one gray pixel between them: [h,
    w] or [h, w, channels]; 0 is black, num_levels - 1 becomes 255. Errors: TypeError (not uint8), ValueError."""
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8:
        kind = f"an array of {images.dtype}" if isinstance(images, np.ndarray) else type(images).__name__
        raise TypeError(f"images: must be an array of uint8 with values from 0 to {num_levels - 1}; got {kind}")
    if images.ndim not in (3, 4) or images.size == 0:
        raise ValueError(f"images: must have the shape [count, height, width(, channels)]; got {list(images.shape)}")
    if columns < 1:
        raise ValueError(f"columns: must be at least 1; got {columns}")
    if not 2 <= num_levels <= 256:
        raise ValueError(f"num_levels: must be 2 to 256; got {num_levels}")
    top = num_levels - 1
    scaled = (np.minimum(images, top).astype(np.int32) * 255 + top // 2) // top
    count, height, width, *channels = images.shape
    columns = min(columns, count)
    rows = -(-count // columns)
    picture = np.full((rows * (height + 1) - 1, columns * (width + 1) - 1, *channels), _GAP, np.uint8)
    for index, image in enumerate(scaled):
        y, x = index // columns * (height + 1), index % columns * (width + 1)
        picture[y : y + height, x : x + width] = image
    return picture


def png(images: NDArray[np.uint8], *, columns: int = 8, num_levels: int = 256) -> bytes:
    """The grid of images as a PNG file. Errors: the errors of grid(); ValueError (neither 1 nor 3 channels);
    ImportError (no Pillow)."""
    picture = grid(images, columns=columns, num_levels=num_levels)
    if picture.ndim == 3 and picture.shape[2] != 3:
        raise ValueError(f"images: must have 1 channel (no axis) or 3 for a PNG; got {picture.shape[2]}")
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("PNG needs Pillow: pip install pillow") from error
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "PNG")
    return file.getvalue()


def save_png(images: NDArray[np.uint8], path: str | PathLike[str], *, columns: int = 8, num_levels: int = 256) -> None:
    """Writes the grid of images to `path`. Errors: the errors of png(); OSError."""
    data = png(images, columns=columns, num_levels=num_levels)
    with open(path, "wb") as file:
        file.write(data)


def half_blocks(picture: NDArray[np.uint8]) -> list[str]:
    """Lines of characters that show a picture [h, w] or [h, w, 3] on a terminal with 24-bit colours, two rows of pixels in a line."""
    colours = picture if picture.ndim == 3 else np.repeat(picture[:, :, None], 3, axis=2)
    if len(colours) % 2:
        colours = np.concatenate([colours, np.zeros_like(colours[:1])])
    # The upper half block: foreground above, background below.
    return [
        "".join("\x1b[38;2;%d;%d;%d;48;2;%d;%d;%dm\u2580" % (*a, *b) for a, b in zip(above, below)) + "\x1b[0m"
        for above, below in zip(colours[::2].tolist(), colours[1::2].tolist())
    ]


class _Terminal:
    """Draws over its last picture: the first images that fit, and a line with the progress."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._shown = 0  # lines

    def __call__(self, snapshot: Snapshot) -> None:
        if not self._file.isatty():
            return
        columns, lines = shutil.get_terminal_size()
        _, height, width, *channels = snapshot.images.shape
        across = columns // (width + 1)
        down = max(1, 2 * (lines - 3) // (height + 1))
        text: list[str] = []
        if across and height // 2 < lines - 2 and channels in ([], [3]):
            first = snapshot.images[: across * down]
            text = half_blocks(grid(first, columns=across, num_levels=snapshot.num_levels))
        text.append(f"{snapshot.done} of {snapshot.total} values, seed {snapshot.seed}")
        up = f"\x1b[{self._shown}F" if self._shown else ""
        self._file.write(up + "".join(f"{line}\x1b[K\n" for line in text) + "\x1b[J")
        self._file.flush()
        self._shown = len(text)


class _Notebook:
    """Shows one PNG in the output of a cell, and replaces it."""

    def __init__(self, columns: int) -> None:
        self._columns = columns
        self._handle: Any = None

    def __call__(self, snapshot: Snapshot) -> None:
        from IPython.display import Image, display

        data = png(snapshot.images, columns=self._columns, num_levels=snapshot.num_levels)
        height, width = grid(snapshot.images, columns=self._columns).shape[:2]
        picture = Image(data=data, format="png", width=2 * width, height=2 * height)
        if self._handle is None:
            self._handle = display(picture, display_id=True)
        else:
            self._handle.update(picture)


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")  # a notebook has it loaded
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


def live(*, columns: int = 8, file: TextIO | None = None) -> Callable[[Snapshot], None]:
    """Returns a function that shows images while they are drawn. Pass it to generate_images(on_progress=...), or call
    it with every Snapshot of stream_images(). In a notebook it shows a picture, `columns` images wide (needs Pillow).
    Otherwise it writes the images that fit into the terminal to `file`, by default stdout; it writes nothing if
    `file` is not a terminal."""
    if file is None and _in_notebook():
        return _Notebook(columns)
    return _Terminal(file or sys.stdout)
