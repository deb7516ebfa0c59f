"""The rivals on a GPU: cuBLAS, cuDNN, FlashAttention and torch.compile, as PyTorch reaches them.

    python3 gpu_bench.py [--only TEXT] [--rival TEXT] [PART]...

PART is memory_bound, linear, shapes, attention, moe, conv, decode, layer, model or training. It prints a line of JSON for each
figure: the workload's name, as `fusec bench gpu` has it too, the rival, the median of single runs in milliseconds by CUDA
events, and the rate. FLOPs are those of the products; those of causal attention count half the pairs. What does not run
here is a line with an error instead. With --prepare it only has torch.compile fill its cache on the disk.
"""
import argparse
import ctypes
import json
import math
import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

try:  # the wheel of `make wheel`, if it is installed: fusec from PyTorch, against the same in Go
    import fusec.torch
except ImportError:
    fusec = None

GPU = "cuda"
only = ""  # what the names of the workloads that are measured have in them
rival = ""  # and those of the rivals
preparing = False  # what is compiled runs once, and is not timed


def milliseconds(step, runs, warm, rest=0.3):
    """Medians of single runs, each waited for, on a GPU that has rested for some seconds: one that has not is slower. It sleeps for
    a tenth of a millisecond before each, while the host queues what is timed: the time of Python is none of the rival's."""
    time.sleep(rest)
    for _ in range(warm):
        step()
    torch.cuda.synchronize()
    times = []
    for _ in range(runs):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(200_000)  # cycles
        begin.record()
        step()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return sorted(times)[len(times) // 2]


def figure(workload, peer, make, work, unit="TFLOP/s", runs=20, warm=5):
    """Measures what make() gives, and prints its line."""
    if only not in workload or rival not in peer:
        return
    if preparing:
        if "compile" in peer:
            try:
                make()()
            except Exception:  # the same when it is measured, which tells
                pass
            torch._dynamo.reset()
        return
    line = {"workload": workload, "peer": peer}
    try:
        ms = milliseconds(make(), runs, warm)
        line |= {"ms": round(ms, 5), "rate": round(work / ms / (1e9 if unit == "TFLOP/s" else 1e6), 2), "unit": unit}
    except Exception as e:  # a rival that cannot do this must not end the others
        line["error"] = (str(e) or type(e).__name__).split("\n")[0][:200]
    print(json.dumps(line), flush=True)
    torch._dynamo.reset()


def normal(*shape, dtype=torch.float32, scale=1.0):
    return torch.randn(*shape, device=GPU, dtype=dtype) * scale


def tf32(on):
    torch.backends.cuda.matmul.allow_tf32 = on
    torch.backends.cudnn.allow_tf32 = on


def memory_bound():
    rows, width = 16384, 4096
    x, r, gain, bias = normal(rows, width), normal(rows, width), normal(width), normal(width)
    size, to = 4 * rows * width, torch.empty(rows, width, device=GPU)
    figure("copy f32 256MiB", "device copy", lambda: lambda: to.copy_(x), 2 * size, "GB/s")

    def layernorm(x, r, gain, bias):
        return F.layer_norm(F.gelu(x + r), (width,), gain, bias)

    def rmsnorm(x, gain):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * gain

    for name, f, args, moved in [
        ("add+gelu+layernorm", layernorm, (x, r, gain, bias), 3 * size),
        ("rmsnorm", rmsnorm, (x, gain), 2 * size),
    ]:

        def compiled():
            c = torch.compile(f)
            return lambda: c(*args)

        figure(f"{name} f32 {rows}x{width}", "torch eager", lambda: lambda: f(*args), moved, "GB/s")
        figure(f"{name} f32 {rows}x{width}", "torch.compile", compiled, moved, "GB/s")


def linear():
    for m, k, n in [(8192, 4096, 16384), (16384, 1024, 4096), (512, 4096, 4096)]:
        for precision in ["bf16", "tf32", "f32"]:
            tf32(precision == "tf32")
            dtype = torch.bfloat16 if precision == "bf16" else torch.float32
            x, b = normal(m, k, dtype=dtype), normal(n, dtype=dtype)
            w = normal(k, n, dtype=dtype, scale=1 / math.sqrt(k))
            name, flops = f"linear {precision} {m}x{k}x{n}", 2.0 * m * k * n

            def layer(x, w, b):
                return F.gelu(torch.addmm(b, x, w), approximate="tanh")

            def compiled():
                c = torch.compile(layer)
                return lambda: c(x, w, b)

            if fusec:
                wt = w.t()
                figure(name, "fusec.torch", lambda: captured(lambda: fusec.torch.linear(x, wt)), flops)
                figure(name + " +bias+gelu", "fusec.torch",
                       lambda: captured(lambda: fusec.torch.linear(x, wt, b, activation="gelu_tanh")), flops)
            figure(name, "cuBLAS", lambda: lambda: x @ w, flops)
            figure(name + " +bias+gelu", "torch eager", lambda: lambda: layer(x, w, b), flops)

            def epilogue():
                return torch._addmm_activation(b, x, w, use_gelu=True)

            figure(name + " +bias+gelu", "cuBLASLt epilogue", lambda: epilogue, flops)
            figure(name + " +bias+gelu", "torch.compile", compiled, flops)


# batch, m, k, n, A transposed, B transposed: the lists of fusec bench gpu shapes
ALIGNED = [
    (1, 1024, 1024, 1024, 0, 0), (1, 4096, 4096, 4096, 0, 0), (1, 4096, 4096, 4096, 1, 0), (1, 4096, 4096, 4096, 0, 1),
    (1, 8192, 8192, 8192, 0, 0), (1, 512, 4096, 4096, 0, 0), (1, 16384, 1024, 4096, 0, 0), (1, 256, 16384, 4096, 0, 0),
    (1, 65536, 256, 1024, 0, 0), (1, 4096, 14336, 4096, 0, 1), (1, 128, 8192, 8192, 0, 0), (1, 8192, 64, 8192, 0, 0),
    (64, 512, 512, 512, 0, 0), (16, 2048, 128, 2048, 0, 1), (32, 256, 1024, 256, 1, 0),
]
ODD = [
    (1, 1000, 1000, 1000, 0, 0), (1, 4095, 4095, 4095, 0, 0), (1, 4097, 4096, 4096, 0, 0), (1, 4096, 4097, 4096, 0, 0),
    (1, 4096, 4096, 4097, 0, 0), (1, 2047, 1023, 513, 1, 0), (1, 2047, 1023, 513, 0, 1), (1, 777, 1333, 2049, 0, 0),
    (1, 8192, 768, 50257, 0, 1), (1, 127, 8191, 8191, 0, 0), (1, 65537, 65, 129, 0, 0), (1, 20000, 300, 300, 0, 0),
    (1, 333, 30000, 77, 0, 0), (33, 333, 77, 555, 0, 0), (100, 100, 100, 100, 0, 1),
]


class CublasLt:
    """Products in bf16 by the algorithms that cuBLASLt proposes for a shape, of which the fastest counts."""

    WORKSPACE = 64 << 20

    def __init__(self):
        # PyTorch has loaded the library.
        path = next(line.split()[-1] for line in open("/proc/self/maps") if "libcublasLt.so" in line)
        self.lib = ctypes.CDLL(path)
        self.handle = ctypes.c_void_p()
        self.call("cublasLtCreate", ctypes.byref(self.handle))
        self.workspace = torch.empty(self.WORKSPACE, dtype=torch.uint8, device=GPU)

    def call(self, name, *args):
        status = getattr(self.lib, name)(*args)
        if status:
            raise RuntimeError(f"{name}: status {status}")

    def layout(self, rows, columns, batch):
        """A row-major matrix is a column-major one of columns × rows."""
        it = ctypes.c_void_p()
        bf16 = 14
        self.call("cublasLtMatrixLayoutCreate", ctypes.byref(it), bf16, ctypes.c_uint64(columns), ctypes.c_uint64(rows),
                  ctypes.c_int64(columns))
        if batch > 1:
            count, stride = ctypes.c_int32(batch), ctypes.c_int64(rows * columns)
            self.call("cublasLtMatrixLayoutSetAttribute", it, 5, ctypes.byref(count), ctypes.c_size_t(4))
            self.call("cublasLtMatrixLayoutSetAttribute", it, 6, ctypes.byref(stride), ctypes.c_size_t(8))
        return it

    def fastest(self, batch, m, k, n, ta, tb):
        """A function that computes the product by the fastest algorithm: in column-major terms Cᵀ = Bᵀ·Aᵀ."""
        a = normal(batch, *((k, m) if ta else (m, k)), dtype=torch.bfloat16)
        b = normal(batch, *((n, k) if tb else (k, n)), dtype=torch.bfloat16, scale=1 / math.sqrt(k))
        c = torch.empty(batch, m, n, dtype=torch.bfloat16, device=GPU)
        desc, f32 = ctypes.c_void_p(), 0
        self.call("cublasLtMatmulDescCreate", ctypes.byref(desc), 68, f32)
        for attribute, transposed in [(3, tb), (4, ta)]:
            op = ctypes.c_int32(transposed)
            self.call("cublasLtMatmulDescSetAttribute", desc, attribute, ctypes.byref(op), ctypes.c_size_t(4))
        la, lb, lc = (self.layout(t.shape[1], t.shape[2], batch) for t in (a, b, c))
        preference, size = ctypes.c_void_p(), ctypes.c_uint64(self.WORKSPACE)
        self.call("cublasLtMatmulPreferenceCreate", ctypes.byref(preference))
        self.call("cublasLtMatmulPreferenceSetAttribute", preference, 1, ctypes.byref(size), ctypes.c_size_t(8))
        most, each = 12, 96  # bytes of a cublasLtMatmulHeuristicResult_t: the algorithm's 64, then its workspace's size
        found, number = ctypes.create_string_buffer(most * each), ctypes.c_int()
        self.call("cublasLtMatmulAlgoGetHeuristic", self.handle, desc, lb, la, lc, lc, preference, most, found,
                  ctypes.byref(number))
        one, zero = ctypes.c_float(1), ctypes.c_float(0)

        def by(i):
            algorithm = ctypes.byref(found, i * each)

            def run():
                stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
                self.call("cublasLtMatmul", self.handle, desc, ctypes.byref(one), ctypes.c_void_p(b.data_ptr()), lb,
                          ctypes.c_void_p(a.data_ptr()), la, ctypes.byref(zero), ctypes.c_void_p(c.data_ptr()), lc,
                          ctypes.c_void_p(c.data_ptr()), lc, algorithm, ctypes.c_void_p(self.workspace.data_ptr()),
                          ctypes.c_size_t(self.WORKSPACE), stream)

            return run

        times = []
        for i in range(number.value):
            try:
                times.append((milliseconds(by(i), 8, 3, rest=0), i))
            except RuntimeError:
                continue
        run = by(min(times)[1])
        run()
        x, w = (t.mT if transposed else t for t, transposed in ((a, ta), (b, tb)))
        want = x[0].float() @ w[0].float()
        if not torch.allclose(c[0].float(), want, rtol=0.05, atol=0.05 * want.abs().max().item()):
            raise RuntimeError("cuBLASLt's product is called wrongly")
        return captured(run)


def shapes():
    torch.mm(normal(8, 8), normal(8, 8))  # loads cuBLAS
    lt = CublasLt()
    for kind, cases in [("aligned", ALIGNED), ("odd", ODD)]:
        for batch, m, k, n, ta, tb in cases:
            name = f"product {kind} {m}x{k}x{n}" + (f" batch {batch}" if batch > 1 else "") + " Aᵀ" * ta + " Bᵀ" * tb
            figure(name, "cuBLASLt, fastest", lambda: lt.fastest(batch, m, k, n, ta, tb), 2.0 * batch * m * k * n)


def attention():
    tf32(False)
    cases = [(4, 16, 4096, 128, True), (4, 16, 4096, 128, False), (2, 16, 8192, 64, True), (1, 16, 16384, 128, True),
             (1, 8, 1024, 64, True)]
    backends = [("FlashAttention-2", SDPBackend.FLASH_ATTENTION), ("cuDNN", SDPBackend.CUDNN_ATTENTION)]
    mask = torch.rand(4096, 4096, device="cuda") < 0.9
    cases = [(*c, "", {}) for c in cases] + [(4, 16, 4096, 128, False, " mask", {"attn_mask": mask}),
                                             (4, 16, 4096, 128, False, " dropout", {"dropout_p": 0.1})]
    for batch, heads, seq, dim, causal, suffix, options in cases:
        q, k, v = (normal(batch, heads, seq, dim, dtype=torch.bfloat16).requires_grad_() for _ in "qkv")
        dout = normal(batch, heads, seq, dim, dtype=torch.bfloat16)
        flops = 4.0 * batch * heads * seq * seq * dim / (2 if causal else 1)
        name = f"b{batch}h{heads}s{seq}d{dim}" + (" causal" if causal else "") + suffix
        if fusec and not suffix:

            def ours():
                return fusec.torch.attention(q, k, v, causal=causal)

            def ours_forward():
                with torch.no_grad():
                    ours()

            def ours_backward():
                with torch.no_grad():
                    saved = torch.ops.fusec._attend(q, k, v, None, causal, None, 0)
                    return captured(lambda: torch.ops.fusec._attend_backward(dout, q, k, v, None, *saved, causal, None, 0))

            figure(f"attention bf16 {name} fwd", "fusec.torch", lambda: captured(ours_forward), flops)
            figure(f"attention bf16 {name} bwd", "fusec.torch", ours_backward, 2.5 * flops)
        for peer, backend in backends:
            def attend():
                with sdpa_kernel(backend):
                    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, **options)

            def forward():
                with torch.no_grad():
                    attend()

            def backward():
                out = attend()
                return lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)

            figure(f"attention bf16 {name} fwd", peer, lambda: forward, flops)
            figure(f"attention bf16 {name} bwd", peer, backward, 2.5 * flops)
        if seq <= 8192 and not suffix:
            wide, wide_dout = [x.detach().float().requires_grad_() for x in (q, k, v)], dout.float()

            def efficient():
                with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
                    return F.scaled_dot_product_attention(*wide, is_causal=causal)

            def efficient_forward():
                with torch.no_grad():
                    efficient()

            def efficient_backward():
                out = efficient()
                return lambda: torch.autograd.grad(out, wide, wide_dout, retain_graph=True)

            for precision in ["f32", "tf32"]:
                tf32(precision == "tf32")
                figure(f"attention {precision} {name} fwd", "memory-efficient", lambda: efficient_forward, flops, runs=5, warm=2)
                figure(f"attention {precision} {name} bwd", "memory-efficient", efficient_backward, 2.5 * flops, runs=5, warm=2)
            tf32(False)


