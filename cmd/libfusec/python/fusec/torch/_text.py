"""The writer of graphs in fusec's text form, in which what ATen's operations mean is written down by _aten."""

import json
import math

import torch


class Unsupported(Exception):
    """An operation that fusec does not take in this form; the message says why."""


DTYPES = {
    torch.float32: "f32", torch.float64: "f64", torch.bfloat16: "bf16", torch.float16: "f16", torch.bool: "bool",
    torch.int8: "i8", torch.int16: "i16", torch.int32: "i32", torch.int64: "i64", torch.uint8: "u8",
}
HALVES = (torch.bfloat16, torch.float16)
MAX_INLINE = 16  # elements of a constant that the text has; larger ones are parameters
MAX_RANK = 8


class Value:
    """A value of the graph: its name in the text, its shape and its type."""

    __slots__ = ("name", "shape", "dtype")

    def __init__(self, name, shape, dtype):
        self.name, self.shape, self.dtype = name, tuple(shape), dtype

    def numel(self):
        return math.prod(self.shape)


def compute_type(dtype):
    """The type in which values of a type are computed."""
    return torch.float32 if dtype in HALVES else dtype


def memory_order(t):
    """The order of axes in which a tensor's elements are contiguous, or None."""
    order = sorted(range(t.dim()), key=lambda a: (-t.stride(a) if t.shape[a] != 1 else 0, a))
    # Axes of size 1 have any stride: they stay where they are as far as possible.
    want = 1
    for a in reversed(order):
        if t.shape[a] != 1 and t.stride(a) != want:
            return None
        want *= t.shape[a]
    return order


def _ints(list_):
    return "[" + ",".join(str(int(i)) for i in list_) + "]"


def number(v, dtype):
    """A number in the text form."""
    if dtype == torch.bool:
        return "true" if v else "false"
    if not dtype.is_floating_point:
        return str(int(v))
    v = float(v)
    if math.isnan(v):
        return "nan"
    if math.isinf(v):
        return "inf" if v > 0 else "-inf"
    if dtype != torch.float64:
        v = torch.tensor(v, dtype=torch.float64, device="cpu").to(dtype).item()
        if math.isinf(v):
            return "inf" if v > 0 else "-inf"
    return repr(v)


