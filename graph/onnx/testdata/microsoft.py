"""Write microsoft/cases.onnx, beside this script: nodes of operators that ONNX Runtime adds, with operands and what ONNX
Runtime computes of them. It needs the packages onnx and onnxruntime.

Each node is a case. Its operands and its results are initializers of the names that it has for them. The operands that
are inputs of the graph are those that a model would have as inputs."""
import os

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper as h
from onnx import numpy_helper

HERE = os.path.dirname(os.path.abspath(__file__))
DOMAIN = "com.microsoft"
IMPORTS = [h.make_opsetid("", 21), h.make_opsetid(DOMAIN, 1)]
rng = np.random.default_rng(1)
nodes, inputs, tensors = [], [], []


def real(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def info(name, a):
    return h.make_tensor_value_info(name, h.np_dtype_to_tensor_dtype(a.dtype), a.shape)


class W:
    """An operand that is a weight."""

    def __init__(self, a):
        self.a = a


def case(name, op, operands, results=1, domain=DOMAIN, absent=(), only=None, like=None, **attrs):
    """A node with operands, of which None stands for one that is left out, as do the indices absent for results. The results
    that are compared are those of indices only. Where
    ONNX Runtime does not have the form of the operands on the CPU, like are others for the same results."""
    if like:
        had = len(inputs), len(tensors)
        case(name, op, like, results, domain, absent, only, **attrs)
        nodes.pop()
        del inputs[had[0]:], tensors[had[1]:-results]
    names, feeds, weights, declared = [], {}, [], []
    for i, a in enumerate(operands):
        if a is None:
            names.append("")
            continue
        n = f"{name}/{i}"
        names.append(n)
        if isinstance(a, W):
            weights.append(numpy_helper.from_array(a.a, n))
        else:
            a = np.asarray(a)
            feeds[n] = a
            declared.append(info(n, a))
    outs = ["" if i in absent else f"{name}/result{i}" for i in range(results)]
    node = h.make_node(op, names, outs, name, domain=domain, **attrs)
    want = [o for i, o in enumerate(outs) if o and (only is None or i in only)]
    nodes.append(h.make_node(op, names, [o if o in want else "" for o in outs], name, domain=domain, **attrs))
    inputs.extend(declared)
    tensors.extend(weights)
    tensors.extend(numpy_helper.from_array(a, n) for n, a in feeds.items())
    if like:
        return
    graph = h.make_graph([node], name, declared, [h.make_empty_tensor_value_info(o) for o in outs if o], weights)
    session = ort.InferenceSession(h.make_model(graph, ir_version=10, opset_imports=IMPORTS).SerializeToString(), providers=["CPUExecutionProvider"])
    got = session.run(want, feeds)
    tensors.extend(numpy_helper.from_array(a, n) for n, a in zip(want, got))


def elementwise():
    x = real(2, 3, 5)
    case("gelu", "Gelu", [x])
    case("bias gelu", "BiasGelu", [x, W(real(5))])
    case("fast gelu", "FastGelu", [x])
    case("fast gelu with bias", "FastGelu", [x, W(real(5))])
    case("quick gelu", "QuickGelu", [x], alpha=1.25)


def products():
    case("matmul", "FusedMatMul", [real(2, 3, 4), real(2, 5, 4)], alpha=0.5, transB=1)
    case("matmul of vectors", "FusedMatMul", [real(4), real(4)], alpha=0.5)
    case("matmul, transposed", "FusedMatMul", [real(4, 3), W(real(5, 4))], transA=1, transB=1)
    case("matmul, batches", "FusedMatMul", [real(3, 2, 4), real(4, 2, 5)], transBatchA=1, transBatchB=1)
    case("gemm", "FusedGemm", [real(3, 4), W(real(5, 4)), W(real(5))], transB=1, alpha=0.5, beta=2.0, activation="LeakyRelu", activation_alpha=0.125)
    for act, params in {"Relu": None, "Clip": [-0.5, 1.5], "HardSigmoid": [0.25, 0.5], "LeakyRelu": [0.125], "Tanh": None, "Sigmoid": None}.items():
        more = {"activation_params": params} if params else {}
        case("conv " + act, "FusedConv", [real(1, 2, 4, 5), W(real(3, 2, 3, 3)), W(real(3))], activation=act, pads=[1, 1, 1, 1], **more)
    case("conv with sum", "FusedConv", [real(1, 2, 4, 5), W(real(3, 2, 3, 3)), W(real(3)), real(1, 3, 4, 5)], activation="Relu", pads=[1, 1, 1, 1])
    for bits, k, zero in [(4, 40, None), (4, 64, "packed"), (4, 33, "real"), (8, 32, "packed"), (8, 48, None)]:
        n, block = 5, 16
        blocks = -(-k // block)
        ops = [real(2, 3, k), W(rng.integers(0, 256, (n, blocks, block * bits // 8)).astype(np.uint8)), W(np.abs(real(n, blocks)) / 8)]
        if zero == "packed":
            ops.append(W(rng.integers(0, 256, (n, (blocks * bits + 7) // 8)).astype(np.uint8)))
        if zero == "real":
            ops.append(W(real(n, blocks) + 8))
        case(f"{bits} bits, {k}, {zero} zero points", "MatMulNBits", ops, K=k, N=n, bits=bits, block_size=block)
    for bits, k, zero in [(8, 40, "packed"), (4, 40, "packed"), (2, 32, None)]:  # known when the model is read, in blocks that are not whole
        n, block = 5, 16
        blocks = -(-k // block)
        ops = [real(2, 3, k), W(rng.integers(0, 256, (n, blocks, block * bits // 8)).astype(np.uint8)), W(np.abs(real(n, blocks)) / 8)]
        if zero:
            ops.append(W(rng.integers(0, 256, (n, (blocks * bits + 7) // 8)).astype(np.uint8)))
        case(f"{bits} bits, {k}, {zero} zero points, uneven", "MatMulNBits", ops, K=k, N=n, bits=bits, block_size=block)
    case("4 bits with bias", "MatMulNBits", [real(1, 32), W(rng.integers(0, 256, (3, 1, 16)).astype(np.uint8)), W(np.abs(real(3, 1))), None, None, W(real(3))],
         K=32, N=3, bits=4, block_size=32)


def norms():
    x, g, b = real(2, 3, 6), W(real(6)), W(real(6))
    case("skip norm", "SkipLayerNormalization", [x, real(2, 3, 6), g, b, W(real(6))], 4, absent=[1, 2], epsilon=1e-5)
    case("skip norm, no batch", "SkipLayerNormalization", [x, real(3, 6), g])
    case("skip RMS norm", "SkipSimplifiedLayerNormalization", [x, real(2, 3, 6), g, W(real(6))], 4, absent=[1, 2], epsilon=1e-5)
    case("RMS norm", "SimplifiedLayerNormalization", [x, g], domain="", axis=-1, epsilon=1e-5)
    ids = rng.integers(0, 9, (2, 3)).astype(np.int32)
    seg = rng.integers(0, 2, (2, 3)).astype(np.int32)
    tables = [W(real(9, 6)), W(real(5, 6)), W(real(2, 6))]
    mask = np.array([[1, 1, 1], [1, 1, 0]], np.int32)
    case("embedding", "EmbedLayerNormalization", [ids, seg, *tables, g, b, mask], 3, epsilon=1e-5)
    case("embedding, positions", "EmbedLayerNormalization", [ids, None, *tables[:2], None, g, b, None, np.array([[2, 3, 1], [0, 1, 4]], np.int32)], 3, absent=[1])


def tables(n, half):
    angle = np.arange(n)[:, None] * 10000.0 ** (-np.arange(half) / half)
    return [W(np.cos(angle).astype(np.float32)), W(np.sin(angle).astype(np.float32))]


def rotary():
    cs = tables(12, 2)
    at = np.array([[3, 4, 5], [0, 1, 2]])
    case("rotary", "RotaryEmbedding", [real(2, 3, 8), at, *cs])
    case("rotary, interleaved", "RotaryEmbedding", [real(2, 3, 8), at, *cs], interleaved=1)
    case("rotary, heads", "RotaryEmbedding", [real(2, 2, 3, 4), np.array([3]), *cs])
    case("rotary, a part", "RotaryEmbedding", [real(2, 3, 12), at, *cs], num_heads=2, rotary_embedding_dim=4)


def attention():
    x, w, b = real(2, 3, 8), W(real(8, 24)), W(real(24))
    case("attention", "Attention", [x, w, b], num_heads=2)
    case("attention, causal", "Attention", [x, w, b], num_heads=2, unidirectional=1, scale=0.25)
    case("attention, lengths", "Attention", [x, w, b, np.array([3, 2], np.int32)], num_heads=2)
    case("attention, ends and starts", "Attention", [x, w, b, np.array([3, 2, 1, 0], np.int32)], num_heads=2)
    case("attention, mask", "Attention", [x, w, b, np.array([[1, 0, 1], [1, 1, 0]], np.int32)], num_heads=2, mask_filter_value=-3.0)
    case("attention, mask of queries", "Attention", [x, w, b, rng.integers(0, 2, (2, 3, 3)).astype(np.int32)], num_heads=2)
    case("attention, past", "Attention", [x, w, b, np.array([[1, 0, 1, 1, 1], [1, 1, 0, 1, 1]], np.int32), real(2, 2, 2, 2, 4)], 2,
         num_heads=2, unidirectional=1)
    case("attention, sum", "Attention", [x, w, b, None, None, real(1, 2, 3, 3)], num_heads=2)
    case("attention, other values", "Attention", [x, W(real(8, 22)), W(real(22))], num_heads=2, qkv_hidden_sizes=[8, 8, 6])

    q, k, v = real(2, 3, 8), real(2, 5, 8), real(2, 5, 12)
    case("heads", "MultiHeadAttention", [q, k, v, W(real(28))], num_heads=2)
    case("heads, lengths", "MultiHeadAttention", [q, k, v, None, np.array([5, 2], np.int32)], num_heads=2)
    case("heads, mask", "MultiHeadAttention", [q, k, v, None, rng.integers(0, 2, (2, 5)).astype(np.int32), real(1, 2, 3, 5)], num_heads=2)
    p = real(2, 3, 2, 3, 4)
    case("heads, packed", "MultiHeadAttention", [p], num_heads=2, scale=0.25, like=[p[:, :, :, i].reshape(2, 3, 8) for i in range(3)])
    case("heads, causal", "MultiHeadAttention", [q, q, real(2, 3, 8)], num_heads=2, unidirectional=1)
    p = real(2, 5, 2, 2, 4)
    case("heads, keys and values packed", "MultiHeadAttention", [q, p], num_heads=2, like=[q, *(p[:, :, :, i].reshape(2, 5, 8) for i in range(2))])
    case("heads, across", "MultiHeadAttention", [q, real(2, 2, 5, 4), real(2, 2, 5, 4)], num_heads=2)
    case("heads, past", "MultiHeadAttention", [q, real(2, 3, 8), real(2, 3, 8), None, None, None, real(2, 2, 2, 4), real(2, 2, 2, 4)], 3, num_heads=2)


def groups():
    total = lambda n: W(np.array(n, np.int32))
    ends = lambda *n: np.array(n, np.int32) - 1
    heads = dict(num_heads=4, kv_num_heads=2)
    q, k, v = lambda s: real(2, s, 64), lambda s: real(2, s, 32), lambda s: real(2, s, 32)
    past = lambda p: [real(2, 2, p, 16), real(2, 2, p, 16)]
    cs = tables(12, 8)
    case("groups", "GroupQueryAttention", [q(3), k(3), v(3), None, None, ends(3, 3), total(3)], 3, **heads)
    case("groups, packed", "GroupQueryAttention", [real(2, 3, 128), None, None, None, None, ends(3, 3), total(3), *cs], 3, do_rotary=1, **heads)
    case("groups, token", "GroupQueryAttention", [q(1), k(1), v(1), *past(5), ends(6, 4), total(6), *cs], 3, only=[0], do_rotary=1, **heads)
    case("groups, equal lengths", "GroupQueryAttention", [q(1), k(1), v(1), *past(5), ends(6, 6), total(6), *cs], 3, do_rotary=1, rotary_interleaved=1, **heads)
    case("groups, one sentence", "GroupQueryAttention", [real(1, 2, 64), real(1, 2, 32), real(1, 2, 32), real(1, 2, 5, 16), real(1, 2, 5, 16), ends(7), total(7), *cs], 3, do_rotary=1, **heads)
    case("groups, window", "GroupQueryAttention", [q(6), k(6), v(6), None, None, ends(6, 6), total(6)], 3, local_window_size=2, **heads)
    case("groups, window of a token", "GroupQueryAttention", [q(1), k(1), v(1), *past(5), ends(6, 4), total(6)], 3, only=[0], local_window_size=3, **heads)
    case("groups, cap", "GroupQueryAttention", [q(3), k(3), v(3), None, None, ends(3, 3), total(3)], 3, only=[0], softcap=2.0, **heads)
    case("groups, smooth", "GroupQueryAttention", [q(3), k(3), v(3), None, None, ends(3, 3), total(3)], 3, only=[0], smooth_softmax=1, **heads)
    case("groups, positions and sum", "GroupQueryAttention", [q(3), k(3), v(3), None, None, ends(3, 3), total(3), *cs, np.array([[2, 3, 4], [2, 3, 4]]), real(2, 4, 3, 3)],
         3, do_rotary=1, **heads)
    case("groups, sink", "GroupQueryAttention", [q(3), k(3), v(3), None, None, ends(3, 3), total(3), None, None, None, None, W(real(4))], 3, only=[0], **heads)


def quantised():
    u8 = lambda *shape: rng.integers(0, 256, shape).astype(np.uint8)
    i8 = lambda *shape: rng.integers(-127, 128, shape).astype(np.int8)
    f = lambda v: W(np.float32(v))
    z = lambda v: W(np.uint8(v))
    y = [f(0.03), z(120)]
    x = u8(2, 3, 5)
    case("quantize", "QuantizeLinear", [real(2, 3, 5), f(0.02), z(100)])
    case("quantize, channels", "QuantizeLinear", [real(2, 3, 5), W(np.float32([0.01, 0.02, 0.04])), W(np.int8([1, 0, -3]))], axis=1)
    case("dequantize", "DequantizeLinear", [x, f(0.02), z(100)])
    case("dequantize, channels", "DequantizeLinear", [i8(2, 3, 5), W(np.float32([0.01, 0.02, 0.04])), W(np.int8([1, 0, -3]))], axis=1)
    case("add of quantised", "QLinearAdd", [x, f(0.01), z(90), u8(5), f(0.02), z(130), *y])
    case("product of quantised", "QLinearMul", [x, f(0.01), z(90), W(u8(3, 1)), f(0.02), z(130), *y])
    case("sigmoid of quantised", "QLinearSigmoid", [x, f(0.05), z(128), f(1 / 256), z(0)])
    case("leaky ReLU of quantised", "QLinearLeakyRelu", [i8(2, 9), f(0.05), W(np.int8(3)), f(0.03), W(np.int8(-20))], alpha=0.2)
    image = u8(2, 3, 5, 6)
    case("mean of quantised images", "QLinearGlobalAveragePool", [image, f(0.02), z(100), f(0.004), z(90)])
    case("means of windows of quantised", "QLinearAveragePool", [image, f(0.02), z(100), f(0.01), z(90)], kernel_shape=[3, 2], pads=[1, 0, 1, 1], strides=[2, 1])
    case("means of windows of quantised, with padding", "QLinearAveragePool", [image, f(0.02), z(100), f(0.01), z(90)], kernel_shape=[3, 2], pads=[1, 0, 1, 1],
         count_include_pad=1, ceil_mode=1)
    case("softmax of quantised", "QLinearSoftmax", [x, f(0.05), z(128), f(1 / 256), z(0)], axis=-1, opset=13)
    case("choice of quantised", "QLinearWhere", [rng.integers(0, 2, (2, 3, 5)).astype(bool), u8(2, 3, 5), f(0.01), z(90), u8(1, 5), f(0.02), z(130), *y])
    case("join of quantised", "QLinearConcat", [y[0], y[1], u8(2, 3), f(0.01), z(90), u8(2, 2), f(0.02), z(130)], axis=1)
    w, ws, wz = W(i8(7, 6)), W(np.abs(real(6)) / 50), W(np.zeros(6, np.int8))
    a, given = u8(4, 7), [f(0.02), z(100)]
    case("gemm of quantised", "QGemm", [a, *given, w, ws, wz, W(rng.integers(-9999, 9999, 6).astype(np.int32)), f(0.1), z(128)], alpha=0.5)
    case("gemm of quantised to numbers", "QGemm", [u8(7, 4), *given, W(i8(6, 7)), f(0.03), W(np.int8(0)), None], transA=1, transB=1)
    case("gemm of quantised, zero points", "QGemm", [a, *given, W(u8(7, 6)), f(0.03), z(77)])
    case("product to numbers", "MatMulIntegerToFloat", [u8(2, 4, 7), w, f(0.02), ws, z(100), wz, W(real(6))])
    case("product to numbers, one zero point", "MatMulIntegerToFloat", [a, W(u8(7, 6)), f(0.02), f(0.03), z(100), z(131)])
    case("product, quantised first", "DynamicQuantizeMatMul", [real(2, 4, 7), w, ws, wz, W(real(6))])
    case("product, quantised first, no zero point", "DynamicQuantizeMatMul", [real(4, 7), w, f(0.02)])
    b, lengths = W(real(24)), np.array([3, 2], np.int32)
    case("attention of quantised", "QAttention", [u8(2, 3, 8), W(i8(8, 24)), b, f(0.01), f(0.01), lengths, z(120), W(np.int8(0))], num_heads=2)
    case("attention of quantised, columns", "QAttention", [u8(2, 3, 8), W(i8(8, 24)), b, f(0.01), W(np.abs(real(24)) / 50), None, z(120), W(np.zeros(24, np.int8))],
         num_heads=2, unidirectional=1)
    ids, seg = rng.integers(0, 9, (2, 3)).astype(np.int32), rng.integers(0, 2, (2, 3)).astype(np.int32)
    mask = np.array([[1, 1, 1], [1, 1, 0]], np.int32)
    scales, zeros = [f(v) for v in (0.01, 0.02, 0.01, 0.02, 0.03)], [z(v) for v in (100, 120, 130, 90, 128)]
    case("embedding of quantised", "QEmbedLayerNormalization",
         [ids, seg, W(u8(9, 8)), W(u8(5, 8)), W(u8(2, 8)), W(u8(8)), W(u8(8)), mask, *scales, *zeros], 2, epsilon=1e-5)
    # ONNX Runtime rounds states, too: to 8 bits.
    case("LSTM of quantised", "DynamicQuantizeLSTM", [real(4, 2, 3), W(i8(1, 3, 20)), W(i8(1, 5, 20)), W(real(1, 40)), None, None, None, None,
         W(np.float32([0.004])), W(np.int8([0])), W(np.float32([0.004])), W(np.int8([0]))], 3, hidden_size=5)


def main():
    for part in (elementwise, products, norms, rotary, attention, groups, quantised):
        part()
    graph = h.make_graph(nodes, "cases", inputs, [], tensors)
    folder = os.path.join(HERE, "microsoft")
    os.makedirs(folder, exist_ok=True)
    onnx.save(h.make_model(graph, ir_version=10, opset_imports=IMPORTS), os.path.join(folder, "cases.onnx"))


main()
