# SPDX-License-Identifier: Apache-2.0
"""Model directories of Rivulet, made from checkpoints (`rivulet-convert`) or trained (`rivulet-train`)."""
