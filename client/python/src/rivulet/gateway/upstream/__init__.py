# SPDX-License-Identifier: Apache-2.0
"""The layer between the routes and the server: remembered keys, and parts that are sent together."""
