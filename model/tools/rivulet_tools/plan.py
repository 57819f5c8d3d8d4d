# SPDX-License-Identifier: Apache-2.0
"""The decisions of a conversion: the mapping of tensors, the assumed settings, the unused tensors."""

import argparse
import re
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

from rivulet_tools.checkpoint import Tensor
from rivulet_tools.errors import BadInput

Config = dict[str, Any]
Settings = argparse.Namespace  # the flags of rivulet-convert; None: not given
T = TypeVar("T")

# Names of tensors that trainers save beside the weights.
_NOT_WEIGHTS = re.compile(
    r"(^|[._])(optim(izer)?s?|adam|sched(uler)?s?|lr_schedulers?|callbacks?|scaler|rng|loops|exp_avg|exp_avg_sq|momentum_buffer|"
    r"num_batches_tracked|global_step|epoch|iteration)([._]|$|_state)"
)


def looks_like_weight(name: str, tensor: Tensor) -> bool:
    """Whether a tensor may belong to the model: it is no counter, and its name is not one of a trainer's."""
    return tensor.is_float and tensor.values.size > 1 and not _NOT_WEIGHTS.search(name.lower())


class Plan:
    """Fills up while a checkpoint is read. `source` holds the checkpoint's tensors, `names` their names by the name in
    model.safetensors; neither is changed. `paper`: whether the checkpoint is the paper's ImageGenerator."""

    def __init__(self, source: Mapping[str, Tensor], names: Mapping[str, str], paper: bool):
        self.source, self.names, self.paper = source, names, paper
        self.config: Config = {}
        self.tensors: dict[str, Tensor] = {}  # by the name in model.safetensors
        self.mapped: list[tuple[str, str, Tensor]] = []  # (name in the checkpoint, name in the directory or a remark, tensor)
        self.assumed: list[str] = []
        self.position_table: np.ndarray | None = None  # the checkpoint's own, [max_length, columns]

    def assume(self, setting: str, value: T, why: str) -> T:
        """Records a setting that the checkpoint does not state, and returns its value."""
        self.assumed.append(f"  {setting} = {'none' if value is None else value}: {why}")
        return value

    def choose(self, setting: str, given: T | None, default: T, why: str) -> T:
        """The given value, else the default, recorded as assumed."""
        return self.assume(setting, default, why) if given is None else given

    def shape(self, target: str, dimensions: int) -> tuple[int, ...]:
        """The shape of the tensor for `target`, which must exist with this number of dimensions."""
        if target not in self.names:
            raise BadInput(f"tensor {target!r} is missing")
        shape = self.source[self.names[target]].shape
        if len(shape) != dimensions:
            raise BadInput(f"tensor {self.names[target]!r} has the shape {list(shape)}; {dimensions} dimensions are needed")
        return shape

    def map(self, target: str, shape: tuple[int, ...]) -> None:
        """A tensor of the checkpoint becomes `target`, which must have `shape`."""
        if (found := self.shape(target, len(shape))) != shape:
            raise BadInput(f"tensor {self.names[target]!r} has the shape {list(found)}; {list(shape)} is needed")
        self.put(target, self.source[self.names[target]])

    def put(self, target: str, tensor: Tensor) -> None:
        """`tensor`, made from one of the checkpoint, becomes `target`."""
        name = self.names[target]
        if not tensor.is_float:
            raise BadInput(f"tensor {name!r} has elements of type {tensor.dtype}; a weight is F64, F32, F16 or BF16")
        self.tensors[target] = tensor
        self.mapped.append((name, target, tensor))

    def unused(self) -> dict[str, Tensor]:
        """The tensors that no part of the model uses."""
        used = {name for name, _, _ in self.mapped}
        return {name: tensor for name, tensor in self.source.items() if name not in used}

    def refuse_unused(self) -> None:
        """Raises BadInput if an unused tensor looks like a weight."""
        surplus = [(name, tensor) for name, tensor in self.unused().items() if looks_like_weight(name, tensor)]
        if surplus:
            name, tensor = surplus[0]
            more = f" (and {len(surplus) - 1} more)" if len(surplus) > 1 else ""
            raise BadInput(
                f"tensor {name!r} of shape {list(tensor.shape)}{more} looks like a weight and has no place in the model; "
                "--ignore-unused leaves it out, --map FILE names its place"
            )

    def report(self) -> str:
        """The three lists as text."""
        lines = [f"mapped ({len(self.mapped)} tensors)"]
        width = max((len(name) for name, _, _ in self.mapped), default=0)
        lines += [f"  {name:<{width}}  ->  {target}  {list(t.shape)} {t.dtype}" for name, target, t in self.mapped]
        lines += [f"assumed ({len(self.assumed)} settings)", *self.assumed]
        unused = self.unused()
        lines.append(f"not used ({len(unused)} tensors)")
        lines += [f"  {name}  {list(t.shape)} {t.dtype}" for name, t in unused.items()]
        return "\n".join(lines)
