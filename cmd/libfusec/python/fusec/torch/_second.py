"""Second derivatives of the operations of _ops: PyTorch's, of the same functions in its own operations. They need what those need,
such as all scores of attention at once."""

import math

import torch
import torch.nn.functional as F

ACTIVATIONS = {None: lambda x: x, "relu": F.relu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu,
               "tanh": torch.tanh, "sigmoid": torch.sigmoid}


def linear(x, w, b, residual, activation):
    y = ACTIVATIONS[activation](F.linear(x, w, b))
    return y if residual is None else y + residual


def attention(q, k, v, mask, causal, scale, window):
    scale = 1 / math.sqrt(max(q.shape[-1], 1)) if scale is None else scale
    k, v = (t.repeat_interleave(q.shape[-3] // t.shape[-3], -3) for t in (k, v))
    s = scale * (q @ k.mT)
    to = torch.arange(s.shape[-1], device=s.device)
    ahead = to - (torch.arange(s.shape[-2], device=s.device) + s.shape[-1] - s.shape[-2])[:, None]
    stays = ahead <= 0 if causal else torch.ones_like(ahead, dtype=torch.bool)
    if window > 0:
        stays = stays & (ahead.abs() < window)
    if mask is not None and mask.dtype == torch.bool:
        stays = stays & mask
    elif mask is not None:
        stays, s = stays & (mask > -math.inf), s + mask
    # A query that attends to no key gets 0.
    return torch.where(stays, s, torch.finfo(s.dtype).min).softmax(-1).where(stays, 0) @ v


def moe(x, gates, w1, w2, w3, activation):
    rows = x.reshape(-1, x.shape[-1])
    h = ACTIVATIONS[activation](torch.einsum("td,edf->tef", rows, w1))
    if w3 is not None:
        h = h * torch.einsum("td,edf->tef", rows, w3)
    gates = torch.where(gates == 0, gates.detach(), gates).reshape(-1, gates.shape[-1])
    return torch.einsum("te,tef,efo->to", gates, h, w2).reshape(*x.shape[:-1], w2.shape[-1])


def layer_norm(x, gain, bias, eps):
    return F.layer_norm(x, x.shape[-1:], gain, bias, eps)


def rms_norm(x, gain, eps):
    return F.rms_norm(x, x.shape[-1:], gain, eps)


FUNCTIONS = {f.__name__: f for f in (linear, attention, moe, layer_norm, rms_norm)}


def derivatives(name, settings, saved, wanted, needed, dgrads):
    """The gradients for dy and the operands, saved, that are needed, given those of the gradients that were wanted."""
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        dy, *operands = (None if t is None else t.view_as(t) for t in saved)  # each a value of its own, even if two are one tensor
        y = FUNCTIONS[name](*operands, *settings)
        of = [t for t, want in zip(operands, wanted) if want]
        first = torch.autograd.grad(y, of, dy, create_graph=True, allow_unused=True)
        pairs = [(g, d) for g, d in zip(first, dgrads) if g is not None and g.requires_grad and d is not None]
        by = [t for t, need in zip((dy, *operands), needed) if need]
        if not pairs:
            return [None] * len(saved)
        outputs, seeds = zip(*pairs)
        given = iter(torch.autograd.grad(outputs, by, seeds, create_graph=again, allow_unused=True))
    return [next(given) if need else None for need in needed[:len(saved)]]