def moe():
    dtype = torch.bfloat16
    for tokens, width, hidden, experts, k, skew in [(8192, 2048, 5632, 8, 2, 0.79), (16384, 2048, 1408, 64, 6, 1.33)]:
        x, router = normal(tokens, width, dtype=dtype), normal(width, experts, dtype=dtype, scale=1 / math.sqrt(width))
        up = normal(experts, width, hidden, dtype=dtype, scale=1 / math.sqrt(width))
        down = normal(experts, hidden, width, dtype=dtype, scale=1 / math.sqrt(hidden))
        dy = normal(tokens, width, dtype=dtype)
        shape, flops = f"moe bf16 T{tokens}d{width}f{hidden}E{experts}k{k}", 4.0 * tokens * k * width * hidden
        prior = torch.zeros(experts, device=GPU)

        def chosen():
            return torch.topk(torch.softmax((x @ router).float() + prior, -1), k, dim=-1)

        def loop():
            gates, picks = chosen()
            y = torch.zeros_like(x)
            for e in range(experts):
                rows, place = torch.where(picks == e)
                y.index_add_(0, rows, F.gelu(x[rows] @ up[e]) @ down[e] * gates[rows, place, None].to(dtype))
            return y

        def grouped():
            gates, picks = chosen()
            order = torch.argsort(picks.flatten())
            ends = torch.cumsum(torch.bincount(picks.flatten(), minlength=experts), 0).to(torch.int32)
            rows = order // k
            h = F.gelu(torch._grouped_mm(x[rows], up, offs=ends))
            y = torch._grouped_mm(h, down, offs=ends) * gates.flatten()[order, None].to(dtype)
            return torch.zeros_like(x).index_add_(0, rows, y)

        def ours():
            gates, picks = chosen()
            sparse = torch.zeros(tokens, experts, dtype=dtype, device=GPU).scatter_(1, picks, gates.to(dtype))
            return fusec.torch.moe(x, sparse, up, down, activation="gelu")

        def training(forward):
            operands = [x, router, up, down]

            def step():
                for o in operands:
                    o.requires_grad_(True)
                try:
                    return torch.autograd.grad(forward(), operands, dy)
                finally:
                    for o in operands:
                        o.requires_grad_(False)

            return step

        name = shape + " fwd"
        if fusec:
            figure(name, "fusec.torch", lambda: captured(ours), flops)
        figure(name, "loop over experts", lambda: loop, flops)
        for peer, forward in [("grouped_mm", lambda: grouped), ("grouped_mm compiled", lambda: torch.compile(grouped))]:
            prior[0] = 0
            figure(name, peer, forward, flops)
            figure(shape + " fwd+bwd", peer, lambda: training(forward()), 3 * flops)
            prior[0] = skew
            figure(shape + " skewed fwd", peer, forward, flops)


