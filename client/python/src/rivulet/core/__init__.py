# SPDX-License-Identifier: Apache-2.0
"""What both clients have in common. Nothing here blocks or awaits, except by the gRPC calls that it is given."""
