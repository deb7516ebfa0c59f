"""What the Python rivals share: the workloads' numbers, the clock, the checksum and the one line that is printed.

The numbers are those of the Go package fusec/cmd/peers/workload; a rival whose numbers differ fails its checksum.
"""
import json
import math
import sys
import time

import numpy as np

import conv_networks

B, S, D, H, F = 4, 128, 256, 8, 1024  # the transformer block: batch, sequence, width, heads, feed-forward width
EPS = 1e-5


def gen(seed, scale, *dims):
    """Tensor number `seed`: every step rounded to float32, in this order."""
    i = np.arange(math.prod(dims), dtype=np.int64)
    u = ((i * 7919 + seed * 104729 + 13) % 1000).astype(np.float32)
    x = (u / np.float32(1000) - np.float32(0.5)) * np.float32(scale)
    return np.ascontiguousarray(x.reshape(dims))


def gemm_shape(name):
    """(m, k, n) of a gemm workload, None for the others."""
    if not name.startswith("gemm-"):
        return None
    d = [int(x) for x in name[len("gemm-"):].split("x")]
    return tuple(d * 3) if len(d) == 1 else tuple(d)


AH, AD = 8, 64  # the heads of the attention workloads, side by side in a token's row, and their depth


def attention_shape(name):
    """(tokens, causal) of an attention workload, None for the others."""
    d = name.split("-")
    return (int(d[1]), len(d) > 2) if d[0] == "attention" else None


def trains(name):
    """Whether the workload is forward and backward: the loss is the mean of (y - target)², target the last tensor.

    The result is the loss and its gradients for the parameters, in their order, without the running statistics of batch
    normalisations, which take the batch's own; see flat.
    """
    return name.removesuffix("-bf16").endswith("-train")


def rounds(name):
    """Whether contractions of the workload may round their operands to bf16."""
    return name.endswith("-bf16")


def flat(parts):
    """Numbers of several arrays, one after another, each row-major."""
    return np.concatenate([np.asarray(p, np.float32).ravel() for p in parts])


def tensors(name):
    """The workload's tensors by name, the input first, the rest parameters."""
    name = name.removesuffix("-bf16")
    net = conv_networks.net(name)
    if net:
        return net.tensors
    a = attention_shape(name)
    if a:
        return {x: gen(i + 1, 4, a[0], AH * AD) for i, x in enumerate("qkv")}
    if trains(name):
        base = name[:-len("-train")]
        t, net = tensors(base), conv_networks.net(base)
        shape = net.shapes[-1] if net else (64, 10) if name == "mlp-train" else (B * S, D)
        return {**t, "target": gen(99, 2, *shape)}
    g = gemm_shape(name)
    if g:
        m, k, n = g
        return {"a": gen(1, 1, m, k), "b": gen(2, 1, k, n)}
    if name in ("linear-plain", "linear-gelu"):
        t = {"x": gen(1, 1, 512, 768), "w": gen(2, 0.1, 768, 3072)}
        if name == "linear-gelu":
            t["b"] = gen(3, 0.1, 3072)
        return t
    if name == "mlp":
        return {"x": gen(1, 2, 64, 784),
                "w1": gen(2, 0.1, 784, 512), "b1": gen(3, 0.1, 512),
                "w2": gen(4, 0.1, 512, 512), "b2": gen(5, 0.1, 512),
                "w3": gen(6, 0.1, 512, 10), "b3": gen(7, 0.1, 10)}
    if name == "block":
        one = np.ones(D, np.float32)
        return {"x": gen(1, 2, B * S, D),
                "wqkv": gen(2, 0.1, D, 3 * D), "bqkv": gen(3, 0.1, 3 * D),
                "wo": gen(4, 0.1, D, D), "bo": gen(5, 0.1, D),
                "gamma1": one, "beta1": gen(6, 0.1, D),
                "w1": gen(7, 0.1, D, F), "b1": gen(8, 0.1, F),
                "w2": gen(9, 0.1, F, D), "b2": gen(10, 0.1, D),
                "gamma2": one.copy(), "beta2": gen(11, 0.1, D)}
    raise Unsupported("unknown workload " + name)


