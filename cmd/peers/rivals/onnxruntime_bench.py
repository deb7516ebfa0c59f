"""ONNX Runtime's CPU provider: PROGRAM workload threads seconds.

PEER=onnxruntime      weights, and the second operand of a gemm, are constants of the model: packed once
PEER=onnxruntime-varb both operands of a gemm are inputs
Attention is measured as MultiHeadAttention, causal attention as GroupQueryAttention, too; the faster counts.
The block and linear-gelu are measured as plain ONNX operators with all graph optimisations and with Microsoft's
contributed operators; the faster counts.
"""
import math
import os

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

import common
import conv_networks
from common import B, D, EPS, H, S

MS = "com.microsoft"


class Graph:
    """A small ONNX model under construction."""

    def __init__(self):
        self.nodes, self.init, self.inputs, self.count = [], [], [], 0

    def op(self, kind, args, outs=1, domain="", **attrs):
        names = []
        for _ in range(outs):
            self.count += 1
            names.append("t%d" % self.count)
        self.nodes.append(helper.make_node(kind, args, names, domain=domain, **attrs))
        return names[0] if outs == 1 else names

    def const(self, value):
        self.count += 1
        name = "c%d" % self.count
        self.init.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def input(self, name, shape):
        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        return name

    def session(self, out, shape, threads):
        self.nodes.append(helper.make_node("Identity", [out], ["y"]))
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)
        graph = helper.make_graph(self.nodes, "g", self.inputs, [y], self.init)
        opset = [helper.make_opsetid("", 21), helper.make_opsetid(MS, 1)]
        model = helper.make_model(graph, opset_imports=opset, ir_version=10)
        o = ort.SessionOptions()
        o.intra_op_num_threads = threads
        o.inter_op_num_threads = 1
        o.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
        o.log_severity_level = 3
        return ort.InferenceSession(model.SerializeToString(), o, providers=["CPUExecutionProvider"])


def gemm(t, constant):
    g = Graph()
    a = g.input("a", t["a"].shape)
    b = g.const(t["b"]) if constant else g.input("b", t["b"].shape)
    return g, g.op("MatMul", [a, b]), (t["a"].shape[0], t["b"].shape[1])


def linear(t, contrib):
    g = Graph()
    y = g.op("MatMul", [g.input("x", t["x"].shape), g.const(t["w"])])
    if "b" in t and contrib:
        y = g.op("FastGelu", [y, g.const(t["b"])], domain=MS)
    elif "b" in t:
        y = g.op("Gelu", [g.op("Add", [y, g.const(t["b"])])], approximate="tanh")
    return g, y, (512, 3072)


def mlp(t):
    g = Graph()
    y = g.input("x", t["x"].shape)
    for i in "123":
        y = g.op("Add", [g.op("MatMul", [y, g.const(t["w" + i])]), g.const(t["b" + i])])
        if i != "3":
            y = g.op("Relu", [y])
    return g, y, (64, 10)


