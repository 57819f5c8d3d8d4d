#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes model.safetensors of each model of the zoo from model.safetensors.xz, which is what the repository holds. Does nothing where the
file is there and not older. CMake's configuration, deploy/bundle.sh and the tests for a GPU run it; the standard library is enough."""

import lzma
import os
import pathlib
import shutil

for packed in sorted(pathlib.Path(__file__).resolve().parent.glob("*/model.safetensors.xz")):
    weights = packed.with_suffix("")
    if weights.exists() and weights.stat().st_mtime >= packed.stat().st_mtime:
        continue
    unfinished = weights.with_suffix(f".{os.getpid()}")
    with lzma.open(packed) as source, open(unfinished, "wb") as target:
        shutil.copyfileobj(source, target)
    os.replace(unfinished, weights)
