# SPDX-License-Identifier: Apache-2.0
"""The routes of OpenAI's API and of sessions."""
