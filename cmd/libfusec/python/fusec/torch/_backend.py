"""torch.compile(model, backend="fusec"): graphs of ATen's operations, forward and backward, become programs of fusec."""

import array
import collections
import ctypes
import functools
import glob
import logging
import math
import operator
import os
import re
import threading
import time

import torch
from torch._decomp import core_aten_decompositions
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase
from torch.multiprocessing.reductions import StorageWeakRef

from .._library import FusecError, check, library
from .._model import parse
from ._aten import LOWERINGS, VIEWS
from ._text import DTYPES, Unsupported, Value, Writer, memory_order
from . import _grads

log = logging.getLogger(__name__)

OPTIONS = ("freeze", "threads", "memory_budget")  # of torch.compile(…, options={…})
TARGETS = {"cpu": "cpu", "cuda": "cuda"}  # fusec's names of PyTorch's types of devices
ALIGNMENT = 64  # of addresses on a GPU
SPACING = 512  # of results in one piece of memory, that of PyTorch's allocator for GPUs
MAX_SHAPES = 16  # programs that are kept for the shapes of a graph whose shapes may change


def _tensors(v):
    return [t for t in (v if isinstance(v, (list, tuple)) else [v]) if isinstance(t, torch.Tensor)]


def _getitem(node):
    return node.op == "call_function" and node.target.__name__ == "getitem"


def _path(source):
    """The name of a module or parameter in the user's words, for Dynamo's: L['self']._modules['0']._parameters['weight'] is
    0.weight."""
    source = re.sub(r"^L\[['\"](self|fn|args|kwargs)['\"]\]", "", source)
    parts = re.split(r"[^\w]+", re.sub(r"\b_(modules|parameters|buffers)\b", ".", source))
    return ".".join(p for p in parts if p)


def _origin(node):
    """The user's line of a node, and its name with that of its module."""
    lines = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
    position = f"{os.path.basename(lines[-1][0])}:{lines[-1][1]}" if lines else ""
    name = node.name
    modules = node.meta.get("nn_module_stack")
    if modules:
        path = _path(str(list(modules.values())[-1][0]))
        name = f"{path}.{name}" if path else name
    return position, name


# What fusec takes.

def _dry_value(v):
    return Value("%0", v.shape, v.dtype)


def _write(writer, node, of):
    """The values of a node, by the values of its operands."""
    lowering = LOWERINGS.get(str(node.target))
    if lowering is None:
        raise Unsupported("there is no such operation in fusec")
    args = torch.fx.map_arg(node.args, of)
    kwargs = torch.fx.map_arg(dict(node.kwargs), of)
    results = lowering(writer, node, *args, **kwargs)
    metas = node.meta["val"]
    if not isinstance(metas, (list, tuple)):
        metas, results = [metas], [results]
    found = []
    for m, r in zip(metas, results):
        if r is not None:
            if r.shape != tuple(m.shape):
                raise Unsupported(f"the result would be {list(r.shape)}, not {list(m.shape)}")
            r = writer.cast(r, m.dtype)
        found.append(r)
    return found if isinstance(node.meta["val"], (list, tuple)) else found[0]


def _used(node):
    """The tensors that a node gives to others."""
    v = node.meta.get("val")
    if isinstance(v, (list, tuple)) and node.users and all(map(_getitem, node.users)):
        v = [v[i] for i in sorted({u.args[1] for u in node.users})]
    return _tensors(v)


def device_of(gm):
    """The device that a graph computes on: the first GPU among those of its tensors, else the processor."""
    for n in gm.graph.nodes:
        for t in _tensors(n.meta.get("val")):
            if t.device.type == "cuda":
                return t.device
    return torch.device("cpu")


