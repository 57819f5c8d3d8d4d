# SPDX-License-Identifier: Apache-2.0
"""An HTTP server in front of a Rivulet server, with the routes of OpenAI's API. Needs the extra `gateway`; see docs/gateway.md.
`rivulet.gateway.app.create(client)` is the ASGI application, `rivulet-gateway` serves it."""
