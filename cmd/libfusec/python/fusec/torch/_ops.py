"""Operations with gradients for PyTorch's dispatcher: linear, attention, moe, layer_norm and rms_norm. Each is a program that is
compiled for the shapes and strides of its operands when they first come, and kept. Second derivatives are PyTorch's, of the same
function in its operations."""

import collections
import functools
import json
import math

import torch

from .._library import FusecError
from ._backend import TARGETS, inverse, plain, runner
from . import _second
from ._grads import library
from ._text import HALVES, Unsupported, Writer, compute_type, number

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


def _sources(writer, names, likes):
    """The operands of a program by name: values, None for one that is left out, then the inputs with shapes, strides and types, and
    what a Runner takes."""
    values, sources, takes = {}, {}, []
    for name, like in zip(names, likes):
        values[name] = None
        if like is not None:
            shape, strides, dtype = like
            order, strides = plain(torch.empty_strided(shape, strides, dtype=dtype, device="meta"))
            v = writer.source("input", name, [shape[a] for a in order], dtype)
            takes.append(strides)
            values[name] = writer.transpose(v, inverse(order))
            sources[name] = v, shape, strides, dtype
    return values, sources, takes


def _output(writer, name, v, like=None):
    """Has a program give a value in the strides and the type of a tensor, or contiguously. What a Runner gives for it."""
    shape, strides, dtype = like or (v.shape, torch.empty(v.shape, device="meta").stride(), v.dtype)
    order, strides = plain(torch.empty_strided(shape, strides, dtype=dtype, device="meta"))
    writer.output(name, writer.transpose(writer.cast(v, dtype), order))
    return tuple(shape), strides, dtype


@functools.lru_cache(maxsize=MAX_KERNELS)
def _kernel(name, settings, operands, dy, wanted, device, threads):
    """A Runner of an operation on operands of these shapes, strides and types, or of its gradients for those that are wanted."""
    op = OPERATIONS[name]
    writer = Writer(name, TARGETS[device.type])
    writer.at("", f"fusec::{name}")
    likes = operands if wanted is None else (*operands, dy)
    values, sources, takes = _sources(writer, (*op.operands, "dy"), likes)
    y = op.write(writer, values, *settings)
    gives = []
    if wanted is None:
        gives.append(_output(writer, "y", writer.cast(y, operands[0][2])))
    else:
        seed = writer.wide(values["dy"])
        for called, want in zip(op.operands, wanted):
            if want:
                of, shape, strides, dtype = sources[called]
                writer.lines.append(f"  gradient {json.dumps('d' + called)} = {y.name} by {of.name} seed {seed.name} wanted")
                gives.append((shape, strides, compute_type(dtype)))
    return runner(writer, takes, gives, {}, device, {"threads": threads})


@functools.lru_cache(maxsize=MAX_KERNELS)
def _attention_kernel(settings, operands, saved, device, threads):
    """A Runner of attention that gives its result and the logarithms of its sums, or of its gradients if saved has what dy, result
    and logarithms are like."""
    writer = Writer("attention", TARGETS[device.type])
    writer.at("", "fusec::attention")
    values, _, takes = _sources(writer, ("q", "k", "v", "mask", "dy", "y", "lse"), (*operands, *saved))
    if not saved:
        y = _attention(writer, values, *settings)
        lse = writer.result(y, 1, values["q"].shape[:-1], y.dtype)
        gives = [_output(writer, "y", writer.cast(y, operands[0][2])), _output(writer, "lse", lse)]
    else:
        attrs, args = _attention_operands(writer, values, *settings)
        q, k, v = (values[n] for n in "qkv")
        y, lse, dy = writer.cast(values["y"], args[0].dtype), values["lse"], writer.cast(values["dy"], args[0].dtype)
        dq = writer.op(f"attention_grad[{attrs}]", [*args, y, lse, dy], q.shape, lse.dtype)
        grads = dq, writer.result(dq, 1, k.shape, lse.dtype), writer.result(dq, 2, v.shape, lse.dtype)
        gives = [_output(writer, f"d{n}", d, like) for n, d, like in zip("qkv", grads, operands)]
    return runner(writer, takes, gives, {}, device, {"threads": threads})


def _like(t):
    return None if t is None else (tuple(t.shape), t.stride(), t.dtype)


