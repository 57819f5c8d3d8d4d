# SPDX-License-Identifier: Apache-2.0
"""Completes the beginning of a molecule in many ways and counts how many are valid, with RDKit (pip install rdkit):
python molecules.py [--target HOST:PORT] [--model NAME] [--count N] [SCAFFOLD]"""

from __future__ import annotations

import argparse
import asyncio

import rivulet


async def complete(target: str, model: str, scaffold: str, count: int, seed: int) -> list[str]:
    async with rivulet.AsyncClient(target) as client, await client.open_session(model=model, seed=seed) as session:
        await session.append(scaffold)  # computed once; the forks begin with its state

        async def finish(fork: rivulet.AsyncSession) -> str:
            async with fork:
                return scaffold + (await fork.generate(max_tokens=200).collect()).text

        return await asyncio.gather(*(finish(fork) for fork in await session.fork(count, seed=seed + 1)))


def main() -> None:
    parser = argparse.ArgumentParser(description="Completes the beginning of a molecule.")
    parser.add_argument("scaffold", nargs="?", default="O=C(Nc1ccccc1)", help="SMILES; default: %(default)s")
    parser.add_argument("--target", default="127.0.0.1:50051", metavar="HOST:PORT")
    parser.add_argument("--model", default="gp-molformer-uniq", help="a model of SMILES; default: %(default)s")
    parser.add_argument("--count", type=int, default=64, help="1 to 256")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    try:
        from rdkit import Chem, RDLogger

        RDLogger.DisableLog("rdApp.*")  # type: ignore[attr-defined]  # what is wrong with invalid molecules
        molecules = asyncio.run(
            complete(arguments.target, arguments.model, arguments.scaffold, arguments.count, arguments.seed)
        )
    except (rivulet.RivuletError, ValueError, ImportError) as error:
        parser.error(str(error))  # prints the usage, too
    print(*molecules, sep="\n")
    valid = [Chem.MolToSmiles(molecule) for molecule in map(Chem.MolFromSmiles, molecules) if molecule is not None]
    print(f"{len(valid)} of {len(molecules)} molecules are valid ({len(valid) / len(molecules):.0%}), {len(set(valid))} different")


if __name__ == "__main__":
    main()
