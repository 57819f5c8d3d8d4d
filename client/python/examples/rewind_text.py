# SPDX-License-Identifier: Apache-2.0
"""Continues a text, marks the place, continues, rewinds to the mark and continues differently:
python rewind_text.py [--target HOST:PORT] [--model NAME] [TEXT]"""

from __future__ import annotations

import argparse

import rivulet


def write(session: rivulet.Session, title: str, length: int, seed: int | None = None) -> None:
    print(f"--- {title}, from position {session.position}")
    for part in session.generate(max_tokens=length, seed=seed, temperature=0.8):
        print(part.text, end="", flush=True)
    print()


def tell(client: rivulet.Client, model: str, text: str, length: int, seed: int) -> None:
    with client.open_session(model=model, seed=seed) as session:
        session.append(text)
        write(session, text, length)
        session.append(mark="fork in the road")
        write(session, "one way", length)
        session.rewind(mark="fork in the road")
        write(session, "another way", length, seed + 1)
        session.rewind(mark="fork in the road")
        write(session, "the first way again", length)


def main() -> None:
    parser = argparse.ArgumentParser(description="Continues a text, rewinds, and continues it differently.")
    parser.add_argument("text", nargs="?", default="ROMEO:")
    parser.add_argument("--target", default="127.0.0.1:50051", metavar="HOST:PORT")
    parser.add_argument("--model", default="shakespeare-rfa", help="a model of text; default: %(default)s")
    parser.add_argument("--length", type=int, default=120, help="characters of each part")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    try:
        with rivulet.Client(arguments.target) as client:
            tell(client, arguments.model, arguments.text, arguments.length, arguments.seed)
    except (rivulet.RivuletError, ValueError) as error:
        parser.error(str(error))  # prints the usage, too


if __name__ == "__main__":
    main()
