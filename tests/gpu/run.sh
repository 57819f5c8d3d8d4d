#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What needs a GPU. Usage: tests/gpu/run.sh [--phase first|second|smoke] [--deadline SECONDS] [--device N] [--results DIR]
# README.md beside this file says what each phase does and how long it takes.
exec python3 "$(dirname "${BASH_SOURCE[0]}")/run.py" "$@"
