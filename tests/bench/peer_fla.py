# SPDX-License-Identifier: Apache-2.0
"""A rival on a GPU: the recurrence of RWKV-7 and the gated delta rule by the Triton kernels of flash-linear-attention (package
fla-core), called as its layers call them; peers.py measures them. A step is one token for every row in each layer of a model, or a
prompt in each: what lies between these kernels is left out. Inputs are of the type of the matrices, states in float32.
"""
import collections
import concurrent.futures
import os
import pathlib
import sys
import types

os.environ["FLA_CACHE_RESULTS"] = "0"  # what a kernel was tuned to for other rows does not count

import fla
import torch
import triton.testing
from triton.runtime._async_compile import AsyncCompileMode
from triton.runtime.autotuner import Autotuner

# The package's own __init__ would import every operation that fla has: ten seconds.
ops = types.ModuleType("fla.ops")
ops.__path__ = [str(pathlib.Path(fla.__path__[0]) / "ops")]
sys.modules["fla.ops"] = ops

from fla.ops.gated_delta_rule import fused_recurrent_gated_delta_rule  # noqa: E402
from fla.ops.rwkv7 import chunk_rwkv7, fused_mul_recurrent_rwkv7  # noqa: E402

LEAST_DECAY = -0.6065306597126334  # logarithm, of RWKV-7
KEPT_BYTES = 256 << 20  # of states that were written: more than an L2 cache holds
CHECKED = {torch.float16: 1e-2, torch.bfloat16: 4e-2, torch.float32: 1e-2}  # largest difference by the largest output; products may be TF32


def expected(inputs, state):
    """The outputs and the last state of a few rows, token by token, in float32: S' = diag(w) S + b (a^T S) + k v^T, o = S'^T q."""
    outputs = []
    for q, w, k, v, a, b in zip(*(x.float().unbind(1) for x in inputs), strict=True):
        removed = torch.einsum("rhk,rhkv->rhv", a, state)
        state = w[..., None] * state + b[..., None] * removed[:, :, None] + k[..., None] * v[:, :, None]
        outputs.append(torch.einsum("rhk,rhkv->rhv", q, state))
    return torch.stack(outputs, 1), state


