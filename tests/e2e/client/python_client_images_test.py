# SPDX-License-Identifier: Apache-2.0
"""Images by the Python client: the pixels of the command's PNG, whatever is drawn on the way; terminal and notebook."""

import asyncio
import io
import os
import re
import sys
import tempfile
import types
import unittest
from importlib.util import find_spec
from pathlib import Path
from unittest import mock

from rivulet_wheel import await_idle  # makes rivulet what is imported below

import numpy as np

import rivulet
from command import CONFORMANCE, ZOO, CommandTest, Server, rivulet as command
from model_files import Model
from png_reader import decode_png
from python_clients import Async, Sync

MNIST, IMAGE, COLOUR, WIDE = "mnist-linear", "tiny-image", "tiny-colour", "tiny-wide"
HEIGHT, WIDTH = 4, 11  # of tiny-image
FOUR_REQUESTS = 4 * 64 * 784  # values of the requests that run at once
HAS_PILLOW = find_spec("PIL") is not None


def write_model(folder, name, **changes):
    """tiny-image with another shape or other levels."""
    model = Model(IMAGE)
    model.config["name"] = name
    model.config["content"].update(changes.get("content", {}))
    model.config["output"].update(changes.get("output", {}))
    (folder / name).mkdir()
    model.write(folder / name)
    return folder / name


class ImageServerTest(CommandTest):
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        colour = write_model(cls.folder, COLOUR, content={"height": 3, "width": 5, "channels": 3}, output={"num_levels": 100})
        models = (ZOO / MNIST, CONFORMANCE / IMAGE, CONFORMANCE / "tiny-rfa", colour)
        cls.server = cls.enterClassContext(Server(*models, args=("--backend", "cpu")))
        cls.plain = cls.enterClassContext(rivulet.Client(cls.server.target))

    def command_draws(self, model, count, seed, columns, *args):
        """The rows of pixels of the PNG that `rivulet generate --out` writes."""
        out = self.folder / "command.png"
        self.succeeds(
            command(
                "generate", "--target", self.server.target, "--model-name", model, "--count", count, "--seed", seed, "--out", out,
                "--columns", columns, *args,
            )
        )
        return out


