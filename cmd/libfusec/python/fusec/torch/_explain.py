"""What becomes of a model: explain."""

import copy

import torch

from ._backend import fusec_backend


class Explanation:
    """What fusec takes of a model. graphs has a record for each graph: phase, nodes (operations), taken, left (operation, place,
    name and reason of each that PyTorch runs) and programs. breaks are the places where Dynamo divided the model, with reasons."""

    def __init__(self, graphs, breaks):
        self.graphs, self.breaks = graphs, breaks

    @property
    def models(self):
        """The programs, as fusec.Model: fusions, report and the drawing."""
        return [p.model for g in self.graphs for p in g.programs]

    def __str__(self):
        lines = []
        for g in self.graphs:
            launches = sum(len(p.model.fusions) for p in g.programs)
            lines.append(f"{g.phase}: {g.taken} of {g.nodes} operations in {len(g.programs)} programs of {launches} launches")
            seen = {}
            for operation, place, name, reason in g.left:
                seen.setdefault((operation, reason), []).append(place or name)
            for (operation, reason), places in seen.items():
                lines.append(f"  {operation} stays with PyTorch: {reason}; {len(places)} of them, the first at {places[0]}")
        lines += [f"divided at {b}" for b in self.breaks]
        return "\n".join(lines)

    __repr__ = __str__


def explain(model, *inputs, options=None, **named):
    """Compiles a copy of a model for some inputs, runs it, with its backward pass if it needs gradients, and says what fusec took
    and what it left to PyTorch, where and why."""
    graphs = []

    def backend(gm, example_inputs):
        return fusec_backend(gm, example_inputs, options=options, records=graphs)

    torch._dynamo.reset()
    before = dict(torch._dynamo.utils.counters["graph_break"])
    try:
        out = torch.compile(copy.deepcopy(model), backend=backend)(*inputs, **named)
        total = sum(t.sum() for t in torch.utils._pytree.tree_leaves(out)
                    if isinstance(t, torch.Tensor) and t.requires_grad)
        if isinstance(total, torch.Tensor):
            total.backward()
        breaks = [k for k, n in torch._dynamo.utils.counters["graph_break"].items() if n > before.get(k, 0)]
    finally:
        torch._dynamo.reset()
    return Explanation(graphs, breaks)
