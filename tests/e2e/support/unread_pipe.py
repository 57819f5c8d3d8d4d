# SPDX-License-Identifier: Apache-2.0
"""A pipe behind a log that nobody reads."""

import json
import os
import re


class Pipe:
    """A pipe whose reader stops reading; `reader` and `writer` are descriptors."""

    def __init__(self, path=None):
        if path is None:
            self.reader, self.writer = os.pipe()
        else:
            os.mkfifo(path)
            self.reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            self.writer = os.open(path, os.O_WRONLY)
            os.set_blocking(self.reader, True)

    def fill(self):
        """Through a description of its own: O_NONBLOCK would hold for the server as well."""
        filler = os.open(f"/proc/self/fd/{self.writer}", os.O_WRONLY | os.O_NONBLOCK)
        for size in (4096, 1):
            try:
                while True:
                    os.write(filler, b"\n" * size)
            except BlockingIOError:
                pass
        os.close(filler)

    def read_until(self, pattern):
        """What is read until `pattern` is in it, with the line that holds it."""
        got = b""
        while not re.search(pattern + rb".*\n", got):
            piece = os.read(self.reader, 4096)
            if not piece:
                raise RuntimeError(f"the pipe has ended: {got.decode()}")
            got += piece
        return got.decode()

    def events(self):
        """What is read to the end, once all writers have closed."""
        os.close(self.writer)
        with os.fdopen(self.reader, "rb") as file:
            return [json.loads(line) for line in file if line.strip()]