def _check(op, tensors):
    given = [(n, t) for n, t in zip(op.operands, tensors) if t is not None]
    dtype, device = given[0][1].dtype, given[0][1].device
    halves = HALVES if TARGETS[device.type] == "cuda" else ()
    if dtype not in (torch.float32, torch.float64, *halves):
        kinds = " or ".join(("float32", "float64", *(str(h).removeprefix("torch.") for h in halves)))
        raise FusecError(f"{op.name}: {given[0][0]} has elements of {dtype}; they must be of {kinds}")
    for n, t in given:
        if t.device != device:
            raise FusecError(f"{op.name}: {n} is on {t.device}, and {given[0][0]} on {device}")
        if t.dtype != dtype and not (n == "mask" and t.dtype == torch.bool):
            raise FusecError(f"{op.name}: {n} has elements of {t.dtype}, and {given[0][0]} of {dtype}")


def _made(op, operands, make, *key):
    """The kernel of an operation on some operands, which make makes once; its error has their shapes."""
    try:
        return make(*key, operands[0].device, torch.get_num_threads())
    except (Unsupported, FusecError, IndexError, ValueError, RuntimeError) as e:
        shapes = ", ".join(f"{n} {list(t.shape)}" for n, t in zip(op.operands, operands) if t is not None)
        raise FusecError(f"{op.name} of {shapes}: {e}") from None


def _call(name, settings, operands, dy, wanted):
    op = OPERATIONS[name]
    _check(op, operands)
    kernel = _made(op, operands, _kernel, name, settings, tuple(map(_like, operands)), _like(dy), wanted)
    result = kernel.forward(*(t for t in (*operands, dy) if t is not None))
    if wanted is None or operands[0].dtype not in HALVES:
        return result
    return tuple(g.to(operands[0].dtype) for g in (result if isinstance(result, tuple) else (result,)))


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

    for device in ("CPU", "CUDA"):
        library.impl(name, forward, device)
        library.impl(f"{name}_backward", backward, device)

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
    y = w.matmul(*w.factors(_rows(w, x), of["w"]), trans_b=True)
    if of["b"] is not None:
        y = w.binary("add", y, w.wide(of["b"]))
    if activation is not None:
        y = w.unary(_activation(activation), y)
    y = w.reshape(y, x.shape[:-1] + (m,))
    return y if of["residual"] is None else w.binary("add", y, w.wide(of["residual"]))


def _attention_operands(w, of, causal, scale, window):
    """The attributes and operands of an attention."""
    q, k, v, mask = of["q"], of["k"], of["v"], of["mask"]
    scale = 1 / math.sqrt(max(q.shape[-1], 1)) if scale is None else scale
    attrs = f"scale={float(scale)!r} window={window}{_flag('causal', causal)}{_flag('has_mask', mask is not None)}"
    masks = [] if mask is None else [mask if mask.dtype == torch.bool else w.wide(mask)]
    return attrs, w.factors(q, k, v) + masks


def _attention(w, of, *settings):
    attrs, args = _attention_operands(w, of, *settings)
    return w.op(f"attention[{attrs}]", args, of["q"].shape[:-1] + of["v"].shape[-1:], compute_type(args[0].dtype))


def _moe(w, of, activation):
    x, w2 = of["x"], of["w2"]
    experts = of["gates"].shape[-1]
    gated = _flag("gated", of["w3"] is not None)
    attrs = f"experts={experts} activation={_activation(activation)}{gated} stacked=true top_k=0"
    x, *weights = w.factors(*(of[n] for n in ("x", "w1", "w3", "w2") if of[n] is not None))
    return w.op(f"moe[{attrs}]", [x, w.wide(of["gates"]), *weights], x.shape[:-1] + (w2.shape[-1],), compute_type(x.dtype))


def _vector(w, of, name, default):
    x = w.wide(of["x"])
    return w.wide(of[name]) if of[name] is not None else w.broadcast(w.scalar(default, x.dtype), x.shape[-1:])


def _layer_norm(w, of, eps):
    x, gain, bias = w.wide(of["x"]), _vector(w, of, "gain", 1), _vector(w, of, "bias", 0)
    return w.op(f"layer_norm[eps={number(eps, torch.float64)}]", [x, gain, bias], x.shape, x.dtype)


def _rms_norm(w, of, eps):
    x = w.wide(of["x"])
    return w.op(f"rms_norm[eps={number(eps, torch.float64)}]", [x, _vector(w, of, "gain", 1)], x.shape, x.dtype)


_define("linear", ("x", "w", "b", "residual"), ("b", "residual"), ", str? activation", _linear,
        lambda x, w, *rest: (*x.shape[:-1], w.shape[0]))
_define("attention", ("q", "k", "v", "mask"), ("mask",), ", bool causal, float? scale, int window", _attention,
        lambda q, k, v, *rest: (*q.shape[:-1], v.shape[-1]))
