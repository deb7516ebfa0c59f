"""Models: what load and parse give."""

import ctypes
import json
import os

from ._gpu import Queue
from ._library import (
    INPUT,
    OUTPUT,
    PARAMETER,
    STATE,
    FusecError,
    Operand,
    Tensor,
    Value,
    check,
    fail,
    library,
    on_gpu,
    reference,
    text,
    view,
)


def _options(options):
    """The options of the library for Python's."""
    lines = []
    for name, value in options.items():
        if name == "gradients":
            lines += [f"gradient={output}:{cost}:{of}" for output, (cost, of) in value.items()]
        elif name == "dims":
            lines += [f"dim.{k}={v}" for k, v in value.items()]
        elif name == "optimizer" and not isinstance(value, str):
            settings = dict(value)
            lines.append(f"optimizer={settings.pop('rule')}")
            lines += [f"optimizer.{k}={v}" for k, v in settings.items()]
        else:
            lines.append(f"{name}={value}")
    return (ctypes.c_char_p * (len(lines) + 1))(*(text(line) for line in lines), None)


def load(path, **options):
    """Opens a model (.graph with its weights beside it, .onnx or .fuse) and compiles it. See help(fusec) for the options."""
    return Model(library.fusec_open(text(os.fsencode(path)), _options(options)), options)


def parse(text, **options):
    """Compiles text in the form of a .graph file. Its parameters have to be set."""
    source = str.encode(text)
    return Model(library.fusec_parse(source, len(source), _options(options)), options)


class Model:
    """A compiled model. One thread at a time uses it.

    inputs, parameters, states and outputs map names to shapes.
    """

    def __init__(self, handle, options):
        self._opened = handle
        if not handle:
            fail()
        self._held = {}  # operands that the library reads in place, by name
        self._types = {}  # shape and type by name
        self.inputs, self.parameters, self.states, self.outputs = (
            self._values(kind) for kind in (INPUT, PARAMETER, STATE, OUTPUT))
        self._queue = None
        if options.get("memory") == "caller":
            self._queue = Queue(self, int(str(options["target"]).partition(":")[2] or 0))

    @property
    def _handle(self):
        if not self._opened:
            raise FusecError("the model is closed")
        return self._opened

    def _values(self, kind):
        values = {}
        for i in range(library.fusec_count(self._handle, kind)):
            v = Value()
            check(library.fusec_describe(self._handle, kind, i, ctypes.byref(v)))
            shape = tuple(v.shape[axis] for axis in range(v.ndim))
            values[v.name.decode()] = shape
            self._types[v.name.decode()] = shape, (v.dtype.code, v.dtype.bits)
        return values

    def set(self, name, array):
        """Gives an input, parameter or state its value. A parameter that changes in place has to be set again."""
        if on_gpu(array) is not None:
            raise FusecError(f'"{name}" is on a GPU: ' + (
                "copy it to the host" if self._queue or name not in self.inputs else
                'open the model with target="cuda" and memory="caller", or copy it to the host'))
        operand = Operand(array)
        check(library.fusec_set(self._handle, text(name), reference(operand)))
        self._held[name] = operand

    def get(self, name):
        """A copy of an output after a run, or of a state or trained parameter."""
        t = Tensor()
        check(library.fusec_get(self._handle, text(name), ctypes.byref(t)))
        return view(t).copy()

    def run(self):
        """Runs the model on what was set."""
        check(library.fusec_run(self._handle))

    def __call__(self, **values):
        """Sets the values, runs, and returns the output, or a dict of all if there are several."""
        if self._queue:
            results = self._queue.call(values)
        else:
            for name, array in values.items():
                self.set(name, array)
            self.run()
            results = {name: self.get(name) for name in self.outputs}
        return next(iter(results.values())) if len(results) == 1 else results

    def wait(self):
        """Waits for the runs of a model that was opened with memory="caller", and raises their errors."""
        check(library.fusec_wait(self._handle))

    def save(self, path):
        """Writes the model as path, a .graph file, and its present weights beside it."""
        check(library.fusec_save(self._handle, text(os.fsencode(path))))

    def _report(self, form):
        report = library.fusec_report(self._handle, form.encode())
        if not report:
            fail()
        try:
            return ctypes.string_at(report).decode()
        finally:
            library.fusec_free(report)

    @property
    def fusions(self):
        """The launches in order: dicts with kind, name, operations, flops and bytes."""
        return json.loads(self._report("fusions"))

    @property
    def trace(self):
        """The whole compilation, as docs/trace-json.md describes it."""
        return json.loads(self._report("trace"))

    @property
    def steps(self):
        """How training goes: steps, skipped, rate, loss_scale and norm."""
        return json.loads(self._report("steps"))

    def report(self, path):
        """Writes one HTML page about the compiled model."""
        page = self._report("html")
        with open(path, "w", encoding="utf-8") as f:
            f.write(page)

    def svg(self):
        """The picture of the compiled model."""
        return self._report("svg")

    def _repr_svg_(self):
        return self.svg()

    def close(self):
        """Lets go of the model and its memory."""
        handle, self._opened = self._opened, None
        if handle:
            check(library.fusec_close(handle))
        self._held = {}

    def __reduce__(self):
        raise TypeError("a model is neither copied nor pickled: open it again, or save it")

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def __del__(self):
        handle = getattr(self, "_opened", None)
        if handle and library is not None:
            library.fusec_close(handle)
