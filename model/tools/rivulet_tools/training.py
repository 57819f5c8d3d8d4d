# SPDX-License-Identifier: Apache-2.0
"""The training loop: warm-up and cosine, clipped gradients, and a file from which an interrupted run continues with the same numbers."""

import math
import os
import pathlib
import signal
import sys
from typing import Any

import torch
from tqdm import tqdm

from rivulet_tools.checkpoint import Tensor as FileTensor
from rivulet_tools.errors import BadInput
from rivulet_tools.likelihood import nll
from rivulet_tools.model_directory import ModelFiles, expected_tensors
from rivulet_tools.network import Network
from rivulet_tools.recipes import Recipe

# Flags that may differ between a run and its continuation.
_FREE = ("data", "out", "name", "device", "threads", "log_every", "save_every", "force", "restart", "dtype", "eval_images")


def rate(step: int, steps: int, warmup: int, peak: float) -> float:
    """Learning rate of step 0 .. steps-1: linear to `peak` over `warmup` steps, then a cosine down to a tenth of it."""
    if step < warmup:
        return peak * (step + 1) / warmup
    share = (step - warmup) / max(1, steps - warmup)
    return peak * (0.55 + 0.45 * math.cos(math.pi * share))


def choose_device(name: str) -> torch.device:
    """The device for auto, cpu or cuda. Raises BadInput if cuda is requested but absent."""
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise BadInput("--device cuda: PyTorch sees no CUDA device")
    return torch.device("cuda" if available and name != "cpu" else "cpu")


class Training:
    """One run, from step 0 or from the last saved step. Thread: one."""

    def __init__(self, args: Any, recipe: Recipe):
        self.args, self.recipe = args, recipe
        self.device = choose_device(args.device)
        torch.manual_seed(args.seed)
        self.network = Network(recipe.config, chunk=args.chunk, dropout=args.dropout).to(self.device)
        matrices = [p for p in self.network.parameters() if p.dim() > 1]
        others = [p for p in self.network.parameters() if p.dim() < 2]
        groups = [{"params": matrices, "weight_decay": args.weight_decay}, {"params": others, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95))
        self.step = 0
        self.path = args.out.with_name(args.out.name + ".training.pt")
        self.stopped = False
        self.settings = {k: str(v) for k, v in sorted(vars(args).items()) if k not in _FREE} | {"data": recipe.digest}

    def resume(self) -> None:
        """Continues from the file of an interrupted run, if there is one. Raises BadInput if that run had other settings."""
        if self.args.restart:
            self.path.unlink(missing_ok=True)
        if not self.path.exists():
            return
        try:
            saved = torch.load(self.path, map_location=self.device, weights_only=True)
            settings, step, model, optimizer = saved["settings"], saved["step"], saved["model"], saved["optimizer"]
        except Exception as error:  # a damaged archive surfaces as many types
            reason = " ".join(str(error).split())[:120]
            raise BadInput(f"{self.path}: not the file of an interrupted run ({reason}); --restart starts over") from error
        for name, value in self.settings.items():
            if settings.get(name) != value:
                flag = f"--{name.replace('_', '-')}"
                raise BadInput(f"{flag}: {value}, but the run in {self.path} has {settings.get(name)}; use the same value, or --restart")
        self.network.load_state_dict(model)
        self.optimizer.load_state_dict(optimizer)
        self.step = step
        print(f"continuing from step {self.step} of {self.path}", flush=True)

    def save(self) -> None:
        """Writes the file to continue from, whole or not at all."""
        temporary = self.path.with_name(self.path.name + ".new")
        content = {
            "settings": self.settings, "step": self.step, "model": self.network.state_dict(), "optimizer": self.optimizer.state_dict(),
        }  # fmt: skip
        self.path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(content, temporary)
        os.replace(temporary, self.path)

    def take_step(self) -> float:
        """One update; returns the batch's loss in nats per token. A step depends only on seed and step number."""
        args = self.args
        generator = torch.Generator().manual_seed(args.seed * 1_000_003 + self.step)
        torch.manual_seed(args.seed * 1_000_003 + self.step)  # dropout
        fed, scored = (t.to(self.device) for t in self.recipe.batch(args.batch, generator))
        for group in self.optimizer.param_groups:
            group["lr"] = rate(self.step, args.steps, args.warmup, args.lr)
        self.network.train()
        loss = nll(self.network(fed), scored, self.recipe.config["output"]).mean()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.network.parameters(), args.clip)
        if not (torch.isfinite(loss) and torch.isfinite(norm)):
            raise BadInput(f"step {self.step}: the loss is {loss.item()}, its gradient's norm {norm.item()}; a lower --lr may help")
        self.optimizer.step()
        self.step += 1
        return loss.item()

    def run(self) -> bool:
        """The remaining steps, with a progress bar on a terminal and lines elsewhere. False if SIGINT or SIGTERM ended the run: then its
        state is saved. Changes the handlers of both signals."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.stop)
        self.run_steps()
        if self.stopped:
            self.save()
        return not self.stopped

    def stop(self, *_: object) -> None:
        """Ends the run after the current step, because a run cannot continue from the middle of a step."""
        self.stopped = True

    def run_steps(self) -> None:
        args, recent = self.args, []
        with tqdm(total=args.steps, initial=self.step, unit="step", disable=None, dynamic_ncols=True) as bar:
            while self.step < args.steps and not self.stopped:
                recent.append(self.recipe.in_unit(self.take_step()))
                bar.update()
                if self.step % args.log_every == 0 or self.step == args.steps:
                    mean = sum(recent) / len(recent)
                    recent.clear()
                    bar.set_postfix_str(f"{mean:.4f} {self.recipe.unit}")
                    if bar.disable:
                        print(f"step {self.step}/{args.steps}  {mean:.4f} {self.recipe.unit}", file=sys.stderr, flush=True)
                if self.step % args.save_every == 0 and self.step < args.steps:
                    self.save()

    def finish(self) -> None:
        """Writes the model directory and prints the held-out score of exactly the written model."""
        args, recipe = self.args, self.recipe
        names = expected_tensors(recipe.config)
        state = self.network.state_dict()
        tensors = {n: FileTensor("F32", state[n].detach().float().cpu().numpy()) for n in names}
        files = ModelFiles(recipe.config, tensors, args.dtype)
        self.network.load_state_dict({n: torch.from_numpy(files.weights[n].values.astype("f4")) for n in names})
        nats, scored = recipe.evaluate(self.network, self.device)
        files.write(args.out, force=args.force)
        self.path.unlink(missing_ok=True)
        print(f"held out: {recipe.in_unit(nats / scored):.6f} {recipe.unit} ({nats:.6f} nats, {scored} tokens)")
        print(f"wrote {pathlib.Path(args.out)}; the same number from it:\n  {recipe.score_command(args.out)}", flush=True)
