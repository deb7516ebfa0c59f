"""What ATen's operations are in fusec's words. LOWERINGS has a function for each overload, which takes a Writer, the FX node and
the operation's arguments, with values in place of tensors, and gives the result, or a tuple of them, with None for what fusec
does not compute. A function that cannot write a form of its operation raises Unsupported."""

import math

import torch

from ._grads import arguments
from ._text import DTYPES, HALVES, Unsupported, Value, _ints, compute_type, memory_order

LOWERINGS = {}
VIEWS = set()  # operations that move no data


def lowers(*names, view=False):
    def keep(f):
        for name in names:
            LOWERINGS[name] = f
            if view:
                VIEWS.add(name)
        return f

    return keep


def meta(node):
    """The tensor that a node's result looks like."""
    return node.meta["val"]


def used(node, index):
    """Whether anything reads a result of a node."""
    return any(u.args[1] == index for u in node.users)


def value(w, x, dtype):
    """An operand of a type, computed or a number."""
    if hasattr(x, "dtype"):
        return w.cast(x, dtype)
    return w.scalar(x, dtype)


def _only(condition, reason):
    if not condition:
        raise Unsupported(reason)


# Elementwise.

def _unary(fn):
    def f(w, n, x):
        dtype = compute_type(meta(n).dtype)
        _only(dtype != torch.bool, "truth values as numbers")
        return w.unary(fn, w.cast(x, dtype))

    return f


for _name, _fn in {
    "neg": "neg", "abs": "abs", "exp": "exp", "expm1": "expm1", "log": "log", "log1p": "log1p", "log2": "log2", "sqrt": "sqrt",
    "rsqrt": "rsqrt", "reciprocal": "recip", "sin": "sin", "cos": "cos", "tan": "tan", "asin": "asin",
    "acos": "acos", "atan": "atan",
    "sinh": "sinh", "cosh": "cosh", "asinh": "asinh", "acosh": "acosh", "atanh": "atanh", "sigmoid": "sigmoid", "tanh": "tanh",
    "erf": "erf", "relu": "relu", "silu": "silu", "square": "square",
}.items():
    lowers(f"aten.{_name}.default")(_unary(_fn))


@lowers("aten.floor.default", "aten.ceil.default", "aten.round.default", "aten.sign.default", "aten.sgn.default")
def _rounded(w, n, x):
    fn = {"sgn": "sign"}.get(n.target._opname, n.target._opname)
    x = w.wide(x)
    if not x.dtype.is_floating_point and fn != "sign":
        return x
    return w.unary(fn, x)


@lowers("aten.trunc.default")
def _trunc(w, n, x):
    x = w.wide(x)
    return w.select(w.with_scalar("lt", x, 0), w.unary("ceil", x), w.unary("floor", x))


@lowers("aten.gelu.default")
def _gelu(w, n, x, approximate="none"):
    return w.unary("gelu_tanh" if approximate == "tanh" else "gelu_erf", w.wide(x))


@lowers("aten.gelu_backward.default")
def _gelu_backward(w, n, dy, x, approximate="none"):
    slope = "gelu_tanh_slope" if approximate == "tanh" else "gelu_erf_slope"
    return w.binary("mul", w.wide(dy), w.unary(slope, w.wide(x)))


@lowers("aten.leaky_relu.default")
def _leaky(w, n, x, slope=0.01):
    return w.unary("leaky_relu", w.wide(x), f" alpha={float(slope)!r}")


@lowers("aten.elu.default")
def _elu(w, n, x, alpha=1, scale=1, input_scale=1):
    _only(scale == 1 and input_scale == 1, "a scale")
    return w.unary("elu", w.wide(x), f" alpha={float(alpha)!r}")


@lowers("aten.softplus.default")
def _softplus(w, n, x, beta=1, threshold=20):
    x = w.wide(x)
    if beta == 1:
        return w.unary("softplus", x)
    return w.with_scalar("div", w.unary("softplus", w.with_scalar("mul", x, beta)), beta)


@lowers("aten.mish.default")
def _mish(w, n, x):
    x = w.wide(x)
    return w.binary("mul", x, w.unary("tanh", w.unary("softplus", x)))


def _clamped(w, x, lo, hi):
    if lo is not None:
        x = w.binary("max", x, value(w, lo, x.dtype))
    if hi is not None:
        x = w.binary("min", x, value(w, hi, x.dtype))
    return x


@lowers("aten.clamp.default", "aten.clamp.Tensor", "aten.hardtanh.default")
def _clamp(w, n, x, min=None, max=None, min_val=-1, max_val=1):
    if n.target._opname == "hardtanh":
        lo, hi = (n.args[1] if len(n.args) > 1 else min_val), (n.args[2] if len(n.args) > 2 else max_val)
        return _clamped(w, w.wide(x), lo, hi)
    return _clamped(w, w.cast(x, compute_type(meta(n).dtype)), min, max)


@lowers("aten.clamp_min.default")
def _clamp_min(w, n, x, lo):
    return _clamped(w, w.cast(x, compute_type(meta(n).dtype)), lo, None)


@lowers("aten.clamp_max.default")
def _clamp_max(w, n, x, hi):
    return _clamped(w, w.cast(x, compute_type(meta(n).dtype)), None, hi)


@lowers("aten.hardsigmoid.default")
def _hardsigmoid(w, n, x):
    return w.with_scalar("mul", _clamped(w, w.with_scalar("add", w.wide(x), 3), 0, 6), 1 / 6)


@lowers("aten.hardswish.default")
def _hardswish(w, n, x):
    x = w.wide(x)
    return w.binary("mul", x, w.with_scalar("mul", _clamped(w, w.with_scalar("add", x, 3), 0, 6), 1 / 6))


@lowers("aten.isnan.default")
def _isnan(w, n, x):
    x = w.wide(x)
    return w.binary("ne", x, x)


@lowers("aten.isinf.default")
def _isinf(w, n, x):
    return w.with_scalar("eq", w.unary("abs", w.wide(x)), math.inf)


@lowers("aten.logical_not.default", "aten.bitwise_not.default")
def _not(w, n, x):
    if n.target._opname == "bitwise_not" and x.dtype != torch.bool:
        return w.with_scalar("xor", x, -1)
    return w.unary("not", w.cast(x, torch.bool))


@lowers("aten.logical_and.default", "aten.logical_or.default", "aten.logical_xor.default", "aten.bitwise_and.Tensor",
        "aten.bitwise_or.Tensor", "aten.bitwise_xor.Tensor", "aten.bitwise_and.Scalar", "aten.bitwise_or.Scalar",
        "aten.__and__.Tensor", "aten.__or__.Tensor")
