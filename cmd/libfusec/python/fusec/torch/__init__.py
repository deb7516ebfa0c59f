"""PyTorch through fusec, on the processor and on NVIDIA's GPUs.

    model = torch.compile(model, backend="fusec")

compiles a model by Dynamo and AOTAutograd: its graphs of ATen operations, forward and backward, become programs of fusec that
read parameters and write results in PyTorch's memory, without copies. On a GPU they run in PyTorch's current stream, with temporary
values in memory of PyTorch's allocator. What fusec does not take stays with PyTorch; explain(model, *inputs) names it. Options, by
torch.compile(…, options={…}):

    freeze=True             parameters do not change between calls without gradients: what follows from them is computed once, and
                            again when a PyTorch operation has written one
    threads=2               cores; those of torch.set_num_threads if it is not given
    memory_budget=2**20     bytes for temporary values

linear, attention, moe, layer_norm and rms_norm are operations of their own, with gradients, for f32 and f64, on a GPU for bf16 and
f16, too. They are known to
torch.compile by the names torch.ops.fusec.….
"""

from ._backend import fusec_backend as backend
from ._explain import Explanation, explain
from ._ops import attention, layer_norm, linear, moe, rms_norm

__all__ = ["Explanation", "attention", "backend", "explain", "layer_norm", "linear", "moe", "rms_norm"]
