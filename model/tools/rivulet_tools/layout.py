# SPDX-License-Identifier: Apache-2.0
"""From the tensors of a checkpoint and what the caller said to a whole Plan."""

import re
from collections.abc import Mapping

from rivulet_tools.checkpoint import Tensor
from rivulet_tools.encoder_layout import EncoderLayout, find_prefix
from rivulet_tools.ends_layout import EndsLayout
from rivulet_tools.errors import BadInput
from rivulet_tools.model_directory import expected_tensors
from rivulet_tools.plan import Changes, Plan, Settings

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


def make_plan(source: Mapping[str, Tensor], settings: Settings, directory_name: str) -> Plan:
    """Reads the checkpoint `source`. directory_name: the name of the model where settings have none.

    Raises BadInput that names the tensor or the flag wherever something is missing, misshapen, surplus or undecided.
    """
    plan = Plan(source)
    plan.prefix = find_prefix(source, settings.prefix)
    encoder = EncoderLayout(plan, settings, plan.prefix)
    of_encoder = encoder.read()
    of_ends = EndsLayout(plan, settings, plan.prefix, of_encoder["hidden_size"]).read()
    order = (
        "vocab_size", "bos_token_id", "eos_token_id", "hidden_size", "num_layers", "num_heads", "key_dim", "value_dim", "ffn_size",
        "activation", "layer_norm_eps", "final_norm", "position", "attention", "output", "content",
    )  # fmt: skip
    merged = of_encoder | of_ends
    plan.config = {"format": "rivulet-model", "format_version": 1, "name": _model_name(plan, settings, directory_name)}
    plan.config |= {field: merged[field] for field in order}
    encoder.map_tensors(expected_tensors(plan.config))
    plan.refuse_unused(settings.ignore_unused)
    return plan


def _model_name(plan: Plan, settings: Settings, directory_name: str) -> str:
    if settings.name is not None:
        if not _NAME.fullmatch(settings.name):
            raise BadInput(f"--name {settings.name!r}: {_NAME.pattern} is allowed")
        return settings.name
    name = re.sub(r"[^a-z0-9._-]+", "-", directory_name.lower()).lstrip("._-")[:64] or "model"
    return plan.guess("name", name, "--name; the directory's", Changes.NOTHING)