def _logic(w, n, x, y):
    dtype = meta(n).dtype
    return w.binary(n.target._opname.strip("_").split("_")[-1], value(w, x, dtype), value(w, y, dtype))


def arithmetic(w, n, fn, x, y):
    dtype = compute_type(meta(n).dtype)
    if dtype == torch.bool:
        _only(fn in ("mul", "add", "max", "min"), f"{fn} of truth values")
        fn = {"mul": "and", "add": "or", "max": "or", "min": "and"}[fn]
    return w.binary(fn, value(w, x, dtype), value(w, y, dtype))


@lowers("aten.add.Tensor", "aten.add.Scalar", "aten.sub.Tensor", "aten.sub.Scalar", "aten.rsub.Scalar", "aten.rsub.Tensor")
def _add(w, n, x, y, alpha=1):
    fn = n.target._opname
    if alpha != 1:
        dtype = compute_type(meta(n).dtype)
        if fn == "rsub":
            x = w.with_scalar("mul", value(w, x, dtype), alpha)
        else:
            y = w.with_scalar("mul", value(w, y, dtype), alpha)
    return arithmetic(w, n, "sub", y, x) if fn == "rsub" else arithmetic(w, n, fn, x, y)


for _names, _fn in {
    ("mul.Tensor", "mul.Scalar"): "mul", ("maximum.default",): "max", ("minimum.default",): "min",
    ("remainder.Tensor", "remainder.Scalar"): "mod", ("fmod.Tensor", "fmod.Scalar"): "rem",
    ("pow.Tensor_Tensor", "pow.Scalar"): "pow",
    ("bitwise_left_shift.Tensor", "bitwise_left_shift.Tensor_Scalar"): "shl",
    ("bitwise_right_shift.Tensor", "bitwise_right_shift.Tensor_Scalar"): "shr",
}.items():
    lowers(*(f"aten.{_n}" for _n in _names))(lambda w, n, x, y, _fn=_fn: arithmetic(w, n, _fn, x, y))


@lowers("aten.div.Tensor", "aten.div.Scalar", "aten.div.Tensor_mode", "aten.div.Scalar_mode", "aten.floor_divide.default")
def _div(w, n, x, y, rounding_mode=None):
    if n.target._opname == "floor_divide":
        rounding_mode = "floor"
    dtype = compute_type(meta(n).dtype)
    if dtype.is_floating_point:
        q = arithmetic(w, n, "div", x, y)
        if rounding_mode == "floor":
            return w.unary("floor", q)
        return q if rounding_mode is None else _trunc(w, n, q)
    if rounding_mode == "floor":
        x = value(w, x, dtype)
        x = arithmetic(w, n, "sub", x, arithmetic(w, n, "mod", x, y))
    return arithmetic(w, n, "div", x, y)


@lowers("aten.pow.Tensor_Scalar")
def _pow(w, n, x, e):
    dtype = compute_type(meta(n).dtype)
    x = w.cast(x, dtype)
    fn = {2: "square", 3: "cube"}.get(e)
    if dtype.is_floating_point:
        fn = fn or {0.5: "sqrt", -0.5: "rsqrt", -1: "recip"}.get(e)
    if e == 1:
        return x
    return w.unary(fn, x) if fn else w.with_scalar("pow", x, e)


@lowers(*(f"aten.{f}.{o}" for f in ("eq", "ne", "lt", "le", "gt", "ge") for o in ("Tensor", "Scalar")))
def _compare(w, n, x, y):
    dtype = compute_type(torch.result_type(*(meta(a) if isinstance(a, torch.fx.Node) else a for a in n.args)))
    if dtype == torch.bool and n.target._opname not in ("eq", "ne"):
        dtype = torch.uint8
    return w.binary(n.target._opname, value(w, x, dtype), value(w, y, dtype))


@lowers("aten.where.self", "aten.where.ScalarOther", "aten.where.ScalarSelf")
def _where(w, n, cond, x, y):
    dtype = compute_type(meta(n).dtype)
    return w.broadcast(w.select(w.cast(cond, torch.bool), value(w, x, dtype), value(w, y, dtype)), meta(n).shape)


