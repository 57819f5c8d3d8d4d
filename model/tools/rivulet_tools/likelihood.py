# SPDX-License-Identifier: Apache-2.0
"""Negative log-likelihoods of the next tokens from raw head outputs, exactly as model/FORMAT.md defines them."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

MIN_LOG_SCALE = -7.0
MIN_PROBABILITY = 1e-5


def nll(outputs: Tensor, tokens: Tensor, output: Mapping[str, Any]) -> Tensor:
    """Nats of each token. outputs [..., head outputs], tokens [...] (int64), `output` as in config.json -> [...]."""
    if output["type"] == "categorical":
        return -functional.log_softmax(outputs, -1).gather(-1, tokens[..., None])[..., 0]
    return mixture_nll(outputs, tokens, output["num_levels"])


def mixture_nll(outputs: Tensor, levels: Tensor, num_levels: int) -> Tensor:
    """Nats of each level under a mixture of logistics, in the precision of `outputs` (float32 or better).

    The probability of a bin is written as a product, sigmoid(a) sigmoid(-b) (1 - exp(b - a)), which neither cancels nor underflows,
    so its gradient stays finite however narrow or far away a component is.
    """
    logits, means, log_scales = outputs.chunk(3, -1)
    log_scales = log_scales.clamp(min=MIN_LOG_SCALE)
    inverse = torch.exp(-log_scales)
    half = 1 / (num_levels - 1)
    centred = (levels.to(outputs.dtype) * (2 * half) - 1)[..., None] - means
    upper, lower, middle = (centred + half) * inverse, (centred - half) * inverse, centred * inverse
    below_upper, above_lower = functional.logsigmoid(upper), functional.logsigmoid(-lower)
    bin_log = below_upper + above_lower + torch.log(-torch.expm1(-2 * half * inverse))
    density = functional.logsigmoid(middle) + functional.logsigmoid(-middle) - log_scales + math.log(2 * half)
    between = torch.where(bin_log > math.log(MIN_PROBABILITY), bin_log, density)
    first, last = (levels == 0)[..., None], (levels == num_levels - 1)[..., None]
    component = torch.where(first, below_upper, torch.where(last, above_lower, between))
    return -torch.logsumexp(functional.log_softmax(logits, -1) + component, -1)
