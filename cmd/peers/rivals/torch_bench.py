"""PyTorch on the CPU: PROGRAM workload threads seconds.

PEER=torch          eager, gradients only where the workload trains; the block with plain attention and with scaled_dot_product_attention, the
                    faster counts; networks of convolutions in both layouts of images
PEER=torch-compile  torch.compile (inductor), with and without weight freezing, the faster counts; not for gemm, where
                    it calls the same kernel as eager

Workloads in bf16 run under autocast, with weights that it rounds in each run or, unless they train, that are of bf16 already; the
faster counts.
"""
import math
import os

import torch
import torch.nn.functional as fn

import common
import conv_networks
from common import B, D, EPS, H, S

COMPILE = os.environ.get("PEER") == "torch-compile"


def linear(x, w, b=None):
    return fn.linear(x, w, b)


def mlp(x, w1, b1, w2, b2, w3, b3):
    return linear(fn.relu(linear(fn.relu(linear(x, w1, b1)), w2, b2)), w3, b3)


def attention(q, k, v):
    return torch.matmul(torch.softmax(torch.matmul(q, k.transpose(-1, -2)) * (1 / math.sqrt(D // H)), -1), v)


def block(attend):
    def f(x, wqkv, bqkv, wo, bo, gamma1, beta1, w1, b1, w2, b2, gamma2, beta2):
        q, k, v = linear(x, wqkv, bqkv).reshape(B, S, 3, H, D // H).permute(2, 0, 3, 1, 4).unbind(0)
        o = attend(q, k, v).transpose(1, 2).reshape(B * S, D)
        y = fn.layer_norm(x + linear(o, wo, bo), (D,), gamma1, beta1, EPS)
        h = fn.gelu(linear(y, w1, b1), approximate="tanh")
        return fn.layer_norm(y + linear(h, w2, b2), (D,), gamma2, beta2, EPS)

    return f


def convolutions(net, names, train):
    """A network of convolutions of x and the parameters of these names; norms are of the batch where it trains."""

    def f(x, *params):
        p, values = dict(zip(names, params)), [x]
        for a in net.layers:
            kind, args, w = a["kind"], [values[i] for i in a["args"]], [p.get(k) for k in a.get("tensors", [])]
            x = args[0]
            if kind == "conv":
                y = fn.conv2d(x, w[0], w[1] if len(w) > 1 else None, a["stride"], a["pad"], 1, a["groups"])
            elif kind == "norm":
                y = fn.batch_norm(x, None if train else w[2], None if train else w[3], w[0], w[1], train, 0.1, EPS)
            elif kind == "maxpool":
                y = fn.max_pool2d(x, a["kernel"], a["stride"], a["pad"])
            elif kind == "concat":
                y = torch.cat(args, a["axis"])
            elif kind == "upsample":
                y = fn.interpolate(x, scale_factor=2, mode="nearest")
            elif kind == "linear":
                y = linear(x.flatten(1), *w)[:, :, None, None]
            elif kind == "flat":
                y = x.reshape(a["shape"])
            elif kind == "mean":
                y = x.mean((2, 3), keepdim=True)
            elif kind == "add":
                y = x + args[1]
            else:
                y = {"relu": fn.relu, "relu6": fn.relu6, "silu": fn.silu, "sigmoid": torch.sigmoid}[kind](x)
            values.append(y)
        return values[-1].contiguous()

    return f


def network(name, net):
    """The variants of a network of convolutions, with images in NCHW and in NHWC."""
    train = common.trains(name)
    tensors = {k: torch.from_numpy(v) for k, v in common.tensors(name).items()}
    still = {k for a in net.layers if train and a["kind"] == "norm" for k in a["tensors"][2:]}
    names = [k for k in tensors if k not in still and k not in ("x", "target")]
    makes = {}
    for tail, form in (("", torch.contiguous_format), ("-channels-last", torch.channels_last)):
        x = tensors["x"].contiguous(memory_format=form)
        params = [tensors[k] for k in names]
        params = [p.contiguous(memory_format=form) if p.dim() == 4 else p.t().contiguous() if p.dim() == 2 else p for p in params]
        f = convolutions(net, names, train)
        if train:
            makes[("compile" if COMPILE else "eager") + tail] = trained(f, x, params, tensors["target"], COMPILE)
        elif COMPILE:
            makes["compile" + tail] = prepared(f, x, params, False)
            makes["compile" + tail + "-frozen"] = prepared(f, x, params, True)
        else:
            makes["eager" + tail] = prepared(f, x, params)
    return makes


class Model(torch.nn.Module):
    """f with its parameters inside, so that freezing sees them."""

    def __init__(self, f, params):
        super().__init__()
        self.f, self.n = f, len(params)
        for i, p in enumerate(params):
            self.register_parameter("p%d" % i, torch.nn.Parameter(p, requires_grad=False))

    def forward(self, x):
        return self.f(x, *[getattr(self, "p%d" % i) for i in range(self.n)])


def forget_compiled():
    """Makes the next torch.compile start from nothing."""
    import torch._dynamo

    torch._dynamo.reset()


def autocast(f):
    """f with products in bf16, and a result of f32."""

    def rounding(*args):
        with torch.autocast("cpu", torch.bfloat16):
            return f(*args).float()

    return rounding


def prepared(f, x, params, freeze=None):
    def prepare():
        run = lambda: f(x, *params)
        if freeze is not None:
            import torch._inductor.config as config

            forget_compiled()
            config.freezing = freeze
            model = torch.compile(Model(f, params).eval())
            run = lambda: model(x)
        kept = [None]

        def once():
            kept[0] = run()

        return once, lambda: kept[0].numpy()

    return prepare


def trained(f, x, params, target, compiled):
    """Forward and backward of the mean square distance to the target, by all parameters."""
    def prepare():
        weights = [p.clone().requires_grad_() for p in params]
        loss = lambda *w: torch.mean(torch.square(f(x, *w) - target))
        if compiled:
            forget_compiled()
            loss = torch.compile(loss)
        kept = [None]

        def once():
            y = loss(*weights)
            kept[0] = y, torch.autograd.grad(y, weights)

        def result():
            y, grads = kept[0]
            return common.flat([y.detach().numpy()] + [(g.t() if g.dim() == 2 else g).numpy() for g in grads])

        return once, result

    return prepare


def build(name, threads):
    torch.set_num_threads(threads)
    torch.set_grad_enabled(common.trains(name))
    net = conv_networks.net(name.removesuffix("-train"))
    if net:
        if COMPILE and not hasattr(torch, "compile"):
            raise common.Unsupported("this torch has no torch.compile")
        return network(name, net)
    t = [torch.from_numpy(v) for v in common.tensors(name).values()]
    if name.startswith("gemm-"):
        if COMPILE:
            raise common.Unsupported("calls the same kernel as eager torch")
        out = torch.empty(t[0].shape[0], t[1].shape[1])
        return {"mm": lambda: (lambda: torch.mm(t[0], t[1], out=out), out.numpy)}
    if common.attention_shape(name):
        n, causal = common.attention_shape(name)
        if COMPILE:
            raise common.Unsupported("calls the same kernel as eager torch")
        heads = [x.view(1, n, common.AH, common.AD).transpose(1, 2) for x in t]
        attend = lambda q, k, v: fn.scaled_dot_product_attention(q, k, v, is_causal=causal)
        rows = lambda *x: attend(*x).transpose(1, 2).reshape(n, common.AH * common.AD)
        return {"sdpa": prepared(rows, heads[0], heads[1:])}
    # Linear layers keep their weights as torch.nn.Linear does: [out, in].
    x, params = t[0], [p.t().contiguous() if p.dim() == 2 else p for p in t[1:]]
    rounds, name = common.rounds(name), name.removesuffix("-bf16")
    base = name.removesuffix("-train")
    if name == "linear-plain":
        makes = {"eager": linear}
    elif name == "linear-gelu":
        makes = {"eager": lambda x, w, b: fn.gelu(linear(x, w, b), approximate="tanh")}
    elif base == "mlp":
        makes = {"eager": mlp}
    else:
        makes = {"eager": block(attention)}
        if hasattr(fn, "scaled_dot_product_attention"):
            makes["eager-sdpa"] = block(fn.scaled_dot_product_attention)
    if COMPILE and not hasattr(torch, "compile"):
        raise common.Unsupported("this torch has no torch.compile")
    if rounds:
        makes = {k + "-autocast": autocast(f) for k, f in makes.items()}
    if common.trains(name):
        return {k.replace("eager", "compile") if COMPILE else k: trained(f, x, params[:-1], t[-1], COMPILE)
                for k, f in makes.items()}
    if rounds:
        half = [p.bfloat16() if p.dim() == 2 else p for p in params]
        if not COMPILE:
            return {k + tail: prepared(f, x, p) for k, f in makes.items() for p, tail in ((params, ""), (half, "-bf16-weights"))}
        params = half
    if not COMPILE:
        return {k: prepared(f, x, params) for k, f in makes.items()}
    return {k.replace("eager", "compile") + tail: prepared(f, x, params, freeze)
            for k, f in makes.items() for freeze, tail in ((False, ""), (True, "-frozen"))}


common.main(os.environ.get("PEER", "torch"), torch.__version__, build)
