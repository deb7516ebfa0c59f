"""Tests of the Python package. `make test-python` runs them with the wheel installed."""

import copy
import pathlib
import pickle
import sys
import tempfile
import threading
import unittest

import fusec
import numpy as np

TESTDATA = pathlib.Path(__file__).resolve().parents[4] / "testdata"
MODEL = """fusec graph 1 "model" {
  x = input : f32[3,4]
  w = param : f32[4,2]
  %2 = matmul x w : f32[3,2]
  %3 = unary[fn=tanh] %2 : f32[3,2]
  %4 = reduce[fn=sum axes=[0,1]] %3 : f32[]
  output loss = %4
}
"""
random = np.random.default_rng(1)


def normal(*shape):
    return random.standard_normal(shape).astype(np.float32)


def difference(f, x, dy, eps=1e-2):
    """The gradient of sum(f()·dy) for x by finite differences."""
    d = np.zeros_like(x)
    for i in np.ndindex(*x.shape):
        old = x[i]
        x[i] = old + eps
        up = np.sum(f().astype(np.float64) * dy)
        x[i] = old - eps
        down = np.sum(f().astype(np.float64) * dy)
        x[i] = old
        d[i] = (up - down) / (2 * eps)
    return d


class Models(unittest.TestCase):
    def test_digits(self):
        pixels = np.load(TESTDATA / "models/digits-mlp.pixels.npy")
        with fusec.load(TESTDATA / "models/digits-mlp.graph", threads=1) as model:
            self.assertEqual(model.inputs, {"pixels": (360, 64)})
            logits = model(pixels=pixels)
            self.assertEqual(logits.shape, (360, 10))
            np.testing.assert_array_equal(logits, model(pixels=np.asfortranarray(pixels)))
            self.assertEqual([f["kind"] for f in model.fusions], ["linear"] * 3)
            self.assertIn("<svg", model._repr_svg_())
            self.assertEqual(model.trace["schema"], "fusec.trace/5")
            with tempfile.TemporaryDirectory() as d:
                model.report(pathlib.Path(d) / "r.html")
                self.assertIn("<html", (pathlib.Path(d) / "r.html").read_text("utf-8"))

    def test_misuse(self):
        def wants(error, message, f, *args, **options):
            with self.assertRaises(error) as caught:
                f(*args, **options)
            self.assertIn(message, str(caught.exception))

        model = fusec.parse(MODEL)
        wants(fusec.FusecError, 'output "loss" has no value before a run', model.get, "loss")
        wants(fusec.FusecError, 'input "x" has no value', model.run)
        for twin in copy.copy, copy.deepcopy, pickle.dumps:
            wants(TypeError, "neither copied nor pickled", twin, model)
        model.set("w", normal(4, 2))
        model(x=normal(3, 4))
        wants(ValueError, "NUL", model.get, "loss\0")
        wants(ValueError, "NUL", fusec.load, str(TESTDATA / "models/digits-mlp.graph") + "\0")
        with fusec.load(bytes(TESTDATA / "models/digits-mlp.graph")) as digits:
            self.assertEqual(list(digits.inputs), ["pixels"])
        model.close()
        model.close()
        for f in model.run, model.svg, lambda: model.get("loss"), lambda: model.set("x", normal(3, 4)):
            wants(fusec.FusecError, "the model is closed", f)
        wants(ValueError, "x has 3 axes, not 2", fusec.linear, normal(2, 3, 4), normal(4, 5))
        wants(ValueError, "v has 3 axes, not 4", fusec.attention, normal(1, 2, 3, 4), normal(1, 2, 3, 4), normal(2, 3, 4))
        wants(fusec.FusecError, "linear: matmul", fusec.linear, normal(3, 4), normal(5, 5))

    def test_onnx(self):
        with fusec.load(TESTDATA.parent / "graph/onnx/testdata/mlp.onnx", dims={"batch": 2}) as model:
            (name, shape), = model.inputs.items()
            y = model(**{name: normal(*shape)})
            self.assertEqual(y.shape[0], 2)

    def test_dlpack(self):
        class Foreign:  # an array of some other library
            def __init__(self, array):
                self.array = array

            def __dlpack__(self, **keywords):
                return self.array.__dlpack__(**keywords)

        x, w = normal(4, 3).T, normal(4, 2)
        with fusec.parse(MODEL) as model:
            got = model(x=Foreign(x), w=Foreign(w))
        np.testing.assert_allclose(got, np.tanh(x @ w).sum(), rtol=1e-5)

    def test_training(self):
        with fusec.parse(MODEL, gradients={"dx": ("loss", "x")}, optimizer={"rule": "sgd", "rate": 0.1}) as model:
            x, w = normal(3, 4), normal(4, 2)
            first = model(x=x, w=w)
            np.testing.assert_allclose(first["dx"], (1 - np.tanh(x @ w) ** 2) @ w.T, rtol=1e-4, atol=1e-5)
            for _ in range(4):
                last = model()
            self.assertLess(last["loss"], first["loss"])
            self.assertEqual(model.steps["steps"], 5)
            with tempfile.TemporaryDirectory() as d:
                model.save(pathlib.Path(d) / "trained.graph")
                with fusec.load(pathlib.Path(d) / "trained.graph") as again:
                    np.testing.assert_array_equal(again(x=x)["loss"], model(x=x)["loss"])

    def test_errors(self):
        for call, text in (
            (lambda: fusec.load("missing.graph"), "missing.graph"),
            (lambda: fusec.parse(MODEL, thread=1), "threads"),
            (lambda: fusec.parse(MODEL)(x=normal(3, 5)), "f32[3,4]"),
            (lambda: fusec.parse(MODEL)(x=normal(3, 4).astype(np.float64)), "f64[3,4]"),
            (lambda: fusec.parse(MODEL)(z=normal(1)), '"z"'),
            (lambda: fusec.parse(MODEL)(x=normal(3, 4)), "w"),
            (lambda: fusec.linear(normal(2, 3), normal(4, 5)), "linear"),
        ):
            with self.assertRaises(fusec.FusecError) as e:
                call()
            self.assertIn(text, str(e.exception))
        with self.assertRaises(TypeError):
            fusec.parse(MODEL)(x=np.array(["a"]))

    def test_threads(self):
        failed = []

        def work():
            with fusec.parse(MODEL) as model:
                x, w = normal(3, 4), normal(4, 2)
                for _ in range(50):
                    if not np.isclose(model(x=x, w=w), np.tanh(x @ w).sum(), rtol=1e-4, atol=1e-5):
                        failed.append(1)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(failed, [])


