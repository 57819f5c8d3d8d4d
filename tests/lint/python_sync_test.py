#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The generated half of the Python client against its sources. client/python/make_sync.py generates it."""
import re
import sys
import unittest

from lint_test import ROOT

sys.path.insert(0, str(ROOT / "client/python"))
import make_sync  # noqa: E402

EXAMPLE = '''# SPDX
"""For `async with await AsyncClient.session()`."""
from rivulet.aio_streams import AsyncStream
class AsyncClient:
    async def __aenter__(self) -> AsyncGenerator[a.Part, None]:
        async for part in await self.parts():
            return [x async for x in part]
'''
SYNC = '''# SPDX
# Generated from aio.py by client/python/make_sync.py: change aio.py and run the script.
"""For `with Client.session()`."""
from rivulet.streams import Stream
class Client:
    def __enter__(self) -> Generator[a.Part, None, None]:
        for part in self.parts():
            return [x for x in part]
'''


class PythonSyncTest(unittest.TestCase):
    def setUp(self):
        self.texts = {name: (make_sync.PACKAGE / name).read_text(encoding="utf-8") for name in make_sync.SOURCES.values()}

    def test_rules(self):
        self.assertEqual(make_sync.sync(EXAMPLE, "aio.py"), SYNC)
        self.assertEqual(make_sync.unused([EXAMPLE]), [asyncio for asyncio, _ in make_sync.PAIRS])

    def test_every_pair_is_needed(self):
        self.assertEqual(make_sync.unused(list(self.texts.values())), [])

    def test_the_generated_files_are_what_the_script_makes(self):
        for generated, name in make_sync.SOURCES.items():
            text = (make_sync.PACKAGE / generated).read_text(encoding="utf-8")
            self.assertEqual(text, make_sync.sync(self.texts[name], name), f"{generated}: run client/python/make_sync.py")

    def test_nothing_of_asyncio_is_left(self):
        for generated, name in make_sync.SOURCES.items():
            rest = make_sync.sync(self.texts[name], name).split('"""', 2)[2]  # header and docstring name the other half
            self.assertEqual(re.findall(r".*(?:\bawait\b|(?i:async)|event loop|coroutine|aio_).*", rest), [])


if __name__ == "__main__":
    unittest.main()
