"""Gradients that need less than ATen's: operations that take the operand of a norm or of a pool, and not statistics or indices
that the forward pass would have to keep."""

import math
import operator

import torch

aten = torch.ops.aten
library = torch.library.Library("fusec", "FRAGMENT")

library.define("_layer_norm_grad(Tensor dy, Tensor x, SymInt[] shape, Tensor? gain, float eps, bool[3] mask)"
               " -> (Tensor, Tensor, Tensor)")
library.define("_max_pool_grad(Tensor dy, Tensor x, int[] kernel, int[] stride, int[] padding) -> Tensor")


def _layer_norm_grad(dy, x, shape, gain, eps, mask):
    _, mean, rstd = aten.native_layer_norm(x, shape, gain, None, eps)
    return tuple(aten.native_layer_norm_backward(dy, x, shape, mean, rstd, gain, None, [True, True, True]))


def _layer_norm_fake(dy, x, shape, gain, eps, mask):
    return x.new_empty(x.shape), x.new_empty(shape), x.new_empty(shape)


def _max_pool_grad(dy, x, kernel, stride, padding):
    indices = aten.max_pool2d_with_indices(x, kernel, stride, padding)[1]
    return aten.max_pool2d_with_indices_backward(dy, x, kernel, stride, padding, [1, 1], False, indices)


library.impl("_layer_norm_grad", _layer_norm_grad, "CompositeExplicitAutograd")
library.impl("_max_pool_grad", _max_pool_grad, "CompositeExplicitAutograd")
torch.library.register_fake("fusec::_layer_norm_grad", _layer_norm_fake, lib=library)
torch.library.register_fake("fusec::_max_pool_grad", lambda dy, x, kernel, stride, padding: x.new_empty(x.shape), lib=library)


# Attention of queries [b, h, sq, d], and its gradient from its result and the logarithms of its sums [b, h, sq]. PyTorch has
# several for GPUs, which hand on more than that.
library.define("_attention(Tensor q, Tensor k, Tensor v, Tensor? mask, bool causal, float? scale) -> (Tensor, Tensor)")
library.define("_attention_grad(Tensor dy, Tensor q, Tensor k, Tensor v, Tensor? mask, Tensor out, Tensor lse, bool causal,"
               " float? scale) -> (Tensor, Tensor, Tensor)")


def _scores(q, k, mask, causal, scale):
    s = (1 / math.sqrt(q.shape[-1]) if scale is None else scale) * (q.float() @ k.float().mT)
    if causal:
        s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).triu(1), -math.inf)
    if mask is None:
        return s
    return s.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else s + mask


def _heads(q, k, v):
    return tuple(t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))


def _attention(q, k, v, mask, causal, scale):
    k, v = _heads(q, k, v)
    s = _scores(q, k, mask, causal, scale)
    lse = s.logsumexp(-1)
    return ((s - lse[..., None]).exp().nan_to_num(0.0) @ v.float()).to(q.dtype), lse


def _attention_grad(dy, q, k, v, mask, out, lse, causal, scale):
    kv = k, v
    k, v = _heads(q, k, v)
    dy = dy.float()
    p = (_scores(q, k, mask, causal, scale) - lse[..., None]).exp().nan_to_num(0.0)
    ds = p * (dy @ v.float().mT - (dy * out.float()).sum(-1, keepdim=True))
    ds = ds * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    dk, dv = (g.unflatten(1, (t.shape[1], -1)).sum(2).to(t.dtype) for g, t in zip((ds.mT @ q.float(), p.mT @ dy), kv))
    return (ds @ k.float()).to(q.dtype), dk, dv


library.impl("_attention", _attention, "CompositeExplicitAutograd")
library.impl("_attention_grad", _attention_grad, "CompositeExplicitAutograd")
torch.library.register_fake("fusec::_attention", lambda q, k, v, mask, causal, scale: (
    q.new_empty(q.shape[:-1] + v.shape[-1:]), q.new_empty(q.shape[:-1], dtype=torch.float32)), lib=library)
torch.library.register_fake("fusec::_attention_grad", lambda dy, q, k, v, *rest: tuple(t.new_empty(t.shape) for t in (q, k, v)),
                            lib=library)

_ATTENTIONS = {aten._scaled_dot_product_flash_attention_backward.default: aten._scaled_dot_product_flash_attention.default,
               aten._scaled_dot_product_efficient_attention_backward.default: aten._scaled_dot_product_efficient_attention.default,
               aten._scaled_dot_product_cudnn_attention_backward.default: aten._scaled_dot_product_cudnn_attention.default}


def arguments(target, args, kwargs):
    """The arguments of a call of an operation by name, those that it leaves out included."""
    of = {a.name: a.default_value for a in target._schema.arguments if a.has_default_value()}
    of.update(zip((a.name for a in target._schema.arguments), args))
    return of | kwargs


def _detached(node):
    """The node that this one detaches, or the node."""
    while isinstance(node, torch.fx.Node) and node.target in (aten.detach.default, aten.alias.default):
        node = node.args[0]
    return node


