"""Gradients that need less than ATen's: operations that take the operand of a norm or of a pool, and not statistics or indices
that the forward pass would have to keep."""

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


def use(joint):
    """Replaces gradients in a graph of forward and backward pass by those above, where nothing else needs what they do without."""
    for node in list(joint.graph.nodes):
        if node.op != "call_function":
            continue
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
        else:
            continue
        with joint.graph.inserting_before(node):
            new = joint.graph.call_function(target, args)
        new.meta = dict(node.meta)
        node.replace_all_uses_with(new)
        joint.graph.erase_node(node)
    joint.graph.eliminate_dead_code()
    joint.recompile()
