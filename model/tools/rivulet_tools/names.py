# SPDX-License-Identifier: Apache-2.0
"""Maps the tensors of a checkpoint to the tensors of a model directory: by a known layout, else by the user's map."""

import itertools
import json
import pathlib
import re
from collections.abc import Mapping
from typing import Any, NoReturn

from rivulet_tools.checkpoint import Tensor
from rivulet_tools.errors import BadInput
from rivulet_tools.plan import looks_like_weight

# The names beside the encoder: of model/FORMAT.md, of examples/train_with_library.py, and of the paper's ImageGenerator.
PAPER_EMBEDDING = "value_embedding.weight"
_ENDS = {
    "embedding.weight": ("embedding.weight", PAPER_EMBEDDING),
    "position.weight": ("position.weight", "position", "pos_embedding.pe"),
    "predictor.weight": ("predictor.weight",),
    "predictor.bias": ("predictor.bias",),
}
OMEGA, RFA_OMEGA, GATE = "attention.inner_attention.feature_map.omega", "attention.omega", "attention.gate_projection.weight"
_OF_LAYERS = tuple(
    f"transformer.layers.N.{part}.{kind}"
    for part in (*(f"attention.{name}_projection" for name in ("query", "key", "value", "out")), "linear1", "linear2", "norm1", "norm2")
    for kind in ("weight", "bias")
)
_OF_SOME_MAPS = (OMEGA, RFA_OMEGA, "attention.sigma", GATE, GATE.replace("weight", "bias"))
# The keys of a map, in which N stands for the number of every layer; first those that most models have.
_USUAL = (*_ENDS, *_OF_LAYERS, "transformer.norm.weight", "transformer.norm.bias")
_KEYS = (*_USUAL, *(f"transformer.layers.N.{name}" for name in _OF_SOME_MAPS))

_QUERY = re.compile(r"^(.*?)layers\.\d+\.attention\.query_projection\.weight$")
_N = re.compile(r"(?<![^.])N(?![^.])")
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
_SETTINGS = {"num-heads": "?", "activation": "?", "bos": "?"}  # settings that no checkpoint states, as a start
_MOST_LINES = 60


class Unrecognised(BadInput):
    """The layout is not known; `start`: the beginning of a map, to be completed."""

    def __init__(self, reason: str, source: Mapping[str, Tensor], known: Mapping[str, str]):
        super().__init__(
            f"{reason}. The names of this checkpoint are not recognised; its tensors:\n{_listing(source)}\n"
            "Write a map of the names and pass --map FILE. The start of a map is on stdout (add > FILE to this command). Replace every "
            '"?" in it by a name of the checkpoint, in which N stands for the number of every layer, or by a setting, and delete the lines '
            "of tensors that the model does not have (model/tools/README.md)."
        )
        tensors = {key: known.get(key, "?") for key in _KEYS if key in known or key in (_ENDS if known else _USUAL)}
        self.start = json.dumps({"tensors": tensors, "settings": _SETTINGS}, indent=2)


def recognised(source: Mapping[str, Tensor]) -> dict[str, str]:
    """The checkpoint's name for each tensor of a model directory, of a known layout. Raises Unrecognised for any other."""
    prefixes = sorted({found[1] for name in source if (found := _QUERY.match(name))})
    if not prefixes:
        if any(".self_attention.query_projection." in name for name in source):
            raise BadInput("this is a decoder with cross-attention (layers.N.self_attention...); a model directory holds encoders only")
        raise Unrecognised("no tensor is called ...layers.0.attention.query_projection.weight", source, {})
    known = _known(source, prefixes[0])
    if len(prefixes) > 1:
        raise Unrecognised(f"more than one encoder: {', '.join(map(repr, prefixes))}; a map of one of them is needed", source, known)
    for key in ("embedding.weight", "predictor.weight"):
        if key not in known:
            names = " or ".join(repr(_beside(prefixes[0]) + name) for name in _ENDS[key])
            raise Unrecognised(f"no tensor is called {names}", source, known)
    return _expanded(known, source, "")


def _beside(prefix: str) -> str:
    """The prefix of the encoder's neighbours: 'model.' for the encoder 'model.transformer.'."""
    return re.sub(r"[^.]*\.$", "", prefix)


