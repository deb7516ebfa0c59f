"""Tests of models on arrays of a GPU. They run on arrays that say that they are on one and are not: a library that was built with
the tag emulator computes on them as it would on a GPU."""

import os
import pathlib
import sys
import tempfile
import unittest

import fusec
import numpy as np

MODEL = """fusec graph 3 "model" {
  x = input : f32[3,4]
  rows = input : i64[2]
  w = param : f32[4,2]
  %3 = matmul x w : f32[3,2]
  %4 = unary[fn=tanh] %3 : f32[3,2]
  %5 = gather[axis=0] %4 rows : f32[2,2]
  output y = %4
  output picked = %5
}
"""
random = np.random.default_rng(1)


class Names:
    """The functions of a library of arrays."""

    float32, int64, uint8 = np.float32, np.int64, np.uint8

    @staticmethod
    def empty(shape, dtype, device):
        count = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        memory = np.zeros(count + 64, np.uint8)
        start = -memory.ctypes.data % 64
        return Array(memory[start:start + count].view(dtype).reshape(shape), device)


class Array:
    """An array on a GPU."""

    copies = 0
    streams = set()

    def __init__(self, elements, device=("cuda", 0)):
        self.elements, self.device, self.shape = elements, device, elements.shape

    @classmethod
    def of(cls, elements):
        a = Names.empty(elements.shape, elements.dtype, ("cuda", 0))
        a.elements[...] = elements
        return a

    def __dlpack_device__(self):
        return 2, self.device[1]

    def __dlpack__(self, stream=None):
        Array.streams.add(stream)
        return self.elements.__dlpack__()

    def __array_namespace__(self):
        return Names

    def __setitem__(self, at, other):
        Array.copies += 1
        self.elements[at] = other.elements


class Orphan(Array):
    """An array of a library that nothing is known of."""

    __array_namespace__ = property()


def normal(*shape):
    return random.standard_normal(shape).astype(np.float32)


class OnGPU(unittest.TestCase):
    def setUp(self):
        self.x, self.w, self.rows = normal(3, 4), normal(4, 2), np.array([2, 0])
        self.model = fusec.parse(MODEL, target="cuda", memory="caller")
        self.addCleanup(self.model.close)

    def hold(self, got, x):
        self.model.wait()
        want = np.tanh(x @ self.w)
        for y in got.values():
            self.assertIsInstance(y, Array)
        np.testing.assert_allclose(got["y"].elements, want, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(got["picked"].elements, want[self.rows], rtol=1e-5, atol=1e-6)

    def test_runs(self):
        x, rows = Array.of(self.x), Array.of(self.rows)
        Array.copies, Array.streams = 0, set()
        first = self.model(x=x, rows=rows, w=self.w)
        self.hold(first, self.x)
        kept = first["y"].elements.copy()
        x.elements *= 2  # in place: the next run reads it
        self.hold(self.model(x=x, rows=rows), 2 * self.x)
        np.testing.assert_array_equal(first["y"].elements, kept)
        self.assertEqual((Array.copies, Array.streams), (0, {1}))

    def test_copies(self):
        """What does not lie as the GPU reads it is copied there."""
        rows, whole = Array.of(self.rows), Array.of(normal(3, 9))
        self.model.set("w", self.w)
        for part in (whole.elements[:, 1:5], whole.elements.reshape(-1)[1:13].reshape(3, 4), whole.elements[:, ::2][:, :4]):
            Array.copies = 0
            self.hold(self.model(x=Array(part), rows=rows), part)
            self.assertEqual(Array.copies, 1)

    def test_file(self):
        with tempfile.TemporaryDirectory() as d:
            path = pathlib.Path(d) / "model.graph"
            with fusec.parse(MODEL) as host:
                host.set("w", self.w)
                host.save(path)
            with fusec.load(path, target="cuda:0", memory="caller") as model:
                got = model(x=Array.of(self.x), rows=Array.of(self.rows))
                model.wait()
                np.testing.assert_allclose(got["y"].elements, np.tanh(self.x @ self.w), rtol=1e-5, atol=1e-6)

    def test_bad_index(self):
        self.model(x=Array.of(self.x), rows=Array.of(np.array([1, 7])), w=self.w)
        with self.assertRaisesRegex(fusec.FusecError, "7"):
            self.model.wait()

    def test_errors(self):
        x, rows, host = Array.of(self.x), Array.of(self.rows), fusec.parse(MODEL)
        copied = fusec.parse(MODEL, target="cuda")
        for call, text in (
            (lambda: host(x=x, rows=self.rows, w=self.w), '"x" is on a GPU: open the model with target="cuda" and memory'),
            (lambda: host.set("w", Array.of(self.w)), '"w" is on a GPU: copy it to the host'),
            (lambda: copied(x=x), '"x" is on a GPU: open the model with'),
            (lambda: self.model(x=x, rows=rows, w=Array.of(self.w)), '"w" is on a GPU: copy it to the host'),
            (lambda: self.model(x=self.x, rows=rows), '"x" is on the host, and the model takes arrays on GPU 0'),
            (lambda: self.model(x=Array(x.elements, ("cuda", 1)), rows=rows), '"x" is on GPU 1, and the model is for GPU 0'),
            (lambda: self.model(x=Orphan(x.elements), rows=rows), "Orphan does not tell of its library"),
            (lambda: self.model(x=x), 'input "rows" has no value'),
            (lambda: self.model(x=Array.of(normal(4, 3)), rows=rows), '"x" is float32[3, 4], and the array is float32[4, 3]'),
            (lambda: self.model(x=x, rows=Array.of(self.rows.astype(np.int32))),
             '"rows" is int64[2], and the array is int32[2]'),
            (lambda: self.model(x=x, rows=rows), '"w"'),
            (lambda: self.model(x=x, rows=rows, z=self.w), '"z"'),
            (lambda: fusec.parse(MODEL, memory="caller"), 'target "cpu"'),
            (lambda: fusec.linear(x, Array.of(self.w)), "an array is on a GPU, where one on the host is taken"),
        ):
            with self.assertRaises(fusec.FusecError) as e:
                call()
            self.assertIn(text, str(e.exception))
        host.close()
        copied.close()

    @unittest.skipUnless(os.environ.get("FUSEC_TEST_TORCH"), "PyTorch takes long to load")
    def test_torch(self):
        import fusec._gpu
        import torch

        on_gpu, fusec._gpu.on_gpu = fusec._gpu.on_gpu, lambda array: 0 if isinstance(array, torch.Tensor) else None
        self.addCleanup(setattr, fusec._gpu, "on_gpu", on_gpu)
        x, rows = torch.from_numpy(self.x.copy()), torch.from_numpy(self.rows)
        for operand in (x, x.t().contiguous().t(), x.clone().requires_grad_()):
            got = self.model(x=operand, rows=rows, w=self.w)
            self.model.wait()
            self.assertIsInstance(got["y"], torch.Tensor)
            torch.testing.assert_close(got["y"], torch.tanh(x @ torch.from_numpy(self.w)))


if __name__ == "__main__":
    print("Python", sys.version.split()[0], "fusec", fusec.version())
    unittest.main()