def layer():
    """A decoder layer with the sizes of Llama 3 8B, without its attention, and a copy. Bytes are those of the weights."""
    elems, dtype = 64 << 20, torch.bfloat16
    x, to = normal(elems), torch.empty(elems, device=GPU)
    figure("copy f32 256MiB", "device copy", lambda: lambda: to.copy_(x), 8 * elems, "GB/s")
    width, hidden, kv = 4096, 14336, 1024
    sizes = [(width, width), (width, kv), (width, kv), (width, width), (width, hidden), (width, hidden), (hidden, width)]
    weights = [normal(k, n, dtype=dtype, scale=1 / math.sqrt(k)) for k, n in sizes]
    forms = {"": weights, " [n,k]": [w.t().contiguous().t() for w in weights]}
    size = sum(2.0 * k * n for k, n in sizes)
    gain = torch.ones(width, device=GPU, dtype=dtype)
    for tokens in [1, 16, 256]:
        x = normal(tokens, width, dtype=dtype)
        name = "layer bf16 1 token" if tokens == 1 else f"layer bf16 {tokens} tokens"
        for form, (q, k, v, o, gate, up, down) in forms.items():

            def forward():
                n = F.rms_norm(x, (width,), gain)
                r = x + (n @ q) @ o
                keys, values = n @ k, n @ v
                n = F.rms_norm(r, (width,), gain)
                return r + (F.silu(n @ gate) * (n @ up)) @ down, keys, values

            figure(name, "torch, CUDA graph" + form, lambda: captured(forward), size, "GB/s")
            figure(name, "torch.compile, CUDA graph" + form, lambda: captured(torch.compile(forward)), size, "GB/s")