_define("moe", ("x", "gates", "w1", "w2", "w3"), ("w3",), ", str activation", _moe,
        lambda x, gates, w1, w2, *rest: (*x.shape[:-1], w2.shape[-1]))
_define("layer_norm", ("x", "gain", "bias"), ("gain", "bias"), ", float eps", _layer_norm, lambda x, *rest: x.shape)
_define("rms_norm", ("x", "gain"), ("gain",), ", float eps", _rms_norm, lambda x, *rest: x.shape)


# Attention for a backward pass, in which its result and the logarithms of its sums are not computed again. A mask has no gradient.
library.define("_attend(Tensor q, Tensor k, Tensor v, Tensor? mask, bool causal, float? scale, int window) -> (Tensor, Tensor)")
library.define("_attend_backward(Tensor dy, Tensor q, Tensor k, Tensor v, Tensor? mask, Tensor y, Tensor lse, bool causal,"
               " float? scale, int window) -> (Tensor, Tensor, Tensor)")


def _attend(q, k, v, mask, *settings):
    op, operands = OPERATIONS["attention"], (q, k, v, mask)
    _check(op, operands)
    kernel = _made(op, operands, _attention_kernel, settings, tuple(map(_like, operands)), ())
    return kernel.forward(*(t for t in operands if t is not None))


def _attend_backward(dy, q, k, v, mask, y, lse, *settings):
    op, operands, saved = OPERATIONS["attention"], (q, k, v, mask), (dy, y, lse)
    kernel = _made(op, operands, _attention_kernel, settings, tuple(map(_like, operands)), tuple(map(_like, saved)))
    return kernel.forward(*(t for t in (*operands, *saved) if t is not None))


for _device in ("CPU", "CUDA"):
    library.impl("_attend", _attend, _device)
    library.impl("_attend_backward", _attend_backward, _device)


def _fake_attend(q, k, v, *rest):
    return q.new_empty(q.shape[:-1] + v.shape[-1:]), q.new_empty(q.shape[:-1], dtype=compute_type(q.dtype))


def _fake_attend_backward(dy, q, k, v, *rest):
    return tuple(torch.empty_strided(t.shape, plain(t)[1], dtype=t.dtype, device=t.device) for t in (q, k, v))


def _keep_attend(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:4], *output)
    ctx.settings = inputs[4:]


def _differentiate_attend(ctx, dy, dlse):
    grads = torch.ops.fusec._attend_backward(dy, *ctx.saved_tensors, *ctx.settings)
    return (*grads, None, *(None for _ in ctx.settings))


def _keep_attend_backward(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:5])
    ctx.settings = inputs[7:]


def _differentiate_attend_again(ctx, *dgrads):
    wanted = [True, True, True, False]
    second = _second.derivatives("attention", ctx.settings, ctx.saved_tensors, wanted, ctx.needs_input_grad, dgrads)
    return (*second, None, None, *(None for _ in ctx.settings))


torch.library.register_fake("fusec::_attend", _fake_attend, lib=library)
torch.library.register_fake("fusec::_attend_backward", _fake_attend_backward, lib=library)
torch.library.register_autograd("fusec::_attend", _differentiate_attend, setup_context=_keep_attend, lib=library)
torch.library.register_autograd("fusec::_attend_backward", _differentiate_attend_again, setup_context=_keep_attend_backward,
                                lib=library)


def linear(x, w, b=None, *, activation=None, residual=None):
    """activation(x·wᵀ + b) + residual, for x [..., k], w [m, k] as torch.nn.Linear has it, b [m] and a residual [..., m].
    Activations: relu, gelu, gelu_tanh, silu, tanh, sigmoid."""
    return torch.ops.fusec.linear(x, w, b, residual, activation)


def attention(q, k, v, mask=None, *, causal=False, scale=None, window=0):
    """softmax(scale·q·kᵀ + mask)·v, for q [..., h, sq, d], k [..., hk, sk, d] and v [..., hk, sk, dv], where h is a multiple of hk.
    The scale is 1/√d if it is not given. Queries stand at the last of the keys: with causal each attends to the keys up to its own,
    with a window > 0 to those less than window positions away. A mask, broadcast to [..., h, sq, sk], is added, or if it is of
    bool, has True for the scores that stay. The gradient of a mask of numbers is as large as the scores before it is summed up."""
    if torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v)) and not (mask is not None and mask.requires_grad):
        return torch.ops.fusec._attend(q, k, v, mask, causal, scale, window)[0]
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