class ImageTests:
    def draw(self, *args, **options):
        return self.call(self.server.target, lambda client: client.generate_images(*args, **options))

    def snapshots(self, *args, **options):
        found = []

        async def run(client):
            found.extend([snapshot async for snapshot in client.stream_images(*args, **options)])

        self.use(run)
        return found

    def test_digits_are_pixel_by_pixel_those_of_the_command(self):
        images = self.draw(3, model=MNIST, seed=11)
        self.assertEqual((images.shape, images.dtype), ((3, 28, 28), np.uint8))
        rows = decode_png(self.command_draws(MNIST, 3, 11, 2).read_bytes())
        self.assertEqual(rivulet.draw.grid(images, columns=2).tolist(), [list(row) for row in rows])
        self.assertTrue(all(20 < ink < 400 for ink in (images > 127).sum(axis=(1, 2))), "no digits")

    def test_more_images_than_a_request_holds_are_those_of_the_command(self):
        images = self.draw(150, model=IMAGE, seed=2**64 - 2, prompt=[3])  # seeds 2^64 - 2, 2^64 - 1, 0
        rows = decode_png(self.command_draws(IMAGE, 150, 2**64 - 2, 10, "--values", "3").read_bytes())
        self.assertEqual(rivulet.draw.grid(images, columns=10).tolist(), [list(row) for row in rows])
        self.assertEqual(len(np.unique(images, axis=0)), 150)
        self.assertTrue((images[:, 0, 0] == 3).all())
        few = self.draw(2, model=IMAGE, seed=2**64 - 2, prompt=[3])
        self.assertTrue(np.array_equal(few, images[:2]))

    def test_temperature_is_sent(self):
        cold = self.draw(2, model=IMAGE, seed=1, prompt=[3], temperature=0)
        self.assertTrue(np.array_equal(cold[0], cold[1]))

    def test_images_go_on_from_values_of_any_shape(self):
        whole = self.draw(2, model=IMAGE, seed=5, prompt=[3])
        begun = whole[0].reshape(-1)[: 2 * WIDTH]
        expected = self.draw(1, model=IMAGE, seed=5, prompt=begun)
        self.assertTrue(np.array_equal(expected[0], whole[0]))  # random numbers belong to positions
        for prompt in (begun.tolist(), begun.tobytes(), bytearray(begun.tobytes()), begun.reshape(2, WIDTH), begun.reshape(2, WIDTH, 1).astype(np.int64)):
            self.assertTrue(np.array_equal(self.draw(1, model=IMAGE, seed=5, prompt=prompt), expected))

    @unittest.skipUnless(HAS_PILLOW, "Pillow is absent")
    def test_channels_are_an_axis_and_levels_are_spread_over_the_png(self):
        from PIL import Image

        images = self.draw(5, model=COLOUR, seed=4, prompt=[7])
        self.assertEqual((images.shape, images[0, 0, 0, 0], images.max() < 100), ((5, 3, 5, 3), 7, True))
        ours = self.folder / "ours.png"
        rivulet.draw.save_png(images, ours, columns=3, num_levels=100)
        theirs = np.array(Image.open(self.command_draws(COLOUR, 5, 4, 3, "--values", "7")))
        self.assertEqual(theirs.shape, (2 * 4 - 1, 3 * 6 - 1, 3))
        self.assertTrue(np.array_equal(np.array(Image.open(ours)), theirs))
        prompt = images[0, :1]  # [1, width, channels]
        self.assertTrue(np.array_equal(self.draw(1, model=COLOUR, seed=4, prompt=prompt)[0, :1], prompt))

    def test_snapshots_grow_to_the_whole(self):
        for count in (30, 120, 480):  # a busy machine may draw a few between two looks
            seen = []
            images = self.draw(count, model=MNIST, seed=9, interval=0.02, on_progress=seen.append)
            snapshots = self.snapshots(count, model=MNIST, seed=9, interval=0.02)
            if min(len(seen), len(snapshots)) > 3:
                break
        self.assertGreater(min(len(seen), len(snapshots)), 3)
        done = [snapshot.done for snapshot in snapshots]
        self.assertEqual((done, done[-1]), (sorted(done), snapshots[-1].total))
        self.assertLess(done[0], snapshots[-1].total)
        last = snapshots[-1]
        self.assertEqual((last.images.shape, last.total, last.seed, last.num_levels), ((count, 28, 28), count * 784, 9, 256))
        for snapshot in snapshots:
            drawn = snapshot.images != 0
            self.assertTrue(np.array_equal(snapshot.images[drawn], last.images[drawn]))
            self.assertLessEqual(drawn.sum(), snapshot.done)
        self.assertTrue(np.array_equal(images, last.images))
        self.assertTrue(np.array_equal(seen[-1].images, images))

    def test_without_a_seed_images_differ_and_the_snapshot_tells_it(self):
        first, second = (self.snapshots(1, model=IMAGE, prompt=[3])[-1] for _ in range(2))
        self.assertNotEqual(first.seed, second.seed)
        self.assertTrue(np.array_equal(self.draw(1, model=IMAGE, prompt=[3], seed=first.seed), first.images))

    def test_what_cannot_be_drawn_is_refused(self):
        for options, error_type, mention in (
            ({"model": "tiny-rfa"}, ValueError, "model: tiny-rfa does not generate images"),
            ({"model": "gpt-2"}, rivulet.NotFound, "MODEL_NOT_FOUND"),
            ({"model": IMAGE}, rivulet.InvalidArgument, "PROMPT_EMPTY"),
            ({"model": MNIST, "temperature": -1}, rivulet.InvalidArgument, r"sampling\.temperature"),
            ({"model": MNIST, "temperature": "hot"}, TypeError, "^temperature: must .*; got 'hot'"),
            ({"model": IMAGE, "prompt": [256]}, ValueError, r"prompt\[0\]: must be 0 to 255; got 256"),
            ({"model": IMAGE, "prompt": [1] * 44}, ValueError, "^prompt: must .*; got 44 values"),
            ({"model": IMAGE, "prompt": np.zeros((1, 10), np.uint8)}, ValueError, r"prompt: rows must have the shape \[11\]; got an array of shape \[1, 10\]"),
            ({"model": IMAGE, "prompt": np.zeros((1, 11))}, TypeError, "float64"),
            ({"count": 0}, ValueError, "count: must be"),
            ({"count": 2.0}, TypeError, r"^count: must .*; got 2\.0"),
            ({"seed": -1}, ValueError, "seed: must be 0 to 18446744073709551615; got -1"),
            ({"interval": 0}, ValueError, "^interval: must .*; got 0"),
            ({"columns": 3}, TypeError, "'columns'"),
            ({"model": MNIST, "count": 4000, "timeout": 0.2}, rivulet.DeadlineExceeded, r"its timeout of 0\."),
        ):
            with self.subTest(options=options), self.assertRaises(error_type) as caught:
                self.draw(**options)
            self.assertRegex(str(caught.exception), mention)
        self.assertTrue(await_idle(self.plain, MNIST))


    def test_leaving_the_snapshots_ends_the_calls(self):
        async def run(client):
            before = self.plain.load(MNIST)[0].tokens_total
            async for snapshot in client.stream_images(4000, model=MNIST, interval=0.05):
                self.assertLess(snapshot.done, snapshot.total)
                break
            self.assertTrue(await asyncio.to_thread(await_idle, self.plain, MNIST))
            self.assertLess(self.plain.load(MNIST)[0].tokens_total - before, FOUR_REQUESTS)

        self.use(run)


class SyncImageTest(ImageTests, Sync, ImageServerTest):
    pass


class AsyncImageTest(ImageTests, Async, ImageServerTest):
    def test_cancelling_the_task_ends_the_calls(self):
        async def run(client):
            before = self.plain.load(MNIST)[0].tokens_total
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(client.generate_images(4000, model=MNIST), 0.3)
            self.assertTrue(await asyncio.to_thread(await_idle, self.plain, MNIST))
            self.assertLess(self.plain.load(MNIST)[0].tokens_total - before, FOUR_REQUESTS)

        self.use(run)