class Layer(torch.nn.Module):
    """A convolution with a bias or a batch norm, and a rectifier; `more` is added before that."""

    def __init__(self, channels, columns, kernel, stride=1, groups=1, norm=False):
        super().__init__()
        self.conv = torch.nn.Conv2d(channels, columns, kernel, stride, kernel // 2, groups=groups, bias=not norm)
        self.norm = torch.nn.BatchNorm2d(columns) if norm else torch.nn.Identity()

    def forward(self, x, more=None):
        y = self.norm(self.conv(x))
        return F.relu(y if more is None else y + more)


class Residual(torch.nn.Module):
    """A block of a residual network: layers in a row, and one past them if the size changes."""

    def __init__(self, layers, past):
        super().__init__()
        self.layers, self.past = torch.nn.ModuleList(layers), past

    def forward(self, x):
        more = x if self.past is None else self.past(x)
        for layer in self.layers[:-1]:
            x = layer(x)
        return self.layers[-1](x, more)


def resnet(blocks, bottleneck, norm=False):
    def layer(*sizes):
        return Layer(*sizes, norm=norm)

    parts, c = [layer(3, 64, 7, 2), torch.nn.MaxPool2d(3, 2, 1)], 64
    for i, count in enumerate(blocks):
        n = 64 << i
        out = 4 * n if bottleneck else n
        for j in range(count):
            stride = 2 if i > 0 and j == 0 else 1
            past = layer(c, out, 1, stride) if c != out or stride > 1 else None
            if bottleneck:
                layers = [layer(c, n, 1), layer(n, n, 3, stride), layer(n, out, 1)]
            else:
                layers = [layer(c, n, 3, stride), layer(n, n, 3)]
            parts.append(Residual(layers, past))
            c = out
    return torch.nn.Sequential(*parts)


def mobilenet():
    parts, c = [Layer(3, 32, 3, 2)], 32
    for n, stride in [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)] + [(512, 1)] * 5 + [(1024, 2), (1024, 1)]:
        parts += [Layer(c, c, 3, stride, c), Layer(c, n, 1)]
        c = n
    return torch.nn.Sequential(*parts)


