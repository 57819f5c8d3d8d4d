# SPDX-License-Identifier: Apache-2.0
"""Images drawn by `rivulet generate --count N --out FILE.png`: the file decodes, and image i depends on the seed alone."""

import os
import pathlib
import pty
import subprocess
import tempfile
import unittest

from command import BIN_DIR, CONFORMANCE, ZOO, CommandTest, rivulet
from png_reader import decode_png

IMAGE = CONFORMANCE / "tiny-image"  # 4 x 11 gray, no bos: its first value must be given
HEIGHT, WIDTH = 4, 11
MNIST = ZOO / "mnist-linear"
GAP = 64


def images_of(rows, height, width, columns, count):
    """The images of a grid; checks that what lies between them is the gap."""
    images = []
    for i in range(count):
        top, left = i // columns * (height + 1), i % columns * (width + 1)
        images.append(b"".join(rows[top + y][left : left + width] for y in range(height)))
        if left:
            assert all(rows[top + y][left - 1] == GAP for y in range(height))
    return images


class ImagesTest(CommandTest):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.out = self.folder / "images.png"

    def draw(self, count, *args, columns=8):
        self.succeeds(
            rivulet(
                "generate", "--model", IMAGE, "--values", "3", "--count", count, "--out", self.out,
                "--columns", columns, *args,
            )
        )
        self.assertEqual(os.listdir(self.folder), ["images.png"])
        rows = decode_png(self.out.read_bytes())
        across = min(columns, count)
        down = -(-count // across)
        self.assertEqual(len(rows), down * (HEIGHT + 1) - 1)
        self.assertEqual(len(rows[0]), across * (WIDTH + 1) - 1)
        return images_of(rows, HEIGHT, WIDTH, across, count)

    def test_an_image_depends_on_the_seed_and_its_number_alone(self):
        few = self.draw(3, "--seed", "5")
        # More than one request holds, and another shape of grid.
        many = self.draw(70, "--seed", "5", columns=7)
        self.assertEqual(many[:3], few)
        self.assertEqual(len(set(many)), 70)
        self.assertNotEqual(self.draw(3, "--seed", "6"), few)

    def test_the_png_holds_the_values_that_were_generated(self):
        (image,) = self.draw(1, "--seed", "5")
        result = self.succeeds(
            rivulet("generate", "--model", IMAGE, "--values", "3", "--seed", "5")
        )
        self.assertEqual(list(image), [3] + [int(value) for value in result.out.split()])

    def test_an_image_goes_on_from_given_values(self):
        whole = self.draw(1, "--seed", "5")[0]
        begun = self.folder / "begun"
        begun.write_bytes(whole[:20])
        result = self.succeeds(
            rivulet("generate", "--model", IMAGE, "--values-file", begun, "--max-tokens", "4", "--seed", "5")
        )
        # Random numbers belong to positions: the same seed goes on as if it had not been interrupted.
        self.assertEqual([int(value) for value in result.out.split()], list(whole[20:24]))

    def test_digits_are_drawn(self):
        self.succeeds(
            rivulet("generate", "--model", MNIST, "--count", "4", "--seed", "1", "--out", self.out)
        )
        for image in images_of(decode_png(self.out.read_bytes()), 28, 28, 4, 4):
            ink = sum(value > 127 for value in image)
            self.assertTrue(20 < ink < 400, f"{ink} of 784 pixels are white: no digit")

    def test_what_cannot_be_drawn_is_exit_code_2(self):
        draw = ["generate", "--out", self.out, "--count", "2"]
        self.fails(rivulet(*draw, "--model", CONFORMANCE / "tiny-rfa"), 2, "--out")
        self.fails(rivulet(*draw, "--model", IMAGE), 2, "prompt")
        self.fails(rivulet(*draw, "--model", IMAGE, "--values", ",".join(["1"] * 45)), 2, "prompt")
        self.assertEqual(os.listdir(self.folder), [])
        nowhere = self.folder / "absent" / "x.png"
        self.fails(rivulet("generate", "--model", MNIST, "--out", nowhere), 2, str(nowhere))

    def test_what_is_no_regular_file_is_left_alone(self):
        draw = ["generate", "--model", IMAGE, "--values", "3", "--out"]
        fifo = self.folder / "fifo"
        os.mkfifo(fifo)
        self.fails(rivulet(*draw, fifo), 2, f"{fifo}: cannot be written: not a regular file")
        self.assertTrue(fifo.is_fifo())
        self.fails(rivulet(*draw, self.folder), 2, f"{self.folder}: cannot be written: a directory")
        link = self.folder / "link"
        link.symlink_to(self.out)
        self.out.write_bytes(b"old")
        self.succeeds(rivulet(*draw, link))
        self.assertTrue(link.is_symlink())
        self.assertEqual(len(decode_png(self.out.read_bytes())), HEIGHT)
        self.assertEqual(sorted(os.listdir(self.folder)), ["fifo", "images.png", "link"])

    def test_a_grid_that_is_too_large_is_refused_before_it_is_drawn(self):
        # 65536 images of mnist-linear would take most of an hour.
        draw = ["generate", "--model", MNIST, "--out", self.out, "--count", "65536"]
        self.fails(rivulet(*draw, "--columns", "1", timeout=60), 2, "--columns")

    def on_terminal(self, *args):
        """Exit code and what a terminal of 80 columns got on stderr."""
        try:
            master, slave = pty.openpty()
        except OSError as error:  # a bare chroot has no terminals to give
            self.skipTest(f"this machine gives no terminal: {error}")
        process = subprocess.Popen(
            [BIN_DIR / "rivulet", *map(str, args)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=slave, env={**os.environ, "TERM": "xterm"},
        )
        os.close(slave)
        seen = b""
        while True:
            try:
                chunk = os.read(master, 65536)
            except OSError:  # the other end is closed
                break
            if not chunk:
                break
            seen += chunk
        os.close(master)
        self.assertEqual(process.stdout.read(), b"")
        process.stdout.close()
        return process.wait(timeout=60), seen.decode()

    def test_progress_is_shown_on_a_terminal_and_erased(self):
        draw = ["generate", "--model", MNIST, "--count", "8", "--out", self.out]
        code, seen = self.on_terminal(*draw)
        self.assertEqual(code, 0, seen)
        self.assertIn(" pixels ", seen)
        self.assertIn("▀", seen)
        after = seen.rsplit("\x1b[J", 1)[1]
        self.assertTrue(after.startswith("8 images in "), after)
        self.assertEqual(after.count("\n"), 1)
        code, seen = self.on_terminal(*draw, "--temperature", "-1")
        self.assertEqual(code, 2)
        self.assertTrue(seen.startswith("rivulet: "), seen)


if __name__ == "__main__":
    unittest.main()
