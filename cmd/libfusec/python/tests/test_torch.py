"""Tests of fusec.torch. They need PyTorch."""

import copy
import threading
import unittest

import torch
import torch.nn.functional as F

import fusec
import fusec.torch


def tensors(*shapes, dtype=torch.float64, grad=True):
    return [torch.randn(s, dtype=dtype, requires_grad=grad) for s in shapes]


class Operations(unittest.TestCase):
    """Each operation against PyTorch's own, its gradients against finite differences, and what PyTorch asks of operations."""

    def setUp(self):
        torch.manual_seed(0)

    def hold(self, op, theirs, *shapes):
        args = tensors(*shapes)
        torch.autograd.gradcheck(op, args)
        torch.autograd.gradgradcheck(op, args, fast_mode=True)
        for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
            mine = [a.detach().to(dtype).requires_grad_() for a in args]
            other = [a.detach().clone().requires_grad_() for a in mine]
            y, z = op(*mine), theirs(*other)
            dy = torch.randn(z.shape, dtype=dtype)
            y.backward(dy), z.backward(dy)
            for a, b in ((y, z), *((a.grad, b.grad) for a, b in zip(mine, other))):
                torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)

    def test_linear(self):
        for activation, f in {None: lambda x: x, "relu": F.relu, "gelu": F.gelu, "silu": F.silu, "tanh": torch.tanh,
                              "sigmoid": torch.sigmoid, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh")}.items():
            self.hold(lambda x, w, b, r: fusec.torch.linear(x, w, b, activation=activation, residual=r),
                      lambda x, w, b, r: f(F.linear(x, w, b)) + r, (2, 3, 5), (7, 5), (7,), (2, 3, 7))
        self.hold(fusec.torch.linear, F.linear, (3, 5), (1, 5))
        self.hold(lambda x, w: fusec.torch.linear(x, w.t()), lambda x, w: x @ w, (3, 5), (5, 4))

    def test_attention(self):
        self.hold(fusec.torch.attention, F.scaled_dot_product_attention, (2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 6))
        self.hold(lambda q, k, v: fusec.torch.attention(q, k, v, causal=True),
                  lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), *[(1, 2, 9, 3)] * 3)
        self.hold(lambda q, k, v: fusec.torch.attention(q, k, v, scale=0.3),
                  lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.3, enable_gqa=True),
                  (2, 4, 5, 4), *[(2, 2, 5, 4)] * 2)
        mask = torch.rand(2, 1, 5, 7) > 0.3
        mask[..., 0] = True
        self.hold(lambda q, k, v: fusec.torch.attention(q, k, v, mask),
                  lambda q, k, v: F.scaled_dot_product_attention(q, k, v, mask), (2, 3, 5, 4), *[(2, 3, 7, 4)] * 2)
        for mask in ((5, 7), (3, 1, 7), (2, 1, 1, 1)):
            self.hold(fusec.torch.attention, F.scaled_dot_product_attention, (2, 3, 5, 4), *[(2, 3, 7, 4)] * 2, mask)
        self.hold(lambda q, k, v, m: fusec.torch.attention(q, k, v, m, causal=True, window=4), lambda q, k, v, m:
                  F.scaled_dot_product_attention(q, k, v, m.masked_fill((torch.arange(5)[:, None] + 2 - torch.arange(7)).sub(1.5).abs() > 2,
                                                                        -torch.inf), enable_gqa=True),
                  (2, 6, 5, 4), *[(2, 3, 7, 4)] * 2, (5, 7))
        at = torch.arange(9)
        window = (at[:, None] - at).abs() < 3
        self.hold(lambda q, k, v: fusec.torch.attention(q, k, v, window=3),
                  lambda q, k, v: F.scaled_dot_product_attention(q, k, v, window), *[(1, 2, 9, 3)] * 3)
        q = torch.randn(3, 8, 2, 5, requires_grad=True).transpose(1, 2)  # strides as those of heads
        torch.testing.assert_close(fusec.torch.attention(q, q, q), F.scaled_dot_product_attention(q, q, q), rtol=1e-5, atol=1e-5)

    def test_moe(self):
        chosen = torch.zeros(6, 3).scatter_(1, torch.tensor([[0, 1], [1, 2], [0, 2], [1, 0], [2, 1], [0, 1]]), 1.0)

        def theirs(x, gates, w1, w2, w3=None):
            h = F.silu(torch.einsum("td,edf->tef", x, w1))
            if w3 is not None:
                h = h * torch.einsum("td,edf->tef", x, w3)
            return torch.einsum("te,tef,efo->to", gates * chosen.to(x.dtype), h, w2)

        for w3 in ([], [(3, 4, 5)]):
            self.hold(lambda x, g, *w: fusec.torch.moe(x, g * chosen.to(x.dtype), *w), theirs,
                      (6, 4), (6, 3), (3, 4, 5), (3, 5, 2), *w3)

    def test_norms(self):
        self.hold(fusec.torch.layer_norm, lambda x, g, b: F.layer_norm(x, x.shape[-1:], g, b), (2, 3, 7), (7,), (7,))
        self.hold(fusec.torch.layer_norm, lambda x: F.layer_norm(x, x.shape[-1:]), (4, 5))
        self.hold(fusec.torch.rms_norm, lambda x, g: F.rms_norm(x, x.shape[-1:], g, 1e-6), (2, 3, 7), (7,))
        self.hold(fusec.torch.rms_norm, lambda x: F.rms_norm(x, x.shape[-1:], None, 1e-6), (4, 5))

    def test_opcheck(self):
        ops, t = torch.ops.fusec, tensors
        for op, args in (
            (ops.linear, (*t((3, 5), (7, 5), (7,)), None, "gelu")),
            (ops.attention, (*t(*[(1, 2, 5, 4)] * 3), None, True, None, 0)),
            (ops.moe, (*t((3, 4), (3, 2), (2, 4, 5), (2, 5, 3)), None, "silu")),
            (ops.layer_norm, (*t((3, 5), (5,), (5,)), 1e-5)),
            (ops.rms_norm, (*t((3, 5), (5,)), 1e-6)),
        ):
            torch.library.opcheck(op, args)

    def test_errors(self):
        x, w = tensors((3, 5), (4, 6), dtype=torch.float32)
        with self.assertRaisesRegex(fusec.FusecError, r"linear of x \[3, 5\], w \[4, 6\]: .*matmul"):
            fusec.torch.linear(x, w)
        with self.assertRaisesRegex(fusec.FusecError, "x has elements of torch.bfloat16"):
            fusec.torch.rms_norm(x.bfloat16())
        with self.assertRaisesRegex(fusec.FusecError, "gain has elements of torch.float64"):
            fusec.torch.rms_norm(x, torch.ones(5, dtype=torch.float64))
        with self.assertRaisesRegex(fusec.FusecError, "no activation 'softsign'"):
            fusec.torch.linear(x, x, activation="softsign")
        q = torch.randn(1, 1, 2, 3)
        with self.assertRaisesRegex(fusec.FusecError, "mask"):
            fusec.torch.attention(q, q, q, torch.zeros(3, 2))

    def test_second(self):
        """Second derivatives where operands are one tensor, where a query attends nowhere, and of third order."""
        q, = tensors((1, 2, 4, 3))
        nowhere = torch.ones(4, 4, dtype=torch.bool)
        nowhere[1] = False
        for f in (lambda q: fusec.torch.attention(q, q, q, causal=True), lambda q: fusec.torch.attention(q, q, q, nowhere)):
            torch.autograd.gradcheck(f, q)
            torch.autograd.gradgradcheck(f, q)
        x, w = tensors((3, 5), (4, 5))

        def slope(x, w):
            return torch.autograd.grad(fusec.torch.linear(x, w, activation="tanh").sum(), w, create_graph=True)[0]

        torch.autograd.gradgradcheck(slope, (x, w))
        for p in torch.nn.Parameter(x.detach()), x.detach():  # an operand that needs no gradient
            torch.autograd.gradgradcheck(lambda w: fusec.torch.linear(p, w, activation="gelu"), w)

    def test_compiled(self):
        """An operation inside torch.compile."""
        x, w = tensors((3, 5), (7, 5), dtype=torch.float32)
        f = torch.compile(lambda x, w: fusec.torch.linear(x, w, activation="relu").sum(), backend="aot_eager")
        f(x, w).backward()
        other = x.detach().clone().requires_grad_()
        F.relu(F.linear(other, w)).sum().backward()
        torch.testing.assert_close(x.grad, other.grad)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(3, 8, 3, padding=1, bias=False), torch.nn.BatchNorm2d(8)
        self.layer_norm, self.head = torch.nn.LayerNorm(8), torch.nn.Linear(8, 5)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.conv(x))), 3, 2, 1)
        return self.head(self.layer_norm(x.mean((2, 3))))