def flops_of(net, x):
    """Two for each product of the convolutions."""
    total, hooks = 0.0, []

    def count(conv, _, y):
        nonlocal total
        total += 2.0 * y.numel() * conv.weight[0].numel()

    for m in net.modules():
        if isinstance(m, torch.nn.Conv2d):
            hooks.append(m.register_forward_hook(count))
    net(x)
    for h in hooks:
        h.remove()
    return total


def conv():
    """Layers, their gradients and networks by cuDNN, channels last, as CUDA graphs; torch.compile fuses what follows a layer."""
    torch.backends.cudnn.benchmark = not preparing
    layers = [(64, 224, 3, 64, 7, 2, 1), (64, 56, 64, 64, 3, 1, 1), (64, 56, 64, 128, 3, 2, 1), (64, 28, 128, 128, 3, 1, 1),
              (64, 14, 256, 256, 3, 1, 1), (64, 7, 512, 512, 3, 1, 1), (64, 56, 256, 64, 1, 1, 1), (64, 56, 256, 512, 1, 2, 1),
              (64, 112, 64, 64, 3, 2, 64), (64, 56, 128, 128, 3, 1, 128)]
    networks = [("resnet18", 64, lambda: resnet([2, 2, 2, 2], False)), ("resnet50", 64, lambda: resnet([3, 4, 6, 3], True)),
                ("mobilenet", 64, mobilenet), ("resnet50", 1, lambda: resnet([3, 4, 6, 3], True))]
    for precision in ["bf16", "tf32", "f32"]:
        tf32(precision == "tf32")
        dtype = torch.bfloat16 if precision == "bf16" else torch.float32

        def last(x):
            return x.to(GPU, dtype).to(memory_format=torch.channels_last)

        def run(net, x):
            def step():
                with torch.no_grad():
                    net(x)

            return step

        for i, (batch, size, channels, columns, kernel, stride, groups) in enumerate(layers):
            net, x = last(Layer(channels, columns, kernel, stride, groups)), last(normal(batch, channels, size, size))
            name = f"conv {precision} b{batch} {size}x{size} {channels}-{columns} k{kernel}s{stride}"
            if groups > 1:
                name += " depthwise"
            with torch.no_grad():
                flops, dy = flops_of(net, x), torch.randn_like(net(x))
            figure(name, "cuDNN, torch.compile", lambda: captured(run(torch.compile(net), x)), flops)
            if i not in (0, 1, 2, 4, 9):
                continue
            c = net.conv
            for what, mask in [("image", [True, False, False]), ("filter", [False, True, False])]:
                if i == 0 and what == "image":
                    continue  # images have no gradient

                def gradient():
                    torch.ops.aten.convolution_backward(dy, x, c.weight, None, c.stride, c.padding, c.dilation, False, [0, 0],
                                                        groups, mask)

                figure(f"{name} {what} gradient", "cuDNN", lambda: captured(gradient), flops)
        for name, batch, make in networks if precision != "f32" else []:
            name = f"conv {precision} {name} b{batch}"
            if only not in name:
                continue
            net, x = last(make()), last(normal(batch, 3, 224, 224))
            with torch.no_grad():
                flops = flops_of(net, x)
            figure(name, "cuDNN", lambda: captured(run(net, x)), flops)
            figure(name, "cuDNN, torch.compile", lambda: captured(run(torch.compile(net), x)), flops)
    conv_training()