def _result(node, index):
    """The node whose result of an index this is, or None."""
    if isinstance(node, torch.fx.Node) and node.target is operator.getitem and node.args[1] == index:
        return node.args[0]
    return None


def _pair_attention(graph, node):
    """The gradient for an attention of PyTorch's, which becomes ours with it, its arguments, and what was PyTorch's; None if it is
    of another form."""
    of = arguments(node.target, node.args, node.kwargs)
    out, lse = _detached(of["out"]), _detached(of["logsumexp"])
    forward = _result(lse, 1)
    if forward is None or forward.target is not _ATTENTIONS[node.target] or _result(out, 0) is not forward:
        return None
    q, k, v, mask, causal = of["query"], of["key"], of["value"], of.get("attn_bias"), of["is_causal"]
    shape = q.meta["val"].shape
    if of["dropout_p"] != 0 or len(shape) != 4 or causal and shape[2] != k.meta["val"].shape[2]:
        return None
    if any(_result(u, 3) is node and u.users for u in node.users):  # the gradient of a mask
        return None
    with graph.inserting_before(forward):
        ours = graph.call_function(torch.ops.fusec._attention.default, (q, k, v, mask, causal, of["scale"]))
        parts = [graph.call_function(operator.getitem, (ours, i)) for i in range(2)]
    sums = q.meta["val"].new_empty(shape[:-1], dtype=torch.float32)
    ours.meta = {**forward.meta, "val": (out.meta["val"], sums)}
    parts[0].meta, parts[1].meta = dict(out.meta), {**lse.meta, "val": sums}
    out.replace_all_uses_with(parts[0])
    lse.replace_all_uses_with(parts[1])
    dy = of["grad_out_"] if "grad_out_" in of else of["grad_out"]
    return torch.ops.fusec._attention_grad.default, (dy, q, k, v, mask, *parts, causal, of["scale"]), forward


def _summands(node):
    """The gradients of parts of a tensor along an axis that a node adds up; None if it adds others, too."""
    if node.target is aten.select_backward.default:
        return [node]
    if node.target is not aten.add.Tensor or node.kwargs or not all(isinstance(a, torch.fx.Node) and len(a.users) == 1
                                                                     for a in node.args):
        return None
    parts = [_summands(a) for a in node.args]
    return None if None in parts else sum(parts, [])


def _stack_parts(graph):
    """Stacks the gradients of all parts of a tensor along an axis, each of which would be as large as the tensor and added up."""
    for node in reversed(list(graph.nodes)):
        parts = _summands(node) if node.target is aten.add.Tensor else None
        if not parts or len({(tuple(p.args[1]), p.args[2]) for p in parts}) != 1:
            continue
        _, sizes, dim, _ = parts[0].args
        by_index = {p.args[3] % sizes[dim]: p.args[0] for p in parts}
        if len(parts) != sizes[dim] or len(by_index) != sizes[dim]:
            continue
        with graph.inserting_before(node):
            new = graph.call_function(aten.stack.default, ([by_index[i] for i in range(sizes[dim])], dim))
        new.meta = dict(node.meta)
        node.replace_all_uses_with(new)


def use(joint):
    """Replaces gradients in a graph of forward and backward pass by those above, where nothing else needs what they do without."""
    _stack_parts(joint.graph)
    for node in list(joint.graph.nodes):
        if node.op != "call_function":
            continue
        replaced = None
        if node.target is aten.native_layer_norm_backward.default:
            dy, x, shape, mean, rstd, gain, _, mask = node.args
            norm = mean.args[0] if isinstance(mean, torch.fx.Node) and mean.op == "call_function" and mean.args else None
            if getattr(norm, "target", None) is not aten.native_layer_norm.default or norm.args[0] is not x:
                continue
            target, args = torch.ops.fusec._layer_norm_grad.default, (dy, x, shape, gain, norm.args[4], mask)
        elif node.target is aten.max_pool2d_with_indices_backward.default:
            dy, x, kernel, stride, padding, dilation, ceil_mode, _ = node.args
            if any(d != 1 for d in dilation) or ceil_mode or x.meta["val"].dim() != 4:
                continue
            target, args = torch.ops.fusec._max_pool_grad.default, (dy, x, kernel, stride or kernel, padding)
        elif node.target in _ATTENTIONS:
            pair = _pair_attention(joint.graph, node)
            if pair is None:
                continue
            target, args, replaced = pair
        else:
            continue
        with joint.graph.inserting_before(node):
            new = joint.graph.call_function(target, args)
        new.meta = dict(node.meta)
        node.replace_all_uses_with(new)
        joint.graph.erase_node(node)
        if replaced is not None:  # which PyTorch takes for one that must not be left out
            for unused in [*replaced.users, replaced]:
                if not unused.users:
                    joint.graph.erase_node(unused)
    joint.graph.eliminate_dead_code()
    joint.recompile()
