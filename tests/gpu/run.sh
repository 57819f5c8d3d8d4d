#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Everything that needs a GPU. Usage: tests/gpu/run.sh [--phase NAME]... [--deadline SECONDS] [--device N] [--results DIR]
# Phases: smoke, facts, parity, speed, soak, profile, sanitizer; README.md beside this file says what each does and how long it takes.
exec python3 "$(dirname "${BASH_SOURCE[0]}")/run.py" "$@"