def conv_training():
    """A step of training a ResNet-50 with batch norms, by autocast, channels last: forward, backward, a step with momentum."""
    name, batch = "conv bf16 autocast resnet50 b64 training step", 64
    if only not in name:
        return
    tf32(False)
    last = torch.channels_last
    x, target = normal(batch, 3, 224, 224).to(memory_format=last), normal(batch, 1000)
    body = resnet([3, 4, 6, 3], True, True)
    net = torch.nn.Sequential(body, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(2048, 1000))
    net = net.to(GPU, memory_format=last)
    with torch.no_grad():
        flops = 3 * (flops_of(net, x) + 2.0 * batch * 2048 * 1000)

    def step(compiler):
        opt = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9, fused=True)
        model = compiler(net)

        def run():
            with torch.autocast(GPU, torch.bfloat16):
                loss = F.mse_loss(model(x), target)
            loss.backward()
            opt.step()
            opt.zero_grad(set_to_none=True)

        return run

    figure(name, "torch eager", lambda: step(lambda m: m), flops, warm=5)
    figure(name, "torch.compile, CUDA graph", lambda: captured(step(torch.compile)), flops, warm=5)


class DecoderLayer(torch.nn.Module):
    """A layer of a Llama with its caches of keys and values, for one token of each sequence."""

    def __init__(self, batch, context, width=4096, hidden=14336, heads=32, kv_heads=8, head=128):
        super().__init__()
        self.batch, self.heads, self.kv_heads, self.head = batch, heads, kv_heads, head

        def linear(rows, columns):
            return torch.nn.Parameter(normal(columns, rows, dtype=torch.bfloat16, scale=1 / math.sqrt(rows)))

        self.qkv, self.o = linear(width, (heads + 2 * kv_heads) * head), linear(heads * head, width)
        self.gate_up, self.down = linear(width, 2 * hidden), linear(hidden, width)
        self.norms = torch.nn.ParameterList(normal(width, dtype=torch.bfloat16) for _ in range(2))
        shape = batch, kv_heads, context, head
        self.register_buffer("keys", normal(*shape, dtype=torch.bfloat16))
        self.register_buffer("values", normal(*shape, dtype=torch.bfloat16))

    def forward(self, x, position, sin, cos):
        width = x.shape[-1]
        n = F.rms_norm(x, (width,), self.norms[0], 1e-6)
        h = F.linear(n, self.qkv).view(self.batch, -1, 1, self.head)
        q, k, v = h.split([self.heads, self.kv_heads, self.kv_heads], 1)

        def rotated(u):
            a, b = u.chunk(2, -1)
            return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

        self.keys.index_copy_(2, position, rotated(k))
        self.values.index_copy_(2, position, v)
        a = F.scaled_dot_product_attention(rotated(q), self.keys, self.values, enable_gqa=True)
        x = x + F.linear(a.reshape(self.batch, -1), self.o)
        gate, up = F.linear(F.rms_norm(x, (width,), self.norms[1], 1e-6), self.gate_up).chunk(2, -1)
        return x + F.linear(F.silu(gate) * up, self.down)


