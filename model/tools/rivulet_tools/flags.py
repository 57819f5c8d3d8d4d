# SPDX-License-Identifier: Apache-2.0
"""Types of numbers on the command line, for argparse, which names them in its errors."""


def positive(text: str) -> int:
    """An integer of at least 1."""
    value = int(text)
    if value < 1:
        raise ValueError
    return value


def from_zero(text: str) -> int:
    """An integer of at least 0."""
    value = int(text)
    if value < 0:
        raise ValueError
    return value


def positive_number(text: str) -> float:
    """A finite number above 0."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError
    return value


def number_from_zero(text: str) -> float:
    """A finite number of at least 0."""
    value = float(text)
    if not 0 <= value < float("inf"):
        raise ValueError
    return value


def fraction(text: str) -> float:
    """A number above 0 and below 1."""
    value = float(text)
    if not 0 < value < 1:
        raise ValueError
    return value


for _type, _words in (
    (positive, "positive integer"),
    (from_zero, "integer from 0"),
    (positive_number, "positive number"),
    (number_from_zero, "number from 0"),
    (fraction, "number between 0 and 1"),
):
    _type.__name__ = _words  # argparse: "invalid positive integer value: '0'"