def flops(name):
    """Multiplications and additions of the contractions alone."""
    name = name.removesuffix("-bf16")
    net = conv_networks.net(name)
    if net:
        return net.flops
    a = attention_shape(name)
    if a:
        return (2 * a[0] * (a[0] + 1) if a[1] else 4 * a[0] * a[0]) * AH * AD
    if name == "conv-resnet18-b8-train":
        return 3 * flops("conv-resnet18-b8") - 8 * 2 * 112 * 112 * 64 * 3 * 7 * 7
    if name == "mlp-train":
        return 3 * flops("mlp") - 2 * 64 * 784 * 512
    if name == "block-train":
        return 3 * flops("block") - 2 * B * S * D * 3 * D
    g = gemm_shape(name)
    if g:
        return 2 * g[0] * g[1] * g[2]
    if name in ("linear-plain", "linear-gelu"):
        return 2 * 512 * 768 * 3072
    if name == "mlp":
        return 2 * 64 * (784 * 512 + 512 * 512 + 512 * 10)
    r = B * S
    return 2 * r * D * 3 * D + 4 * B * S * S * D + 2 * r * D * D + 4 * r * D * F


class Unsupported(Exception):
    """This rival does not do that workload; the message says why."""


def checksum(y):
    """(weighted sum, sum of magnitudes) in float64; the weight depends on the place, so a permutation shows."""
    y = np.asarray(y, np.float64).ravel()
    w = ((np.arange(y.size, dtype=np.int64) * 31 + 7) % 101) / 101.0
    return float(y @ w), float(np.abs(y).sum())


def peak_mb():
    with open("/proc/self/status") as f:
        for line in f:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return 0.0


def main(peer, version, build):
    """Runs `PROGRAM workload threads seconds`.

    build(workload, threads) gives {variant: prepare}; prepare() gives (run, result): run() does the whole forward pass
    and returns when it is done, result() is its output as a numpy array. With several variants each is tried briefly
    and the fastest measured.
    """
    name, threads, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    rec = {"peer": peer, "version": version, "workload": name, "threads": threads}
    try:
        variants = build(name, threads)
        best = None
        for variant, prepare in variants.items():
            t0 = time.perf_counter()
            run, result = prepare()
            run()
            first = time.perf_counter() - t0
            y = np.array(result())
            trial = times(run, 0.2, 3)[0] if len(variants) > 1 else 0
            if best is None or trial < best[0]:
                best = (trial, variant, run, first, y)
        _, variant, run, first, y = best
        times(run, 0.2, 3)
        t = times(run, seconds, 9)
        rec["median_ms"] = t[len(t) // 2] * 1e3
        rec["best_ms"] = t[0] * 1e3
        rec["gflops"] = flops(name) / t[len(t) // 2] / 1e9
        rec["reps"] = len(t)
        rec["first_ms"] = first * 1e3
        rec["rss_mb"] = peak_mb()
        rec["checksum"], rec["abs_sum"] = checksum(y)
        rec["variant"] = variant
    except Unsupported as e:
        rec["unsupported"] = str(e)
    except Exception as e:  # the rival's own failure is a result too
        rec["error"] = (type(e).__name__ + ": " + " ".join(str(e).split()))[:400]
    print("\n" + json.dumps(rec), flush=True)


def times(run, seconds, least):
    """Sorted run times: at least `least` runs and `seconds` seconds, at most 20000 runs."""
    t, t0 = [], time.perf_counter()
    while len(t) < 20000:
        a = time.perf_counter()
        run()
        b = time.perf_counter()
        t.append(b - a)
        if len(t) >= least and b - t0 >= seconds:
            break
    return sorted(t)
