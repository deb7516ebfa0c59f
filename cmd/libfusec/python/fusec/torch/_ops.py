"""Operations with gradients for PyTorch's dispatcher: linear, attention, moe, layer_norm and rms_norm. Each is a program that is
compiled for the shapes and strides of its operands when they first come, and kept. Second derivatives are PyTorch's, of the same
function in its operations."""

import collections
import functools
import json
import math

import torch

from .._library import FusecError
from .._model import parse
from ._backend import Runner, inverse, plain
from . import _second
from ._grads import library
from ._text import Unsupported, Writer, number

MAX_KERNELS = 256

# An operation: the names of its operands, those that may be None, a function of a Writer, the operands' values by name and the
# settings that gives its result, and one of the operands and settings that gives the shape of the result.
Operation = collections.namedtuple("Operation", "name operands optional write shape")
OPERATIONS = {}
ACTIVATIONS = {"relu": "relu", "gelu": "gelu_erf", "gelu_tanh": "gelu_tanh", "silu": "silu", "tanh": "tanh", "sigmoid": "sigmoid"}


def _activation(name):
    if name not in ACTIVATIONS:
        raise ValueError(f"there is no activation {name!r}; there are {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


@functools.lru_cache(maxsize=MAX_KERNELS)
def _kernel(name, settings, operands, dy, wanted, threads):
    """A Runner of an operation on operands of these shapes, strides and types, or of its gradients for those that are wanted."""
    op = OPERATIONS[name]
    writer = Writer(name)
    takes, values, sources = [], {}, {}

    def source(called, like):
        shape, strides, dtype = like
        order, strides = plain(torch.empty_strided(shape, strides, dtype=dtype, device="meta"))
        v = writer.source("input", called, [shape[a] for a in order], dtype)
        takes.append(strides)
        return v, writer.transpose(v, inverse(order)), strides

    writer.at("", f"fusec::{name}")
    for called, like in zip(op.operands, operands):
        values[called] = None
        if like is not None:
            sources[called], values[called], strides = source(called, like)
            sources[called] = sources[called], like[0], strides, like[2]
    y = op.write(writer, values, *settings)
    gives = []
    if wanted is None:
        writer.output("y", y)
        gives.append((y.shape, torch.empty(y.shape, device="meta").stride(), y.dtype))
    else:
        seed = source("dy", dy)[1]
        for called, want in zip(op.operands, wanted):
            if want:
                of, shape, strides, dtype = sources[called]
                writer.lines.append(f"  gradient {json.dumps('d' + called)} = {y.name} by {of.name} seed {seed.name} wanted")
                gives.append((shape, strides, dtype))
    return Runner(parse(writer.text(version=2), threads=threads), takes, gives, writer.seeds, {})


def _like(t):
    return None if t is None else (tuple(t.shape), t.stride(), t.dtype)


def _check(op, tensors):
    given = [(n, t) for n, t in zip(op.operands, tensors) if t is not None]
    dtype = given[0][1].dtype
    if dtype not in (torch.float32, torch.float64):
        raise FusecError(f"{op.name}: {given[0][0]} has elements of {dtype}; they must be of float32 or float64")
    for n, t in given:
        if t.dtype != dtype and not (n == "mask" and t.dtype == torch.bool):
            raise FusecError(f"{op.name}: {n} has elements of {t.dtype}, and {given[0][0]} of {dtype}")


def _call(name, settings, operands, dy, wanted):
    op = OPERATIONS[name]
    _check(op, operands)
    try:
        runner = _kernel(name, settings, tuple(map(_like, operands)), _like(dy), wanted, torch.get_num_threads())
    except (Unsupported, FusecError, IndexError, ValueError, RuntimeError) as e:
        shapes = ", ".join(f"{n} {list(t.shape)}" for n, t in zip(op.operands, operands) if t is not None)
        raise FusecError(f"{name} of {shapes}: {e}") from None
    return runner(*(t.detach() for t in (*operands, dy) if t is not None))


def _define(name, operands, optional, settings, write, shape):
    """Declares an operation to PyTorch, with its gradient, both with what fake tensors need."""
    op = OPERATIONS[name] = Operation(name, operands, optional, write, shape)
    count = len(operands)
    tensors = ", ".join(f"Tensor{'?' if o in optional else ''} {o}" for o in operands)
    library.define(f"{name}({tensors}{settings}) -> Tensor")
    library.define(f"{name}_backward(Tensor dy, {tensors}{settings}, bool[] wanted) -> Tensor[]")

    def forward(*args):
        return _call(name, args[count:], args[:count], None, None)

    def backward(dy, *args):
        operands, settings, wanted = args[:count], args[count:-1], tuple(args[-1])
        result = _call(name, settings, operands, dy, wanted)
        return list(result) if isinstance(result, tuple) else [result]

    def refuse(*args):
        raise FusecError(f"fusec::{name} computes on the processor: copy its operands there")

    library.impl(name, forward, "CPU")
    library.impl(f"{name}_backward", backward, "CPU")
    library.impl(name, refuse, "CUDA")

    def fake(*args):
        return args[0].new_empty(shape(*args))

    def fake_backward(dy, *args):
        return [torch.empty_strided(t.shape, plain(t)[1], dtype=t.dtype, device=t.device)
                for t, want in zip(args, args[-1]) if want]

    torch.library.register_fake(f"fusec::{name}", fake, lib=library)
    torch.library.register_fake(f"fusec::{name}_backward", fake_backward, lib=library)

    def keep(ctx, inputs, output):
        ctx.save_for_backward(*inputs[:count])
        ctx.settings = inputs[count:]

    def differentiate(ctx, dy):
        saved = ctx.saved_tensors
        wanted = [t is not None and need for t, need in zip(saved, ctx.needs_input_grad)]
        given = iter(getattr(torch.ops.fusec, f"{name}_backward")(dy, *saved, *ctx.settings, wanted))
        return (*(next(given) if want else None for want in wanted), *(None for _ in ctx.settings))

    def keep_again(ctx, inputs, output):
        ctx.save_for_backward(*inputs[:count + 1])
        ctx.settings = inputs[count + 1:]

    def differentiate_again(ctx, dgrads):
        *settings, wanted = ctx.settings
        second = _second.derivatives(name, settings, ctx.saved_tensors, wanted, ctx.needs_input_grad, dgrads)
        return (*second, *(None for _ in ctx.settings))

    torch.library.register_autograd(f"fusec::{name}", differentiate, setup_context=keep, lib=library)
    torch.library.register_autograd(f"fusec::{name}_backward", differentiate_again, setup_context=keep_again, lib=library)


def _flag(name, on):
    return f" {name}=true" if on else ""


def _rows(w, x):
    return w.reshape(x, (math.prod(x.shape[:-1]), x.shape[-1]))


def _linear(w, of, activation):
    x, m = of["x"], of["w"].shape[0]
    y = w.matmul(_rows(w, x), of["w"], trans_b=True)
    if of["b"] is not None:
        y = w.binary("add", y, of["b"])
    if activation is not None:
        y = w.unary(_activation(activation), y)
    y = w.reshape(y, x.shape[:-1] + (m,))
    return y if of["residual"] is None else w.binary("add", y, of["residual"])


def _attention(w, of, causal, scale, window):
    q, k, v, mask = of["q"], of["k"], of["v"], of["mask"]
    scale = 1 / math.sqrt(max(q.shape[-1], 1)) if scale is None else scale
    attrs = f"scale={float(scale)!r} window={window}{_flag('causal', causal)}{_flag('has_mask', mask is not None)}"
    return w.op(f"attention[{attrs}]", [t for t in (q, k, v, mask) if t is not None], q.shape[:-1] + v.shape[-1:], q.dtype)


def _moe(w, of, activation):
    x, w2 = of["x"], of["w2"]
    experts = of["gates"].shape[-1]
    gated = _flag("gated", of["w3"] is not None)
    attrs = f"experts={experts} activation={_activation(activation)}{gated} stacked=true top_k=0"
    args = [of[n] for n in ("x", "gates", "w1", "w3", "w2") if of[n] is not None]
    return w.op(f"moe[{attrs}]", args, x.shape[:-1] + (w2.shape[-1],), x.dtype)


def _vector(w, of, name, default):
    n = of["x"].shape[-1]
    return of[name] if of[name] is not None else w.broadcast(w.scalar(default, of["x"].dtype), (n,))


def _layer_norm(w, of, eps):
    x, gain, bias = of["x"], _vector(w, of, "gain", 1), _vector(w, of, "bias", 0)
    return w.op(f"layer_norm[eps={number(eps, torch.float64)}]", [x, gain, bias], x.shape, x.dtype)


def _rms_norm(w, of, eps):
    x = of["x"]
    return w.op(f"rms_norm[eps={number(eps, torch.float64)}]", [x, _vector(w, of, "gain", 1)], x.shape, x.dtype)


_define("linear", ("x", "w", "b", "residual"), ("b", "residual"), ", str? activation", _linear,
        lambda x, w, *rest: (*x.shape[:-1], w.shape[0]))
_define("attention", ("q", "k", "v", "mask"), ("mask",), ", bool causal, float? scale, int window", _attention,
        lambda q, k, v, *rest: (*q.shape[:-1], v.shape[-1]))
_define("moe", ("x", "gates", "w1", "w2", "w3"), ("w3",), ", str activation", _moe,
        lambda x, gates, w1, w2, *rest: (*x.shape[:-1], w2.shape[-1]))
_define("layer_norm", ("x", "gain", "bias"), ("gain", "bias"), ", float eps", _layer_norm, lambda x, *rest: x.shape)
_define("rms_norm", ("x", "gain"), ("gain",), ", float eps", _rms_norm, lambda x, *rest: x.shape)


def linear(x, w, b=None, *, activation=None, residual=None):
    """activation(x·wᵀ + b) + residual, for x [..., k], w [m, k] as torch.nn.Linear has it, b [m] and a residual [..., m].
    Activations: relu, gelu, gelu_tanh, silu, tanh, sigmoid."""
    return torch.ops.fusec.linear(x, w, b, residual, activation)


def attention(q, k, v, mask=None, *, causal=False, scale=None, window=0):
    """softmax(scale·q·kᵀ + mask)·v, for q [..., h, sq, d], k [..., hk, sk, d] and v [..., hk, sk, dv], where h is a multiple of hk.
    The scale is 1/√d if it is not given. Queries stand at the last of the keys: with causal each attends to the keys up to its own,
    with a window > 0 to those less than window positions away. A mask, broadcast to [..., h, sq, sk], is added, or if it is of
    bool, has True for the scores that stay. The gradient of a mask of numbers is as large as the scores before it is summed up."""
    return torch.ops.fusec.attention(q, k, v, mask, causal, scale, window)


def moe(x, gates, w1, w2, w3=None, *, activation="silu"):
    """A mixture of experts: Σₑ gates[..., e]·FFNₑ(x), where FFNₑ(x) = activation(x·w1ₑ)·w2ₑ, or with w3
    (activation(x·w1ₑ) ⊙ (x·w3ₑ))·w2ₑ, for x [..., d], w1 and w3 [e, d, f] and w2 [e, f, o]. A token whose gate for an expert is 0
    is not sent to it: such a gate gets no gradient."""
    return torch.ops.fusec.moe(x, gates, w1, w2, w3, activation)


def layer_norm(x, gain=None, bias=None, eps=1e-5):
    """x with mean 0 and variance 1 along its last axis, times gain, plus bias."""
    return torch.ops.fusec.layer_norm(x, gain, bias, eps)


def rms_norm(x, gain=None, eps=1e-6):
    """x over the root of the mean of its squares along its last axis, plus eps, times gain."""
    return torch.ops.fusec.rms_norm(x, gain, eps)
