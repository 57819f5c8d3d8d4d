# SPDX-License-Identifier: Apache-2.0
"""The process: flags, their checks, workers."""
