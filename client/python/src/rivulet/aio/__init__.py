# SPDX-License-Identifier: Apache-2.0
"""The client for asyncio."""
