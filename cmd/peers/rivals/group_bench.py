"""DistributedDataParallel over torch.compile, and NCCL by itself, on the GPUs of one host.

    torchrun --standalone --nproc_per_node 2 group_bench.py [--only TEXT]

prints the lines of `fusec bench group`: the workload, the time of a step of one GPU alone and of all together, in
milliseconds of steps that follow one another, each the slowest of all, and the part of the ideal speed, and in seconds what their
first steps took, in which torch.compile compiles what is not in its cache. Lines of exchanges have the rate of bytes that a GPU
sends instead.
"""
import json
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from gpu_bench import Block, normal

RUNS, WARM = 20, 5


def slowest(step, runs=RUNS, warm=WARM):
    """Milliseconds of a step, and seconds of the first one."""
    begin = time.perf_counter()
    step()
    torch.cuda.synchronize()
    first = time.perf_counter() - begin
    for _ in range(warm - 1):
        step()
    torch.cuda.synchronize()
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(runs):
        step()
    torch.cuda.synchronize()
    t = torch.tensor((time.perf_counter() - begin) / runs * 1e3, device="cuda")
    dist.all_reduce(t, dist.ReduceOp.MAX)
    return t.item(), first


def say(line):
    if dist.get_rank() == 0:
        print(json.dumps(line), flush=True)


def stepper(model, batch, seq, width):
    x, target = normal(batch, seq, width), normal(batch, seq, width)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)

    def step():
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.mse_loss(model(x), target)
        loss.backward()
        opt.step()
        opt.zero_grad(set_to_none=True)

    return step


def training(only):
    n = dist.get_world_size()
    for layers, width, heads, batch, seq in [(12, 768, 12, 8, 1024), (24, 1024, 16, 8, 1024)]:
        name = f"data parallel training step bf16 autocast L{layers}d{width}b{batch}s{seq}"
        if only not in name:
            continue

        def net():
            return torch.nn.Sequential(*[Block(width, heads) for _ in range(layers)]).cuda()

        alone, first = slowest(stepper(torch.compile(net()), batch, seq, width))
        torch._dynamo.reset()
        ms, second = slowest(stepper(torch.compile(DDP(net(), gradient_as_bucket_view=True)), batch, seq, width))
        torch._dynamo.reset()
        say({"workload": name, "peer": "torch.compile, DDP", "participants": n, "alone_ms": round(alone, 4), "ms": round(ms, 4),
             "scaling": round(alone / ms, 4), "speedup": round(n * alone / ms, 4),
             "first_step_s": [round(first, 1), round(second, 1)]})


def exchanges(only):
    n = dist.get_world_size()
    for mib in [0.004, 4, 64, 128, 512]:
        name = f"all_reduce f32 {mib}MiB"
        if only not in name:
            continue
        x = torch.zeros(int(mib * 2**18), device="cuda")
        ms, _ = slowest(lambda: dist.all_reduce(x))
        say({"workload": name, "peer": "NCCL", "participants": n, "ms": round(ms, 4),
             "rate": round(8 * x.numel() * (n - 1) / n / ms / 1e6, 1), "unit": "GB/s"})


def main():
    only = sys.argv[sys.argv.index("--only") + 1] if "--only" in sys.argv else ""
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    exchanges(only)
    training(only)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
