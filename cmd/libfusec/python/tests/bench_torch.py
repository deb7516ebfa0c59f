"""Times backend="fusec" against PyTorch's inductor in turn, in one process, and prints the ratio of medians:

    python cmd/libfusec/python/tests/bench_torch.py [--seconds 5] [--threads 2] [NAME…]
"""

import argparse
import statistics
import time

import torch
import torch._inductor.config
import torch.nn.functional as F

import fusec.torch


class Block(torch.nn.Module):
    """A transformer block: attention with heads heads, and a GELU network of four times the width."""

    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)
        self.heads = heads

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (y.view(b, t, self.heads, d // self.heads).transpose(1, 2) for y in self.qkv(self.norm1(x)).chunk(3, -1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
        x = x + self.out(a)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def resnet():
    import torchvision

    return torchvision.models.resnet18(weights=None)


def training(model, *inputs):
    def step(f):
        for p in model.parameters():
            p.grad = None
        f(*inputs).square().mean().backward()

    return step


def inference(model, *inputs):
    model.eval()

    def step(f):
        with torch.no_grad():
            f(*inputs)

    return step


CASES = {
    "block": lambda: (m := Block(256, 8), training(m, torch.randn(4, 128, 256)), {}),
    "block inference": lambda: (m := Block(256, 8), inference(m, torch.randn(4, 128, 256)), {}),
    "resnet18": lambda: (m := resnet(), inference(m, torch.randn(1, 3, 224, 224)), {}),
    "resnet18 frozen": lambda: (m := resnet(), inference(m, torch.randn(1, 3, 224, 224)), {"freeze": True}),
    "resnet18 training": lambda: (m := resnet().train(), training(m, torch.randn(4, 3, 128, 128)), {}),
}


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--seconds", type=float, default=5)
    arguments.add_argument("--threads", type=int, default=2)
    arguments.add_argument("names", nargs="*")
    a = arguments.parse_args()
    torch.set_num_threads(a.threads)
    for name in a.names or CASES:
        torch.manual_seed(0)
        torch._dynamo.reset()
        model, step, options = CASES[name]()
        forms = {"fusec": torch.compile(model, backend=fusec.torch.backend, options=options)}
        if options.get("freeze"):
            torch._inductor.config.freezing = True
        forms["inductor"] = torch.compile(model)
        for f in forms.values():
            for _ in range(3):
                step(f)
        times = {k: [] for k in forms}
        end = time.monotonic() + a.seconds
        while time.monotonic() < end or len(times["fusec"]) < 5:
            for k, f in forms.items():
                start = time.perf_counter()
                step(f)
                times[k].append(time.perf_counter() - start)
        medians = {k: statistics.median(t) for k, t in times.items()}
        print(f"{name:20} fusec {medians['fusec'] * 1e3:8.2f} ms, inductor {medians['inductor'] * 1e3:8.2f} ms: "
              f"{medians['inductor'] / medians['fusec']:.2f} times as fast ({len(times['fusec'])} rounds)", flush=True)
        torch._inductor.config.freezing = False


if __name__ == "__main__":
    main()