@lowers("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def _masked_fill(w, n, x, mask, v):
    dtype = compute_type(meta(n).dtype)
    return w.broadcast(w.select(mask, value(w, v, dtype), w.cast(x, dtype)), meta(n).shape)


@lowers("aten.clone.default", "aten.lift_fresh_copy.default", "aten.alias.default", "aten.detach.default",
        "prims.device_put.default", "aten.contiguous.default")
def _same(w, n, x, *args, **kwargs):
    return x


VIEWS |= {"aten.alias.default", "aten.detach.default"}


@lowers("aten._to_copy.default", "prims.convert_element_type.default")
def _convert(w, n, x, *args, **kwargs):
    dtype = meta(n).dtype
    if x.dtype in HALVES and dtype not in HALVES:
        x = w.wide(x)
    return w.cast(x, dtype)


@lowers("aten.copy.default")
def _copy(w, n, to, x, non_blocking=False):
    return w.broadcast(w.cast(x, meta(n).dtype), meta(n).shape)


# Values made of numbers.

@lowers("aten.full.default", "aten.full_like.default", "aten.new_full.default")
def _full(w, n, *args, **kwargs):
    fill = kwargs.get("fill_value", args[2] if n.target._opname == "new_full" else args[1])
    return w.broadcast(value(w, fill, meta(n).dtype), meta(n).shape)


@lowers(*(f"aten.{f}.default" for f in ("zeros", "zeros_like", "new_zeros", "empty_like", "new_empty")), "aten.empty.memory_format")
def _zeros(w, n, *args, **kwargs):
    return w.broadcast(w.scalar(0, meta(n).dtype), meta(n).shape)


@lowers("aten.ones.default", "aten.ones_like.default", "aten.new_ones.default")
def _ones(w, n, *args, **kwargs):
    return w.broadcast(w.scalar(1, meta(n).dtype), meta(n).shape)


@lowers("aten.scalar_tensor.default")
def _scalar_tensor(w, n, v, **kwargs):
    return w.scalar(v, meta(n).dtype)


@lowers("aten.arange.start_step", "aten.arange.start", "aten.arange.default")
def _arange(w, n, *args, **kwargs):
    start, end, step = {1: (0, *args, 1), 2: (*args, 1), 3: args}[len(args)]
    return w.constant(torch.arange(start, end, step, dtype=meta(n).dtype, device="cpu"))


@lowers("prims.iota.default")
def _iota(w, n, length, *, start, step, **kwargs):
    return w.constant(torch.arange(length, dtype=meta(n).dtype, device="cpu") * step + start)


@lowers("aten.tril.default", "aten.triu.default")
def _triangle(w, n, x, k=0):
    rows = w.reshape(w.iota(x.shape[-2]), (x.shape[-2], 1))
    columns = w.with_scalar("sub", w.iota(x.shape[-1]), k)
    keep = w.binary("ge" if n.target._opname == "tril" else "le", rows, columns)
    return w.select(keep, x, w.scalar(0, x.dtype))


# Reductions.

def _axes(x, dim):
    if dim is None or dim == []:
        return list(range(len(x.shape)))
    return [d % max(len(x.shape), 1) for d in ([dim] if isinstance(dim, int) else dim)]


@lowers("aten.sum.default", "aten.sum.dim_IntList", "aten.mean.default", "aten.mean.dim")
def _sum(w, n, x, dim=None, keepdim=False, *, dtype=None):
    return w.reduce(n.target._opname, w.cast(x, compute_type(meta(n).dtype)), _axes(x, dim), keepdim)


@lowers("aten.amax.default", "aten.amin.default")
def _amax(w, n, x, dim=None, keepdim=False):
    return w.reduce(n.target._opname[1:], w.wide(x), _axes(x, dim), keepdim)


@lowers("aten.max.default", "aten.min.default")
def _max(w, n, x):
    return w.reduce(n.target._opname, w.wide(x), _axes(x, None), False)


@lowers("aten.prod.default", "aten.prod.dim_int")
def _prod(w, n, x, dim=None, keepdim=False, *, dtype=None):
    return w.reduce("prod", w.cast(x, compute_type(meta(n).dtype)), _axes(x, dim), keepdim)


@lowers("aten.any.default", "aten.any.dim", "aten.any.dims", "aten.all.default", "aten.all.dim", "aten.all.dims")
def _any(w, n, x, dim=None, keepdim=False):
    fn = "max" if n.target._opname == "any" else "min"
    return w.with_scalar("ne", w.reduce(fn, w.cast(w.cast(x, torch.bool), torch.int32), _axes(x, dim), keepdim), 0)


MAX_CUMSUM = 2048  # elements of an axis that is summed up; each sum is computed by itself


@lowers("aten.cumsum.default")
def _cumsum(w, n, x, dim, *, dtype=None):
    x = w.cast(x, compute_type(meta(n).dtype))
    if x.shape == ():
        return x
    dim, last = dim % len(x.shape), len(x.shape) - 1
    size = x.shape[dim]
    _only(size <= MAX_CUMSUM, f"more than {MAX_CUMSUM} elements")
    perm = [a for a in range(last + 1) if a != dim] + [dim]
    x = w.transpose(x, perm)
    at = w.iota(size)
    keep = w.binary("le", at, w.reshape(at, (size, 1)))
    every = w.broadcast(w.reshape(x, x.shape[:-1] + (1, size)), x.shape[:-1] + (size, size))
    sums = w.reduce("sum", w.select(keep, every, w.scalar(0, x.dtype)), [last + 1], False)
    return w.transpose(sums, [perm.index(a) for a in range(last + 1)])


def _variance(w, x, dim, correction, keep):
    axes = _axes(x, dim)
    mean = w.reduce("mean", x, axes, True)
    d = w.binary("sub", x, mean)
    count = math.prod(x.shape[a] for a in axes)
    left = count - (1 if correction is None else correction)
    _only(left > 0, "the variance of too few elements")
    v = w.reduce("mean", w.unary("square", d), axes, keep)
    if left != count:
        v = w.with_scalar("mul", v, count / left)
    return v, mean if keep else w.reshape(mean, v.shape)


@lowers("aten.var.correction")
def _var(w, n, x, dim=None, *, correction=None, keepdim=False):
    return _variance(w, w.wide(x), dim, correction, keepdim)[0]


@lowers("aten.std.correction")
def _std(w, n, x, dim=None, *, correction=None, keepdim=False):
    return w.unary("sqrt", _variance(w, w.wide(x), dim, correction, keepdim)[0])


@lowers("aten.var_mean.correction")
def _var_mean(w, n, x, dim=None, *, correction=None, keepdim=False):
    return _variance(w, w.wide(x), dim, correction, keepdim)


@lowers("aten.linalg_vector_norm.default")
def _vector_norm(w, n, x, ord=2, dim=None, keepdim=False, *, dtype=None):
    _only(ord == 2, f"the norm of order {ord}")
    return w.unary("sqrt", w.reduce("sum", w.unary("square", w.cast(x, compute_type(meta(n).dtype))), _axes(x, dim), keepdim))


@lowers("aten._softmax.default", "aten._log_softmax.default", "aten._safe_softmax.default")
def _softmax(w, n, x, dim, half_to_float=False, dtype=None):
    x = w.cast(x, compute_type(meta(n).dtype))
    if x.shape == ():
        return w.scalar(0 if "log" in n.target._opname else 1, x.dtype)
    name = "log_softmax" if "log" in n.target._opname else "softmax"
    return w.op(f"{name}[axis={dim % len(x.shape)}]", [x], x.shape, x.dtype)


@lowers("aten.topk.default")
def _topk(w, n, x, k, dim=-1, largest=True, sorted=True):
    _only(x.shape and dim % len(x.shape) == len(x.shape) - 1, "another axis than the last")
    _only(x.dtype.is_floating_point, "whole numbers")
    v = w.wide(x) if largest else w.unary("neg", w.wide(x))
    shape = x.shape[:-1] + (k,)
    y = w.op(f"top_k[k={k}]", [v], shape, v.dtype)
    return (y if largest else w.unary("neg", y)), w.result(y, 1, shape, torch.int64)


# Views and moves.

@lowers("aten.view.default", "aten._unsafe_view.default", "aten.reshape.default", "aten.squeeze.default", "aten.squeeze.dim",
        "aten.squeeze.dims", "aten.unsqueeze.default", "aten.flatten.using_ints", view=True)
def _view(w, n, x, *args):
    return w.reshape(x, meta(n).shape)


@lowers("aten.permute.default", view=True)
def _permute(w, n, x, perm):
    return w.transpose(x, perm)


@lowers("aten.transpose.int", "aten.t.default", view=True)
def _transpose(w, n, x, a=0, b=1):
    perm = list(range(len(x.shape)))
    if len(perm) > 1:
        perm[a], perm[b] = perm[b], perm[a]
    return w.transpose(x, perm)


@lowers("aten.expand.default", view=True)
def _expand(w, n, x, *args, **kwargs):
    return w.broadcast(x, meta(n).shape)


def _bounds(size, start, end):
    start = 0 if start is None else start
    end = size if end is None else end
    start, end = (max(0, min(size, i + size if i < 0 else i)) for i in (start, end))
    return start, max(start, end)


@lowers("aten.slice.Tensor", view=True)
def _slice(w, n, x, dim=0, start=None, end=None, step=1):
    dim %= len(x.shape)
    return w.slice(x, dim, _bounds(x.shape[dim], start, end)[0], meta(n).shape[dim], step)


@lowers("aten.select.int", view=True)
def _select(w, n, x, dim, index):
    dim %= len(x.shape)
    return w.reshape(w.slice(x, dim, index % x.shape[dim], 1), meta(n).shape)


@lowers("aten.split.Tensor", "aten.split_with_sizes.default", "aten.unbind.int", "aten.chunk.default")
def _split(w, n, x, *args, **kwargs):
    dim = args[-1] if len(args) > (0 if n.target._opname == "unbind" else 1) else kwargs.get("dim", 0)
    dim %= len(x.shape)
    parts, at = [], 0
    for m in meta(n):
        size = 1 if n.target._opname == "unbind" else m.shape[dim]
        parts.append(w.reshape(w.slice(x, dim, at, size), m.shape))
        at += size
    return tuple(parts)


@lowers("aten.cat.default")
def _cat(w, n, tensors, dim=0):
    m = meta(n)
    parts = [w.cast(t, m.dtype) for t in tensors if t.shape != (0,) or m.dim() == 1]
    return w.concat(parts, dim % max(m.dim(), 1))


@lowers("aten.stack.default")
def _stack(w, n, tensors, dim=0):
    m = meta(n)
    dim %= m.dim()
    return w.concat([w.reshape(w.cast(t, m.dtype), t.shape[:dim] + (1,) + t.shape[dim:]) for t in tensors], dim)


@lowers("aten.constant_pad_nd.default")
def _pad(w, n, x, pads, v=0):
    rank = len(x.shape)
    lo, hi = [0] * rank, [0] * rank
    for i in range(len(pads) // 2):
        lo[rank - 1 - i], hi[rank - 1 - i] = pads[2 * i], pads[2 * i + 1]
    for i in range(rank):
        if lo[i] < 0 or hi[i] < 0:
            x = w.slice(x, i, max(0, -lo[i]), x.shape[i] + min(0, lo[i]) + min(0, hi[i]))
    lo, hi = [max(0, i) for i in lo], [max(0, i) for i in hi]
    if not any(lo) and not any(hi):
        return x
    _only(x.dtype != torch.bool, "truth values padded")
    return w.op(f"pad[lo={_ints(lo)} hi={_ints(hi)}{f' value={float(v)!r}' if v else ''}]", [x],
                [a + b + c for a, b, c in zip(lo, x.shape, hi)], x.dtype)


@lowers("aten.roll.default")
def _roll(w, n, x, shifts, dims=()):
    shape = x.shape
    if not dims:
        x, dims = w.reshape(x, (x.numel(),)), [0]
    for s, d in zip(shifts, dims):
        size = x.shape[d]
        s = s % size if size else 0
        if s:
            d %= len(x.shape)
            x = w.concat([w.slice(x, d, size - s, s), w.slice(x, d, 0, size - s)], d)
    return w.reshape(x, shape)


@lowers("aten.flip.default")
def _flip(w, n, x, dims):
    for d in dims:
        d %= len(x.shape)
        x = w.gather(x, w.constant(torch.arange(x.shape[d] - 1, -1, -1, device="cpu")), d)
    return x


@lowers("aten.repeat.default")
def _repeat(w, n, x, times):
    shape = (1,) * (len(times) - len(x.shape)) + x.shape
    inner = [d for t, s in zip(times, shape) for d in ((t, s) if t != 1 else (s,))]
    start = [d for t, s in zip(times, shape) for d in ((1, s) if t != 1 else (s,))]
    return w.reshape(w.broadcast(w.reshape(x, start), inner), meta(n).shape)


@lowers("aten.slice_scatter.default")
def _slice_scatter(w, n, x, src, dim=0, start=None, end=None, step=1):
    _only(step == 1, "steps")
    dim %= len(x.shape)
    at = _bounds(x.shape[dim], start, end)[0]
    return w.op(f"update_slice[axis={dim}]", [x, w.cast(src, x.dtype), w.scalar(at, torch.int64)], x.shape, x.dtype)


@lowers("aten.select_scatter.default")
def _select_scatter(w, n, x, src, dim, index):
    dim %= len(x.shape)
    src = w.reshape(w.cast(src, x.dtype), x.shape[:dim] + (1,) + x.shape[dim + 1:])
    return w.op(f"update_slice[axis={dim}]", [x, src, w.scalar(index % x.shape[dim], torch.int64)], x.shape, x.dtype)


def _unslice(w, x, dim, size, start, step=1):
    shape = list(x.shape)
    shape[dim] = size
    return w.op(f"unslice[axis={dim} size={size} step={step}]", [x, w.scalar(start, torch.int64)], shape, x.dtype)


@lowers("aten.slice_backward.default")
def _slice_backward(w, n, dy, sizes, dim, start, end, step):
    dim %= len(sizes)
    return _unslice(w, dy, dim, sizes[dim], _bounds(sizes[dim], start, end)[0], step)


@lowers("aten.select_backward.default")
def _select_backward(w, n, dy, sizes, dim, index):
    dim %= len(sizes)
    return _unslice(w, w.reshape(dy, (*sizes[:dim], 1, *sizes[dim + 1:])), dim, sizes[dim], index % sizes[dim])


def _as_memory(w, x, like):
    """The elements of a value in the order in which they lie in the memory of a tensor like it, which has no gaps."""
    order = memory_order(like)
    _only(order is not None, "strides with gaps")
    return w.reshape(w.transpose(x, order), (x.numel(),))


def _from_memory(w, x, size, strides):
    """The reverse, for sizes and strides."""
    order = memory_order(torch.empty_strided(size, strides, device="meta"))
    _only(order is not None and math.prod(size) == x.numel(), "strides with gaps")
    return w.transpose(w.reshape(x, [size[a] for a in order]), [order.index(a) for a in range(len(order))])


@lowers("aten.as_strided.default")
def _as_strided(w, n, x, size, strides, offset=None):
    _only(not offset, "an offset")
    return _from_memory(w, _as_memory(w, x, meta(n.args[0])), size, strides)


@lowers("aten.as_strided_scatter.default")
def _as_strided_scatter(w, n, x, src, size, strides, offset=None):
    _only(not offset and math.prod(size) == x.numel(), "an offset or a part")
    like = meta(n.args[0])
    src = _as_memory(w, w.cast(src, x.dtype), torch.empty_strided(size, strides, device="meta"))
    return _from_memory(w, src, like.shape, like.stride())


# Indices.

def _index_value(w, i, size):
    """Indices that may be negative."""
    _only(i.dtype in (torch.int64, torch.int32), f"indices of {i.dtype}")
    i = w.cast(i, torch.int64)
    return w.select(w.with_scalar("lt", i, 0), w.with_scalar("add", i, size), i)


def _linear_index(w, x, indices):
    """The first axis that is indexed, the number of such axes, and indices into these axes as one."""
    at = [d for d, i in enumerate(indices) if i is not None]
    _only(at == list(range(at[0], at[-1] + 1)), "indices of axes that are not neighbours")
    linear = None
    for d in at:
        i = _index_value(w, indices[d], x.shape[d])
        if linear is None:
            linear = i
        else:
            linear = w.binary("add", w.with_scalar("mul", linear, x.shape[d]), i)
    return at[0], len(at), linear


@lowers("aten.index.Tensor", "aten._unsafe_index.Tensor")
def _index(w, n, x, indices):
    axis, count, linear = _linear_index(w, x, indices)
    x = w.reshape(x, x.shape[:axis] + (math.prod(x.shape[axis:axis + count]),) + x.shape[axis + count:])
    return w.gather(x, linear, axis)


@lowers("aten.index_put.default", "aten._unsafe_index_put.default")
def _index_put(w, n, x, indices, v, accumulate=False):
    _only(accumulate, "values that replace others")
    _only(compute_type(x.dtype) == x.dtype and x.dtype != torch.bool, f"sums of {x.dtype}")
    axis, count, linear = _linear_index(w, x, indices)
    size = math.prod(x.shape[axis:axis + count])
    shape = x.shape[:axis] + linear.shape + x.shape[axis + count:]
    return w.binary("add", x, w.reshape(_scatter_add(w, linear, w.broadcast(v, shape), axis, size), x.shape))


def _scatter_add(w, indices, updates, axis, size):
    shape = updates.shape[:axis] + (size,) + updates.shape[axis + len(indices.shape):]
    return w.op(f"scatter_add[axis={axis} size={size}]", [indices, updates], shape, updates.dtype)


@lowers("aten.embedding.default")
def _embedding(w, n, weight, indices, *args):
    return w.gather(weight, indices, 0)


@lowers("aten.embedding_dense_backward.default")
def _embedding_backward(w, n, dy, indices, count, padding, scale_by_freq):
    _only(not scale_by_freq, "gradients scaled by frequency")
    dy = w.wide(dy)
    if padding >= 0:
        keep = w.reshape(w.with_scalar("ne", indices, padding), indices.shape + (1,))
        dy = w.select(w.broadcast(keep, dy.shape), dy, w.scalar(0, dy.dtype))
    return _scatter_add(w, indices, dy, 0, count)


@lowers("aten.index_select.default")
def _index_select(w, n, x, dim, indices):
    return w.gather(x, _index_value(w, indices, x.shape[dim]), dim % len(x.shape))


def _flat_index(w, shape, dim, indices):
    """Indices along one axis, as aten.gather has them, as positions in the flattened operand."""
    dim %= len(shape)
    strides = [math.prod(shape[d + 1:]) for d in range(len(shape))]
    at = w.with_scalar("mul", w.cast(indices, torch.int64), strides[dim])
    for d, size in enumerate(indices.shape):
        if d != dim and size > 1:
            step = w.constant(torch.arange(size, device="cpu") * strides[d])
            at = w.binary("add", at, w.reshape(step, (size,) + (1,) * (len(shape) - 1 - d)))
    return w.reshape(at, (math.prod(indices.shape),))


@lowers("aten.gather.default")
def _gather(w, n, x, dim, indices, sparse_grad=False):
    _only(x.shape != (), "a scalar")
    flat = w.gather(w.reshape(x, (x.numel(),)), _flat_index(w, x.shape, dim, indices), 0)
    return w.reshape(flat, indices.shape)


@lowers("aten.scatter_add.default")
def _scatter_sum(w, n, x, dim, indices, src):
    _only(x.shape != () and x.dtype not in HALVES and x.dtype != torch.bool, f"sums of {x.dtype}")
    for d, size in enumerate(indices.shape):
        src = w.slice(src, d, 0, size)
    sums = _scatter_add(w, _flat_index(w, x.shape, dim, indices), w.reshape(src, (src.numel(),)), 0, x.numel())
    return w.binary("add", x, w.reshape(sums, x.shape))


@lowers("aten.scatter.value", "aten.scatter.src")
def _scatter(w, n, x, dim, indices, src):
    dim = dim % max(len(x.shape), 1)
    _only(x.shape and indices.shape == x.shape[:dim] + (1,) + x.shape[dim + 1:], "several values for a row")
    hit = w.binary("eq", w.reshape(w.iota(x.shape[dim]), (x.shape[dim],) + (1,) * (len(x.shape) - 1 - dim)),
                   w.broadcast(w.cast(indices, torch.int64), x.shape))
    src = value(w, src, x.dtype)
    return w.select(hit, src if src.shape == () else w.broadcast(w.slice(src, dim, 0, 1), x.shape), x)


# Products.

@lowers("aten.mm.default", "aten.bmm.default")
def _mm(w, n, x, y):
    return w.matmul(*w.factors(x, y))


@lowers("aten.addmm.default", "aten.baddbmm.default")
def _addmm(w, n, bias, x, y, *, beta=1, alpha=1):
    product = w.matmul(*w.factors(x, y))
    if alpha != 1:
        product = w.with_scalar("mul", product, alpha)
    if beta == 0:
        return product
    bias = w.wide(bias)
    if beta != 1:
        bias = w.with_scalar("mul", bias, beta)
    return w.binary("add", product, bias)


@lowers("aten.mv.default")
def _mv(w, n, x, y):
    x, y = w.factors(x, y)
    return w.reshape(w.matmul(x, w.reshape(y, (y.shape[0], 1))), (x.shape[0],))


@lowers("aten.dot.default")
def _dot(w, n, x, y):
    return w.reduce("sum", w.binary("mul", w.wide(x), w.wide(y)), [0], False)


def _flash(q, scale, causal, mask):
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    return f"scale={float(scale)!r}{' causal=true' if causal else ''} window=0{' has_mask=true' if mask is not None else ''}"


def _mask(w, mask, q, k):
    if mask is None:
        return []
    mask = mask if mask.dtype == torch.bool else w.cast(mask, compute_type(q.dtype))
    return [mask]


def _flash_operands(w, q, k, v, dropout, causal, mask):
    _only(dropout == 0, "dropout")
    _only(len(q.shape) == 4, "another rank than 4")
    _only(not causal or q.shape[2] == k.shape[2], "a causal mask of queries and keys of different lengths")
    return w.factors(q, k, v) + _mask(w, mask, q, k)


@lowers("aten._scaled_dot_product_flash_attention_for_cpu.default")
def _attention(w, n, q, k, v, dropout=0.0, causal=False, *, attn_mask=None, scale=None):
    args = _flash_operands(w, q, k, v, dropout, causal, attn_mask)
    y = w.op(f"attention[{_flash(q, scale, causal, attn_mask)}]", args, q.shape[:-1] + v.shape[-1:], compute_type(args[0].dtype))
    lse = w.result(y, 1, q.shape[:-1], y.dtype) if used(n, 1) else None
    if lse is not None and meta(n)[1].shape != lse.shape:
        lse = w.transpose(lse, [0, 2, 1])
    return y, lse


@lowers("aten._scaled_dot_product_flash_attention_for_cpu_backward.default")
def _attention_backward(w, n, dy, q, k, v, out, lse, dropout, causal, *, attn_mask=None, scale=None):
    args = _flash_operands(w, q, k, v, dropout, causal, attn_mask)
    if lse.shape != q.shape[:-1]:
        lse = w.transpose(lse, [0, 2, 1])
    dtype = args[0].dtype
    dq = w.op(f"attention_grad[{_flash(q, scale, causal, attn_mask)}]", args + [w.cast(out, dtype), w.wide(lse), w.cast(dy, dtype)],
              q.shape, compute_type(dtype))
    return dq, w.result(dq, 1, k.shape, dq.dtype), w.result(dq, 2, v.shape, dq.dtype)


@lowers("fusec._attention.default")
def _attention_pair(w, n, q, k, v, mask, causal, scale):
    return _attention(w, n, q, k, v, 0.0, causal, attn_mask=mask, scale=scale)


@lowers("fusec._attention_grad.default")
def _attention_grad(w, n, dy, q, k, v, mask, out, lse, causal, scale):
    return _attention_backward(w, n, dy, q, k, v, out, lse, 0.0, causal, attn_mask=mask, scale=scale)


@lowers("aten._scaled_dot_product_flash_attention.default", "aten._scaled_dot_product_efficient_attention.default",
        "aten._scaled_dot_product_cudnn_attention.default")
def _attention_on_gpu(w, n, *args, **kwargs):
    of = arguments(n.target, args, kwargs)
    _only(not used(n, 1), "the logarithms of its sums")
    y, _ = _attention(w, n, of["query"], of["key"], of["value"], of["dropout_p"], of["is_causal"], attn_mask=of.get("attn_bias"),
                      scale=of["scale"])
    return (y, *(None for _ in meta(n)[1:]))


# Convolutions and pools. Those over one axis are over rows of height 1.

def _images(w, *values):
    """Images and filters as the operands of a contraction."""
    _only(all(len(x.shape) in (3, 4) for x in values), f"images with {len(values[0].shape) - 2} axes")
    return w.factors(*(w.reshape(x, x.shape[:2] + (1,) + x.shape[2:]) if len(x.shape) == 3 else x for x in values))


def _pair(list_, first):
    return [first, *list_] if len(list_) == 1 else list(list_)


def _conv_attrs(stride, padding, dilation, groups):
    padding = _pair(padding, 0)
    return (f"stride={_ints(_pair(stride, 1))} dilation={_ints(_pair(dilation, 1))} pad={_ints(padding + padding)} "
            f"groups={groups}")


@lowers("aten.convolution.default")
def _convolution(w, n, x, f, bias, stride, padding, dilation, transposed, output_padding, groups):
    shape = meta(n).shape
    x, f = _images(w, x, f)
    dtype = compute_type(x.dtype)
    attrs = _conv_attrs(stride, padding, dilation, groups)
    inner = (*shape[:2], *_pair(shape[2:], 1))
    if transposed:
        y = w.op(f"conv2d_transpose[{attrs} h={inner[2]} w={inner[3]}]", [x, f], inner, dtype)
    else:
        y = w.op(f"conv2d[{attrs}]", [x, f], inner, dtype)
    if bias is not None:
        y = w.binary("add", y, w.per_channel(w.wide(bias), inner))
    return w.reshape(y, shape)


@lowers("aten.convolution_backward.default")
def _convolution_backward(w, n, dy, x, f, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, mask):
    xs, fs = x.shape, f.shape
    dy, x, f = _images(w, dy, x, f)
    dtype = compute_type(x.dtype)
    attrs = _conv_attrs(stride, padding, dilation, groups)
    dx = df = db = None
    if mask[0]:
        if transposed:
            dx = w.op(f"conv2d[{attrs}]", [dy, f], x.shape, dtype)
        else:
            dx = w.op(f"conv2d_transpose[{attrs} h={x.shape[2]} w={x.shape[3]}]", [dy, f], x.shape, dtype)
        dx = w.reshape(dx, xs)
    if mask[1]:
        pair = [dy, x] if transposed else [x, dy]
        df = w.op(f"conv2d_filter_grad[{attrs} kh={f.shape[2]} kw={f.shape[3]}]", pair, f.shape, dtype)
        df = w.reshape(df, fs)
    if mask[2]:
        db = w.reduce("sum", w.wide(dy), [0, 2, 3], False)
    return dx, df, db


def _pool_attrs(x, out, fn, kernel, stride, padding, count_pad):
    kernel, padding = _pair(kernel, 1), _pair(padding, 0)
    stride = _pair(stride, 1) if stride else kernel
    if len(kernel) == 2 and len(padding) == 1:
        padding = padding * 2
    for size, o, k, s, p in zip(x.shape[2:], out, kernel, stride, padding):
        _only((size + 2 * p - k) // s + 1 == o, "windows that reach beyond the padding")
    return (f"fn={fn} kernel={_ints(kernel)} stride={_ints(stride)} pad={_ints(list(padding) * 2)}"
            f"{' count_pad=true' if count_pad else ''}")


def _pooled(w, n, x, out, attrs):
    shape = x.shape[:2] + tuple(out)
    return w.op(f"pool[{attrs}]", [x], shape, x.dtype)


@lowers("aten.max_pool2d_with_indices.default")
def _max_pool(w, n, x, kernel, stride=(), padding=(0, 0), dilation=(1, 1), ceil_mode=False):
    _only(all(d == 1 for d in dilation), "dilation")
    _only(len(x.shape) == 4, "images without an axis of their number")
    out = meta(n)[0].shape[2:]
    x = w.wide(x)
    return _pooled(w, n, x, out, _pool_attrs(x, out, "max", kernel, stride, padding, False)), None


@lowers("fusec._max_pool_grad.default")
def _max_pool_grad(w, n, dy, x, kernel, stride, padding):
    x = w.wide(x)
    attrs = _pool_attrs(x, dy.shape[2:], "max", kernel, stride, padding, False)
    return w.op(f"pool_grad[{attrs}]", [x, w.wide(dy)], x.shape, x.dtype)


@lowers("aten.avg_pool2d.default")
def _avg_pool(w, n, x, kernel, stride=(), padding=(0, 0), ceil_mode=False, count_include_pad=True, divisor_override=None):
    _only(divisor_override is None and len(x.shape) == 4, "another divisor, or images without an axis of their number")
    out = meta(n).shape[2:]
    x = w.wide(x)
    return _pooled(w, n, x, out, _pool_attrs(x, out, "avg", kernel, stride, padding, count_include_pad))


@lowers("aten.avg_pool2d_backward.default")
def _avg_pool_backward(w, n, dy, x, kernel, stride, padding, ceil_mode, count_include_pad, divisor_override):
    _only(divisor_override is None and len(x.shape) == 4, "another divisor, or images without an axis of their number")
    x = w.wide(x)
    attrs = _pool_attrs(x, dy.shape[2:], "avg", kernel, stride, padding, count_include_pad)
    return w.op(f"pool_grad[{attrs}]", [x, w.wide(dy)], x.shape, x.dtype)


def _adaptive(x, out):
    _only(len(x.shape) == 4 and all(o and s % o == 0 for s, o in zip(x.shape[2:], out)), "windows of different sizes")
    kernel = [s // o for s, o in zip(x.shape[2:], out)]
    return _pool_attrs(x, out, "avg", kernel, kernel, [0, 0], False)


@lowers("aten._adaptive_avg_pool2d.default")
def _adaptive_avg_pool(w, n, x, size):
    out = meta(n).shape[2:]
    x = w.wide(x)
    if tuple(out) == (1, 1):
        return w.reduce("mean", x, [2, 3], True)
    return _pooled(w, n, x, out, _adaptive(x, out))


@lowers("aten._adaptive_avg_pool2d_backward.default")
def _adaptive_avg_pool_backward(w, n, dy, x):
    out, x = dy.shape[2:], w.wide(x)
    if tuple(out) == (1, 1):
        return w.broadcast(w.with_scalar("mul", w.wide(dy), 1 / math.prod(x.shape[2:])), x.shape)
    return w.op(f"pool_grad[{_adaptive(x, out)}]", [x, w.wide(dy)], x.shape, x.dtype)


# Norms.

def _vector(w, v, size, default, dtype):
    return w.broadcast(w.scalar(default, dtype), (size,)) if v is None else w.reshape(w.wide(v), (size,))


@lowers("aten.native_layer_norm.default")
def _layer_norm(w, n, x, shape, gain, bias, eps):
    size = math.prod(shape)
    flat = w.reshape(w.wide(x), x.shape[:len(x.shape) - len(shape)] + (size,))
    gain, bias = _vector(w, gain, size, 1, flat.dtype), _vector(w, bias, size, 0, flat.dtype)
    y = w.reshape(w.op(f"layer_norm[eps={float(eps)!r}]", [flat, gain, bias], flat.shape, flat.dtype), x.shape)
    mean = rstd = None
    if used(n, 1) or used(n, 2):
        v, mean = _variance(w, flat, -1, 0, True)
        mean, rstd = w.reshape(mean, meta(n)[1].shape), w.reshape(w.unary("rsqrt", w.with_scalar("add", v, eps)), meta(n)[2].shape)
    return y, mean, rstd


def _standardised(w, x, eps, axes, centred=True):
    if centred:
        x = w.binary("sub", x, w.reduce("mean", x, axes, True))
    r = w.unary("rsqrt", w.with_scalar("add", w.reduce("mean", w.unary("square", x), axes, True), eps))
    r = w.broadcast(r, x.shape)
    return w.binary("mul", x, r), r


def _grad_standardised(w, xhat, r, g, axes, centred=True):
    """r·(g − mean g − x̂·mean(g⊙x̂))"""
    along = w.reduce("mean", w.binary("mul", g, xhat), axes, True)
    d = w.binary("sub", g, w.binary("mul", xhat, w.broadcast(along, xhat.shape)))
    if centred:
        d = w.binary("sub", d, w.broadcast(w.reduce("mean", g, axes, True), xhat.shape))
    return w.binary("mul", r, d)


@lowers("fusec._layer_norm_grad.default")
def _layer_norm_grad(w, n, dy, x, shape, gain, eps, mask):
    return _scaled_grad(w, dy, x, shape, gain, eps, mask, True)


def _scaled_grad(w, dy, x, shape, gain, eps, mask, centred):
    size = math.prod(shape)
    outer = x.shape[:len(x.shape) - len(shape)]
    x, xs, dy = w.reshape(w.wide(x), outer + (size,)), x.shape, w.reshape(w.wide(dy), outer + (size,))
    last = [len(outer)]
    xhat, r = _standardised(w, x, eps, last, centred)
    return _norm_grads(w, xhat, r, dy, xs, shape, gain, mask, centred)


def _norm_grads(w, xhat, r, dy, xs, shape, gain, mask, centred):
    size, rank = math.prod(shape), len(dy.shape)
    last = [rank - 1]
    dx = dgain = dbias = None
    if mask[0]:
        g = dy if gain is None else w.binary("mul", dy, w.broadcast(w.reshape(w.wide(gain), (size,)), dy.shape))
        dx = w.reshape(_grad_standardised(w, xhat, r, g, last, centred), xs)
    rows = list(range(rank - 1))
    if mask[1]:
        dgain = w.reshape(w.reduce("sum", w.binary("mul", dy, xhat), rows, False), shape)
    if mask[2]:
        dbias = w.reshape(w.reduce("sum", dy, rows, False), shape)
    return dx, dgain, dbias


@lowers("aten.native_layer_norm_backward.default")
def _layer_norm_backward(w, n, dy, x, shape, mean, rstd, gain, bias, mask):
    size = math.prod(shape)
    outer = x.shape[:len(x.shape) - len(shape)]
    x, xs, dy = w.reshape(w.wide(x), outer + (size,)), x.shape, w.reshape(w.wide(dy), outer + (size,))
    mean, rstd = (w.reshape(w.wide(v), outer + (1,)) for v in (mean, rstd))
    r = w.broadcast(rstd, x.shape)
    return _norm_grads(w, w.binary("mul", w.binary("sub", x, mean), r), r, dy, xs, shape, gain, mask, True)


@lowers("aten._fused_rms_norm.default")
def _rms_norm(w, n, x, shape, gain, eps=None):
    size = math.prod(shape)
    flat = w.reshape(w.wide(x), x.shape[:len(x.shape) - len(shape)] + (size,))
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    y = w.op(f"rms_norm[eps={float(eps)!r}]", [flat, _vector(w, gain, size, 1, flat.dtype)], flat.shape, flat.dtype)
    rstd = None
    if used(n, 1):
        square = w.reduce("mean", w.unary("square", flat), [len(flat.shape) - 1], True)
        rstd = w.reshape(w.unary("rsqrt", w.with_scalar("add", square, eps)), meta(n)[1].shape)
    return w.reshape(y, x.shape), rstd


@lowers("aten.native_group_norm.default")
def _group_norm(w, n, x, gain, bias, count, channels, rest, groups, eps):
    x = w.wide(x)
    gain, bias = _vector(w, gain, channels, 1, x.dtype), _vector(w, bias, channels, 0, x.dtype)
    y = w.op(f"group_norm[groups={groups} eps={float(eps)!r}]", [x, gain, bias], x.shape, x.dtype)
    mean = rstd = None
    if used(n, 1) or used(n, 2):
        v, mean = _variance(w, w.reshape(x, (count, groups, channels // groups * rest)), 2, 0, False)
        rstd = w.unary("rsqrt", w.with_scalar("add", v, eps))
    return y, mean, rstd


@lowers("aten._native_batch_norm_legit_no_training.default")
def _batch_norm_inference(w, n, x, gain, bias, mean, variance, momentum, eps):
    x = w.wide(x)
    c = x.shape[1]
    args = [x, _vector(w, gain, c, 1, x.dtype), _vector(w, bias, c, 0, x.dtype), w.wide(mean), w.wide(variance)]
    y = w.op(f"batch_norm[eps={float(eps)!r} momentum={float(1 - momentum)!r}]", args, x.shape, x.dtype)
    return y, None, None


def _channel_axes(shape):
    return [a for a in range(len(shape)) if a != 1]


@lowers("aten._native_batch_norm_legit_functional.default", "aten._native_batch_norm_legit.no_stats")
def _batch_norm(w, n, x, gain, bias, *args):
    x = w.wide(x)
    if n.target._opname.endswith("functional"):
        mean, variance, training, momentum, eps = args
        if not training:
            r = w.unary("rsqrt", w.with_scalar("add", w.wide(variance), eps))
            return (_batch_norm_inference(w, n, x, gain, bias, mean, variance, momentum, eps)[0], None, None, mean, variance)
    else:
        training, momentum, eps = args
        mean = None
    c, axes, shape = x.shape[1], _channel_axes(x.shape), x.shape
    m = w.reduce("mean", x, axes, False)
    d = w.binary("sub", x, w.per_channel(m, shape))
    v = w.reduce("mean", w.unary("square", d), axes, False)
    r = w.unary("rsqrt", w.with_scalar("add", v, eps))
    y = w.binary("mul", d, w.per_channel(r, shape))
    if gain is not None:
        y = w.binary("mul", y, w.per_channel(w.wide(gain), shape))
    if bias is not None:
        y = w.binary("add", y, w.per_channel(w.wide(bias), shape))
    if mean is None:
        return y, m, r
    count = math.prod(shape) // max(c, 1)

    def mix(old, new, scale):
        return w.binary("add", w.with_scalar("mul", w.wide(old), 1 - momentum), w.with_scalar("mul", new, momentum * scale))

    return y, m, r, mix(mean, m, 1), mix(variance, v, count / max(count - 1, 1))


@lowers("aten.native_batch_norm_backward.default")
def _batch_norm_backward(w, n, dy, x, gain, running_mean, running_var, mean, rstd, train, eps, mask):
    dy, x = w.wide(dy), w.wide(x)
    shape, axes = x.shape, _channel_axes(x.shape)
    if not train:
        mean, rstd = w.wide(running_mean), w.unary("rsqrt", w.with_scalar("add", w.wide(running_var), eps))
    r = w.per_channel(w.wide(rstd), shape)
    xhat = w.binary("mul", w.binary("sub", x, w.per_channel(w.wide(mean), shape)), r)
    sum_dy = w.reduce("sum", dy, axes, False)
    sum_along = w.reduce("sum", w.binary("mul", dy, xhat), axes, False)
    dx = None
    if mask[0]:
        d, count = dy, math.prod(shape) // max(shape[1], 1)
        if train:
            d = w.binary("sub", d, w.per_channel(w.with_scalar("mul", sum_dy, 1 / count), shape))
            d = w.binary("sub", d, w.binary("mul", xhat, w.per_channel(w.with_scalar("mul", sum_along, 1 / count), shape)))
        scale = w.wide(rstd) if gain is None else w.binary("mul", w.wide(rstd), w.wide(gain))
        dx = w.binary("mul", d, w.per_channel(scale, shape))
    return dx, sum_along if mask[1] else None, sum_dy if mask[2] else None


# Random numbers: others in each run, by a seed from PyTorch's generator.

def _uniform(w, shape, dtype):
    if math.prod(shape) == 0:
        return w.broadcast(w.scalar(0, dtype), shape)
    name = w._line(f"= random[dist=uniform b=1] {w.seed().name} : {DTYPES[dtype]}{_ints(shape)}{w.origin}")
    return Value(name, shape, dtype)


@lowers("aten.native_dropout.default")
def _dropout(w, n, x, p, train):
    if not train or p == 0:
        return x, w.broadcast(w.scalar(1, torch.bool), x.shape)
    x = w.wide(x)
    keep = w.with_scalar("ge", _uniform(w, x.shape, x.dtype), p)
    scale = 0.0 if p == 1 else 1 / (1 - p)
    return w.with_scalar("mul", w.binary("mul", x, w.cast(keep, x.dtype)), scale), keep


@lowers("aten.rand.default", "aten.rand_like.default")
def _rand(w, n, *args, **kwargs):
    return _uniform(w, tuple(meta(n).shape), compute_type(meta(n).dtype))


@lowers("aten.bernoulli.p")
def _bernoulli(w, n, x, p=0.5, **kwargs):
    dtype = compute_type(meta(n).dtype)
    return w.cast(w.with_scalar("lt", _uniform(w, x.shape, torch.float32), p), dtype)
