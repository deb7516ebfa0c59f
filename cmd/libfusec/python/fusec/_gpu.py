"""Runs on arrays of a GPU: the memory and the stream are the caller's."""

import ctypes
import sys

from ._library import FusecError, check, library, on_gpu, tensor_of

_ALIGNMENT = 64  # of addresses, in bytes
_PREFIXES = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 6: "bool"}  # of the names of types, by DLPack's codes


class _Torch:
    """What PyTorch has for arrays like a given one."""

    def __init__(self, array):
        self._torch, self._device = sys.modules["torch"], array.device

    def empty(self, shape, dtype):
        return self._torch.empty(shape, dtype=getattr(self._torch, dtype), device=self._device)

    def stream(self):
        return self._torch.cuda.current_stream(self._device) if self._device.type == "cuda" else None  # in a test

    def address(self, stream):
        return None if stream is None else stream.cuda_stream

    def follow(self, stream, last):
        stream.wait_stream(last)


class _CuPy:
    """What CuPy has."""

    def __init__(self, array):
        self._cupy, self._device = sys.modules["cupy"], array.device

    def empty(self, shape, dtype):
        with self._device:
            return self._cupy.empty(shape, dtype)

    def stream(self):
        with self._device:
            return self._cupy.cuda.get_current_stream()

    def address(self, stream):
        return stream.ptr

    def follow(self, stream, last):
        with self._device:
            stream.wait_event(last.record())


class _Standard:
    """What a library has whose arrays are those of the Python array API standard: no streams but the default one."""

    def __init__(self, array):
        self._names, self._device = array.__array_namespace__(), array.device

    def empty(self, shape, dtype):
        return self._names.empty(shape, dtype=getattr(self._names, dtype), device=self._device)

    def stream(self):
        return None

    def address(self, stream):
        return 0


def _maker(array):
    """Makes arrays of an array's kind, on its device."""
    root = type(array).__module__.partition(".")[0]
    for name, kind in (("torch", _Torch), ("cupy", _CuPy)):
        if root == name:
            return kind(array)
    if hasattr(array, "__array_namespace__"):
        return _Standard(array)
    raise FusecError(f"results are made by the library of the arrays, and {type(array).__name__} does not tell of its library: "
                     "give tensors of PyTorch, or arrays of CuPy or the Python array API")


class Queue:
    """Runs a model that was opened with memory=caller."""

    def __init__(self, model, number):
        self._model, self._number = model, number
        self._bytes = library.fusec_queue_bytes(model._handle)
        self._stream = None  # of the last run

    def _check(self, name, array):
        number = on_gpu(array)
        if number is None:
            raise FusecError(f'"{name}" is on the host, and the model takes arrays on GPU {self._number}')
        if number != self._number:
            raise FusecError(f'"{name}" is on GPU {number}, and the model is for GPU {self._number}')

    def _at(self, name, array, maker, stream, held):
        """Where an array's elements lie, one after another. Held keeps them there."""
        if hasattr(array, "detach"):
            array = array.detach()
        capsule, tensor = tensor_of(array, stream)
        shape, dtype = self._model._types[name]
        got = tuple(tensor.shape[i] for i in range(tensor.ndim))
        kind = (tensor.dtype.code, tensor.dtype.bits)
        if got != shape or kind != dtype or tensor.dtype.lanes != 1:
            raise FusecError(f'"{name}" is {_name(dtype)}{list(shape)}, and the array is {_name(kind)}{list(got)}')
        at = (tensor.data or 0) + tensor.byte_offset
        if at % _ALIGNMENT or not _contiguous(shape, tensor):
            copy = maker.empty(shape, _name(dtype))
            copy[...] = array
            return self._at(name, copy, maker, stream, held)
        held.append(capsule)
        return at

    def call(self, values):
        """The results of a run on arrays, by name."""
        model = self._model
        missing = [name for name in model.inputs if name not in values]
        if missing:
            raise FusecError(f'input "{missing[0]}" has no value: a run on a GPU takes all inputs')
        if not model.inputs:
            raise FusecError("a model without inputs does not run on the caller's memory: leave out memory")
        for name in model.inputs:
            self._check(name, values[name])
        for name, array in values.items():
            if name not in model.inputs:
                model.set(name, array)
        maker = _maker(values[next(iter(model.inputs))])
        stream = maker.stream()
        address = maker.address(stream)
        if stream is not None and self._stream is not None and self._stream != stream:
            maker.follow(stream, self._stream)
        held = []
        sources = [self._at(name, values[name], maker, address, held) for name in model.inputs]
        results = {name: maker.empty(shape, _name(model._types[name][1])) for name, shape in model.outputs.items()}
        targets = [self._at(name, array, maker, address, held) for name, array in results.items()]
        scratch = maker.empty((max(self._bytes, 1),), "uint8")
        capsule, tensor = tensor_of(scratch, address)
        check(library.fusec_queue(model._handle, _pointers(sources), _pointers(targets),
                                  (tensor.data or 0) + tensor.byte_offset, address))
        self._stream = stream
        return results


def _name(dtype):
    code, bits = dtype
    prefix = _PREFIXES.get(code)
    return f"DLPack type {code} of {bits} bits" if prefix is None else prefix if prefix == "bool" else f"{prefix}{bits}"


def _contiguous(shape, tensor):
    """Whether elements lie in row-major order, as far as it matters."""
    if not tensor.strides or 0 in shape:
        return True
    step = 1
    for i in reversed(range(len(shape))):
        if shape[i] != 1 and tensor.strides[i] != step:
            return False
        step *= shape[i]
    return True


def _pointers(addresses):
    return (ctypes.c_void_p * max(len(addresses), 1))(*addresses)