def reason_against(node, device):
    """Why a node of a graph with fixed shapes is left to PyTorch; None if fusec takes it on the device."""
    for v in (_used(node), *(a.meta.get("val") for a in node.all_input_nodes)):
        for t in _tensors(v):
            if t.device != device:
                return f"a tensor on {t.device}"
            if t.dtype not in DTYPES:
                return f"elements of {t.dtype}"
            if t.dim() > 8:
                return "more than 8 axes"
            if t.layout != torch.strided:
                return "a sparse tensor"
    if not _tensors(node.meta.get("val")):
        return "no tensor"
    try:
        def of(a):
            v = a.meta["val"]
            return [_dry_value(t) for t in v] if isinstance(v, (list, tuple)) else _dry_value(v)

        results = _write(Writer(target=TARGETS[device.type]), node, of)
        if isinstance(results, list):
            for u in node.users:
                if not _getitem(u):
                    return "a list of results that is used as a whole"
                if results[u.args[1]] is None:
                    return f"its result {u.args[1]}"
    except Unsupported as e:
        return str(e)
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, NotImplementedError) as e:
        return f"its arguments: {e}"
    return None


class _Support(OperatorSupportBase):
    def __init__(self, reasons):
        self.reasons = reasons

    def is_node_supported(self, submodules, node):
        if node.op != "call_function":
            return False
        if _getitem(node):
            return node.args[0].op == "call_function" and self.reasons.get(node.args[0].name, "") is None
        return self.reasons.get(node.name, "") is None


# Memory. A tensor whose elements lie without gaps, in any order of its axes, is used in place: the graph has it in the order of
# its memory, and transposes it.

def plain(t):
    """The order of the axes in memory, and the strides, in which a tensor like t is handed over."""
    if t.is_contiguous() or t.numel() == 0:
        return list(range(t.dim())), t.contiguous().stride() if t.numel() == 0 else t.stride()
    order = memory_order(t)
    if order is None:
        return list(range(t.dim())), torch.empty(t.shape, device="meta").stride()
    return order, t.stride()


# A tensor whose elements lie in rows with gaps between them, such as a part of the columns of another: outer is how many axes, in
# the order of memory, are outside of the gaps; the elements of a row of the given length begin at first.
Gaps = collections.namedtuple("Gaps", "strides order outer rows row first")


def gaps(t):
    """How a tensor with gaps lies in memory; None for one that has none, or others than of that form."""
    order = sorted(range(t.dim()), key=lambda a: (-t.stride(a) if t.shape[a] != 1 else 0, a))
    outer, inner = len(order), 1
    while outer > 0 and (t.shape[order[outer - 1]] == 1 or t.stride(order[outer - 1]) == inner):
        outer -= 1
        inner *= t.shape[order[outer]]
    if outer == 0 or t.numel() == 0:
        return None
    row, rows = t.stride(order[outer - 1]), 1
    for a in reversed(order[:outer]):
        if t.shape[a] != 1 and t.stride(a) != row * rows:
            return None
        rows *= t.shape[a]
    first = t.storage_offset() % max(row, 1)
    if first + inner > row:
        return None
    return Gaps(t.stride(), order, outer, rows, row, first)


def _whole_rows(t, g):
    """Whether all of the rows that a tensor of these strides is in are in its memory, too."""
    start = t.storage_offset() - g.first
    return start >= 0 and (start + g.rows * g.row) * t.itemsize <= t.untyped_storage().nbytes()


def _row_address(t, g, held):
    """Where the first row of a tensor begins, which is copied if it has other gaps."""
    if t.stride() != g.strides or not _whole_rows(t, g):
        whole = torch.empty(g.rows * g.row, dtype=t.dtype, device=t.device)
        whole.as_strided(t.shape, g.strides, g.first).copy_(t)
        held.append(whole)
        return whole.data_ptr()
    return t.data_ptr() - g.first * t.itemsize


def inverse(perm):
    return [perm.index(i) for i in range(len(perm))]


