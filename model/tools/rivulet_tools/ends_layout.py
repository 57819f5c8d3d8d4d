# SPDX-License-Identifier: Apache-2.0
"""The parts around the encoder, outside the library: embedding, positions, head, meaning of the tokens."""

import numpy as np

from rivulet_tools.checkpoint import Tensor
from rivulet_tools.errors import BadInput
from rivulet_tools.plan import Config, Plan, Settings

# A stored table this close to the formula is the formula: float32 arithmetic alone leaves 5e-5 at position 783, 2e-4 at 3071.
SINUSOIDAL_TOLERANCE = 5e-4


def sinusoidal(length: int, columns: int) -> np.ndarray:
    """The formula of model/FORMAT.md in float64: [length, columns]."""
    column = np.arange(columns)
    angle = np.arange(length)[:, None] * 10000.0 ** (-2 * (column // 2) / columns)
    return np.where(column % 2 == 0, np.sin(angle), np.cos(angle))


class EndsLayout:
    """Fills the rest of a Plan that already has its encoder."""

    def __init__(self, plan: Plan, settings: Settings, hidden: int):
        self.plan, self.settings, self.hidden = plan, settings, hidden

    def read(self) -> Config:
        """The part of config.json beside the encoder. Also maps the tensors."""
        vocab_size, columns = self.plan.shape("embedding.weight", 2)
        if columns not in (self.hidden, self.hidden / 2):
            raise BadInput(
                f"tensor {self.plan.names['embedding.weight']!r} has the shape [{vocab_size}, {columns}]; an embedding has {self.hidden} columns, "
                f"or {self.hidden}/2 beside concatenated positions"
            )
        self.plan.map("embedding.weight", (vocab_size, columns))
        position = self.position(columns)
        outputs = self.map_predictor()
        output = self.output(vocab_size, outputs)
        if output["type"] == "mixture_of_logistics":
            if self.settings.scale is None and not self.plan.paper:
                raise BadInput("--scale is needed: no tensor tells how a mixture samples, exp or elu")
            output["scale"] = self.plan.choose("scale", self.settings.scale, "elu", "--scale; the paper's ImageGenerator samples so")
        elif self.settings.scale is not None or self.settings.num_levels is not None:
            raise BadInput("--scale, --num-levels: the head is categorical, which has no such setting")
        return {"vocab_size": vocab_size, "position": position, "output": output} | self.tokens(vocab_size, position, output)

    def map_predictor(self) -> int:
        """Maps head and bias; returns the number of outputs."""
        outputs = self.plan.shape("predictor.weight", 2)[0]
        self.plan.map("predictor.weight", (outputs, self.hidden))
        if "predictor.bias" in self.plan.names:
            self.plan.map("predictor.bias", (outputs,))
        else:
            self.plan.assume("predictor.bias", "zeros", "there is none")
            self.plan.tensors["predictor.bias"] = Tensor("F32", np.zeros(outputs, "<f4"))
        return outputs

    def position(self, columns: int) -> Config:
        """The object `position`; maps a learned table."""
        plan, settings, name = self.plan, self.settings, self.plan.names.get("position.weight")
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
                plan.assume("position.type", kind, why)
        plan.position_table = table[:length]
        if kind == "learned":
            plan.put("position.weight", Tensor(tensor.dtype, table[:length]))
        elif difference > SINUSOIDAL_TOLERANCE:
            raise BadInput(f"--position-type sinusoidal: {name!r} differs from the formula by {difference:.3g}")
        else:
            plan.mapped.append((name, "(sinusoidal, computed)", tensor))
        return {"type": kind, "combine": combine, "max_length": length}

    def length(self, rows: int) -> int:
        given = self.settings.max_length
        if given is not None and not 1 <= given <= rows:
            raise BadInput(f"--max-length {given}: the table has {rows} rows")
        return given or rows

    def position_without_table(self, combine: str) -> Config:
        """Positions that are not in the checkpoint: none, or sinusoidal ones that are computed."""
        kind, length = self.settings.position_type, self.settings.max_length
        if kind == "learned":
            raise BadInput("--position-type learned: there is no table of positions")
        if combine == "concat" and kind != "sinusoidal":
            raise BadInput(
                f"the embedding has {self.hidden}/2 columns, so positions are concatenated, but there is no table of them: "
                "give --position-type sinusoidal --max-length N"
            )
        if kind == "sinusoidal":
            if length is None or length < 1:
                raise BadInput("--max-length is needed with --position-type sinusoidal: no table tells it; at least 1 is allowed")
            return {"type": kind, "combine": combine, "max_length": length}
        if length is not None:
            raise BadInput("--max-length: a model without positions has no end")
        if kind is None:
            self.plan.assume("position.type", "none", "--position-type; there is no table of positions")
        return {"type": "none"}

    def output(self, vocab_size: int, outputs: int) -> Config:
        """The object `output`, still without scale."""
        kind = self.settings.output
        fitting = [name for name, fits in (("categorical", outputs == vocab_size), ("mixture", outputs % 3 == 0)) if fits]
        if kind is not None and kind not in fitting:
            allowed = " or ".join(fitting) or "nothing"
            raise BadInput(f"--output {kind}: the head has {outputs} outputs, the embedding {vocab_size} rows; {allowed} fits")
        # A mixture has three outputs per logistic. Many other heads have a multiple of three, too, so this alone does not show a mixture.
        if not fitting or (kind is None and fitting == ["mixture"] and vocab_size not in (256, 257)):
            mixture = f"{outputs // 3} logistics: say --output mixture if so" if outputs % 3 == 0 else "3 for each logistic"
            raise BadInput(
                f"the head has {outputs} outputs; a categorical one has as many as the embedding has rows ({vocab_size}), a mixture has {mixture}"
            )
        if kind is None:
            kind = fitting[0]
            why = "as many outputs as tokens" if kind == "categorical" else f"{outputs} outputs, 3 for each of {outputs // 3} logistics"
            self.plan.assume("output.type", kind, f"--output; {why}")
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
            # A wrong eos would end generations at the wrong place; without an eos no token ends them.
            return self.plan.assume(f"{name}_token_id", default, why)
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
            return self.plan.assume("content", {"type": "image", "height": h, "width": w, "channels": c}, f"--content; {values} values in all")
        if kind is None:
            return self.plan.assume("content", {"type": "tokens"}, "--content image (--height, --width, --channels) or --alphabet say more")
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
            c = self.plan.assume("content.channels", 1, "--channels; gray")
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
    """The shape without leading dimensions of 1, as in [1, L, d]; a matrix keeps its two dimensions."""
    shape = tensor.shape
    while len(shape) > 2 and shape[0] == 1:
        shape = shape[1:]
    if len(shape) == 3 and shape[1] == 1:  # [L, 1, d], sequence first
        shape = (shape[0], shape[2])
    return shape
