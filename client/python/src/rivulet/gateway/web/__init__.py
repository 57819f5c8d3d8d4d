# SPDX-License-Identifier: Apache-2.0
"""HTTP below the routes: connections, requests, errors, counters."""
