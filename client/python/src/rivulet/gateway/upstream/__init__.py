# SPDX-License-Identifier: Apache-2.0
"""What stands between the routes and the server: remembered keys, parts that are sent together."""
