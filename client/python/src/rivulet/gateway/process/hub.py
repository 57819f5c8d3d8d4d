# SPDX-License-Identifier: Apache-2.0
"""Models by name: a path, or a repository in the cache of Hugging Face. The cache's layout is that of the package huggingface_hub
(https://huggingface.co/docs/huggingface_hub/guides/manage-cache): models--OWNER--NAME/refs/REVISION names a commit, and
models--OWNER--NAME/snapshots/COMMIT has its files. The package itself is needed for downloads only."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

_PART = re.compile(r"-(\d{5})-of-\d{5}\.gguf$")
_FILES = ("*.json", "*.jinja", "*.txt", "*.model", "*.safetensors")  # what a model directory may consist of


class NotFound(Exception):
    """The message says what was looked for, and what to do."""


class Repository(NamedTuple):
    """OWNER/NAME[@REVISION][:FILE]. file: "" for the directory, or for the only GGUF file."""

    owner: str
    name: str
    revision: str
    file: str

    @staticmethod
    def of(text: str) -> Repository | None:
        found = re.fullmatch(r"(\w[\w.-]*)/(\w[\w.-]*)(?:@([^:]+))?(?::(.+\.gguf))?", text)
        return Repository(found[1], found[2], found[3] or "main", found[4] or "") if found else None

    def __str__(self) -> str:
        return f"{self.owner}/{self.name}" + (f"@{self.revision}" if self.revision != "main" else "")


def cache() -> Path:
    """Where huggingface_hub keeps repositories."""
    if hub := os.environ.get("HF_HUB_CACHE"):
        return Path(hub).expanduser()
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return Path(home, "hub").expanduser()


def find(text: str, download: bool) -> str:
    """The value of rivulet-server's --model. download: get what the cache does not have. Errors: NotFound."""
    path = Path(text)
    if path.exists() or (equals := text.partition("="))[1] and Path(equals[2]).exists():
        return text
    repository = Repository.of(text)
    if repository is None:
        raise NotFound(f"{text}: there is no such directory or file, and it is not OWNER/NAME[@REVISION][:FILE.gguf] of Hugging Face")
    snapshot = _snapshot(repository)
    models = _models(snapshot, repository) if snapshot else []
    if download and not models:
        snapshot = _download(repository)
        models = _models(snapshot, repository)
    if snapshot is None:
        raise NotFound(f"{repository} is neither a path nor in the cache of Hugging Face, {cache()}; --download downloads it")
    if not models:
        what = repository.file or ".safetensors and no .gguf file"
        raise NotFound(f"{repository}: the cache of Hugging Face has no {what} of it in {snapshot}; --download downloads it")
    return f"{repository.name}={snapshot / _only(repository, models)}"


def _snapshot(repository: Repository) -> Path | None:
    folder = cache() / f"models--{repository.owner}--{repository.name}"
    try:
        commit = (folder / "refs" / repository.revision).read_text(encoding="utf-8").strip()
    except OSError:
        commit = repository.revision
    snapshot = folder / "snapshots" / commit
    return snapshot if snapshot.is_dir() else None


def _models(snapshot: Path, repository: Repository) -> list[str]:
    """What may be meant, below the snapshot: the file that is named, or the directory itself, or all GGUF files. A directory that lacks
    some of its files is the server's to find."""
    if repository.file:
        return [repository.file] if (snapshot / repository.file).is_file() else []
    if any(snapshot.glob("*.safetensors")):
        return ["."]
    return _ggufs([str(path.relative_to(snapshot)) for path in snapshot.rglob("*.gguf")])


def _ggufs(names: Sequence[str]) -> list[str]:
    """The GGUF files, of a model in parts the first one."""
    return sorted(name for name in names if name.endswith(".gguf") and (not (part := _PART.search(name)) or int(part[1]) == 1))


def _only(repository: Repository, files: Sequence[str]) -> str:
    if not files:
        raise NotFound(f"{repository} has neither a .safetensors nor a .gguf file")
    if len(files) > 1:
        raise NotFound(f"{repository} has {len(files)} GGUF files; name one, for example {repository}:{files[0]}. They are {', '.join(files)}")
    return files[0]


def _download(repository: Repository) -> Path:
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # it logs every retry
    try:
        import huggingface_hub
    except ImportError:
        raise NotFound(f"--download needs the Python package huggingface_hub: {sys.executable} -m pip install huggingface_hub") from None
    name = f"{repository.owner}/{repository.name}"
    try:
        return Path(huggingface_hub.snapshot_download(name, revision=repository.revision, allow_patterns=_wanted(huggingface_hub, repository)))
    except NotFound:
        raise
    except Exception as error:  # of the package, of its HTTP client, or of the disk
        raise NotFound(f"--download: {repository}: {' '.join(str(error).split())}") from error


def _wanted(huggingface_hub: Any, repository: Repository) -> list[str]:
    """The directory's files, or one GGUF file with all its parts."""
    names = huggingface_hub.HfApi().list_repo_files(f"{repository.owner}/{repository.name}", revision=repository.revision)
    if not repository.file and any(name.endswith(".safetensors") and "/" not in name for name in names):
        return list(_FILES)
    file = repository.file or _only(repository, _ggufs(names))
    return [_PART.sub("-*.gguf", file)]
