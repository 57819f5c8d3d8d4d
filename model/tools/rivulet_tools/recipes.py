# SPDX-License-Identifier: Apache-2.0
"""The kinds of training: images pixel by pixel, or text character by character. Data, batches, the held-out score, config.json."""

import abc
import gzip
import hashlib
import math
import pathlib
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rivulet_tools.errors import BadInput
from rivulet_tools.likelihood import nll
from rivulet_tools.network import Network
from rivulet_tools.plan import Config

_TRAIN, _TEST = "train-images-idx3-ubyte", "t10k-images-idx3-ubyte"


class Recipe(abc.ABC):
    """Data and configuration of one kind of model. Token ids are int64 tensors on the CPU."""

    config: Config
    unit: str  # unit of the printed loss
    digest: str  # SHA-256 of the data: an interrupted run continues with the same data only

    @abc.abstractmethod
    def batch(self, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """(fed, scored), each [size, tokens]: a batch drawn from the training part."""

    @abc.abstractmethod
    def held_out(self) -> Iterator[tuple[Tensor, Tensor]]:
        """(fed, scored), each [sequences, tokens]: the held-out data, cut as by `rivulet score`."""

    @abc.abstractmethod
    def score_command(self, directory: pathlib.Path) -> str:
        """The command that computes the held-out score from the model directory."""

    def in_unit(self, nats_per_token: float) -> float:
        return nats_per_token

    def evaluate(self, network: Network, device: torch.device) -> tuple[float, int]:
        """(nats in all, scored tokens) of the held-out part, each sequence from an empty state."""
        nats, scored_tokens = 0.0, 0
        network.eval()
        with torch.inference_mode():
            for fed, scored in self.held_out():
                values = nll(network(fed.to(device)), scored.to(device), self.config["output"])
                nats += float(values.double().sum())
                scored_tokens += scored.numel()
        return nats, scored_tokens


def architecture(args: Any, **rest: Any) -> Config:
    """config.json from the flags of both kinds and the fields `rest` of one kind."""
    config = {
        "format": "rivulet-model",
        "format_version": 1,
        "name": args.name,
        "hidden_size": args.heads * args.key_dim,
        "num_layers": args.layers,
        "num_heads": args.heads,
        "key_dim": args.key_dim,
        "value_dim": args.key_dim,
        "ffn_size": args.ffn,
        "activation": "gelu",
        "layer_norm_eps": 1e-5,
        "final_norm": True,
    }
    return config | rest


def read_idx(path: pathlib.Path) -> np.ndarray:
    """Images of an IDX file, gzip or not: uint8 [images, height, width]. Raises BadInput."""
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise BadInput(f"--data {path}: {error}") from error
    if len(data) < 16 or data[:4] != b"\x00\x00\x08\x03":
        raise BadInput(f"--data {path}: not an IDX file of images (it must begin with 00 00 08 03)")
    count, height, width = struct.unpack(">3I", data[4:16])
    if count * height * width != len(data) - 16 or not count * height * width:
        raise BadInput(f"--data {path}: {count} images of {height} x {width} are {count * height * width} bytes, the file has {len(data) - 16}")
    return np.frombuffer(data, np.uint8, offset=16).reshape(count, height, width).copy()


class ImageRecipe(Recipe):
    """Gray images as in MNIST: elu + 1, learned positions, bos, a mixture of logistics over 256 levels."""

    unit = "bits/dim"

    def __init__(self, args: Any):
        train, self.test, self.test_path = self.load(args.data)
        self.digest = hashlib.sha256(train.tobytes() + self.test.tobytes()).hexdigest()
        self.count = min(args.eval_images, len(self.test))
        _, height, width = train.shape
        self.train = torch.from_numpy(train.reshape(len(train), -1))
        self.config = architecture(
            args,
            vocab_size=257,
            bos_token_id=256,
            eos_token_id=None,
            position={"type": "learned", "combine": "add", "max_length": height * width},
            attention={"feature_map": {"type": "elu"}, "gate": "none", "normalizer": {"type": "add_eps", "eps": 1e-6}},
            output={"type": "mixture_of_logistics", "num_mixtures": args.mixtures, "num_levels": 256, "scale": "exp"},
            content={"type": "image", "height": height, "width": width, "channels": 1},
        )

    @staticmethod
    def load(path: pathlib.Path) -> tuple[np.ndarray, np.ndarray, pathlib.Path]:
        """(training images, held-out images, the file whose first images are the held-out ones)."""
        if path.is_dir():
            files = []
            for name in (_TRAIN, _TEST):
                found = [path / (name + ending) for ending in ("", ".gz") if (path / (name + ending)).is_file()]
                if not found:
                    raise BadInput(f"--data {path}: there is no {name} or {name}.gz in it")
                files.append(found[0])
            train, test = read_idx(files[0]), read_idx(files[1])
            if train.shape[1:] != test.shape[1:]:
                raise BadInput(f"--data {path}: images of {train.shape[1:]} and of {test.shape[1:]}")
            return train, test, files[1]
        images = read_idx(path)
        if len(images) < 2:
            raise BadInput(f"--data {path}: holds {len(images)} image; at least 2 are needed, one to hold out")
        held = max(1, len(images) // 10)
        return images[held:], images[:held], path

    def pair(self, images: Tensor) -> tuple[Tensor, Tensor]:
        scored = images.long()
        bos = torch.full((len(scored), 1), self.config["bos_token_id"])
        return torch.cat([bos, scored[:, :-1]], 1), scored

    def batch(self, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return self.pair(self.train[torch.randint(len(self.train), (size,), generator=generator)])

    def held_out(self) -> Iterator[tuple[Tensor, Tensor]]:
        images = torch.from_numpy(self.test[: self.count].reshape(self.count, -1))
        for part in images.split(32):
            yield self.pair(part)

    def in_unit(self, nats_per_token: float) -> float:
        return nats_per_token / math.log(2)

    def score_command(self, directory: pathlib.Path) -> str:
        return f"rivulet score --model {directory} --idx {self.test_path} --limit {self.count}"


class TextRecipe(Recipe):
    """Characters: random features with the recency gate (RFA), no positions, no bos: a stream without end."""

    unit = "nats/char"

    def __init__(self, args: Any):
        self.path, self.length, self.tail = args.data, args.length, args.holdout
        try:
            raw = args.data.read_bytes()
            text = raw.decode()
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"--data {args.data}: {error}") from error
        self.digest = hashlib.sha256(raw).hexdigest()
        alphabet = "".join(sorted(set(text)))
        ids = {character: index for index, character in enumerate(alphabet)}
        tokens = torch.tensor([ids[character] for character in text], dtype=torch.long)
        cut = int((1 - self.tail) * len(tokens))  # as `rivulet score --tail`
        self.train, self.test = tokens[:cut], tokens[cut:]
        if len(self.train) <= self.length or len(self.test) < 2:
            raise BadInput(
                f"--data {args.data}: {len(tokens)} characters; with --holdout {self.tail} more than {self.length} (--length) are needed for "
                "training and 2 to hold out"
            )
        self.config = architecture(
            args,
            vocab_size=len(alphabet),
            bos_token_id=None,
            eos_token_id=None,
            position={"type": "none"},
            attention={
                "feature_map": {"type": "rfa", "num_features": args.features},
                "gate": "rfa",
                "normalizer": {"type": "clamp_min", "min": 0.01},
            },
            output={"type": "categorical"},
            content={"type": "text", "tokenizer": {"type": "char", "alphabet": alphabet}},
        )

    def batch(self, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        starts = torch.randint(len(self.train) - self.length, (size,), generator=generator)
        windows = torch.stack([self.train[start : start + self.length + 1] for start in starts])
        return windows[:, :-1], windows[:, 1:]

    def held_out(self) -> Iterator[tuple[Tensor, Tensor]]:
        whole = (len(self.test) - 1) // self.length
        fed = self.test[: whole * self.length].view(whole, self.length)
        scored = self.test[1 : whole * self.length + 1].view(whole, self.length)
        for begin in range(0, whole, 32):
            yield fed[begin : begin + 32], scored[begin : begin + 32]
        rest = self.test[whole * self.length :]
        if len(rest) > 1:
            yield rest[None, :-1], rest[None, 1:]

    def score_command(self, directory: pathlib.Path) -> str:
        return f"rivulet score --model {directory} --text {self.path} --tail {self.tail} --window {self.length}"
