# SPDX-License-Identifier: Apache-2.0
"""Continues a line of text until it is interrupted: python chat.py [--target HOST:PORT] [--model NAME] [TEXT]"""

from __future__ import annotations

import argparse

import rivulet


def main() -> None:
    parser = argparse.ArgumentParser(description="Continues a line of text.")
    parser.add_argument("text", nargs="?", default="ROMEO:")
    parser.add_argument("--target", default="127.0.0.1:50051", metavar="HOST:PORT")
    parser.add_argument("--model", default="shakespeare-rfa", help="a model of text; default: %(default)s")
    parser.add_argument("--max-tokens", type=int)
    parser.add_argument("--seed", type=int)
    arguments = parser.parse_args()
    try:
        with rivulet.Client(arguments.target) as client, client.generate(
            arguments.text, model=arguments.model, max_tokens=arguments.max_tokens, seed=arguments.seed
        ) as parts:
            begin = arguments.text
            for part in parts:
                print(begin + part.text, end="", flush=True)
                begin = ""
            print()
    except (rivulet.RivuletError, ValueError) as error:
        parser.error(str(error))  # prints the usage, too


if __name__ == "__main__":
    main()
