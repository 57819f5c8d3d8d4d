# SPDX-License-Identifier: Apache-2.0
"""Makes rivulet.v1 from the .proto files when a wheel is built.

Not with protoc's own Python output: that runs only on the protobuf runtime of its release or newer, and only up to the next
major one. The modules written here give the same names from the file's descriptor through the runtime's public functions,
which every runtime has. The types (.pyi) are protoc's.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = "rivulet/v1"
ERRORS = "google/rpc"  # which rivulet/v1 imports; the Python modules are those of googleapis-common-protos
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


def proto_folder(root: Path) -> Path:
    """The folder that holds rivulet/v1: in an sdist beside pyproject.toml, in the project's tree two levels above."""
    for folder in (root / "proto", root.parent.parent / "proto"):
        if (folder / PACKAGE).is_dir():
            return folder
    raise FileNotFoundError(f"{root}: neither proto/{PACKAGE} nor ../../proto/{PACKAGE} is there")


def module_text(file: Any) -> str:
    """The Python module of a FileDescriptorProto."""
    imports = "".join(
        f"import {name.removesuffix('.proto').replace('/', '.')}_pb2 as _import_{number}  # its descriptor comes first\n"
        for number, name in enumerate(file.dependency)
    )
    return MODULE.format(source=file.name, imports=imports, descriptor=file.SerializeToString(deterministic=True))


def generate(proto: Path, out: Path) -> None:
    """Writes the package rivulet.v1 into `out`/rivulet/v1. Errors: RuntimeError (protoc has said why on stderr)."""
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


class ProtoHook(BuildHookInterface):  # type: ignore[type-arg]
    """An sdist takes the .proto files along; a wheel the modules; an editable install gets them into src."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        proto = proto_folder(root)
        include: dict[str, str] = build_data["force_include"]
        include[str(proto.parent / "LICENSE")] = "LICENSE" if self.target_name == "sdist" else "rivulet/LICENSE"
        if self.target_name == "sdist":
            for folder in (PACKAGE, ERRORS):
                include[str(proto / folder)] = f"proto/{folder}"
        elif version == "editable":
            generate(proto, root / "src")
        else:
            self.scratch = Path(tempfile.mkdtemp())
            generate(proto, self.scratch)
            include[str(self.scratch / PACKAGE)] = PACKAGE

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "scratch"):
            shutil.rmtree(self.scratch)