def decode():
    """A step of decoding with the sizes of Llama 3 8B, as CUDA graphs: attention alone, and layers."""
    from torch.nn.attention.flex_attention import flex_attention

    heads, kv_heads, head, width, hidden, layers = 32, 8, 128, 4096, 14336, 2
    backends = [("FlashAttention-2", SDPBackend.FLASH_ATTENTION), ("cuDNN", SDPBackend.CUDNN_ATTENTION)]
    if only in "copy f32 1GiB":
        x, y = normal(1 << 28), torch.empty(1 << 28, device=GPU)
        figure("copy f32 1GiB", "device copy", lambda: lambda: y.copy_(x), 8 << 28, "GB/s")
        del x, y
    for batch in [1, 32]:
        for context in [1024, 16384]:
            name, moved = f"decode attention bf16 b{batch} c{context}", 4.0 * batch * kv_heads * context * head
            if only not in name:
                continue
            q = normal(batch, heads, 1, head, dtype=torch.bfloat16)
            k, v = (normal(batch, kv_heads, context, head, dtype=torch.bfloat16) for _ in "kv")
            for peer, backend in backends:

                def attend():
                    with sdpa_kernel(backend), torch.no_grad():
                        F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

                figure(name, peer, lambda: captured(attend), moved, "GB/s")

            def flexible():
                f = torch.compile(flex_attention)
                return captured(lambda: f(q, k, v, enable_gqa=True))

            figure(name, "FlexAttention compiled", flexible, moved, "GB/s")
    for batch in [1, 32]:
        for context in [1024, 16384]:
            name = f"decode {layers} layers bf16 b{batch} c{context}"
            if only not in name:
                continue
            net = torch.nn.Sequential(*[DecoderLayer(batch, context) for _ in range(layers)])
            x = normal(batch, width, dtype=torch.bfloat16)
            position = torch.tensor([context - 1], device=GPU)
            angle = (context - 1) * 500000.0 ** (-torch.arange(0, head, 2, device=GPU) / head)
            sin, cos = angle.sin().bfloat16(), angle.cos().bfloat16()
            weights = 2.0 * width * ((2 * heads + 2 * kv_heads) * head + 3 * hidden)
            moved = layers * (weights + 4.0 * batch * kv_heads * context * head)

            def step(model, backend):
                def run():
                    y = x
                    with sdpa_kernel(backend), torch.no_grad():
                        for layer in model:
                            y = layer(y, position, sin, cos)

                return captured(run)

            for peer, backend in backends:
                compiled = [torch.compile(layer) for layer in net]
                figure(name, f"torch.compile, {peer}", lambda: step(compiled, backend), moved, "GB/s")


