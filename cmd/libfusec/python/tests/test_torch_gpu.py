"""Tests of fusec.torch on a GPU. Without one they use tensors of the processor, on which a library that was built with the tag
emulator computes as it would on a GPU."""

import copy
import unittest
import unittest.mock

import torch
import torch.nn.functional as F

import fusec
import fusec.torch
from fusec.torch import _backend, _grads

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    _backend.TARGETS["cpu"] = "cuda"


def normal(*shape, dtype=torch.float32, grad=True):
    return torch.randn(*shape, device=DEVICE).to(dtype).requires_grad_(grad)


def compiled(model, records=None):
    return torch.compile(model, backend=lambda gm, inputs: fusec.torch.backend(gm, inputs, records=records))


class Block(torch.nn.Module):
    """A transformer block of two heads."""

    def __init__(self, width):
        super().__init__()
        self.n1, self.n2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.o = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        b, s, d = x.shape
        q, k, v = (y.view(b, s, 2, d // 2).transpose(1, 2) for y in self.qkv(self.n1(x)).chunk(3, -1))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, s, d))
        return x + self.down(F.gelu(self.up(self.n2(x)), approximate="tanh"))


class Language(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.block, self.head = torch.nn.Embedding(50, 32), Block(32), torch.nn.Linear(32, 50)

    def forward(self, tokens):
        return self.head(self.block(self.words(tokens)))


class Images(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = torch.nn.Conv2d(3, 8, 3, padding=1, bias=False), torch.nn.BatchNorm2d(8)
        self.second, self.head = torch.nn.Conv2d(8, 16, 3, stride=2, padding=1), torch.nn.Linear(16, 5)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.first(x))), 2)
        return self.head(F.relu(self.second(x)).mean((2, 3)))


class OnGPU(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)
        torch._dynamo.reset()

    def near(self, got, want, tolerance, what=""):
        size = want.abs().max().clamp_min(1e-6).item()
        self.assertLessEqual((got.double() - want.double()).abs().max().item(), tolerance * size, what)

    def hold(self, op, theirs, *shapes):
        """An operation and its gradients against float64, where the reference has the same operands."""
        for dtype, tolerance in ((torch.float32, 2e-5), (torch.bfloat16, 2e-2), (torch.float16, 3e-3)):
            mine = [normal(*s, dtype=dtype) for s in shapes]
            other = [a.detach().double().requires_grad_() for a in mine]
            y, z = op(*mine), theirs(*other)
            self.assertEqual(y.dtype, dtype)
            dy = torch.randn_like(y)
            y.backward(dy), z.backward(dy.double())
            self.near(y, z, tolerance, f"{dtype}")
            for i, (a, b) in enumerate(zip(mine, other)):
                self.assertEqual(a.grad.dtype, dtype)
                self.near(a.grad, b.grad, tolerance, f"gradient {i}, {dtype}")

    def test_linear(self):
        self.hold(lambda x, w, b, r: fusec.torch.linear(x, w, b, activation="gelu", residual=r),
                  lambda x, w, b, r: F.gelu(F.linear(x, w, b)) + r, (2, 12, 40), (24, 40), (24,), (2, 12, 24))

    def test_attention(self):
        self.hold(lambda q, k, v: fusec.torch.attention(q, k, v, causal=True),
                  lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), *[(2, 2, 20, 16)] * 3)
        self.hold(fusec.torch.attention, lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
                  (1, 4, 9, 16), (1, 2, 13, 16), (1, 2, 13, 16))

    def test_moe(self):
        chosen = torch.zeros(6, 3).scatter_(1, torch.tensor([[0, 1], [1, 2], [0, 2], [1, 0], [2, 1], [0, 1]]), 1.0).to(DEVICE)

        def theirs(x, gates, w1, w2):
            h = F.silu(torch.einsum("td,edf->tef", x, w1))
            return torch.einsum("te,tef,efo->to", gates * chosen.to(x.dtype), h, w2)

        self.hold(lambda x, g, *w: fusec.torch.moe(x, g * chosen.to(x.dtype), *w), theirs, (6, 8), (6, 3), (3, 8, 16), (3, 16, 8))

    def test_norms(self):
        self.hold(fusec.torch.layer_norm, lambda x, g, b: F.layer_norm(x, x.shape[-1:], g, b), (2, 3, 40), (40,), (40,))
        self.hold(fusec.torch.rms_norm, lambda x, g: F.rms_norm(x, x.shape[-1:], g, 1e-6), (2, 3, 40), (40,))

    def train(self, model, inputs, loss, autocast=False, tolerance=1e-4, steps=4):
        """Some steps of training with and without fusec; the gradients of the last, and what the model keeps, are alike."""
        other, records = copy.deepcopy(model), []
        f = compiled(other, records)
        for _ in range(steps):
            for m, call in ((model, model), (other, f)):
                m.zero_grad(set_to_none=True)
                with torch.autocast(DEVICE, torch.bfloat16, enabled=autocast):
                    value = loss(call(*inputs).float())
                value.backward()
                with torch.no_grad():
                    for p in m.parameters():
                        p.sub_(p.grad, alpha=0.05)
        largest = max(p.grad.abs().max() for p in model.parameters())
        for (name, p), q in zip(model.named_parameters(), other.parameters()):
            self.assertLessEqual(((p.grad - q.grad).abs().max() / largest).item(), tolerance, name)
        for (name, p), q in zip(model.named_buffers(), other.buffers()):
            self.near(q, p, tolerance, name)
        for r in records:
            self.assertEqual((r.left, len(r.programs)), ([], 1), r.phase)
            for p in r.programs:
                self.assertIsInstance(p, _backend.QueueRunner)

    def test_block(self):
        for autocast, tolerance in ((False, 1e-4), (True, 4e-2)):
            torch._dynamo.reset()
            self.train(Block(32).to(DEVICE), (normal(2, 24, 32, grad=False),), lambda y: y.square().mean(), autocast, tolerance)

    def test_saved(self):
        """What is kept for the backward pass lies in one piece of memory, is read there, and is not held by what is given out."""
        records = []
        block, x = Block(32).to(DEVICE), normal(2, 16, 32)
        with torch.autocast(DEVICE, torch.bfloat16):
            y = compiled(block, records)(x)
        forward, = next(r.programs for r in records if r.phase == "forward")
        self.assertEqual(len(forward.together), len(forward.gives) - 1)
        self.assertEqual(y.untyped_storage().nbytes(), y.numel() * y.itemsize)
        with unittest.mock.patch.object(_backend.Runner, "_addresses", side_effect=AssertionError("an operand is copied")):
            y.backward(torch.randn_like(y))
        backward, = next(r.programs for r in records if r.phase == "backward")
        self.assertEqual({launch["phase"] for launch in backward.model.trace["program"]["launches"]}, {"backward"})

    def test_language(self):
        tokens = torch.randint(0, 50, (2, 16), device=DEVICE)
        self.train(Language().to(DEVICE), (tokens,), lambda y: F.cross_entropy(y.flatten(0, 1), tokens.flatten()))

    def test_images(self):
        for layout in (torch.contiguous_format, torch.channels_last):
            torch._dynamo.reset()
            x = normal(4, 3, 16, 16, grad=False).to(memory_format=layout)
            self.train(Images().to(DEVICE, memory_format=layout), (x,), lambda y: y.square().mean(), tolerance=1e-3, steps=2)

    def test_frozen(self):
        model = Block(32).to(DEVICE).eval()
        f = torch.compile(model, backend=fusec.torch.backend, options={"freeze": True})
        x = normal(2, 24, 32, grad=False)
        with torch.no_grad():
            for _ in range(2):
                for _ in range(3):
                    self.near(f(x), model(x), 1e-5)
                model.o.weight.add_(0.1)

    def test_bad_index(self):
        model = torch.nn.Embedding(5, 8).to(DEVICE)

        def f(i, x):
            return model.weight[i] + x  # on PyTorch's side such an index ends the process's use of the GPU

        f, x = compiled(f), normal(3, 8, grad=False)
        with torch.no_grad(), self.assertRaisesRegex(fusec.FusecError, "index 9"):
            for _ in range(3):
                f(torch.tensor([1, 9, 2], device=DEVICE), x)
                if DEVICE == "cuda":
                    torch.cuda.synchronize()

    def test_operands(self):
        """Operands that others have left in part, and that are not aligned."""
        f = compiled(lambda x, y: (x @ y).tanh())
        whole = normal(40, 40, grad=False)
        for x, y in ((whole[1:21, :8], whole[:8, 3:9]), (whole[3:23, 8:16], whole[:8, 4:10]),
                     (whole[:20, 16:24], whole[8:24:2, 3:9]), (whole.flatten()[1:65].view(8, 8), whole[:8, :8].t())):
            with torch.no_grad():
                self.near(f(x, y), (x @ y).tanh(), 1e-5)

    def test_random(self):
        f = compiled(lambda x: F.dropout(x, 0.5))
        x = torch.ones(4, 1000, device=DEVICE)
        torch.manual_seed(3)
        a, b = f(x), f(x)
        torch.manual_seed(3)
        self.assertTrue(torch.equal(a, f(x)))
        self.assertFalse(torch.equal(a, b))
        self.assertLess(abs(a.mean().item() - 1), 0.1)

    def test_attentions_of_gpus(self):
        """The attentions that PyTorch has for GPUs become fusec's in a graph of forward and backward pass."""
        aten = torch.ops.aten

        def joint(q, k, v, dy):
            y, lse, seed, offset = aten._scaled_dot_product_efficient_attention(q, k, v, None, True, 0.0, True)
            saved, lse = y.detach(), lse.detach()
            return (y, *aten._scaled_dot_product_efficient_attention_backward(
                dy, q, k, v, None, saved, lse, seed, offset, 0.0, [True, True, True, False], True)[:3])

        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.fx.experimental.proxy_tensor import make_fx

        with FakeTensorMode():
            fakes = [torch.empty(1, 2, 6, 8, device="cuda") for _ in range(4)]
            graph = make_fx(joint)(*fakes)
        _grads.use(graph)
        targets = {str(n.target) for n in graph.graph.nodes}
        self.assertIn("fusec._attention.default", targets)
        self.assertIn("fusec._attention_grad.default", targets)
        self.assertFalse([t for t in targets if "efficient" in t])
        q, k, v, dy = (torch.randn(1, 2, 6, 8, dtype=torch.float32) for _ in range(4))
        q, k, v = (t.requires_grad_() for t in (q, k, v))
        want = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        want.backward(dy)
        got = graph(*(t.detach() for t in (q, k, v, dy)))
        for a, b in zip(got, (want, q.grad, k.grad, v.grad)):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@unittest.skipUnless(DEVICE == "cuda", "there is no GPU")
class Streams(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)
        torch._dynamo.reset()

    def test_streams(self):
        """Runs in the stream that is current, one after the other where it changes."""
        f, x = compiled(lambda x: (x @ x).tanh().sum(1)), normal(512, 512, grad=False)
        want = (x @ x).tanh().sum(1)
        side = torch.cuda.Stream()
        for i in range(6):
            with torch.no_grad(), torch.cuda.stream(side if i % 2 else torch.cuda.default_stream()):
                torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
                y = f(x)
            torch.cuda.synchronize()
            torch.testing.assert_close(y, want, rtol=1e-4, atol=1e-3)

    def test_recorded(self):
        """A step in a CUDA graph of PyTorch's."""
        model, x = Block(64).cuda(), normal(2, 32, 64, grad=False)
        f = compiled(model)

        def step():
            model.zero_grad(set_to_none=True)
            loss = f(x).square().mean()
            loss.backward()
            return loss

        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                want = step().item()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = step()
        for _ in range(3):
            graph.replay()
        torch.cuda.synchronize()
        self.assertAlmostEqual(loss.item(), want, places=5)


if __name__ == "__main__":
    unittest.main(verbosity=2)