class Kernels(unittest.TestCase):
    def compare(self, f, backward, arrays, dy_shape):
        dy = normal(*dy_shape)
        for got, x in zip(backward(dy), arrays):
            np.testing.assert_allclose(got, difference(f, x, dy), rtol=2e-2, atol=2e-2)

    def test_linear(self):
        x, w, b = normal(3, 4), normal(4, 5), normal(5)
        np.testing.assert_allclose(fusec.linear(x, w, b, activation="tanh", residual=np.ones((3, 5), np.float32)),
                                   np.tanh(x @ w + b) + 1, rtol=1e-5, atol=1e-5)
        self.compare(lambda: fusec.linear(x, w, b, activation="tanh"),
                     lambda dy: fusec.linear_backward(x, w, dy, b, activation="tanh"), (x, w, b), (3, 5))

    def test_attention(self):
        q, k, v = normal(1, 2, 3, 4), normal(1, 1, 5, 4), normal(1, 1, 5, 4)
        s = q @ k.transpose(0, 1, 3, 2) / 2
        p = np.exp(s - s.max(-1, keepdims=True))
        np.testing.assert_allclose(fusec.attention(q, k, v), p / p.sum(-1, keepdims=True) @ v, rtol=1e-4, atol=1e-5)
        self.compare(lambda: fusec.attention(q, k, v, causal=True),
                     lambda dy: fusec.attention_backward(q, k, v, dy, causal=True), (q, k, v), (1, 2, 3, 4))

    def test_moe(self):
        x, w1, w2, w3 = normal(3, 4), normal(2, 4, 5), normal(2, 5, 2), normal(2, 4, 5)
        gates = np.array([[1, 0], [0.25, 0.75], [0, 0]], np.float32)
        h = [(x @ w1[e]) / (1 + np.exp(-(x @ w1[e]))) * (x @ w3[e]) @ w2[e] for e in range(2)]
        want = sum(gates[:, e:e + 1] * h[e] for e in range(2))
        np.testing.assert_allclose(fusec.moe(x, gates, w1, w2, w3), want, rtol=1e-4, atol=1e-5)
        dx, _, d1, d2, d3 = fusec.moe_backward(x, gates, w1, w2, np.ones((3, 2), np.float32), w3)
        for got, a in ((dx, x), (d1, w1), (d2, w2), (d3, w3)):
            np.testing.assert_allclose(got, difference(lambda: fusec.moe(x, gates, w1, w2, w3), a, 1.0), rtol=2e-2, atol=2e-2)

    def test_norms(self):
        x, g, b = normal(3, 6), normal(6), normal(6)
        want = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5) * g + b
        np.testing.assert_allclose(fusec.layer_norm(x, g, b), want, rtol=1e-4, atol=1e-5)
        self.compare(lambda: fusec.layer_norm(x, g, b), lambda dy: fusec.layer_norm_backward(x, dy, g), (x, g, b), (3, 6))
        self.compare(lambda: fusec.rms_norm(x, g), lambda dy: fusec.rms_norm_backward(x, dy, g), (x, g), (3, 6))


if __name__ == "__main__":
    print("Python", sys.version.split()[0], "fusec", fusec.version())
    unittest.main()