class Block(torch.nn.Module):
    """A transformer block with the norms before what they feed."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.o = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.f1, self.f2 = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        batch, seq, width = x.shape
        q, k, v = self.qkv(self.n1(x)).view(batch, seq, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(batch, seq, width))
        return x + self.f2(F.gelu(self.f1(self.n2(x)), approximate="tanh"))


def model():
    """What bounds a step of a whole model: the rate of a copy."""
    x, y = normal(1 << 26), torch.empty(1 << 26, device=GPU)
    for batch in [1, 32]:
        for context in [1024, 16384]:
            figure(f"model bf16 b{batch} c{context}", "device copy", lambda: lambda: y.copy_(x), 8 << 26, "GB/s")


def training():
    for layers, width, heads, batch, seq in [(12, 768, 12, 8, 1024), (4, 256, 8, 4, 128)]:
        tokens = batch * seq
        flops = 72.0 * tokens * layers * width * width + 6.0 * layers * tokens * seq * width
        for mode in ["f32", "tf32", "bf16 autocast"]:
            tf32(mode != "f32")

            def step(compiler):
                net = torch.nn.Sequential(*[Block(width, heads) for _ in range(layers)]).to(GPU)
                x, target = normal(batch, seq, width), normal(batch, seq, width)
                # The graphs of reduce-overhead hold the update too only if the optimiser can be captured.
                opt = torch.optim.AdamW(net.parameters(), lr=1e-4, weight_decay=0.01, fused=True, capturable=True)
                model = compiler(net)

                def run():
                    with torch.autocast(GPU, torch.bfloat16, enabled=mode.startswith("bf16")):
                        loss = F.mse_loss(model(x), target)
                    loss.backward()
                    opt.step()
                    opt.zero_grad(set_to_none=True)

                return run

            name = f"training step {mode} L{layers}d{width}b{batch}s{seq}"
            figure(name, "torch eager", lambda: step(lambda m: m), flops, warm=3)
            if fusec:
                figure(name, "fusec.torch", lambda: step(lambda m: torch.compile(m, backend=fusec.torch.backend)), flops, warm=6)

            def replayed(m):
                return torch.compile(m, mode="reduce-overhead")

            figure(name, "torch.compile reduce-overhead", lambda: step(replayed), flops, warm=6)
            if layers < 12:
                figure(name, "torch whole-step CUDA graph", lambda: captured(step(torch.compile)), flops, warm=6)


def captured(run):
    """A step recorded once as a CUDA graph, the update included."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(4):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


PARTS = [memory_bound, linear, shapes, attention, moe, conv, decode, layer, model, training]

if __name__ == "__main__":
    flags = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    flags.add_argument("--only", default="", metavar="TEXT", help="only workloads with TEXT in their names")
    flags.add_argument("--rival", default="", metavar="TEXT", help="only rivals with TEXT in their names")
    flags.add_argument("--prepare", action="store_true", help="fill the cache of torch.compile, and measure nothing")
    flags.add_argument("--wait", action="store_true", help="measure when standard input ends")
    flags.add_argument("--about", action="store_true", help="print the GPU and the versions as a line of JSON, and end")
    flags.add_argument("part", nargs="*", choices=[[], *(p.__name__ for p in PARTS)], help="all, if none is named")
    args = flags.parse_args()
    if args.about:
        versions = f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}"
        print(json.dumps({"device": torch.cuda.get_device_name(), "versions": versions, "gpus": torch.cuda.device_count()}))
        sys.exit()
    if args.wait:
        import torch._inductor.compile_fx  # takes seconds, and does not touch the GPU
        sys.stdin.read()
    only, rival, preparing = args.only, args.rival, args.prepare
    torch.manual_seed(0)
    for part in PARTS:
        if not args.part or part.__name__ in args.part:
            part()
