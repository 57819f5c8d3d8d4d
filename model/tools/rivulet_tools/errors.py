# SPDX-License-Identifier: Apache-2.0
"""The two ways in which a command of this package ends early. Exit codes are those of the `rivulet` command."""


class BadInput(Exception):
    """A file, tensor or setting that cannot be used; the text names it, what it held and what is allowed. Exit code 2."""

    exit_code = 2


class Absent(Exception):
    """Something that this machine lacks: PyTorch, the reference library, the `rivulet` command. Exit code 3."""

    exit_code = 3