@functools.cache
def _openmp():
    """The function of PyTorch's OpenMP that ends its waiting threads, or None. They wait for some milliseconds after each piece of
    PyTorch's work, at full speed, on the cores that a program needs. OpenMP starts threads again when it needs them."""
    libraries = glob.glob(os.path.join(os.path.dirname(torch.__file__), "lib", "lib*omp*.so*"))
    for path in (*libraries, "libgomp.so.1", "libomp.so.5", "libiomp5.so"):
        try:
            pause = ctypes.CDLL(path, mode=os.RTLD_NOLOAD).omp_pause_resource_all
        except (OSError, AttributeError):
            continue
        pause.restype, pause.argtypes = ctypes.c_int, [ctypes.c_int]
        return pause
    return None


_SOFT = 1  # omp_pause_soft: what threads have set stays
_WORTH = 1e-4  # seconds of a run for each of PyTorch's threads from which it is worth ending them


_guards = torch._C._dynamo.guards
_empty_on_gpu = getattr(_guards, "_empty_strided_cuda", None)  # torch.empty_strided on the current one, for Inductor, in less time
_reinterpret = getattr(_guards, "_reinterpret_tensor", None)


def part(t, shape, strides, offset):
    """A tensor on the elements of another from an offset on. Autograd does not keep it as a view."""
    if _reinterpret is None:
        return t.detach().as_strided(shape, strides, t.storage_offset() + offset)
    return _reinterpret(t, shape, strides, offset)