class Compiled(unittest.TestCase):
    """torch.compile(backend="fusec")."""

    def setUp(self):
        torch.manual_seed(0)
        torch._dynamo.reset()
        self.records = []

    def compile(self, f, **options):
        def backend(gm, inputs):
            return fusec.torch.backend(gm, inputs, records=self.records, options=options)

        return torch.compile(f, backend=backend)

    def left(self):
        return {operation: reason for r in self.records for operation, _, _, reason in r.left}

    def equal(self, f, *args, tolerance=1e-5, **options):
        """Results and gradients of a function and of what becomes of it."""
        other = [a.detach().requires_grad_(a.requires_grad) for a in args]
        want, got = f(*other), self.compile(f, **options)(*args)
        got, want = (v if isinstance(v, tuple) else (v,) for v in (got, want))
        for a, b in zip(got, want):
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
            self.assertEqual(a.stride(), b.stride())
        if any(a.requires_grad for a in args):
            dy = [torch.randn_like(y) for y in want]
            torch.autograd.backward(want, dy), torch.autograd.backward(got, dy)
            for a, b in zip(args, other):
                if a.requires_grad:
                    torch.testing.assert_close(a.grad, b.grad, rtol=tolerance, atol=tolerance)

    def test_registered(self):
        """The backend's name, which the wheel declares."""
        if "fusec" in torch._dynamo.list_backends():
            f = torch.compile(lambda x: x.tanh() * 2, backend="fusec")
            torch.testing.assert_close(f(torch.ones(3)), torch.ones(3).tanh() * 2)

    def test_training(self):
        """Steps of an optimiser, with running statistics."""
        model = Net()
        other = copy.deepcopy(model)
        compiled = self.compile(model)
        steps = [(m, f, torch.optim.Adam(m.parameters(), 1e-2)) for m, f in ((model, compiled), (other, other))]
        for _ in range(3):
            x = torch.randn(4, 3, 9, 9)
            for _, f, optimiser in steps:
                optimiser.zero_grad()
                f(x).square().sum().backward()
                optimiser.step()
        self.assertEqual(self.left(), {})
        self.assertEqual([r.phase for r in self.records], ["forward", "backward"])
        for (name, p), q in zip(model.state_dict().items(), other.state_dict().values()):
            torch.testing.assert_close(p, q, rtol=1e-3, atol=1e-4, msg=name)

    def test_fallback(self):
        """What fusec has not got stays with PyTorch, also in the middle."""
        self.equal(lambda x: torch.erfinv(x.tanh() / 2).exp().sin(), torch.randn(5, 3, requires_grad=True))
        self.assertEqual(self.left().get("aten.erfinv.default"), "there is no such operation in fusec")

    def test_explain(self):
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
        e = fusec.torch.explain(model, torch.randn(3, 4))
        self.assertRegex(str(e), r"forward: \d+ of \d+ operations in 1 programs of 1 launches")
        self.assertEqual(len(e.models), 2)
        self.assertIn("0.weight", e.models[0].inputs)
        self.assertIn(e.models[0].fusions[0]["kind"], ("linear", "matmul"))
        e = fusec.torch.explain(lambda x: torch.erfinv(x).tanh(), torch.randn(3, 4))
        self.assertRegex(str(e), r"aten.erfinv.default stays with PyTorch: .*test_torch.py:\d+")

    def test_shapes(self):
        """Other shapes compile another program, and sizes that PyTorch leaves open are those of the call."""
        f = self.compile(lambda x: (x @ x.t()).softmax(-1).reshape(-1)[1:])
        for n in (4, 5, 6, 7, 5):
            x = torch.randn(n, 3, requires_grad=True)
            y = f(x)
            other = x.detach().clone().requires_grad_()
            z = (other @ other.t()).softmax(-1).reshape(-1)[1:]
            torch.testing.assert_close(y, z)
            dy = torch.randn_like(y)
            y.backward(dy), z.backward(dy)
            torch.testing.assert_close(x.grad, other.grad)
        self.assertEqual(self.left(), {})

    def test_freeze(self):
        """Frozen parameters are read again when PyTorch has changed them."""
        model = Net().eval()
        f, x = self.compile(model, freeze=True), torch.randn(2, 3, 9, 9)
        with torch.no_grad():
            for _ in range(2):
                for _ in range(2):
                    torch.testing.assert_close(f(x), model(x), rtol=1e-5, atol=1e-5)
                model.head.weight.mul_(2)
                model.norm.running_var.add_(1)
        fusions = [x for r in self.records for p in r.programs for x in p.model.fusions]
        self.assertTrue(any(x.get("prepared") for x in fusions))

    def test_memory(self):
        """Parameters are read where they lie, and results are the caller's."""
        w = torch.randn(4, 4)
        f = self.compile(lambda x: x @ w)
        x = torch.randn(3, 4)
        y = f(x)
        kept = y.clone()
        w.data.mul_(2)  # unknown to PyTorch's counters of versions
        torch.testing.assert_close(f(x), kept * 2)
        torch.testing.assert_close(y, kept)

    def test_strides(self):
        """Operands and results whose elements lie in another order."""
        self.equal(lambda x: x.permute(2, 0, 1) + 1, torch.randn(3, 4, 5))
        self.equal(lambda x: x * 2, torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last))
        self.equal(lambda x: x.tanh(), torch.randn(4, 6)[:, ::2].requires_grad_())
        self.equal(lambda x: x.tanh(), torch.randn(4, 6)[:, 2:5].requires_grad_())
        self.equal(lambda x: x.tanh().sum(0), torch.randn(2, 3, 8)[..., 1:4].transpose(0, 1))
        f, whole = self.compile(lambda x: x * 2), torch.randn(4, 6)
        for part in (whole[:, 2:5], whole[:, 3:], whole[1:, :3], whole[1:, 3:], whole[:, ::2], whole.t()[1:4].t()):
            torch.testing.assert_close(f(part), part * 2)
        self.equal(lambda x: (x.tanh(), x), torch.randn(1, 5).expand(3, 5))
        self.equal(lambda x: x.tanh().t(), torch.randn(3, 5))

    def test_views(self):
        """Views of results: of the whole, of parts, of parts of parts, several of one, repeated elements, and views that are none."""
        for f in (lambda x: x.tanh().view(20, 3).t(), lambda x: x.tanh().permute(2, 0, 1).unsqueeze(1), lambda x: x.tanh()[0],
                  lambda x: (x.tanh()[0], x.sin()), lambda x: x.tanh().chunk(2, 1)[1].chunk(2, 2), lambda x: x.tanh().unbind(1),
                  lambda x: (lambda y: (y, y.flatten(), y.mT, y[1:]))(x.tanh()), lambda x: x.sum(0, keepdim=True).expand(4, 5, 3),
                  lambda x: x.tanh()[:1, :1].expand(4, 5, 3), lambda x: x.tanh().mT.reshape(-1), lambda x: x.tanh()[4:]):
            for requires_grad in (False, True):
                self.equal(f, torch.randn(4, 5, 3, requires_grad=requires_grad))

    def test_parts(self):
        """Gradients of all parts of a tensor, of some, and of one twice."""
        for f in (lambda x: x[0] * x[1].sin() + x[2], lambda x: x[0] * x[1], lambda x: x[0] * x[0] + x[-1] * x[1] * x[2],
                  lambda x: x[:, 0] * x[:, 1].cos() - x[:, 2] + x[:, 3]):
            self.equal(f, torch.randn(3, 4, 5, requires_grad=True))

    def test_operations(self):
        a, b = torch.randn(3, 4, 6, requires_grad=True), torch.rand(4, 1) + 0.5
        i = torch.tensor([2, 0, -1])
        for f in (
            lambda x: F.gelu(x) + F.silu(x) * F.softplus(x) - F.hardswish(x), lambda x: F.leaky_relu(x, 0.1) + F.elu(x) + F.mish(x),
            lambda x: x.var((0, 2)) + x.mean((0, 2)), lambda x: x.std() * x.amax(), lambda x: x.clamp(-0.5, 0.5) / b + x ** 3,
            lambda x: x[:, i] + x[:, :1], lambda x: x.roll((1, -2), (0, 2)).flip(1),
            lambda x: torch.where(x > 0, x, x * 0.1) - (1 - x),
            lambda x: torch.cat([x, x * 2], 1).split([3, 5], 1)[1].squeeze(), lambda x: F.pad(x, (1, 2, 0, 1), value=0.5),
            lambda x: x.gather(2, torch.tensor([[[0, 5]]]).expand(3, 4, 2)),
            lambda x: F.cross_entropy(x[0], torch.tensor([0, 5, 2, 1])),
            lambda x: x.tril(1).repeat(2, 1, 1), lambda x: x.cumsum(1) + x.cumsum(-1),
            lambda x: F.group_norm(x, 2) + F.layer_norm(x, (4, 6)), lambda x: x.norm(dim=1),
            lambda x: torch.stack([x, -x], 1).unbind(0)[2],
            lambda x: x.detach().topk(2)[0] + x.view(12, 6)[4, 2], lambda x: x @ x.mT,
            lambda x: F.conv1d(x, b.reshape(1, 4, 1).expand(2, 4, 3)), lambda x: F.avg_pool2d(x[None], 2, 1, 1),
            lambda x: F.conv_transpose2d(x[None], b.reshape(1, 1, 4, 1).expand(3, 2, 4, 3), stride=2),
            lambda x: x.masked_fill(x > 1, 2.0).remainder(0.7) + x.floor() + x.sign(),
        ):
            x = a.detach().clone().requires_grad_()
            with self.subTest(f.__code__.co_names):
                self.records.clear()
                self.equal(f, x)
                self.assertEqual(self.left(), {})

    def test_whole_numbers(self):
        x = torch.randint(-9, 9, (4, 5))
        self.equal(lambda x: (x // 3, x % 4, x & 5, x == 2, (x > 0).sum(1), (x > 3).any(), x.cumsum(0)), x)
        self.assertEqual(self.left(), {})

    def test_bfloat16(self):
        x, w = tensors((5, 8), (8, 8), dtype=torch.bfloat16)
        self.equal(lambda x, w: F.gelu(x @ w).softmax(-1), x, w, tolerance=2e-2)
        self.assertEqual(self.left(), {})

    def test_random(self):
        """Dropout draws again in each run, from PyTorch's generator."""
        f = self.compile(lambda x: F.dropout(x, 0.25))
        x = torch.ones(100, 100, requires_grad=True)
        torch.manual_seed(3)
        y, z = f(x), f(x)
        self.assertFalse(torch.equal(y, z))
        torch.manual_seed(3)
        self.assertTrue(torch.equal(f(x), y))
        self.assertAlmostEqual((y == 0).float().mean().item(), 0.25, delta=0.03)
        y.sum().backward()
        torch.testing.assert_close(x.grad, y.detach())
        self.assertEqual(self.left(), {})

    def test_threads(self):
        f = self.compile(lambda x: (x @ x).tanh())
        x = torch.randn(64, 64)
        want, wrong = f(x), []

        def run():
            for _ in range(50):
                if not torch.equal(f(x), want):
                    wrong.append(1)

        threads = [threading.Thread(target=run) for _ in range(4)]
        [t.start() for t in threads], [t.join() for t in threads]
        self.assertEqual(wrong, [])

    def test_options(self):
        with self.assertRaisesRegex(Exception, "no option 'fast'"):
            self.compile(lambda x: x + 1, fast=True)(torch.ones(2))


if __name__ == "__main__":
    unittest.main()
