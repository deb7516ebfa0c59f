"""Kernels on arrays of f32, and their gradients. include/fusec.h has the shapes."""

import ctypes

import numpy as np

from ._library import AttentionOptions, Operand, check, library, reference, text


def _in(*arrays):
    """Operands for the library, which need f32; None stays None."""
    return [None if a is None else Operand(a) for a in arrays]


def _out(shape):
    array = np.empty(shape, np.float32)
    return array, Operand(array)


def _like(array, wanted=True):
    return _out(tuple(array.shape)) if array is not None and wanted else (None, None)


def _rank(rank, **arrays):
    for name, array in arrays.items():
        if len(array.shape) != rank:
            raise ValueError(f"{name} has {len(array.shape)} axes, not {rank}")


def _name(activation):
    return None if activation is None else text(activation)


def linear(x, w, bias=None, *, activation=None, residual=None):
    """activation(x·w + bias) + residual, for x [r, k] and w [k, m].

    The activation is relu, gelu (by the error function), gelu_tanh, silu, tanh or sigmoid."""
    _rank(2, x=x, w=w)
    y, result = _out((x.shape[0], w.shape[1]))
    a = _in(x, w, bias, residual)
    check(library.fusec_linear(*map(reference, a), _name(activation), reference(result)))
    return y


def linear_backward(x, w, dy, bias=None, *, activation=None):
    """The gradients for x, w and bias (None without one), given that of y. That of a residual is dy."""
    (dx, rx), (dw, rw), (db, rb) = _like(x), _like(w), _like(bias)
    x, w, bias, dy = _in(x, w, bias, dy)
    check(library.fusec_linear_backward(reference(x), reference(w), reference(bias), _name(activation), reference(dy),
                                        reference(rx), reference(rw), reference(rb), None))
    return dx, dw, db


def _attention(scale, causal, window):
    return ctypes.byref(AttentionOptions(scale, int(causal), window))


def attention(q, k, v, *, mask=None, causal=False, scale=0.0, window=0):
    """softmax(scale·q·kᵀ + mask)·v, for q [b, h, sq, d], k [b, hk, sk, d] and v [b, hk, sk, dv]; scale 0 is 1/√d."""
    _rank(4, q=q, k=k, v=v)
    y, result = _out(tuple(q.shape[:3]) + (v.shape[3],))
    a = _in(q, k, v, mask)
    check(library.fusec_attention(*map(reference, a), _attention(scale, causal, window), reference(result)))
    return y


def attention_backward(q, k, v, dout, *, mask=None, causal=False, scale=0.0, window=0):
    """The gradients for q, k and v, given that of the result."""
    (dq, rq), (dk, rk), (dv, rv) = _like(q), _like(k), _like(v)
    a = _in(q, k, v, mask, dout)
    check(library.fusec_attention_backward(*map(reference, a[:4]), _attention(scale, causal, window), reference(a[4]),
                                           reference(rq), reference(rk), reference(rv)))
    return dq, dk, dv


def moe(x, gates, w1, w2, w3=None, *, activation="silu"):
    """Σₑ gates[t, e]·FFNₑ(x[t]), for w1 and w3 [e, d, f] and w2 [e, f, o]. A token whose gate is 0 is not sent."""
    _rank(2, x=x)
    _rank(3, w2=w2)
    y, result = _out((x.shape[0], w2.shape[2]))
    a = _in(x, gates, w1, w3, w2)
    check(library.fusec_moe(*map(reference, a), _name(activation), reference(result)))
    return y


def moe_backward(x, gates, w1, w2, dy, w3=None, *, activation="silu"):
    """The gradients for x, gates, w1, w2 and w3 (None without one), given that of y."""
    (dx, rx), (dg, rg), (d1, r1), (d3, r3), (d2, r2) = map(_like, (x, gates, w1, w3, w2))
    a = _in(x, gates, w1, w3, w2, dy)
    check(library.fusec_moe_backward(*map(reference, a[:5]), _name(activation), reference(a[5]), reference(rx), reference(rg),
                                     reference(r1), reference(r3), reference(r2)))
    return dx, dg, d1, d2, d3


def layer_norm(x, gain=None, bias=None, eps=1e-5):
    """Each row of x with mean 0 and variance 1, times gain, plus bias."""
    y, result = _like(x)
    a = _in(x, gain, bias)
    check(library.fusec_layer_norm(*map(reference, a), eps, reference(result)))
    return y


def layer_norm_backward(x, dy, gain=None, eps=1e-5):
    """The gradients for x, gain (None without one) and bias, given that of y."""
    (dx, rx), (dg, rg), (db, rb) = _like(x), _like(gain), _out(tuple(x.shape[-1:]))
    x, gain, dy = _in(x, gain, dy)
    check(library.fusec_layer_norm_backward(reference(x), reference(gain), eps, reference(dy), reference(rx), reference(rg),
                                            reference(rb)))
    return dx, dg, db


def rms_norm(x, gain=None, eps=1e-6):
    """Each row of x over the root of the mean of its squares, times gain."""
    y, result = _like(x)
    a = _in(x, gain)
    check(library.fusec_rms_norm(*map(reference, a), eps, reference(result)))
    return y


def rms_norm_backward(x, dy, gain=None, eps=1e-6):
    """The gradients for x and gain (None without one), given that of y."""
    (dx, rx), (dg, rg) = _like(x), _like(gain)
    x, gain, dy = _in(x, gain, dy)
    check(library.fusec_rms_norm_backward(reference(x), reference(gain), eps, reference(dy), reference(rx), reference(rg)))
    return dx, dg