class Writer:
    """Writes a graph line by line. constants are parameters that are set once: pairs of a name and a tensor."""

    def __init__(self, name="torch", target="cpu", backward=False):
        self.name, self.target, self.backward, self.lines = name, target, backward, []
        self.count = 0
        self.origin = ""
        self.constants = []
        self.seeds = []  # names of inputs that get another number in each run
        self._names = set()
        self._casts = {}  # by the name of a cast value, the value
        self._scalars = {}

    def at(self, position, name):
        """Sets the place and the name, in the user's program, of what follows."""
        self.origin = f" @ {json.dumps(position)} {json.dumps(name)}" if position else f" for {json.dumps(name)}"

    def text(self, version=1):
        return "\n".join([f"fusec graph {version} {json.dumps(self.name)} {{", *self.lines, "}\n"])

    def _line(self, text):
        name = f"%{self.count}"
        self.count += 1
        self.lines.append(f"  {name} {text}")
        return name

    def unique(self, name):
        """The name, or one that begins with it, that no source and no output has."""
        found, i = name, 1
        while found in self._names:
            found, i = f"{name}.{i}", i + 1
        self._names.add(found)
        return found

    def source(self, kind, name, shape, dtype):
        """An input or parameter; its name is unique already."""
        if len(shape) > MAX_RANK:
            raise Unsupported(f"more than {MAX_RANK} axes")
        if dtype not in DTYPES:
            raise Unsupported(f"elements of {dtype}")
        return Value(self._line(f"{json.dumps(name)} = {kind} : {DTYPES[dtype]}{_ints(shape)}"), shape, dtype)

    def output(self, name, v):
        self.lines.append(f"  output {json.dumps(name)} = {v.name}")

    def op(self, text, args, shape, dtype):
        """Any operation; shape and dtype are those of its result."""
        if len(shape) > MAX_RANK:
            raise Unsupported(f"more than {MAX_RANK} axes")
        phase = f" : {DTYPES[dtype]}{_ints(shape)} backward" if self.backward else ""
        return Value(self._line(f"= {text} {' '.join(a.name for a in args)}{phase}{self.origin}"), shape, dtype)

    def result(self, of, index, shape, dtype):
        return self.op(f"result[index={index}]", [of], shape, dtype)

    def scalar(self, v, dtype):
        key = (number(v, dtype), dtype)
        if key not in self._scalars:
            self._scalars[key] = Value(self._line(f"= const[value={key[0]}] : {DTYPES[dtype]}[]"), (), dtype)
        return self._scalars[key]

    def constant(self, tensor):
        """A constant tensor."""
        tensor = tensor.detach().contiguous()
        if tensor.dim() == 0:
            return self.scalar(tensor.item(), tensor.dtype)
        if tensor.numel() <= MAX_INLINE:
            list_ = ",".join(number(v, tensor.dtype) for v in tensor.flatten().tolist())
            return Value(self._line(f"= const[value=[{list_}]] : {DTYPES[tensor.dtype]}{_ints(tensor.shape)}"), tensor.shape,
                         tensor.dtype)
        name = self.unique("constant")
        self.constants.append((name, tensor))
        return self.source("param", name, tensor.shape, tensor.dtype)

    def iota(self, n, dtype=torch.int64):
        return self.constant(torch.arange(n, dtype=dtype, device="cpu"))

    def seed(self):
        """A number that differs in each run."""
        name = self.unique("seed")
        self.seeds.append(name)
        return self.source("input", name, (), torch.int64)

    # Operations that several others consist of.

    def cast(self, v, dtype):
        if v.dtype == dtype:
            return v
        cast = self.op(f"cast[to={DTYPES[dtype]}]", [v], v.shape, dtype)
        self._casts[cast.name] = v
        return cast

    def wide(self, v):
        return self.cast(v, compute_type(v.dtype))

    def factors(self, *values):
        """The operands of a contraction, whose result is in compute_type of theirs: a GPU multiplies 16 bits as they are."""
        types = {v.dtype for v in values}
        if self.target == "cuda" and len(types) == 1 and types <= set(HALVES):
            return list(values)
        return [self.wide(v) for v in values]

    def unary(self, fn, v, more=""):
        return self.op(f"unary[fn={fn}{more}]", [v], v.shape, v.dtype)

    def reshape(self, v, shape):
        shape = tuple(shape)
        return v if v.shape == shape else self.op(f"reshape[shape={_ints(shape)}]", [v], shape, v.dtype)

    def transpose(self, v, perm):
        perm = [p % len(v.shape) for p in perm] if v.shape else []
        if perm == list(range(len(perm))):
            return v
        return self.op(f"transpose[perm={_ints(perm)}]", [v], [v.shape[p] for p in perm], v.dtype)

    def broadcast(self, v, shape):
        shape = tuple(shape)
        if v.shape == shape:
            return v
        if self.target == "cuda" and v.name in self._casts:  # so that the cast is not a launch by itself
            return self.cast(self.broadcast(self._casts[v.name], shape), v.dtype)
        return self.op(f"broadcast[shape={_ints(shape)}]", [v], shape, v.dtype)

    def together(self, *values):
        """Values of one shape, but for scalars."""
        shape = torch.broadcast_shapes(*(v.shape for v in values))
        return [v if v.shape == () else self.broadcast(v, shape) for v in values], shape

    _compares = {"lt", "gt", "le", "ge", "eq", "ne"}

    def binary(self, fn, x, y):
        (x, y), shape = self.together(x, y)
        return self.op(f"binary[fn={fn}]", [x, y], shape, torch.bool if fn in self._compares else x.dtype)

    def with_scalar(self, fn, x, v):
        return self.binary(fn, x, self.scalar(v, x.dtype))

    def select(self, cond, x, y):
        (cond, x, y), shape = self.together(cond, x, y)
        if x.shape == () and y.shape == () and shape != ():
            x = self.broadcast(x, shape)
        return self.op("select", [cond, x, y], shape, x.dtype)

    def reduce(self, fn, v, axes, keep):
        axes = sorted(a % len(v.shape) for a in axes) if v.shape else []
        if not axes:
            return v
        shape = [1 if i in axes else d for i, d in enumerate(v.shape) if keep or i not in axes]
        return self.op(f"reduce[fn={fn} axes={_ints(axes)}{' keep=true' if keep else ''}]", [v], shape, v.dtype)

    def matmul(self, x, y, trans_a=False, trans_b=False):
        attrs = " ".join(f"{k}=true" for k, on in (("trans_a", trans_a), ("trans_b", trans_b)) if on)
        rows = x.shape[-1] if trans_a else x.shape[-2]
        columns = y.shape[-2] if trans_b else y.shape[-1]
        batch = torch.broadcast_shapes(x.shape[:-2], y.shape[:-2])
        return self.op(f"matmul[{attrs}]" if attrs else "matmul", [x, y], (*batch, rows, columns), compute_type(x.dtype))

    def slice(self, v, axis, start, size, step=1):
        if start == 0 and size == v.shape[axis] and step == 1:
            return v
        shape = list(v.shape)
        shape[axis] = size
        return self.op(f"slice[axis={axis} size={size} step={step}]", [v, self.scalar(start, torch.int64)], shape, v.dtype)

    def concat(self, values, axis):
        if len(values) == 1:
            return values[0]
        shape = list(values[0].shape)
        shape[axis] = sum(v.shape[axis] for v in values)
        return self.op(f"concat[axis={axis}]", values, shape, values[0].dtype)

    def gather(self, v, indices, axis):
        return self.op(f"gather[axis={axis}]", [v, indices], v.shape[:axis] + indices.shape + v.shape[axis + 1:], v.dtype)

    def per_channel(self, v, shape):
        """A vector [c] for images [n,c,...]."""
        return self.broadcast(self.reshape(v, (shape[1],) + (1,) * (len(shape) - 2)), shape)