class Recurrence:
    """`rows` rows of `tokens` tokens in `layers` layers, each with states of its own."""

    def __init__(self, rows, kind, layers, heads, size, tokens=1, device="cuda"):
        self.rows, self.tokens, self.heads, self.size, self.kind = rows, tokens, heads, size, kind
        self.random = torch.Generator(device).manual_seed(1)
        self.states = [self.draw(rows, heads, size, size).float() * 0.1 for _ in range(layers)]
        one = rows * heads * size * size * 4
        self.written = collections.deque(maxlen=max(1, min(layers, KEPT_BYTES // one)))
        self.prepare()

    def draw(self, *dims):
        return torch.randn(dims, generator=self.random, device=self.random.device).to(self.kind)

    def vectors(self):
        return self.draw(self.rows, self.tokens, self.heads, self.size)

    def unit_vectors(self):
        return torch.nn.functional.normalize(self.vectors(), dim=3)

    def make_room(self, steps):
        """Called before so many steps."""

    def step(self):
        for state in self.states:
            self.written.append(self.run(state)[1])

    def bytes_per_step(self):
        return 2 * sum(state.numel() * 4 for state in self.states)

    def difference(self):
        """The largest difference of outputs and states of a few rows from our own definition, by the largest of them."""
        worst = 0.0
        for told, wanted in zip(self.run(self.states[0]), expected([x[:4] for x in self.equation()], self.states[0][:4]), strict=True):
            worst = max(worst, ((told[:4].float() - wanted).abs().max() / wanted.abs().max()).item())
        return worst

    def figures(self, us):
        return {"of": self.name, "layers": len(self.states), "difference": float(f"{self.difference():.2g}")}


class Rwkv7(Recurrence):
    name = "fused_mul_recurrent_rwkv7"

    def prepare(self):
        self.r, self.k, self.v = self.vectors(), self.vectors(), self.vectors()
        self.kk, self.rate = self.unit_vectors(), self.vectors().sigmoid()
        self.w = LEAST_DECAY * self.vectors().sigmoid()

    def equation(self):
        return self.r, self.w.float().exp(), self.k, self.v, -self.kk, self.kk.float() * self.rate.float()

    def run(self, state):
        return fused_mul_recurrent_rwkv7(self.r, self.w, self.k, self.v, self.kk, self.rate, initial_state=state, output_final_state=True)


class Rwkv7Prompt(Rwkv7):
    name = "chunk_rwkv7"

    def run(self, state):
        return chunk_rwkv7(self.r, self.w, self.k, self.v, -self.kk, self.kk * self.rate, initial_state=state, output_final_state=True,
                           safe_gate=True, lower_bound=LEAST_DECAY, chunk_size=64)  # fmt: skip

    def bytes_per_step(self):
        vectors = 7 * self.v.numel() * self.v.element_size()  # six inputs and the outputs
        return super().bytes_per_step() + len(self.states) * vectors


class GatedDelta(Recurrence):
    name = "fused_recurrent_gated_delta_rule"

    def prepare(self):
        self.q, self.k, self.v = self.vectors(), self.vectors(), self.vectors()
        self.decay, self.beta = (torch.rand(self.rows, self.tokens, self.heads, generator=self.random, device=self.random.device) for _ in range(2))

    def equation(self):
        q, k = (torch.nn.functional.normalize(x.float(), dim=3) for x in (self.q, self.k))
        w, beta = (-self.decay).exp()[..., None], self.beta[..., None]
        return q * self.size**-0.5, w.expand_as(k), k * beta, self.v, -w * k, beta * k

    def run(self, state):
        return fused_recurrent_gated_delta_rule(self.q, self.k, self.v, g=-self.decay, beta=self.beta, initial_state=state,
                                                output_final_state=True, use_qk_l2norm_in_kernel=True)  # fmt: skip


# By name: the kernel, and layers, heads and rows of a head's state of the model whose step it is.
KINDS = {
    "fla.rwkv7": (Rwkv7, 24, 16, 64),  # 0.4B
    "fla.rwkv7-prompt": (Rwkv7Prompt, 24, 16, 64),
    "fla.gated-delta": (GatedDelta, 18, 16, 128),  # Qwen3.5 0.8B
}


class Tuning:
    """Tunes a kernel of Triton in seconds, where fla's own way takes minutes: of its configurations those with blocks of 16 to 64, 2 to 8
    warps and 2 or 3 stages, compiled by all cores at once and measured for 5 ms each; anew after forget()."""

    ALLOWED = {"num_warps": (1, 2, 4, 8), "num_stages": (2, 3), "BK": (32, 64), "BV": (16, 32, 64), "BS": (32, 64)}

    def __init__(self):
        self.tuned = set()
        self.run = Autotuner.run
        tuning = self
        Autotuner.run = lambda tuner, *args, **kwargs: tuning.run_tuned(tuner, *args, **kwargs)

    def allows(self, config):
        return all(config.all_kwargs().get(name, allowed[0]) in allowed for name, allowed in self.ALLOWED.items())

    def run_tuned(self, tuner, *args, **kwargs):
        if tuner not in self.tuned:
            self.tuned.add(tuner)
            tuner.configs = list(filter(self.allows, tuner.configs)) or tuner.configs
            tuner.do_bench = lambda call, quantiles: triton.testing.do_bench(call, warmup=1, rep=5, quantiles=quantiles)
            with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as cores, AsyncCompileMode(cores, ignore_errors=True):
                tuner.warmup(*args, **{name: value for name, value in kwargs.items() if name != "warmup"})
        return self.run(tuner, *args, **kwargs)

    def forget(self):
        for tuner in self.tuned:
            tuner.cache.clear()
        self.tuned.clear()


TUNING = Tuning()


def maker(model):
    kernel, layers, heads, size = KINDS[model]

    def make(rows, kind):
        TUNING.forget()
        if kernel is Rwkv7Prompt:
            step = kernel(1, kind, layers, heads, size, tokens=rows)
        else:
            step = kernel(rows, kind, layers, heads, size)
        step.step()  # compiles and tunes
        if not step.difference() <= CHECKED[kind]:
            raise ValueError(f"{kernel.name} differs from the definition by {step.difference():.2g} of the largest output")
        return step

    return make
