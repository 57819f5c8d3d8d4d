# SPDX-License-Identifier: Apache-2.0
"""Makes a whole Plan from the tensors of a checkpoint and the caller's settings."""

import re

from rivulet_tools.encoder_layout import EncoderLayout
from rivulet_tools.ends_layout import EndsLayout
from rivulet_tools.errors import BadInput
from rivulet_tools.model_directory import expected_tensors
from rivulet_tools.plan import Plan, Settings

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


def complete(plan: Plan, settings: Settings, directory_name: str) -> None:
    """Reads the checkpoint of `plan`. directory_name: the name of the model where settings have none.

    Raises BadInput that names the tensor or the flag wherever something is missing, misshapen, surplus or undecided.
    """
    of_encoder = EncoderLayout(plan, settings).read()
    of_ends = EndsLayout(plan, settings, of_encoder["hidden_size"]).read()
    order = (
        "vocab_size", "bos_token_id", "eos_token_id", "hidden_size", "num_layers", "num_heads", "key_dim", "value_dim", "ffn_size",
        "activation", "layer_norm_eps", "final_norm", "position", "attention", "output", "content",
    )  # fmt: skip
    merged = of_encoder | of_ends
    plan.config = {"format": "rivulet-model", "format_version": 1, "name": _model_name(plan, settings, directory_name)}
    plan.config |= {field: merged[field] for field in order}
    for target, shape in expected_tensors(plan.config).items():
        if target.startswith("transformer."):
            plan.map(target, shape)
    if not settings.ignore_unused:
        plan.refuse_unused()


def _model_name(plan: Plan, settings: Settings, directory_name: str) -> str:
    if settings.name is not None:
        if not _NAME.fullmatch(settings.name):
            raise BadInput(f"--name {settings.name!r}: {_NAME.pattern} is allowed")
        return settings.name
    name = re.sub(r"[^a-z0-9._-]+", "-", directory_name.lower()).lstrip("._-")[:64] or "model"
    return plan.assume("name", name, "--name; the directory's")
