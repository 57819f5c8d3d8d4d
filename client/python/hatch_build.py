# SPDX-License-Identifier: Apache-2.0
"""Makes rivulet.v1 from the .proto files, and the documentation that the gateway serves, when a wheel is built. make_sync.py
makes the client for programs with threads.

rivulet.v1 is not made with protoc's own Python output: that runs only on the protobuf runtime of its release or newer, and
only up to the next major release. The modules written here define the same names from the file's descriptor, with
public functions that every runtime has. The types (.pyi) are protoc's.
"""

from __future__ import annotations

import html
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).parent))  # hatchling loads only this file
import make_sync  # noqa: E402

PACKAGE = "rivulet/v1"
ERRORS = "google/rpc"  # which rivulet/v1 imports; googleapis-common-protos has the Python modules
MODULE = '''\
# SPDX-License-Identifier: Apache-2.0
"""Messages of {source}, made when the wheel was built."""

from google.protobuf import descriptor_pool as _descriptor_pool
from google.protobuf import message_factory as _message_factory
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
{imports}
DESCRIPTOR = _descriptor_pool.Default().AddSerializedFile(
    {descriptor!r}
)

for _message in DESCRIPTOR.message_types_by_name.values():
    globals()[_message.name] = _message_factory.GetMessageClass(_message)
for _enum in DESCRIPTOR.enum_types_by_name.values():
    globals()[_enum.name] = _enum_type_wrapper.EnumTypeWrapper(_enum)
    globals().update((_value.name, _value.number) for _value in _enum.values)
'''
DOCS = "rivulet/gateway/docs"
DOCS_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} - Rivulet</title>
<link rel="icon" href="../page/icon.svg">
<link rel="stylesheet" href="../page/style.css">
</head>
<body>
<header><img src="../page/icon.svg" alt="" width="28" height="28"><nav><a href="../">Rivulet</a> <a href="./">Documentation</a></nav></header>
<main class="docs">
{body}</main>
</body>
</html>
"""


def source_folder(root: Path, name: str, holds: str) -> Path:
    """The folder `name`, which holds `holds`: in an sdist beside pyproject.toml, in the project's tree two levels above."""
    for folder in (root / name, root.parent.parent / name):
        if (folder / holds).exists():
            return folder
    raise FileNotFoundError(f"{root}: neither {name}/{holds} nor ../../{name}/{holds} is there")


def module_text(file: Any) -> str:
    """The Python module of a FileDescriptorProto."""
    imports = "".join(
        f"import {name.removesuffix('.proto').replace('/', '.')}_pb2 as _import_{number}  # its descriptor comes first\n"
        for number, name in enumerate(file.dependency)
    )
    return MODULE.format(source=file.name, imports=imports, descriptor=file.SerializeToString(deterministic=True))


def generate(proto: Path, out: Path) -> None:
    """Writes the package rivulet.v1 into `out`/rivulet/v1. Errors: RuntimeError (protoc has written the reason to stderr)."""
    from google.protobuf import descriptor_pb2
    from grpc_tools import protoc

    package = out / PACKAGE
    package.mkdir(parents=True, exist_ok=True)
    sources = sorted(file.relative_to(proto).as_posix() for file in (proto / PACKAGE).glob("*.proto"))
    descriptors = out / "descriptors.binpb"
    known = Path(protoc.__file__).parent / "_proto"  # google/protobuf/*.proto
    code = protoc.main(
        ["protoc", f"-I{proto}", f"-I{known}", f"--descriptor_set_out={descriptors}", f"--pyi_out={out}", *sources]
    )
    if code != 0:
        raise RuntimeError(f"protoc ended with code {code} over {sources}")
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors.read_bytes()).file:
        (out / file.name).with_name(Path(file.name).stem + "_pb2.py").write_text(module_text(file), encoding="utf-8")
    descriptors.unlink()
    (package / "__init__.py").write_text('"""The messages of proto/rivulet/v1."""\n', encoding="utf-8")


def served_link(target: str) -> str | None:
    """The target of a docs/ link in the gateway: a page has no ending. None: the link leaves docs/, so its target is not served."""
    page, mark, heading = target.partition("#")
    if re.fullmatch(r"[\w-]+\.md", page):
        return ("./" if page == "README.md" else page.removesuffix(".md")) + mark + heading
    return target if not page or page.startswith(("http://", "https://")) else None


def page_of(text: str) -> str:
    """The HTML of a page in Markdown. Headings get the ids that links on GitHub use."""
    from markdown_it import MarkdownIt

    markdown = MarkdownIt("commonmark").enable("table")
    tokens = markdown.parse(text)
    title = ""
    for token, content in zip(tokens, tokens[1:] + tokens[:1]):
        if token.type == "heading_open":
            token.attrSet("id", re.sub(r"[^\w\- ]", "", content.content.lower()).replace(" ", "-"))
            title = title or content.content
        for link in token.children or ():
            if link.type == "link_open" and (target := served_link(str(link.attrs.pop("href")))) is not None:
                link.attrSet("href", target)
    return DOCS_PAGE.format(title=html.escape(title), body=markdown.renderer.render(tokens, markdown.options, {}))


def render_docs(docs: Path, out: Path) -> None:
    """Writes docs/*.md as HTML, and pictures, into `out`/rivulet/gateway/docs, which holds nothing else; README is index.html."""
    folder = out / DOCS
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for file in docs.glob("*.png"):
        shutil.copy(file, folder)
    for file in docs.glob("*.md"):
        name = "index" if file.stem == "README" else file.stem
        (folder / f"{name}.html").write_text(page_of(file.read_text(encoding="utf-8")), encoding="utf-8")


class GeneratedHook(BuildHookInterface):  # type: ignore[type-arg]
    """An sdist includes the sources; a wheel includes the generated files; an editable install gets the generated files in src."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        proto = source_folder(root, "proto", PACKAGE)
        docs = source_folder(root, "docs", "README.md")
        include: dict[str, str] = build_data["force_include"]
        include[str(proto.parent / "LICENSE")] = "LICENSE" if self.target_name == "sdist" else "rivulet/LICENSE"
        if self.target_name == "sdist":
            for folder in (PACKAGE, ERRORS):
                include[str(proto / folder)] = f"proto/{folder}"
            include.update((str(file), f"docs/{file.name}") for ending in ("md", "png") for file in docs.glob(f"*.{ending}"))
        else:
            out = root / "src"
            if version != "editable":
                out = self.scratch = Path(tempfile.mkdtemp())
                modules = (f"rivulet/{name}" for name in make_sync.SOURCES)
                include.update((str(out / name), name) for name in (PACKAGE, DOCS, *modules))
            generate(proto, out)
            make_sync.generate(root / "src/rivulet", out / "rivulet")
            render_docs(docs, out)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "scratch"):
            shutil.rmtree(self.scratch)
