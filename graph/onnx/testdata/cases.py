"""Write the conformance cases of the onnx package to a folder: cases.py DIR.

The package computes its node cases when they are asked for, with NumPy's generator at a fixed seed; the other cases are
files of the package, which are copied. The light models come without inputs: they get the counted ones of the package's
runner. The folder then has KIND/NAME/model.onnx and KIND/NAME/test_data_set_N/*.pb.
"""
import os
import shutil
import sys
import warnings

import numpy
import onnx
from onnx import TensorProto, numpy_helper
from onnx.backend.test.case.node import collect_testcases

KINDS = ["simple", "pytorch-converted", "pytorch-operator"]


def proto(value, info):
    """The message of one value: a tensor, a sequence, a map or an optional."""
    if isinstance(value, TensorProto):
        return value
    kind = info.type.WhichOneof("value")
    make = {"map_type": numpy_helper.from_dict, "sequence_type": numpy_helper.from_list, "optional_type": numpy_helper.from_optional}
    return make.get(kind, numpy_helper.from_array)(value, info.name)


def write(path, message):
    with open(path, "wb") as f:
        f.write(message.SerializeToString(deterministic=True))


def light(data, to):
    """The light models, with an input that counts from 0 to 1."""
    for name in sorted(os.listdir(os.path.join(data, "light"))):
        base, ext = os.path.splitext(name)
        if ext != ".onnx":
            continue
        at = os.path.join(to, "light", base, "test_data_set_0")
        os.makedirs(at, exist_ok=True)
        shutil.copy(os.path.join(data, "light", name), os.path.join(at, "..", "model.onnx"))
        shutil.copy(os.path.join(data, "light", base + "_output_0.pb"), os.path.join(at, "output_0.pb"))
        graph = onnx.load(os.path.join(data, "light", name)).graph
        weights = {i.name for i in graph.initializer}
        for i, info in enumerate(i for i in graph.input if i.name not in weights):
            shape = [d.dim_value or 1 for d in info.type.tensor_type.shape.dim]
            size = numpy.prod(shape)
            value = (numpy.arange(size).reshape(shape) / size).astype(numpy.float32)
            write(os.path.join(at, f"input_{i}.pb"), numpy_helper.from_array(value, info.name))


def main(to):
    warnings.simplefilter("ignore")
    numpy.random.seed(0)
    data = os.path.join(os.path.dirname(onnx.__file__), "backend", "test", "data")
    for kind in KINDS:
        shutil.copytree(os.path.join(data, kind), os.path.join(to, kind), dirs_exist_ok=True)
    light(data, to)
    for case in collect_testcases(None):
        folder = os.path.join(to, "node", case.name)
        for i, (inputs, outputs) in enumerate(case.data_sets):
            at = os.path.join(folder, f"test_data_set_{i}")
            os.makedirs(at, exist_ok=True)
            for word, values, infos in (("input", inputs, case.model.graph.input), ("output", outputs, case.model.graph.output)):
                for j, value in enumerate(values):
                    write(os.path.join(at, f"{word}_{j}.pb"), proto(value, infos[j]))
        write(os.path.join(folder, "model.onnx"), case.model)


main(sys.argv[1])
