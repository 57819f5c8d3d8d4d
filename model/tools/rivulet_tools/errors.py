# SPDX-License-Identifier: Apache-2.0
"""The two errors that end a command of this package early. The `rivulet` command has the same exit codes."""


class BadInput(Exception):
    """A file, tensor or setting that cannot be used; the text gives its name, its value and what is allowed. Exit code 2."""

    exit_code = 2


class Absent(Exception):
    """PyTorch, the reference library or the `rivulet` command is missing on this machine. Exit code 3."""

    exit_code = 3
