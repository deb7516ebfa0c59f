"""Write quantised/*.onnx, beside this script: small models that onnxruntime.quantization made, in each of the forms that it has.
It needs the packages onnx and onnxruntime.

Each file has an example of its operands, as initializers given/NAME, and what ONNX Runtime computes of them, as wanted/NAME."""
import logging
import os
import tempfile

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper as h
from onnx import numpy_helper
from onnxruntime import quantization as q
from onnxruntime.quantization import matmul_nbits_quantizer as few

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "quantised")
IMPORTS = [h.make_opsetid("", 21)]
rng = np.random.default_rng(1)


def real(*shape, scale=1.0):
    return (rng.standard_normal(shape) * scale).astype(np.float32)


class Net:
    """A model that is written node by node."""

    def __init__(self, **inputs):
        self.given = inputs
        self.nodes, self.weights = [], []

    def weight(self, a, name):
        self.weights.append(numpy_helper.from_array(np.asarray(a), name))
        return name

    def node(self, op, *operands, **attrs):
        name = f"{op.lower()}{len(self.nodes)}"
        operands = [self.weight(o, f"{name}.{i}") if isinstance(o, (np.ndarray, np.generic)) else o for i, o in enumerate(operands)]
        self.nodes.append(h.make_node(op, operands, [name], name, **attrs))
        return name

    def model(self, *outputs):
        inputs = [h.make_tensor_value_info(n, h.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in self.given.items()]
        g = h.make_graph(self.nodes, "net", inputs, [h.make_empty_tensor_value_info(o) for o in outputs], self.weights)
        return onnx.shape_inference.infer_shapes(h.make_model(g, ir_version=10, opset_imports=IMPORTS))


def mlp():
    n = Net(x=real(2, 48))
    x = n.node("Relu", n.node("Gemm", "x", real(64, 48, scale=0.2), real(64), transB=1))
    x = n.node("Add", n.node("MatMul", x, real(64, 40, scale=0.2)), real(40))
    x = n.node("Sigmoid", n.node("Mul", x, n.node("Softmax", x)))
    return n, n.model(x)


def convolutions():
    n = Net(x=real(1, 3, 12, 10))
    x = n.node("Relu", n.node("Conv", "x", real(8, 3, 3, 3, scale=0.3), real(8), pads=[1, 1, 1, 1]))
    y = n.node("Conv", x, real(8, 1, 3, 3, scale=0.3), real(8), pads=[1, 1, 1, 1], group=8)
    x = n.node("MaxPool", n.node("Add", x, y), kernel_shape=[2, 2], strides=[2, 2])
    x = n.node("Concat", x, n.node("LeakyRelu", x), axis=1)
    x = n.node("AveragePool", n.node("Clip", x, np.float32(-1).reshape(()), np.float32(6).reshape(())), kernel_shape=[2, 2])
    x = n.node("Flatten", n.node("GlobalAveragePool", x))
    return n, n.model(n.node("Gemm", x, real(5, 16), real(5), transB=1))


def attention():
    ids = rng.integers(0, 20, (1, 6))
    n = Net(ids=ids)
    x = n.node("Gather", real(20, 32), "ids")
    parts = []
    for _ in range(3):
        y = n.node("Add", n.node("MatMul", x, real(32, 32, scale=0.2)), real(32))
        parts.append(n.node("Transpose", n.node("Reshape", y, np.array([1, 6, 2, 16])), perm=[0, 2, 1, 3]))
    scores = n.node("Softmax", n.node("Mul", n.node("MatMul", parts[0], n.node("Transpose", parts[1], perm=[0, 1, 3, 2])), np.float32(0.25).reshape(())))
    y = n.node("Reshape", n.node("Transpose", n.node("MatMul", scores, parts[2]), perm=[0, 2, 1, 3]), np.array([1, 6, 32]))
    x = n.node("LayerNormalization", n.node("Add", x, n.node("MatMul", y, real(32, 32, scale=0.2))), real(32), real(32))
    return n, n.model(x)


def recurrent():
    n = Net(x=real(7, 1, 12))
    n.nodes.append(h.make_node("LSTM", ["x", n.weight(real(1, 64, 12, scale=0.3), "w"), n.weight(real(1, 64, 16, scale=0.3), "r"), n.weight(real(1, 128), "b")],
                               ["y", "h"], "lstm", hidden_size=16))
    return n, n.model("y", "h")


class Reader(q.CalibrationDataReader):
    def __init__(self, given):
        samples = [given] + [{k: real(*v.shape) if v.dtype == np.float32 else rng.integers(0, 20, v.shape) for k, v in given.items()} for _ in range(7)]
        self.rest = iter(samples)

    def get_next(self):
        return next(self.rest, None)


def static(form, **more):
    return lambda n, source, to: q.quantize_static(source, to, Reader(n.given), quant_format=form, **more)


def dynamic(**more):
    return lambda n, source, to: q.quantize_dynamic(source, to, **more)


def blocks(form, **more):
    def write(n, source, to):
        m = few.MatMulNBitsQuantizer(onnx.load(source), block_size=16, quant_format=form, **more)
        m.process()
        m.model.save_model_to_file(to)
    return write


QDQ, QLINEAR, U8, I8 = q.QuantFormat.QDQ, q.QuantFormat.QOperator, q.QuantType.QUInt8, q.QuantType.QInt8
CASES = {
    "mlp-qdq": (mlp, static(QDQ)),
    "mlp-qdq-channels": (mlp, static(QDQ, per_channel=True, activation_type=U8)),
    "mlp-qlinear": (mlp, static(QLINEAR, activation_type=U8)),
    "mlp-dynamic": (mlp, dynamic(weight_type=I8, per_channel=True)),
    "mlp-dynamic-u8": (mlp, dynamic(weight_type=U8)),
    "mlp-4-bits": (mlp, blocks(QLINEAR, is_symmetric=False)),
    "mlp-4-bits-qdq": (mlp, blocks(QDQ, is_symmetric=True)),
    "mlp-4-bits-qdq-unsigned": (mlp, blocks(QDQ, is_symmetric=False)),
    "mlp-8-bits": (mlp, blocks(QLINEAR, is_symmetric=False, bits=8)),
    "convolutions-qdq": (convolutions, static(QDQ, per_channel=True)),
    "convolutions-qlinear": (convolutions, static(QLINEAR, activation_type=U8)),
    "convolutions-dynamic": (convolutions, dynamic(weight_type=U8)),
    "attention-qdq": (attention, static(QDQ)),
    "attention-qlinear": (attention, static(QLINEAR, activation_type=U8)),
    "attention-dynamic": (attention, dynamic(weight_type=I8)),
    "recurrent-dynamic": (recurrent, dynamic(weight_type=I8)),
}


def main():
    logging.disable(logging.WARNING)
    os.makedirs(FOLDER, exist_ok=True)
    for name, (net, quantise) in CASES.items():
        n, m = net()
        with tempfile.TemporaryDirectory() as d:
            source, to = os.path.join(d, "f32.onnx"), os.path.join(d, "few.onnx")
            onnx.save(m, source)
            quantise(n, source, to)
            m = onnx.load(to)
        o = ort.SessionOptions()
        o.log_severity_level = 3
        o.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL  # each operator as it is defined
        session = ort.InferenceSession(m.SerializeToString(), o, providers=["CPUExecutionProvider"])
        names = [x.name for x in session.get_outputs()]
        m.graph.initializer.extend(numpy_helper.from_array(a, "given/" + k) for k, a in n.given.items())
        m.graph.initializer.extend(numpy_helper.from_array(a, "wanted/" + k) for k, a in zip(names, session.run(names, n.given)))
        m.graph.ClearField("value_info")
        onnx.save(m, os.path.join(FOLDER, name + ".onnx"))
        print(name, sorted({x.op_type for x in m.graph.node}))


main()