class Runner(torch.nn.Module):
    """Calls a program on tensors of the processor."""

    alignment = 1

    def __init__(self, model, takes, gives, seeds, frozen, device):
        super().__init__()
        self.model, self.seeds, self.device = model, seeds, device
        self.lock = threading.Lock()
        self.takes = takes  # the strides of each operand that is an input, or its Gaps; None for a frozen one
        self.gives = gives  # shape, strides, type of each result
        self.frozen = frozen  # position of an operand: name, and where its present value lies
        self._strides = [t.strides if isinstance(t, Gaps) else t for t in takes]
        self._gaps = [(i, t) for i, t in enumerate(takes) if isinstance(t, Gaps)]
        self.together = ()  # the indices of results that lie in one piece of memory
        self._handle = model._handle
        self._least = math.inf  # seconds of the shortest run
        self._seed = [torch.zeros((), dtype=torch.int64, device=device) for _ in seeds]
        self.single = len(gives) == 1

    def forward(self, *args):
        held = []
        with self.lock:
            values = list(map(torch.Tensor.data_ptr, args))
            for i, g in self._gaps:
                values[i] -= g.first * args[i].itemsize
            if (list(map(torch.Tensor.stride, args)) != self._strides or functools.reduce(operator.or_, values, 0) % self.alignment
                    or not all(_whole_rows(args[i], g) for i, g in self._gaps)):
                values = self._addresses(args, held)
            for seed in self._seed:
                seed.random_()
                values.append(seed.data_ptr())
            outs, piece, results = self._allocate()
            values, results = array.array("Q", values), array.array("Q", results)
            self._call(values.buffer_info()[0], results.buffer_info()[0])
        if self.together:  # while a GPU computes
            places, pieces = self._places[0], {dtype: piece.view(dtype) for dtype in {self.gives[i][2] for i in self.together}}
            for i in self.together:
                shape, strides, dtype = self.gives[i]
                outs[i] = part(pieces[dtype], shape, strides, places[i] // dtype.itemsize)
        return outs[0] if self.single else tuple(outs)

    def _addresses(self, args, held):
        """Where the operands that are inputs lie. One that lies otherwise than the program takes it is copied; held keeps it."""
        values = []
        for position, (t, strides) in enumerate(zip(args, self.takes)):
            if strides is None:
                self._freeze(position, t)
                continue
            if strides.__class__ is Gaps:
                at = _row_address(t, strides, held)
                if at % self.alignment:
                    at = _row_address(t.contiguous(), strides, held)
            else:
                at = t.data_ptr()
                if (t.stride() != strides or at % self.alignment) and t.numel() > 0:
                    t = torch.empty_strided(t.shape, strides, dtype=t.dtype, device=self.device).copy_(t)
                    held.append(t)
                    at = t.data_ptr()
            values.append(at)
        return values

    @functools.cached_property
    def _places(self):
        """Where each of the results that lie together begins in their memory, 0 for the others, and the size of that, in bytes."""
        places, size = [0] * len(self.gives), 0
        for i in self.together:
            shape, _, dtype = self.gives[i]
            places[i] = size
            size += -(-math.prod(shape) * dtype.itemsize // SPACING) * SPACING
        return places, size

    @functools.cached_property
    def _apart(self):
        return [i for i in range(len(self.gives)) if i not in set(self.together)]

    def _allocate(self):
        """Memory for the results, and where each begins."""
        device, piece, start = self.device, None, 0
        places, size = self._places
        if self.together:
            piece = torch.empty(size, dtype=torch.uint8, device=device)
            start = piece.data_ptr()
        outs, results = [None] * len(places), [start + at for at in places]
        fast = _empty_on_gpu and device.type == "cuda" and torch.cuda.current_device() == device.index
        for i in self._apart:
            shape, strides, dtype = self.gives[i]
            t = _empty_on_gpu(shape, strides, dtype) if fast else torch.empty_strided(shape, strides, dtype=dtype, device=device)
            outs[i], results[i] = t, t.data_ptr()
        return outs, piece, results

    def _call(self, values, results):
        threads = torch.get_num_threads()
        if threads > 1 and _WORTH * threads < self._least < math.inf and (pause := _openmp()):
            pause(_SOFT)
        start = time.perf_counter()
        check(library.fusec_call(self._handle, values, results))
        self._least = min(self._least, time.perf_counter() - start)

    def _freeze(self, position, t):
        name, order, seen = self.frozen[position]
        now = (t.data_ptr(), None if t.is_inference() else t._version)
        if seen != now or t.is_inference():  # whose versions PyTorch does not count
            self.model.set(name, t.detach().permute(order).contiguous().cpu())
            self.frozen[position] = (name, order, now)


class QueueRunner(Runner):
    """Calls a program on tensors of a GPU: in PyTorch's current stream, with memory for temporary values from its allocator."""

    alignment = ALIGNMENT

    def __init__(self, *args):
        super().__init__(*args)
        self._bytes = library.fusec_queue_bytes(self._handle)
        self._stream = None  # of the last run

    def _call(self, values, results):
        # What is freed here is used again in the order of the stream.
        scratch = torch.empty(self._bytes, dtype=torch.uint8, device=self.device)
        handle = None
        if self.device.type == "cuda":
            stream = torch.cuda.current_stream(self.device)
            if self._stream is not None and self._stream != stream and not torch.cuda.is_current_stream_capturing():
                stream.wait_stream(self._stream)
            self._stream, handle = stream, stream.cuda_stream
        check(library.fusec_queue(self._handle, values, results, scratch.data_ptr(), handle))


@functools.cache
def _load_nvrtc():
    """Loads NVIDIA's run-time compiler of PyTorch's wheel, so that the library finds it by its name."""
    packages = os.path.join(os.path.dirname(os.path.dirname(torch.__file__)), "nvidia")
    for pattern in ("cu*/lib/libnvrtc.so.*", "cuda_nvrtc/lib/libnvrtc.so.*"):
        for path in sorted(glob.glob(os.path.join(packages, pattern)), reverse=True):
            try:
                return ctypes.CDLL(path)
            except OSError:
                continue
    return None


def _tf32():
    """Whether PyTorch multiplies in TF32."""
    try:
        return torch.backends.cuda.matmul.allow_tf32
    except RuntimeError:  # which it raises where the newer setting is used
        return torch.backends.cuda.matmul.fp32_precision == "tf32"


def runner(writer, takes, gives, frozen, device, options):
    """A Runner of the program that a writer has written."""
    target = TARGETS[device.type]
    options = dict(options)
    make = Runner
    if target == "cpu":
        options.setdefault("threads", torch.get_num_threads())
    else:
        make = QueueRunner
        options.update(target=f"{target}:{device.index or 0}", memory="caller")
        if device.type == "cuda":
            _load_nvrtc()
            options["precision"] = "tf32" if _tf32() else "f32"
    model = parse(writer.text(version=2), **options)
    for constant, tensor in writer.constants:
        model.set(constant, tensor)
    return make(model, takes, gives, writer.seeds, frozen, device)


def build(module, phase, name, device, frozen=(), options=None, names=()):
    """A Runner for a graph all of whose operations fusec takes. frozen are the positions of its operands that do not change."""
    writer = Writer(f"{phase}.{name}", TARGETS[device.type], phase == "backward")
    values, takes, freezes = {}, [], {}
    outputs = gives = None
    for node in module.graph.nodes:
        if node.op == "placeholder":
            t = node.meta["val"]
            order, strides = plain(t)
            position = len(takes)
            kind = "param" if position in frozen else "input"
            source = writer.unique(_source_name(node, names))
            apart = gaps(t) if kind == "input" else None
            if apart:
                order, strides = apart.order, apart
                v = writer.source(kind, source, [*(t.shape[a] for a in order[:apart.outer]), apart.row], t.dtype)
                writer.at("", node.name)
                inner = math.prod(t.shape[a] for a in order[apart.outer:])
                v = writer.reshape(writer.slice(v, apart.outer, apart.first, inner), [t.shape[a] for a in order])
            else:
                v = writer.source(kind, source, [t.shape[a] for a in order], t.dtype)
                writer.at("", node.name)
            values[node] = writer.transpose(v, inverse(order))
            takes.append(None if kind == "param" else strides)
            if kind == "param":
                freezes[position] = (source, order, None)
        elif node.op == "call_function":
            writer.at(*_origin(node))
            if _getitem(node):
                values[node] = values[node.args[0]][node.args[1]]
            else:
                values[node] = _write(writer, node, values.__getitem__)
        elif node.op == "output":
            outputs = node.args[0] if isinstance(node.args[0], (list, tuple)) else [node.args[0]]
            gives = []
            for o in outputs:
                t = o.meta["val"]
                order, strides = plain(t)
                writer.at(*_origin(o))
                writer.output(writer.unique(o.name), writer.transpose(values[o], order))
                gives.append((tuple(t.shape), strides, t.dtype))
        else:
            raise Unsupported(f"a node of kind {node.op}")
    return runner(writer, takes, gives, freezes, device, options or {})


def _source_name(node, names):
    """The user's name of an operand, if it is one of the model's, whose names are given."""
    index = getattr(node.meta.get("desc"), "idx", None)
    return names[index] if isinstance(index, int) and index < len(names) and names[index] else node.name


def _source_names(gm):
    """What the user calls the operands of Dynamo's graph."""
    names = []
    for n in gm.graph.nodes:
        if n.op == "placeholder":
            source = getattr(n, "_dynamo_source", None) or getattr(n.meta.get("grapharg"), "source", None)
            name = getattr(source, "name", "")
            names.append(_path(name() if callable(name) else name) or n.name)
    return names


# Graphs.

Record = collections.namedtuple("Record", "phase nodes taken left programs")


def _divides(node):
    """Whether a node gives a list of views."""
    return str(node.target) in ("aten.split.Tensor", "aten.split_with_sizes.default", "aten.unbind.int")


def _outside(module):
    """Copies views that a graph gives out, so that PyTorch makes them, without moving data, of what fusec computes."""
    graph = module.graph
    output = next(n for n in reversed(graph.nodes) if n.op == "output")
    copies = {}

    def view(node):
        if node not in copies:
            if node.op != "call_function" or not (str(node.target) in VIEWS or _getitem(node) and _divides(node.args[0])):
                return node
            whole = node.args[0]
            base = view(whole.args[0] if _getitem(node) else whole)
            with graph.inserting_before(output):
                if _getitem(node):
                    base = graph.call_function(whole.target, (base, *whole.args[1:]), dict(whole.kwargs))
                    base.meta = {**whole.meta, "fusec_outside": True}
                copy = graph.call_function(node.target, (base, *node.args[1:]), dict(node.kwargs))
            copy.meta = dict(node.meta)
            copy.meta["fusec_outside"] = True
            copies[node] = copy
        return copies[node]

    output.args = torch.fx.map_arg(output.args, view)
    graph.eliminate_dead_code()


def _join_views(gm):
    """Makes each view of a program's result, as _outside left them, one operation, or none where the program can give its result in
    that form. A chain of them takes longer to call than a small launch to run."""
    views = {}  # by node: the node of the result, a tensor without elements like it, and the view or the list of views of that

    def given(node):
        """The program that gives a node, and which of its results that is."""
        of = node.args[0] if _getitem(node) else node
        made = getattr(gm, of.target) if of.op == "call_module" else None
        return (made, node.args[1] if of is not node else 0) if isinstance(made, Runner) else (None, 0)

    def follow(node):
        if node not in views:
            views[node] = None
            made, index = given(node)
            if made is not None:
                shape, strides, dtype = made.gives[index]
                like = torch.empty_strided(shape, strides, dtype=dtype, device="meta")
                views[node] = node, like, like
            elif (_getitem(node) or "fusec_outside" in node.meta) and (of := follow(node.args[0])):
                result, like, view = of
                view = view[node.args[1]] if _getitem(node) else node.target(view, *node.args[1:], **node.kwargs)
                views[node] = result, like, view
        return views[node]

    for node in gm.graph.output_node().all_input_nodes:
        result, like, view = "fusec_outside" in node.meta and follow(node) or (None,) * 3
        if isinstance(view, torch.Tensor) and StorageWeakRef(view.untyped_storage()) == StorageWeakRef(like.untyped_storage()):
            with gm.graph.inserting_before(node):
                joined = gm.graph.call_function(part, (result, view.shape, view.stride(), view.storage_offset()))
            joined.meta = dict(node.meta)
            node.replace_all_uses_with(joined)
    gm.graph.eliminate_dead_code()
    for node in gm.graph.output_node().all_input_nodes:
        if node.target is part and len(node.args[0].users) == 1:
            result, like, _ = follow(node.args[0])
            view = like.as_strided(*node.args[1:])
            if view.numel() == like.numel() and plain(view)[1] == view.stride():
                made, index = given(result)
                made.gives[index] = tuple(view.shape), view.stride(), view.dtype
                node.replace_all_uses_with(result)
                gm.graph.erase_node(node)


def _keep_together(gm, kept):
    """Has each program's results that are for the backward pass only, which frees them at once, lie in one piece of memory: the
    results of a graph from an index on."""
    output = gm.graph.output_node()
    others = {n for n in output.args[0][:kept] if isinstance(n, torch.fx.Node)}

    def saved(node):
        return node not in others and node.users and all(u is output or u.target is part and saved(u) for u in node.users)

    for node in gm.graph.nodes:
        made = getattr(gm, node.target) if node.op == "call_module" else None
        if isinstance(made, QueueRunner):
            results = {0: node} if made.single else {u.args[1]: u for u in node.users}
            made.together = [i for i, n in results.items() if saved(n)]


def compile_static(gm, phase, options, records, frozen=(), names=(), kept=None):
    """A function for a graph of ATen's operations with fixed shapes. Its results from index kept on are for the backward pass."""
    with unset_fake_temporarily():  # constants are tensors with elements
        return _compile_static(gm, phase, options, records, frozen, names, kept)


def _compile_static(gm, phase, options, records, frozen, names, kept):
    for node in gm.graph.nodes:
        if node.op == "get_attr" and "val" not in node.meta:
            node.meta["val"] = getattr(gm, node.target)
        if _getitem(node) and "val" not in node.meta:
            node.meta["val"] = node.args[0].meta["val"][node.args[1]]
    _outside(gm)
    reasons, device = {}, device_of(gm)
    nodes = [n for n in gm.graph.nodes if n.op == "call_function" and not _getitem(n)]
    for n in nodes:
        reasons[n.name] = "a view of a result" if "fusec_outside" in n.meta else reason_against(n, device)
    left = [(str(n.target), *_origin(n), reasons[n.name]) for n in nodes
            if reasons[n.name] is not None and "fusec_outside" not in n.meta]
    programs = []
    positions = {n.name: i for i, n in enumerate(m for m in gm.graph.nodes if m.op == "placeholder")}
    if any(r is None for r in reasons.values()):
        partitioner = CapabilityBasedPartitioner(gm, _Support(reasons), allows_single_node_partition=True)
        partitions = [p for p in partitioner.propose_partitions() if any(
            not _getitem(n) and str(n.target) not in VIEWS for n in p.nodes)]
        gm = partitioner.fuse_partitions(partitions, prefix="fusec_")
        for node in list(gm.graph.nodes):
            if node.op != "call_module" or not str(node.target).startswith("fusec_"):
                continue
            part = getattr(gm, node.target)
            fixed = [i for i, a in enumerate(node.args) if positions.get(a.name) in frozen]
            try:
                part_runner = build(part, phase, node.target, device, fixed, options, names if phase != "backward" else ())
            except (FusecError, Unsupported) as e:
                log.warning("a part of the %s graph is left to PyTorch: %s", phase, e)
                left += [(str(n.target), *_origin(n), str(e)) for n in part.graph.nodes
                         if n.op == "call_function" and not _getitem(n)]
                continue
            programs.append(part_runner)
            delattr(gm, node.target)
            setattr(gm, node.target, part_runner)
    for node in gm.graph.nodes:
        if str(node.target) in ("aten.view.default", "aten._unsafe_view.default"):
            node.target = torch.ops.aten.reshape.default  # a program need not give the strides that a view is for
    _join_views(gm)
    if kept is not None:
        _keep_together(gm, kept)
    gm.recompile()
    if records is not None:
        count = sum("fusec_outside" not in n.meta for n in nodes)
        records.append(Record(phase, count, count - len(left), left, programs))
    return gm.forward


class _ByShape:
    """A graph whose shapes may change: a function for the shapes of each call, of which the last ones are kept."""

    def __init__(self, gm, phase, options, records):
        self.gm, self.phase, self.options, self.records = gm, phase, options, records
        self.functions = collections.OrderedDict()

    def __call__(self, *args):
        key = tuple((tuple(a.shape), a.stride(), a.dtype) if isinstance(a, torch.Tensor) else a for a in args)
        f = self.functions.get(key)
        if f is None:
            if len(self.functions) >= MAX_SHAPES:
                self.functions.popitem(last=False)
            f = self.functions[key] = self._fix(args)
        else:
            self.functions.move_to_end(key)
        return f(*(a for a in args if isinstance(a, torch.Tensor)))

    def _fix(self, args):
        """The graph with the sizes of these operands."""
        mode, new = FakeTensorMode(allow_non_fake_inputs=True), torch.fx.Graph()
        given = iter(args)
        known, made = {}, {}  # by node: the present value, and the node of the new graph or a number
        attributes = {}
        with mode:
            for node in self.gm.graph.nodes:
                if node.op == "placeholder":
                    a = next(given)
                    if isinstance(a, torch.Tensor):
                        with torch.no_grad():
                            known[node] = torch.empty_strided(a.shape, a.stride(), dtype=a.dtype, device=a.device)
                        made[node] = new.placeholder(node.name)
                    else:
                        known[node] = made[node] = a
                elif node.op == "get_attr":
                    attributes[node.target] = getattr(self.gm, node.target)
                    known[node] = mode.from_tensor(attributes[node.target])
                    made[node] = new.get_attr(node.target)
                elif node.op == "call_function":
                    known[node] = node.target(*torch.fx.map_arg(node.args, known.__getitem__),
                                              **torch.fx.map_arg(dict(node.kwargs), known.__getitem__))
                    if _tensors(known[node]):
                        made[node] = new.call_function(node.target, _mapped(node.args, made), _mapped(dict(node.kwargs), made))
                    else:
                        made[node] = known[node]
                elif node.op == "output":
                    new.output(_mapped(node.args[0], made))
                m = made.get(node)
                if isinstance(m, torch.fx.Node):
                    m.meta = dict(node.meta)
                    m.meta["val"] = known[node]
        module = torch.fx.GraphModule(attributes, new)
        return compile_static(module, self.phase, self.options, self.records)


def _mapped(args, made):
    return torch.fx.node.map_aggregate(args, lambda a: made[a] if isinstance(a, torch.fx.Node) else a)


def _dynamic(gm):
    for node in gm.graph.nodes:
        v = node.meta.get("val")
        if isinstance(v, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return True
        if any(isinstance(d, torch.SymInt) for t in _tensors(v) for d in t.shape):
            return True
    return False


def _parameters(gm):
    """The positions of a graph's operands that are parameters or buffers."""
    positions = []
    for i, n in enumerate(n for n in gm.graph.nodes if n.op == "placeholder"):
        if type(n.meta.get("desc")).__name__ in ("ParamAOTInput", "BufferAOTInput"):
            positions.append(i)
    if not positions:
        context = torch._guards.TracingContext.try_get()
        if context is not None and context.fw_metadata is not None:
            positions = list(context.fw_metadata.static_input_indices)
    return positions


def _first_saved():
    """How many results of the forward graph that is compiled come before those for the backward pass; None if it is not known."""
    context = torch._guards.TracingContext.try_get()
    metadata = context and context.fw_metadata
    return metadata and metadata.num_forward + len(metadata.tokens)


def compile_graph(gm, example_inputs, *, phase, options, records=None, names=()):
    options = dict(options)
    freeze = options.pop("freeze", False)
    if _dynamic(gm):
        f = _ByShape(gm, phase, options, records)
    else:
        frozen = _parameters(gm) if freeze and phase == "inference" else ()
        f = compile_static(gm, phase, options, records, frozen, names, _first_saved() if phase == "forward" else None)

    def boxed(args):
        args, given = list(args), args
        given.clear()
        out = f(*args)
        return out if isinstance(out, (list, tuple)) else (out,)

    boxed._boxed_call = True
    return boxed


@functools.cache
def decompositions():
    """ATen's operations in terms of others, without those that fusec has."""
    table = dict(core_aten_decompositions())
    for op in list(table):
        if str(op) in LOWERINGS:
            del table[op]
    return table


def _partition(joint, inputs, **kwargs):
    _grads.use(joint)
    return min_cut_rematerialization_partition(joint, inputs, **kwargs)


def fusec_backend(gm, example_inputs, *, options=None, mode=None, records=None):
    """The backend of torch.compile. options are freeze (parameters do not change: what follows from them is computed once, and
    again when one has been written by a PyTorch operation), threads and memory_budget."""
    options = dict(options or {})
    for name in options:
        if name not in OPTIONS:
            raise ValueError(f"fusec has no option {name!r}; it has {', '.join(OPTIONS)}")
    parts = {phase: functools.partial(compile_graph, phase=phase, options=options, records=records, names=_source_names(gm))
             for phase in ("forward", "backward", "inference")}
    return aot_autograd(fw_compiler=parts["forward"], bw_compiler=parts["backward"], inference_compiler=parts["inference"],
                        decompositions=decompositions(), partition_fn=_partition)(gm, example_inputs)
