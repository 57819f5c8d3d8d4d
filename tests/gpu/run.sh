#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What needs a GPU. Usage: tests/gpu/run.sh [--phase first|second|smoke] [--deadline SECONDS] [--device N] [--results DIR]
# README.md beside this file says what each phase does and how long it takes.
here=$(dirname "${BASH_SOURCE[0]}")
python3 "$here/../../model/zoo/unpack.py"
exec python3 "$here/run.py" "$@"
