# SPDX-License-Identifier: Apache-2.0
"""The page at /, its files below /page/, and the documentation below /docs/: the files of the folders page and docs."""

from __future__ import annotations

from importlib import resources

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

_KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml", "png": "image/png"}

# The browser runs the page's own files only, and scripts cannot turn a text into elements.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY, "x-content-type-options": "nosniff", "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin", "cross-origin-resource-policy": "same-origin", "cache-control": "no-cache",
}  # fmt: skip


def _route(path: str, kind: str, content: bytes) -> Route:
    async def respond(request: Request) -> Response:
        return Response(content, media_type=_KINDS[kind], headers=_HEADERS)

    return Route(path, respond, methods=["GET"])


def routes() -> list[Route]:
    """One route for each file. The path of an HTML file has no ending; the path of an index is its folder."""
    found = []
    for folder, index in (("page", "/"), ("docs", "/docs/")):
        for file in resources.files("rivulet.gateway").joinpath(folder).iterdir():
            path = index if file.name == "index.html" else f"/{folder}/{file.name.removesuffix('.html')}"
            found.append(_route(path, file.name.rpartition(".")[2], file.read_bytes()))
    return found