def _known(source: Mapping[str, Tensor], prefix: str) -> dict[str, str]:
    """A map of the tensors with known names, with an encoder under `prefix`."""
    known = {key: _beside(prefix) + name for key, names in _ENDS.items() for name in names if _beside(prefix) + name in source}
    for key in _KEYS[len(_ENDS) :]:
        name = prefix + key.removeprefix("transformer.")
        if key in _OF_LAYERS or _N.sub("0", name) in source:
            known[key] = name
    return known


def read_map(path: pathlib.Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The objects `tensors` and `settings` of a map file. Raises BadInput for a file that is not a map or cannot be read."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(f"--map {path}: {error}") from error
    if not isinstance(value, dict):
        raise BadInput(f'--map {path}: an object with "tensors" and "settings" is needed')
    for key, part in value.items():
        if key not in ("tensors", "settings") or not isinstance(part, dict):
            refuse_entry(path, key, part, 'a map has two objects, "tensors" and "settings"')
    return value.get("tensors", {}), value.get("settings", {})


def refuse_entry(where: object, key: str, value: Any, why: str) -> NoReturn:
    """Raises the BadInput for an entry of a map file."""
    raise BadInput(f"--map {where}: {json.dumps(key)} is {json.dumps(value)[:200]}: {why}")


def mapped(path: pathlib.Path, tensors: Mapping[str, Any], source: Mapping[str, Tensor]) -> dict[str, str]:
    """The checkpoint's name for each tensor of a model directory, by the map in the file `path`. Raises BadInput for a bad entry."""
    for key, value in tensors.items():
        if key not in _KEYS:
            refuse_entry(path, key, value, "a model directory has no such tensor (model/FORMAT.md; N stands for the number of every layer)")
        if not isinstance(value, str):
            refuse_entry(path, key, value, "the name of a tensor is needed")
        if bool(_N.search(key)) != bool(_N.search(value)):
            refuse_entry(path, key, value, "N, the number of the layer, is needed in both names or in none")
    for key in ("embedding.weight", "predictor.weight", *_OF_LAYERS):
        if key not in tensors:
            raise BadInput(f'--map {path}: "tensors" has no "{key}"')
    return _expanded(tensors, source, f"--map {path}: ")


def _expanded(names: Mapping[str, str], source: Mapping[str, Tensor], where: str) -> dict[str, str]:
    """A map with an entry for each layer instead of each N."""
    in_layers = [name for key, name in names.items() if _N.search(key)]
    layers = next(i for i in itertools.count() if not any(_N.sub(str(i), name) in source for name in in_layers))
    expanded = {}
    for key, name in names.items():
        for index in map(str, range(max(layers, 1) if _N.search(key) else 1)):
            expanded[_N.sub(index, key)] = whole = _N.sub(index, name)
            if whole not in source:
                entry = f"{json.dumps(key)} is {json.dumps(name)}: " if where else ""
                raise BadInput(f"{where}{entry}tensor {whole!r} is missing")
    return expanded


def _listing(source: Mapping[str, Tensor]) -> str:
    """The tensors that look like weights, with their shapes; one line for tensors that differ only in the layer's number."""
    alike: dict[tuple[str, str], list[str]] = {}
    weights = [name for name in sorted(source) if looks_like_weight(name, source[name])]
    for name in weights:
        alike.setdefault((_NUMBER.sub("N", name, count=1), f"{list(source[name].shape)} {source[name].dtype}"), []).append(name)
    lines = []
    for (pattern, form), names in alike.items():
        numbers = sorted(int(_NUMBER.search(name)[0]) for name in names) if len(names) > 1 else []
        lines.append(f"  {pattern}  {form}  (N: {numbers[0]} to {numbers[-1]})" if numbers else f"  {names[0]}  {form}")
    rest = [f"  ... and {len(lines) - _MOST_LINES} more such lines"] if len(lines) > _MOST_LINES else []
    others = [f"  ... and {len(source) - len(weights)} that are no weights"] if len(source) > len(weights) else []
    return "\n".join([*lines[:_MOST_LINES], *rest, *others])
