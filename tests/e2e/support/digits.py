# SPDX-License-Identifier: Apache-2.0
"""What clients of other languages must receive: digits as `rivulet generate` draws them in its own process."""

from command import ZOO, rivulet

MODEL = ZOO / "mnist-linear"
VALUES = 28 * 28
# Above 2^63 and, like most such numbers, no double: a client that holds it as either sends another one.
SEED = 18446744073709551557


def reference_digits(count):
    """The pixels of `count` digits that SEED gives: [count][VALUES] integers 0 to 255, in raster order."""
    result = rivulet("generate", "--model", MODEL, "--seed", SEED, "--num-samples", count, "--json")
    assert result.code == 0, result
    digits = [[] for _ in range(count)]
    for part in result.lines():
        digits[part["sample_index"]] += part["tokens"]
    assert all(len(digit) == VALUES and sum(digit) > 0 for digit in digits), result
    return digits
