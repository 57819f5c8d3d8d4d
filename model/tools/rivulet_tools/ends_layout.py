# SPDX-License-Identifier: Apache-2.0
"""What stands around the encoder, outside the library and so under any name: embedding, positions, head, meaning of the tokens."""

import re
from collections.abc import Iterable

import numpy as np

from rivulet_tools.checkpoint import Tensor
from rivulet_tools.errors import BadInput
from rivulet_tools.plan import Changes, Config, Plan, Settings, looks_like_weight

# A stored table this close to the formula is the formula: float32 arithmetic alone leaves 5e-5 at position 783, 2e-4 at 3071.
SINUSOIDAL_TOLERANCE = 5e-4

_POSITION = re.compile(r"(^|[._])(pos|position|positions|positional|pe|wpe)([._]|$)|pos_?emb|pos_?enc|position")
_EMBEDDING = re.compile(r"embed|(^|[._])(emb|wte|tok|token|tokens|vocab|lookup)([._]|$)")
_PREDICTOR = re.compile(r"(^|[._])(predictor|head|lm_head|output|out|classifier|fc|proj|projection|decoder|logits|to_logits|final|linear)([._]|$)")


def sinusoidal(length: int, columns: int) -> np.ndarray:
    """The formula of model/FORMAT.md in float64: [length, columns]."""
    column = np.arange(columns)
    angle = np.arange(length)[:, None] * 10000.0 ** (-2 * (column // 2) / columns)
    return np.where(column % 2 == 0, np.sin(angle), np.cos(angle))


class EndsLayout:
    """Fills the rest of a Plan, whose encoder is already there."""

    def __init__(self, plan: Plan, settings: Settings, prefix: str, hidden: int):
        self.plan, self.settings, self.prefix, self.hidden = plan, settings, prefix, hidden
        encoder = re.compile(re.escape(prefix) + r"(layers\.\d+\.|norm\.)")
        self.outside = {n: t for n, t in plan.source.items() if looks_like_weight(n, t) and not encoder.match(n)}

    def read(self) -> Config:
        """The part of config.json that does not concern the encoder. Maps the tensors on the way."""
        position_name = self.find_position()
        predictor_name = self.find_predictor(position_name)
        embedding_name = self.find_embedding(position_name, predictor_name)
        vocab_size, columns = self.plan.source[embedding_name].shape
        if columns not in (self.hidden, self.hidden / 2):
            raise BadInput(
                f"tensor {embedding_name!r} has the shape [{vocab_size}, {columns}]; an embedding has {self.hidden} columns, "
                f"or {self.hidden}/2 beside concatenated positions"
            )
        self.plan.map(embedding_name, "embedding.weight", (vocab_size, columns))
        position = self.position(position_name, columns)
        outputs = self.map_predictor(predictor_name)
        output = self.output(vocab_size, outputs)
        paper = "value_embedding" in embedding_name
        if output["type"] == "mixture_of_logistics":
            guess, why = ("elu", "the paper's ImageGenerator samples so") if paper else ("exp", "no sign of the paper's ImageGenerator")
            output["scale"] = self.plan.choose("scale", self.settings.scale, guess, f"--scale; {why}", Changes.DRAWS)
        elif self.settings.scale is not None or self.settings.num_levels is not None:
            raise BadInput("--scale, --num-levels: the head is categorical, which has no such setting")
        return {"vocab_size": vocab_size, "position": position, "output": output} | self.tokens(vocab_size, position, output)

    def named(self, flag: str, wanted: str) -> str:
        """The full name for what a flag says: itself, or the one tensor that ends with it."""
        if wanted in self.plan.source:
            return wanted
        ending = [name for name in self.plan.source if name.endswith("." + wanted)]
        if len(ending) != 1:
            raise BadInput(f"{flag} {wanted!r}: {'no tensor has that name' if not ending else 'is the end of ' + ', '.join(ending)}")
        return ending[0]

    def matrices(self, pattern: re.Pattern[str], besides: Iterable[str | None], widths: tuple[float, ...]) -> tuple[list[str], list[str]]:
        """(names that match and fit, all names that fit) of matrices outside the encoder with one of `widths` columns."""
        fitting = [
            name
            for name, tensor in self.outside.items()
            if name not in besides and len(tensor.shape) == 2 and tensor.shape[1] in widths and not _POSITION.search(name.lower())
        ]
        fitting = self.near(fitting)
        return [name for name in fitting if pattern.search(name.removeprefix(self.container()).lower())], fitting

    def near(self, names: list[str]) -> list[str]:
        """Those beside the encoder, where there are any: not those of another copy of the model, such as an average of its weights."""
        return [name for name in names if name.startswith(self.container())] or names

    def container(self) -> str:
        """The part of the encoder's prefix that its neighbours share, such as 'model_state.' or 'module.'."""
        prefix = self.prefix
        while prefix and sum(name.startswith(prefix) for name in self.outside) < 2:
            prefix = prefix[:-1].rpartition(".")[0] + "." if "." in prefix[:-1] else ""
        return prefix

    def pick(self, what: str, flag: str, matching: list[str], fitting: list[str]) -> str:
        """The only candidate, or BadInput that lists them."""
        if len(matching) == 1:
            return matching[0]
        if not matching and len(fitting) == 1:
            self.plan.guess(what, fitting[0], f"{flag}; the only tensor left that fits by shape")
            return fitting[0]
        shown = [f"{name!r} {list(self.plan.source[name].shape)}" for name in matching or fitting]
        if not shown:
            raise BadInput(f"no tensor looks like the {what} ({self.hidden} columns, outside the encoder); name it with {flag}")
        raise BadInput(f"{flag} is needed, which tensor is the {what}? {', '.join(shown)} fit")

    def find_position(self) -> str | None:
        if self.settings.position is not None:
            return self.named("--position", self.settings.position)
        found = [
            name
            for name, tensor in self.outside.items()
            if _POSITION.search(name.lower()) and len(squeezed(tensor)) == 2 and squeezed(tensor)[1] in (self.hidden, self.hidden / 2)
        ]
        found = self.near(found)
        if len(found) > 1:
            raise BadInput(f"--position is needed, which tensor holds the positions? {', '.join(map(repr, found))} fit")
        return found[0] if found else None

    def find_predictor(self, position: str | None) -> str:
        if self.settings.predictor is not None:
            name = self.named("--predictor", self.settings.predictor)
            return name if not name.endswith(".bias") else name.removesuffix("bias") + "weight"
        besides = (position, self.settings.embedding and self.named("--embedding", self.settings.embedding))
        matching, fitting = self.matrices(_PREDICTOR, besides, (self.hidden,))
        matching = [name for name in matching if not _EMBEDDING.search(name.lower())] or matching
        if not matching:
            with_bias = [name for name in fitting if name.removesuffix("weight") + "bias" in self.outside]
            fitting = with_bias or [name for name in fitting if not _EMBEDDING.search(name.lower())]
        return self.pick("predictor", "--predictor", matching, fitting)

    def find_embedding(self, position: str | None, predictor: str) -> str:
        if self.settings.embedding is not None:
            return self.named("--embedding", self.settings.embedding)
        matching, fitting = self.matrices(_EMBEDDING, (position, predictor), (self.hidden, self.hidden / 2))
        return self.pick("embedding", "--embedding", matching, fitting)

    def map_predictor(self, name: str) -> int:
        """Maps head and bias; returns the number of outputs."""
        tensor = self.plan.source[name]
        if len(tensor.shape) != 2 or tensor.shape[1] != self.hidden:
            raise BadInput(f"tensor {name!r} has the shape {list(tensor.shape)}; a predictor has {self.hidden} columns")
        outputs = tensor.shape[0]
        self.plan.map(name, "predictor.weight", (outputs, self.hidden))
        bias = name.removesuffix("weight") + "bias"
        if name.endswith("weight") and bias in self.plan.source:
            self.plan.map(bias, "predictor.bias", (outputs,))
        else:
            self.plan.guess("predictor.bias", "zeros", f"there is no {bias!r}", Changes.NOTHING)
            self.plan.tensors["predictor.bias"] = Tensor("F32", np.zeros(outputs, "<f4"))
        return outputs

    def position(self, name: str | None, columns: int) -> Config:
        """The object `position`; maps a learned table."""
        plan, settings = self.plan, self.settings
        kind, combine = settings.position_type, "add" if columns == self.hidden else "concat"
        if name is None:
            return self.position_without_table(combine)
        if kind == "none":
            raise BadInput(f"--position-type none: the checkpoint holds {name!r}; a surplus tensor is left out by --ignore-unused alone")
        tensor = plan.source[name]
        shape = squeezed(tensor)
        wanted = columns if combine == "add" else self.hidden - columns
        if len(shape) != 2 or shape[1] != wanted:
            raise BadInput(f"tensor {name!r} has the shape {list(tensor.shape)}; positions beside this embedding have {wanted} columns")
        table = tensor.values.reshape(shape)
        length = self.length(shape[0])
        difference = float(np.abs(table - sinusoidal(*shape)).max())
        if kind is None:
            kind = "sinusoidal" if difference <= SINUSOIDAL_TOLERANCE else "learned"
            if kind == "sinusoidal":
                why = f"{name!r} is the formula within {difference:.1e}; --position-type learned keeps the table"
                plan.guess("position.type", kind, why, Changes.NOTHING)
        plan.position_table = table[:length]
        if kind == "learned":
            plan.put(name, "position.weight", Tensor(tensor.dtype, table[:length]))
        elif difference > SINUSOIDAL_TOLERANCE:
            raise BadInput(f"--position-type sinusoidal: {name!r} differs from the formula by {difference:.3g}")
        else:
            plan.mapped.append((name, "(sinusoidal, computed)", tensor))
            plan.used.add(name)
        return {"type": kind, "combine": combine, "max_length": length}

    def length(self, rows: int) -> int:
        given = self.settings.max_length
        if given is not None and not 1 <= given <= rows:
            raise BadInput(f"--max-length {given}: the table has {rows} rows")
        return given or rows

    def position_without_table(self, combine: str) -> Config:
        """Positions that the checkpoint does not hold: none, or sinusoidal ones that are computed."""
        kind, length = self.settings.position_type, self.settings.max_length
        if kind == "learned":
            raise BadInput("--position-type learned: no tensor looks like a table of positions; name it with --position")
        if combine == "concat" and kind != "sinusoidal":
            raise BadInput(
                f"the embedding has {self.hidden}/2 columns, so positions are concatenated, but no tensor looks like them: "
                "name it with --position, or give --position-type sinusoidal --max-length N"
            )
        if kind == "sinusoidal":
            if length is None or length < 1:
                raise BadInput("--max-length is needed with --position-type sinusoidal: no table tells it; at least 1 is allowed")
            return {"type": kind, "combine": combine, "max_length": length}
        if length is not None:
            raise BadInput("--max-length: a model without positions has no end")
        if kind is None:
            self.plan.guess("position.type", "none", "--position-type; no tensor looks like positions")
        return {"type": "none"}

    def output(self, vocab_size: int, outputs: int) -> Config:
        """The object `output`, still without scale."""
        kind = self.settings.output
        fitting = [name for name, fits in (("categorical", outputs == vocab_size), ("mixture", outputs % 3 == 0)) if fits]
        if kind is not None and kind not in fitting:
            allowed = " or ".join(fitting) or "nothing"
            raise BadInput(f"--output {kind}: the head has {outputs} outputs, the embedding {vocab_size} rows; {allowed} fits")
        # Three outputs a logistic: a number that many a head has by chance, so that alone is no ground for a guess.
        if not fitting or (kind is None and fitting == ["mixture"] and vocab_size not in (256, 257)):
            mixture = f"{outputs // 3} logistics: say --output mixture if so" if outputs % 3 == 0 else "3 for each logistic"
            raise BadInput(
                f"the head has {outputs} outputs; a categorical one has as many as the embedding has rows ({vocab_size}), a mixture has {mixture}"
            )
        if kind is None:
            kind = fitting[0]
            why = "as many outputs as tokens" if kind == "categorical" else f"{outputs} outputs, 3 for each of {outputs // 3} logistics"
            self.plan.guess("output.type", kind, f"--output; {why}")
        if kind == "categorical":
            return {"type": "categorical"}
        if vocab_size < 2:
            raise BadInput(f"the embedding has {vocab_size} row; a mixture needs at least 2 levels")
        default = 256 if vocab_size in (256, 257) else vocab_size
        levels = self.plan.choose("num_levels", self.settings.num_levels, default, "--num-levels; what the embedding's rows suggest")
        if not 2 <= levels <= vocab_size:
            raise BadInput(f"--num-levels {levels}: 2 to {vocab_size}, the embedding's rows, is allowed")
        return {"type": "mixture_of_logistics", "num_mixtures": outputs // 3, "num_levels": levels}

    def tokens(self, vocab_size: int, position: Config, output: Config) -> Config:
        """bos, eos and content."""
        alphabet = self.settings.alphabet
        values = output.get("num_levels", vocab_size if alphabet is None else len(alphabet))
        default = values if values == vocab_size - 1 else None
        why = "the one id that is no value" if default is not None else "every id is a value"
        bos = self.special("bos", self.settings.bos, vocab_size, default, f"--bos; {why}")
        eos = self.special("eos", self.settings.eos, vocab_size, None, "--eos; shapes do not tell")
        return {"bos_token_id": bos, "eos_token_id": eos, "content": self.content(vocab_size, position, output, bos, eos)}

    def special(self, name: str, given: str | None, vocab_size: int, default: int | None, why: str) -> int | None:
        if given is None:
            # A wrong eos only ends what is generated elsewhere; none ends nothing.
            return self.plan.guess(f"{name}_token_id", default, why, Changes.SCORES if name == "bos" else Changes.NOTHING)
        if given == "none":
            return None
        if not given.isdecimal() or int(given) >= vocab_size:
            raise BadInput(f"--{name} {given}: none, or an id from 0 to {vocab_size - 1}, is allowed")
        return int(given)

    def content(self, vocab_size: int, position: Config, output: Config, bos: int | None, eos: int | None) -> Config:
        s = self.settings
        kind = s.content
        if kind is None and s.alphabet is not None:
            kind = "text"
        if kind is None and (s.height or s.width or s.channels):
            kind = "image"
        values = position.get("max_length", 0) + (bos is None)
        sizes = {784: (28, 28, 1), 1024: (32, 32, 1), 3072: (32, 32, 3)}
        if kind is None and output["type"] == "mixture_of_logistics" and values in sizes:
            h, w, c = sizes[values]
            return self.plan.guess("content", {"type": "image", "height": h, "width": w, "channels": c}, f"--content; {values} values in all", Changes.NOTHING)
        if kind is None:
            return self.plan.guess("content", {"type": "tokens"}, "--content image (--height, --width, --channels) or --alphabet say more", Changes.NOTHING)
        if kind == "image":
            return self.image(values if position["type"] != "none" else None)
        if s.height or s.width or s.channels:
            raise BadInput(f"--height, --width, --channels: the content is {kind}")
        if kind == "tokens":
            return {"type": kind}
        return self.text(vocab_size, bos, eos)

    def image(self, values: int | None) -> Config:
        h, w, c = self.settings.height, self.settings.width, self.settings.channels
        if c is None:
            c = self.plan.guess("content.channels", 1, "--channels; gray", Changes.NOTHING)
        if h is None or w is None:
            raise BadInput("--height and --width are needed for images" + (f"; {values} values in all" if values else ""))
        if values is not None and h * w * c > values:
            raise BadInput(f"--height {h} --width {w} --channels {c}: {h * w * c} values, but positions end after {values}")
        return {"type": "image", "height": h, "width": w, "channels": c}

    def text(self, vocab_size: int, bos: int | None, eos: int | None) -> Config:
        alphabet = self.settings.alphabet
        if alphabet is None:
            raise BadInput("--alphabet FILE is needed for text: the characters in the order of their ids")
        if len(set(alphabet)) != len(alphabet):
            raise BadInput("--alphabet: " + repr(next(c for c in alphabet if alphabet.count(c) > 1)) + " stands there twice")
        stray = [i for i in range(len(alphabet), vocab_size) if i not in (bos, eos)]
        if len(alphabet) > vocab_size or stray:
            raise BadInput(f"--alphabet: {len(alphabet)} characters for {vocab_size} ids, of which only bos and eos may have none")
        return {"type": "text", "tokenizer": {"type": "char", "alphabet": alphabet}}


def squeezed(tensor: Tensor) -> tuple[int, ...]:
    """The shape without its leading dimensions of 1, as in [1, L, d]; a matrix stays one."""
    shape = tensor.shape
    while len(shape) > 2 and shape[0] == 1:
        shape = shape[1:]
    if len(shape) == 3 and shape[1] == 1:  # [L, 1, d], sequence first
        shape = (shape[0], shape[2])
    return shape
