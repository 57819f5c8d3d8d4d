# SPDX-License-Identifier: Apache-2.0
"""The part of a page of docs/ that is written from a table in the code."""
import pathlib


class GeneratedList:
    """Lies in `page` between the comments "NAME: begin" and "NAME: end"."""

    def __init__(self, page: pathlib.Path, name: str):
        self.page = page
        self.begin, self.end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"

    def read(self) -> str:
        """What is there now. Errors: ValueError where a comment is missing."""
        text = self.page.read_text(encoding="utf-8")
        return text[text.index(self.begin) + len(self.begin):text.index(self.end)]

    def write(self, listing: str) -> None:
        text = self.page.read_text(encoding="utf-8")
        old = self.begin + self.read() + self.end
        self.page.write_text(text.replace(old, self.begin + listing + self.end), encoding="utf-8")