def block(t, kind):
    g = Graph()
    x = g.input("x", t["x"].shape)
    c = {k: g.const(v) for k, v in t.items() if k != "x"}
    lin = lambda v, w, b: g.op("Add", [g.op("MatMul", [v, c[w]]), c[b]])
    ints = lambda *v: g.const(np.array(v, np.int64))
    if kind == "ops":
        qkv = g.op("Reshape", [lin(x, "wqkv", "bqkv"), ints(B, S, 3, H, D // H)])
        qkv = g.op("Transpose", [qkv], perm=[2, 0, 3, 1, 4])
        q, k, v = [g.op("Squeeze", [p, ints(0)]) for p in g.op("Split", [qkv, ints(1, 1, 1)], 3, axis=0)]
        s = g.op("MatMul", [q, g.op("Transpose", [k], perm=[0, 1, 3, 2])])
        s = g.op("Mul", [s, g.const(np.float32(1 / math.sqrt(D // H)))])
        o = g.op("MatMul", [g.op("Softmax", [s], axis=-1), v])
        o = g.op("Reshape", [g.op("Transpose", [o], perm=[0, 2, 1, 3]), ints(B * S, D)])
        y = g.op("Add", [x, lin(o, "wo", "bo")])
        y = g.op("LayerNormalization", [y, c["gamma1"], c["beta1"]], axis=-1, epsilon=EPS)
        z = g.op("Gelu", [lin(y, "w1", "b1")], approximate="tanh")
        z = g.op("Add", [y, lin(z, "w2", "b2")])
        return g, g.op("LayerNormalization", [z, c["gamma2"], c["beta2"]], axis=-1, epsilon=EPS), (B * S, D)
    if kind == "contrib":
        o = g.op("Attention", [g.op("Reshape", [x, ints(B, S, D)]), c["wqkv"], c["bqkv"]], domain=MS, num_heads=H)
    else:
        qkv = g.op("Reshape", [lin(x, "wqkv", "bqkv"), ints(B, S, 3 * D)])
        qkv = g.op("Split", [qkv, ints(D, D, D)], 3, axis=-1)
        o = g.op("MultiHeadAttention", qkv, domain=MS, num_heads=H)
    o = g.op("MatMul", [g.op("Reshape", [o, ints(B * S, D)]), c["wo"]])
    y = g.op("SkipLayerNormalization", [x, o, c["gamma1"], c["beta1"], c["bo"]], domain=MS, epsilon=EPS)
    z = g.op("FastGelu", [g.op("MatMul", [y, c["w1"]]), c["b1"]], domain=MS)
    z = g.op("MatMul", [z, c["w2"]])
    z = g.op("SkipLayerNormalization", [y, z, c["gamma2"], c["beta2"], c["b2"]], domain=MS, epsilon=EPS)
    return g, z, (B * S, D)


def attention(t, causal, kind):
    g, width = Graph(), common.AH * common.AD
    n = len(t["q"])
    rows = [g.op("Reshape", [g.input(k, t[k].shape), g.const(np.array([1, n, width], np.int64))]) for k in "qkv"]
    scale = 1 / math.sqrt(common.AD)
    if kind == "gqa":
        past = [g.const(np.zeros((1, common.AH, 0, common.AD), np.float32)) for _ in "kv"]
        lengths = [g.const(np.array([n - 1], np.int32)), g.const(np.array(n, np.int32))]
        y = g.op("GroupQueryAttention", rows + past + lengths, 3, domain=MS, num_heads=common.AH,
                 kv_num_heads=common.AH, scale=scale)[0]
    else:
        y = g.op("MultiHeadAttention", rows, domain=MS, num_heads=common.AH, scale=scale, unidirectional=int(causal))
    return g, g.op("Reshape", [y, g.const(np.array([n, width], np.int64))]), (n, width)


def convolutions(net):
    """A network of convolutions as exporters write it: batch norms and activations are nodes of their own."""
    g = Graph()
    c = {k: g.const(v) for k, v in net.tensors.items() if k != "x"}
    values = [g.input("x", net.tensors["x"].shape)]
    for a in net.layers:
        args, w = [values[i] for i in a["args"]], [c[k] for k in a.get("tensors", [])]
        window = {}
        if "kernel" in a:
            window = dict(kernel_shape=[a["kernel"]] * 2, strides=[a["stride"]] * 2, pads=[a["pad"]] * 4)
        kind = a["kind"]
        if kind == "conv":
            y = g.op("Conv", args + w, group=a["groups"], **window)
        elif kind == "norm":
            y = g.op("BatchNormalization", args + w, epsilon=conv_networks.EPS)
        elif kind == "relu6":
            y = g.op("Clip", args + [g.const(np.float32(0)), g.const(np.float32(6))])
        elif kind == "silu":
            y = g.op("Mul", args + [g.op("Sigmoid", args)])
        elif kind == "concat":
            y = g.op("Concat", args, axis=a["axis"])
        elif kind == "upsample":
            y = g.op("Resize", args + ["", g.const(np.array([1, 1, 2, 2], np.float32))], mode="nearest",
                     coordinate_transformation_mode="asymmetric", nearest_mode="floor")
        elif kind == "flat":
            y = g.op("Reshape", args + [g.const(np.array(a["shape"], np.int64))])
        elif kind == "linear":
            y = g.op("Gemm", [g.op("Flatten", args)] + w)
        else:
            y = g.op({"relu": "Relu", "sigmoid": "Sigmoid", "add": "Add", "maxpool": "MaxPool",
                      "mean": "GlobalAveragePool"}[kind], args, **window)
        values.append(y)
    shape = net.layers[-1]["shape"]
    return g, y, shape[:2] if kind == "linear" else shape


def prepared(make, threads, t):
    def prepare():
        g, y, shape = make()
        session = g.session(y, shape, threads)
        feeds = [ort.OrtValue.ortvalue_from_numpy(t[i.name]) for i in session.get_inputs()]
        out = ort.OrtValue.ortvalue_from_numpy(np.zeros(shape, np.float32))
        bind = session.io_binding()
        for i, v in zip(session.get_inputs(), feeds):
            bind.bind_ortvalue_input(i.name, v)
        bind.bind_ortvalue_output("y", out)
        return lambda: session.run_with_iobinding(bind), out.numpy

    return prepare


def build(name, threads):
    if common.rounds(name):
        raise common.Unsupported("computes in f32 here")
    if common.trains(name):
        raise common.Unsupported("ONNX Runtime's inference package has no gradients")
    net = conv_networks.net(name)
    t = net.tensors if net else common.tensors(name)
    varb = os.environ.get("PEER") == "onnxruntime-varb"
    if name.startswith("gemm-"):
        makes = {"variable B" if varb else "constant B": lambda: gemm(t, not varb)}
    elif varb:
        raise common.Unsupported("variable B is a question for gemm only")
    elif net:
        makes = {"ops": lambda: convolutions(net)}
    elif common.attention_shape(name):
        causal = common.attention_shape(name)[1]
        kinds = ("mha", "gqa") if causal else ("mha",)
        makes = {k: (lambda k=k: attention(t, causal, k)) for k in kinds}
    elif name == "linear-plain":
        makes = {"ops": lambda: linear(t, False)}
    elif name == "linear-gelu":
        makes = {"ops": lambda: linear(t, False), "contrib": lambda: linear(t, True)}
    elif name == "mlp":
        makes = {"ops": lambda: mlp(t)}
    else:
        makes = {k: (lambda k=k: block(t, k)) for k in ("ops", "contrib", "contrib-mha")}
    return {k: prepared(m, threads, t) for k, m in makes.items()}


common.main(os.environ.get("PEER", "onnxruntime"), ort.__version__, build)