class Screen(io.StringIO):
    def isatty(self):
        return True


def shown(line):
    """The pixels [2, w, 3] of a line of half blocks."""
    cells = re.findall(r"\x1b\[38;2;(\d+);(\d+);(\d+);48;2;(\d+);(\d+);(\d+)m\u2580", line)
    return np.array(cells, int).reshape(-1, 2, 3).transpose(1, 0, 2)


class DrawTest(unittest.TestCase):
    def snapshot(self, count=3, done=5, shape=(5, 4)):
        images = np.arange(count * int(np.prod(shape)), dtype=np.uint8).reshape(count, *shape)
        return rivulet.Snapshot(images, done, images.size, 1, 256)

    def frames(self, snapshots, columns, lines=24):
        with mock.patch.dict(os.environ, {"COLUMNS": str(columns), "LINES": str(lines)}):
            screen = Screen()
            show = rivulet.draw.live(file=screen)
            for snapshot in snapshots:
                show(snapshot)
        return screen.getvalue()

    def test_a_terminal_shows_the_pixels_and_draws_over_its_last_picture(self):
        snapshot = self.snapshot()
        first, second = self.frames([self.snapshot(done=2), snapshot], 80).split("\x1b[4F")  # three lines of pixels, one of text
        self.assertNotIn("F", re.sub(r"\x1b\[[0-9;]*m", "", first))
        lines = second.split("\n")
        self.assertIn("5 of 60 values, seed 1", lines[3])
        picture = np.concatenate([shown(line) for line in lines[:3]])[:5]
        self.assertTrue(np.array_equal(picture[..., 0], rivulet.draw.grid(snapshot.images)))

    def test_a_terminal_shows_what_fits(self):
        text = self.frames([self.snapshot()], 10)  # two images of four pixels and their gaps
        self.assertEqual(shown(text.split("\n")[0]).shape, (2, 9, 3))
        self.assertEqual(self.frames([self.snapshot()], 4).count("\u2580"), 0)
        high = self.frames([self.snapshot(20, shape=(2, 4))], 5, lines=8)
        self.assertLess(high.count("\n"), 8)
        self.assertEqual(self.frames([self.snapshot(shape=(60, 4))], 80).count("\u2580"), 0)
        self.assertIn("values", self.frames([self.snapshot()], 4))
        self.assertEqual(shown(self.frames([self.snapshot(shape=(2, 2, 3))], 80).split("\n")[0])[0, 1].tolist(), [3, 4, 5])

    def test_what_is_no_terminal_gets_nothing(self):
        file = io.StringIO()
        rivulet.draw.live(file=file)(self.snapshot())
        self.assertEqual(file.getvalue(), "")

    @unittest.skipUnless(HAS_PILLOW, "Pillow is absent")
    def test_a_notebook_gets_a_png_that_is_replaced(self):
        ipython, display = types.ModuleType("IPython"), types.ModuleType("IPython.display")
        ipython.get_ipython = lambda: types.SimpleNamespace(kernel=object())
        handle = mock.Mock()
        display.Image = mock.Mock(side_effect=lambda **options: options)
        display.display = mock.Mock(return_value=handle)
        with mock.patch.dict(sys.modules, {"IPython": ipython, "IPython.display": display}):
            show = rivulet.draw.live(columns=2)
            show(self.snapshot())
            show(self.snapshot(done=60))
        ((picture,), options) = display.display.call_args
        self.assertEqual((options, picture["format"], picture["width"]), ({"display_id": True}, "png", 2 * 9))
        rows = decode_png(picture["data"])
        self.assertEqual([list(row) for row in rows], rivulet.draw.grid(self.snapshot().images, columns=2).tolist())
        handle.update.assert_called_once()

    def test_bad_pictures_are_named(self):
        good = np.zeros((1, 2, 2), np.uint8)
        self.assertEqual(rivulet.draw.grid(good + np.uint8(1), num_levels=2).tolist(), [[255, 255]] * 2)
        for call, mention in (
            (lambda: rivulet.draw.grid(np.zeros((2, 2), np.uint8)), r"images: must have the shape \[count, height, width\(, channels\)\]; got \[2, 2\]"),
            (lambda: rivulet.draw.grid(good, columns=0), "^columns: must .*; got 0"),
            (lambda: rivulet.draw.grid(good, num_levels=1), "^num_levels: must .*; got 1"),
            (lambda: rivulet.draw.png(np.zeros((1, 2, 2, 2), np.uint8)), "^images: must have 1 channel .*; got 2"),
        ):
            with self.assertRaises(ValueError) as caught:
                call()
            self.assertRegex(str(caught.exception), mention)

    def test_without_pillow_a_png_says_what_to_install(self):
        with mock.patch.dict(sys.modules, {"PIL": None}):
            with self.assertRaisesRegex(ImportError, "pip install pillow"):
                rivulet.draw.png(np.zeros((1, 2, 2), np.uint8))


if __name__ == "__main__":
    unittest.main()
