# SPDX-License-Identifier: Apache-2.0
"""The wheel is for any Python 3 on this machine's architecture."""

import platform

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Tag(BuildHookInterface):
    def initialize(self, version, build_data):
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-linux_{platform.machine()}"
