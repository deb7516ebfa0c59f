"""JAX on the CPU, under jax.jit: PROGRAM workload threads seconds.

XLA's CPU client has no call that sets its threads: it takes the environment variable NPROC, and is pinned to one core
besides when one thread is asked for. More threads than the process may use are not possible.
"""
import math
import os
import sys

threads = int(sys.argv[2])
os.environ["NPROC"] = str(threads)
os.environ["JAX_PLATFORMS"] = "cpu"
cores = sorted(os.sched_getaffinity(0))
os.sched_setaffinity(0, cores[-threads:])

import jax
import jax.numpy as jnp
import numpy as np

import common
from common import B, D, EPS, H, S


def gelu(x):
    return jax.nn.gelu(x, approximate=True)


def norm(x, gamma, beta):
    m = jnp.mean(x, -1, keepdims=True)
    v = jnp.mean(jnp.square(x - m), -1, keepdims=True)
    return (x - m) * jax.lax.rsqrt(v + EPS) * gamma + beta


def mlp(x, w1, b1, w2, b2, w3, b3):
    return jax.nn.relu(jax.nn.relu(x @ w1 + b1) @ w2 + b2) @ w3 + b3


def block(x, wqkv, bqkv, wo, bo, gamma1, beta1, w1, b1, w2, b2, gamma2, beta2):
    q, k, v = (x @ wqkv + bqkv).reshape(B, S, 3, H, D // H).transpose(2, 0, 3, 1, 4)
    p = jax.nn.softmax(q @ k.swapaxes(-1, -2) * (1 / math.sqrt(D // H)), -1)
    o = (p @ v).transpose(0, 2, 1, 3).reshape(B * S, D)
    y = norm(x + o @ wo + bo, gamma1, beta1)
    return norm(y + gelu(y @ w1 + b1) @ w2 + b2, gamma2, beta2)


def build(name, threads):
    if common.rounds(name):
        raise common.Unsupported("computes in f32 here")
    if threads > len(cores):
        raise common.Unsupported("%d threads asked for, %d cores to use" % (threads, len(cores)))
    a = common.attention_shape(name)
    if a and a[0] > 4096:
        raise common.Unsupported("holds all scores: %d GB" % (4 * common.AH * a[0] ** 2 >> 30))
    if common.rounds(name):
        raise common.Unsupported("is measured in f32")
    t = [jnp.asarray(v) for v in common.tensors(name).values()]
    f = {"mlp": mlp, "block": block, "linear-gelu": lambda x, w, b: gelu(x @ w + b)}.get(
        name.removesuffix("-train"), lambda a, b: a @ b)
    train = common.trains(name)
    if train:
        loss = lambda x, target, params: jnp.mean(jnp.square(forward(x, *params) - target))
        forward, f = f, lambda x, *rest: jax.value_and_grad(loss, argnums=2)(x, rest[-1], rest[:-1])

    if a:
        n, causal = a
        heads = lambda x: x.reshape(1, n, common.AH, common.AD)
        f = lambda q, k, v: jax.nn.dot_product_attention(heads(q), heads(k), heads(v), is_causal=causal).reshape(n, -1)

    def prepare():
        g, kept = jax.jit(f), [None]

        def once():
            kept[0] = jax.block_until_ready(g(*t))

        if train:
            return once, lambda: common.flat(jax.tree.leaves(kept[0]))
        return once, lambda: np.asarray(kept[0])

    return {"jit": prepare}


common.main("jax", jax.__version__, build)
