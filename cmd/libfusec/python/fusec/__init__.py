"""fusec compiles models into few fused kernels, runs and trains them, and shows what was fused.

    model = fusec.load("model.graph", threads=2)
    y = model(x=array)

Options of load and parse, all of which include/fusec.h explains:

    target="cpu"            cpu, cuda, cuda:1, fpga or ref
    memory="caller"         of target cuda: arrays on the GPU
    threads=2               cores; all if it is not given
    precision="f32"         f32, tf32, bf16 or f16
    memory_budget=2**20     bytes for temporary values
    seed=1                  of random operations
    dims={"batch": 4}       sizes that an ONNX model leaves open
    gradients={"dw": ("loss", "w")}       outputs that are gradients: of the scalar output for the input or parameter
    optimizer={"rule": "adamw", "rate": 1e-3}   each run is a step of training

Arrays are those of NumPy, or any objects with __dlpack__ whose memory is on the host, such as tensors of PyTorch. They are
read in place if their elements are contiguous. Results are arrays of NumPy.

A model that was opened with target="cuda" and memory="caller" takes its inputs from the GPU: tensors of PyTorch, arrays of CuPy,
or those of another library with __dlpack__ and __array_namespace__. Results are of the same library. Inputs are read in place if
their elements are contiguous and begin at a multiple of 64 bytes. A run is queued in the current stream of PyTorch or CuPy, or
else in the default stream, and the call returns before it has ended. What goes wrong in it, such as an index that is out of
range, is raised by a later call or by model.wait(). Parameters are set from the host.

linear, attention, moe, layer_norm and rms_norm are functions on arrays, and the functions named ..._backward are their
gradients. The module fusec.torch is for PyTorch: a backend of torch.compile, and these functions as operations with gradients.
"""

from ._kernels import (
    attention,
    attention_backward,
    layer_norm,
    layer_norm_backward,
    linear,
    linear_backward,
    moe,
    moe_backward,
    rms_norm,
    rms_norm_backward,
)
from ._library import FusecError, version
from ._model import Model, load, parse

__all__ = [
    "FusecError", "Model", "attention", "attention_backward", "layer_norm", "layer_norm_backward", "linear",
    "linear_backward", "load", "moe", "moe_backward", "parse", "rms_norm", "rms_norm_backward", "version",
]
