# SPDX-License-Identifier: Apache-2.0
"""What a conversion decided: which tensor goes where, which settings were guessed, what is left over."""

import dataclasses
import enum
import re
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

from rivulet_tools.checkpoint import Tensor
from rivulet_tools.errors import BadInput

Config = dict[str, Any]
T = TypeVar("T")

# Names of what trainers save beside the weights.
_NOT_WEIGHTS = re.compile(
    r"(^|[._])(optim(izer)?s?|adam|sched(uler)?s?|lr_schedulers?|callbacks?|scaler|rng|loops|exp_avg|exp_avg_sq|momentum_buffer|"
    r"num_batches_tracked|global_step|epoch|iteration)([._]|$|_state)"
)


def looks_like_weight(name: str, tensor: Tensor) -> bool:
    """Whether a tensor may belong to the model: neither a counter nor by its name the trainer's own."""
    return tensor.is_float and tensor.values.size > 1 and not _NOT_WEIGHTS.search(name.lower())


@dataclasses.dataclass
class Settings:
    """What the caller said; None: not said, to be read from shapes or guessed. Fields are the flags of rivulet-convert."""

    prefix: str | None = None
    embedding: str | None = None
    position: str | None = None
    predictor: str | None = None
    name: str | None = None
    num_heads: int | None = None
    feature_map: str | None = None
    n_dims: int | None = None
    softmax_temp: float | None = None
    smoothing: float | None = None
    stabilize: bool = False
    activation: str | None = None
    layer_norm_eps: float | None = None
    eps: float | None = None
    clamp_min: float | None = None
    position_type: str | None = None
    max_length: int | None = None
    bos: str | None = None
    eos: str | None = None
    output: str | None = None
    num_levels: int | None = None
    scale: str | None = None
    content: str | None = None
    height: int | None = None
    width: int | None = None
    channels: int | None = None
    alphabet: str | None = None
    ignore_unused: bool = False


class Changes(enum.Enum):
    """What a guess that is wrong makes wrong."""

    NOTHING = enum.auto()  # names and forms alone, or a value that the check compares with the checkpoint's
    DRAWS = enum.auto()  # what is generated; a score does not show it
    SCORES = enum.auto()


@dataclasses.dataclass(frozen=True)
class Guess:
    setting: str
    value: Any
    why: str
    changes: Changes

    def line(self) -> str:
        return f"  {self.setting} = {'none' if self.value is None else self.value}: {self.why}"


class Plan:
    """Fills up while a checkpoint is read. `source` holds the checkpoint's tensors and is not changed."""

    def __init__(self, source: Mapping[str, Tensor]):
        self.source = source
        self.config: Config = {}
        self.tensors: dict[str, Tensor] = {}  # by the name in model.safetensors
        self.mapped: list[tuple[str, str, Tensor]] = []  # (name in the checkpoint, name in the directory or what became of it, tensor)
        self.guessed: list[Guess] = []
        self.used: set[str] = set()
        self.prefix = ""
        self.position_table: np.ndarray | None = None  # the checkpoint's own, [max_length, columns]

    def guess(self, setting: str, value: T, why: str, changes: Changes = Changes.SCORES) -> T:
        """Notes a guess and returns its value."""
        self.guessed.append(Guess(setting, value, why, changes))
        return value

    def choose(self, setting: str, given: T | None, default: T, why: str, changes: Changes = Changes.SCORES) -> T:
        """What was given, else the default, noted as a guess."""
        return self.guess(setting, default, why, changes) if given is None else given

    def open_guesses(self, scores_confirmed: bool) -> list[Guess]:
        """Those that change numbers. `scores_confirmed`: the model's scores agree with answers that were made without these guesses."""
        confirmed = (Changes.NOTHING, Changes.SCORES) if scores_confirmed else (Changes.NOTHING,)
        return [guess for guess in self.guessed if guess.changes not in confirmed]

    def map(self, name: str, target: str, shape: tuple[int, ...]) -> None:
        """The checkpoint's tensor `name` becomes `target`, which must have `shape`."""
        if name not in self.source:
            raise BadInput(f"tensor {name!r} of shape {list(shape)} is missing")
        tensor = self.source[name]
        if tensor.shape != shape:
            raise BadInput(f"tensor {name!r} has the shape {list(tensor.shape)}; {list(shape)} is needed")
        self.put(name, target, tensor)

    def put(self, name: str, target: str, tensor: Tensor) -> None:
        """`tensor`, made from the checkpoint's tensor `name`, becomes `target`."""
        if not tensor.is_float:
            raise BadInput(f"tensor {name!r} has elements of type {tensor.dtype}; a weight is F64, F32, F16 or BF16")
        self.tensors[target] = tensor
        self.mapped.append((name, target, tensor))
        self.used.add(name)

    def unused(self) -> list[tuple[str, Tensor, bool]]:
        """(name, tensor, whether it looks like a weight of the model) of what no part of the model uses."""
        left = []
        for name, tensor in self.source.items():
            if name not in self.used:
                left.append((name, tensor, looks_like_weight(name, tensor)))
        return left

    def refuse_unused(self, ignore: bool) -> None:
        """Raises BadInput where something that looks like a weight is left over, unless `ignore`."""
        surplus = [(name, tensor) for name, tensor, weight in self.unused() if weight]
        if surplus and not ignore:
            name, tensor = surplus[0]
            more = f" (and {len(surplus) - 1} more)" if len(surplus) > 1 else ""
            raise BadInput(
                f"tensor {name!r} of shape {list(tensor.shape)}{more} looks like a weight and has no place in the model; "
                "--ignore-unused leaves it out"
            )

    def report(self) -> str:
        """The three lists, for people."""
        lines = [f"mapped ({len(self.mapped)} tensors)"]
        width = max((len(name) for name, _, _ in self.mapped), default=0)
        lines += [f"  {name:<{width}}  ->  {target}  {list(t.shape)} {t.dtype}" for name, target, t in self.mapped]
        lines.append(f"guessed ({len(self.guessed)} settings)")
        lines += [guess.line() for guess in self.guessed]
        unused = self.unused()
        lines.append(f"not used ({len(unused)} tensors)")
        lines += [f"  {name}  {list(t.shape)} {t.dtype}" for name, t, _ in unused]
        return "\n".join(lines)
