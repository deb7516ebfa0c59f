"""The C interface, include/fusec.h, by ctypes."""

import ctypes
import os

import numpy as np


class FusecError(RuntimeError):
    """What fusec could not do, and why."""


class Device(ctypes.Structure):
    _fields_ = [("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32)]


class DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class Tensor(ctypes.Structure):
    """DLPack's DLTensor."""

    _fields_ = [
        ("data", ctypes.c_void_p), ("device", Device), ("ndim", ctypes.c_int32), ("dtype", DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Value(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("dtype", DataType), ("ndim", ctypes.c_int32),
                ("shape", ctypes.POINTER(ctypes.c_int64))]


class AttentionOptions(ctypes.Structure):
    _fields_ = [("scale", ctypes.c_double), ("causal", ctypes.c_int), ("window", ctypes.c_int)]


INPUT, PARAMETER, STATE, OUTPUT = range(4)

_program, _text, _tensor = ctypes.c_void_p, ctypes.c_char_p, ctypes.POINTER(Tensor)
_options = ctypes.POINTER(ctypes.c_char_p)
_pointers = ctypes.c_void_p  # where a list of pointers begins
_signatures = {  # name: result, arguments
    "fusec_version": (_text, []),
    "fusec_error": (_text, []),
    "fusec_open": (_program, [_text, _options]),
    "fusec_parse": (_program, [_text, ctypes.c_size_t, _options]),
    "fusec_close": (ctypes.c_int, [_program]),
    "fusec_count": (ctypes.c_int, [_program, ctypes.c_int]),
    "fusec_describe": (ctypes.c_int, [_program, ctypes.c_int, ctypes.c_int, ctypes.POINTER(Value)]),
    "fusec_set": (ctypes.c_int, [_program, _text, _tensor]),
    "fusec_get": (ctypes.c_int, [_program, _text, _tensor]),
    "fusec_run": (ctypes.c_int, [_program]),
    "fusec_call": (ctypes.c_int, [_program, _pointers, _pointers]),
    "fusec_queue": (ctypes.c_int, [_program, _pointers, _pointers, ctypes.c_void_p, ctypes.c_void_p]),
    "fusec_queue_bytes": (ctypes.c_int64, [_program]),
    "fusec_wait": (ctypes.c_int, [_program]),
    "fusec_save": (ctypes.c_int, [_program, _text]),
    "fusec_report": (ctypes.c_void_p, [_program, _text]),
    "fusec_free": (None, [ctypes.c_void_p]),
    "fusec_linear": (ctypes.c_int, [_tensor] * 4 + [_text, _tensor]),
    "fusec_linear_backward": (ctypes.c_int, [_tensor] * 3 + [_text] + [_tensor] * 5),
    "fusec_attention": (ctypes.c_int, [_tensor] * 4 + [ctypes.POINTER(AttentionOptions), _tensor]),
    "fusec_attention_backward": (ctypes.c_int, [_tensor] * 4 + [ctypes.POINTER(AttentionOptions)] + [_tensor] * 4),
    "fusec_moe": (ctypes.c_int, [_tensor] * 5 + [_text, _tensor]),
    "fusec_moe_backward": (ctypes.c_int, [_tensor] * 5 + [_text] + [_tensor] * 6),
    "fusec_layer_norm": (ctypes.c_int, [_tensor] * 3 + [ctypes.c_double, _tensor]),
    "fusec_layer_norm_backward": (ctypes.c_int, [_tensor] * 2 + [ctypes.c_double] + [_tensor] * 4),
    "fusec_rms_norm": (ctypes.c_int, [_tensor] * 2 + [ctypes.c_double, _tensor]),
    "fusec_rms_norm_backward": (ctypes.c_int, [_tensor] * 2 + [ctypes.c_double] + [_tensor] * 3),
}


def _load():
    path = os.environ.get("FUSEC_LIBRARY") or os.path.join(os.path.dirname(__file__), "libfusec.so")
    library = ctypes.CDLL(path)
    for name, (result, arguments) in _signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


library = _load()


def version():
    """The version of the library."""
    return library.fusec_version().decode()


def fail():
    """Raises the error of this thread's last call."""
    raise FusecError(library.fusec_error().decode())


def check(status):
    if status:
        fail()


def text(s):
    """A string as the library takes it, for which a NUL would be the end."""
    b = s if isinstance(s, bytes) else str.encode(s)
    if b"\0" in b:
        raise ValueError(f"{s!r} has a NUL")
    return b


_types = {  # NumPy's kinds of types, and DLPack's codes
    "i": 0, "u": 1, "f": 2, "b": 6,
}
_names = {(0, 8): np.int8, (0, 16): np.int16, (0, 32): np.int32, (0, 64): np.int64, (1, 8): np.uint8, (1, 16): np.uint16,
          (1, 32): np.uint32, (1, 64): np.uint64, (2, 16): np.float16, (2, 32): np.float32, (2, 64): np.float64,
          (6, 8): np.bool_}
_BFLOAT = 4

ctypes.pythonapi.PyCapsule_GetPointer.restype = ctypes.c_void_p
ctypes.pythonapi.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


_CUDA = 2  # DLPack's number of the device type
_DEFAULT_STREAM = 1  # DLPack's number of it, where CUDA has 0


def on_gpu(array):
    """The number of the GPU that an array's memory is on; None for arrays of the host."""
    device = getattr(array, "__dlpack_device__", None)
    if device is None:
        return None
    kind, number = device()
    return int(number) if int(kind) == _CUDA else None


def tensor_of(array, stream=None):
    """The capsule of an object with __dlpack__, which releases the memory when it is collected, and the tensor in it. An array on a
    GPU is ready for what comes later in the stream of an address."""
    capsule = array.__dlpack__() if stream is None else array.__dlpack__(stream=stream or _DEFAULT_STREAM)
    pointer = ctypes.pythonapi.PyCapsule_GetPointer(capsule, b"dltensor")
    return capsule, Tensor.from_address(pointer)  # the first field of DLManagedTensor


class Operand:
    """An array as the library reads it. The array's memory stays as long as the operand does."""

    def __init__(self, array):
        self.of = array
        if isinstance(array, np.ndarray) or not hasattr(array, "__dlpack__"):
            self._of_numpy(np.asarray(array))
        else:
            if on_gpu(array) is not None:
                raise FusecError("an array is on a GPU, where one on the host is taken: copy it there")
            self._of_dlpack(array)

    def _of_numpy(self, a):
        if a.dtype.kind not in _types or not a.dtype.isnative:
            raise TypeError(f"arrays of {a.dtype} are not taken")
        if any(s % a.itemsize for s in a.strides):
            a = np.ascontiguousarray(a)
        self.of = a
        self._shape = (ctypes.c_int64 * a.ndim)(*a.shape)
        self._strides = (ctypes.c_int64 * a.ndim)(*(s // a.itemsize for s in a.strides))
        self.tensor = Tensor(data=a.ctypes.data, device=Device(1, 0), ndim=a.ndim,
                             dtype=DataType(_types[a.dtype.kind], 8 * a.itemsize, 1), shape=self._shape,
                             strides=self._strides)

    def _of_dlpack(self, array):
        if hasattr(array, "detach"):  # PyTorch's tensors that need gradients are not handed out otherwise
            array = array.detach()
        self._capsule, self.tensor = tensor_of(array)


def reference(operand):
    """A pointer to an operand's tensor; NULL for None."""
    return None if operand is None else ctypes.byref(operand.tensor)


def view(tensor):
    """The elements of a tensor of the library's as an array of NumPy, without a copy. Those of bf16 become f32."""
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    bits = tensor.dtype.bits
    kind = np.uint16 if tensor.dtype.code == _BFLOAT else _names[tensor.dtype.code, bits]
    count = int(np.prod(shape, dtype=np.int64))
    if count == 0:
        array = np.empty(shape, kind)
    else:
        raw = (ctypes.c_char * (count * bits // 8)).from_address(tensor.data)
        array = np.frombuffer(raw, kind).reshape(shape)
    if tensor.dtype.code == _BFLOAT:
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array
