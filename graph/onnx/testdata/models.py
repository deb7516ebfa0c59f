"""Write the small models of the tests into the folder of this script. It needs the onnx package."""
import os

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

HERE = os.path.dirname(os.path.abspath(__file__))


def numbers(name, *shape):
    """Weights that are exact in f32."""
    n = int(np.prod(shape))
    return numpy_helper.from_array(((np.arange(n) * 7 % 11 - 5) / 8).astype(np.float32).reshape(shape), name)


def ints(name, *values):
    return numpy_helper.from_array(np.array(values, np.int64), name)


def floats(name, *shape):
    return h.make_tensor_value_info(name, T.FLOAT, shape)


def save(name, nodes, inputs, outputs, weights=(), opset=21, ir=10, functions=(), **more):
    imports = [h.make_opsetid("", opset)] + [h.make_opsetid(d, 1) for d in sorted({f.domain for f in functions})]
    model = h.make_model(h.make_graph(nodes, name, inputs, outputs, list(weights)), ir_version=ir, opset_imports=imports, functions=list(functions))
    onnx.checker.check_model(model)
    onnx.save(model, os.path.join(HERE, name + ".onnx"), **more)


def main():
    mlp = [h.make_node("Gemm", ["x", "w1", "b1"], ["h1"], "first", transB=1), h.make_node("Relu", ["h1"], ["h2"], "act"),
           h.make_node("Gemm", ["h2", "w2", "b2"], ["z"], "second"), h.make_node("Softmax", ["z"], ["class/p"], "soft")]
    weights = [numbers("w1", 8, 6), numbers("b1", 8), numbers("w2", 8, 3), numbers("b2", 3)]
    save("mlp", mlp, [floats("x", "batch", 6)], [floats("class/p", "batch", 3)], weights)
    save("external", mlp, [floats("x", "batch", 6)], [floats("class/p", "batch", 3)], weights, save_as_external_data=True, location="external.bin",
         size_threshold=0)

    # [batch, steps, 4] becomes [batch·steps, 4] by arithmetic on its shape, and back.
    save("shapes", [h.make_node("Shape", ["x"], ["s"]), h.make_node("Gather", ["s", "i0"], ["b"]), h.make_node("Gather", ["s", "i1"], ["t"]),
                    h.make_node("Mul", ["b", "t"], ["n"]), h.make_node("Unsqueeze", ["n", "zero"], ["n1"]),
                    h.make_node("Concat", ["n1", "four"], ["flat"], axis=0), h.make_node("Reshape", ["x", "flat"], ["rows"], "rows"),
                    h.make_node("MatMul", ["rows", "w"], ["y"], "product"), h.make_node("Reshape", ["y", "s"], ["z"], "back")],
         [floats("x", "batch", "steps", 4)], [floats("z", "batch", "steps", 4)],
         [numpy_helper.from_array(np.array(0), "i0"), numpy_helper.from_array(np.array(1), "i1"), ints("zero", 0), ints("four", 4), numbers("w", 4, 4)])

    # Three steps of s := s·2 + x, with each s, and a choice by the number of axes.
    body = h.make_graph([h.make_node("Mul", ["s0", "two"], ["d"]), h.make_node("Add", ["d", "x"], ["s1"], "step"),
                         h.make_node("Identity", ["c0"], ["c1"]), h.make_node("Identity", ["s1"], ["out"])], "body",
                        [h.make_tensor_value_info("i", T.INT64, []), h.make_tensor_value_info("c0", T.BOOL, []), floats("s0", 2)],
                        [h.make_tensor_value_info("c1", T.BOOL, []), floats("s1", 2), floats("out", 2)])
    then = h.make_graph([h.make_node("Neg", ["last"], ["a"])], "then", [], [floats("a", 2)])
    other = h.make_graph([h.make_node("Exp", ["last"], ["b"])], "other", [], [floats("b", 2)])
    save("loop", [h.make_node("Loop", ["three", "", "x"], ["last", "all"], "loop", body=body), h.make_node("Shape", ["all"], ["s"]),
                  h.make_node("Size", ["s"], ["rank"]), h.make_node("Equal", ["rank", "axes"], ["cond"]),
                  h.make_node("If", ["cond"], ["y"], "choice", then_branch=then, else_branch=other)],
         [floats("x", 2)], [floats("all", 3, 2), floats("y", 2)],
         [numpy_helper.from_array(np.array(3), "three"), numpy_helper.from_array(np.float32(2), "two"), numpy_helper.from_array(np.array(2), "axes")])

    scale = onnx.helper.make_function("local", "Scaled", ["a"], ["b"], [h.make_node("LeakyRelu", ["a"], ["l"], "leaky"), h.make_node("Mul", ["l", "l"], ["b"], "square")],
                                      [h.make_opsetid("", 21)], ["slope"])
    ref = scale.node[0].attribute.add()
    ref.name, ref.ref_attr_name, ref.type = "alpha", "slope", onnx.AttributeProto.FLOAT
    save("function", [h.make_node("Scaled", ["x"], ["y"], "call", domain="local", slope=0.25)], [floats("x", 3)], [floats("y", 3)], functions=[scale])

    # A recurrence as speech models have it, after a convolution over time.
    save("speech", [h.make_node("Conv", ["x", "cw", "cb"], ["c"], "conv", pads=[1, 1]), h.make_node("HardSwish", ["c"], ["a"], "act"),
                    h.make_node("Transpose", ["a"], ["t"], perm=[2, 0, 1]), h.make_node("GRU", ["t", "gw", "gr", "gb"], ["", "last"], "gru", hidden_size=3),
                    h.make_node("Squeeze", ["last", "zero"], ["y"])],
         [floats("x", 2, 4, 3)], [floats("y", 2, 3)],
         [numbers("cw", 4, 4, 3), numbers("cb", 4), numbers("gw", 1, 9, 4), numbers("gr", 1, 9, 3), numbers("gb", 1, 18), ints("zero", 0)], opset=14, ir=7)


main()
