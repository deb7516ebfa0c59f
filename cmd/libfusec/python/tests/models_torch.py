"""Architectures of torchvision, timm and transformers through torch.compile(backend="fusec"): forward and a training step, against
PyTorch itself. Small configurations with random weights. With names as arguments only those."""

import copy
import sys
import time

import torch

import fusec.torch

IMAGES = (2, 3, 64, 64)


def vision(name, **options):
    def make():
        import torchvision

        return torchvision.models.get_model(name, weights=None, num_classes=10, **options), (torch.randn(IMAGES),)

    return make


def timm(name, **options):
    def make():
        import timm

        return timm.create_model(name, num_classes=10, img_size=64, **options), (torch.randn(IMAGES),)

    return make


def timm_conv(name, **options):
    def make():
        import timm

        return timm.create_model(name, num_classes=10, **options), (torch.randn(IMAGES),)

    return make


SMALL = dict(vocab_size=100, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128)


def language(config, model, **options):
    def make():
        import transformers

        c = getattr(transformers, config)(**options)
        c.use_cache = False
        return getattr(transformers, model)(c), (torch.randint(0, 100, (2, 17)),)

    return make


MODELS = {
    "ResNet-18": vision("resnet18"),
    "ResNet-50": vision("resnet50"),
    "MobileNet v3": vision("mobilenet_v3_small"),
    "EfficientNet": vision("efficientnet_b0"),
    "ConvNeXt": timm_conv("convnext_atto"),
    "ConvNeXt (torchvision)": vision("convnext_tiny"),
    "ViT": timm("vit_tiny_patch16_224"),
    "ViT (torchvision)": lambda: (__import__("torchvision").models.VisionTransformer(64, 16, 2, 4, 64, 128, num_classes=10),
                                  (torch.randn(IMAGES),)),
    "Swin": timm("swin_tiny_patch4_window7_224", embed_dim=24, depths=(2, 2), num_heads=(2, 4), window_size=4),
    "Swin (torchvision)": lambda: (__import__("torchvision").models.SwinTransformer([4, 4], 24, [2, 2], [2, 4], [4, 4],
                                                                                   num_classes=10), (torch.randn(IMAGES),)),
    "BERT": language("BertConfig", "BertModel", **SMALL),
    "GPT-2": language("GPT2Config", "GPT2LMHeadModel", vocab_size=100, n_embd=64, n_layer=2, n_head=4),
    "Llama": language("LlamaConfig", "LlamaForCausalLM", **SMALL, num_key_value_heads=2),
    "T5 encoder": language("T5Config", "T5EncoderModel", vocab_size=100, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4,
                           dropout_rate=0.0),
    "Mixtral": language("MixtralConfig", "MixtralForCausalLM", **SMALL, num_key_value_heads=2, num_local_experts=4),
}


def first(out):
    """The first tensor of what a model gives."""
    if isinstance(out, dict):
        out = list(out.values())
    return next(t for t in torch.utils._pytree.tree_leaves(out) if torch.is_tensor(t))


def step(model, f, inputs):
    """The output and the gradients of a training step."""
    for p in model.parameters():
        p.grad = None
    out = first(f(*inputs))
    out.square().mean().backward()
    return out.detach(), [p.grad for p in model.parameters() if p.grad is not None]


def without_dropout(model):
    for m in model.modules():
        if isinstance(m, torch.nn.Dropout):
            m.p = 0.0
        for name in ("drop_prob", "dropout_rate"):
            if isinstance(getattr(m, name, None), float):
                setattr(m, name, 0.0)
        if type(m).__name__ == "StochasticDepth":
            m.p = 0.0


def departure(a, b):
    """The largest difference, in units of the largest element."""
    return ((a - b).abs().max() / b.abs().max().clamp_min(1e-3)).item() if b.numel() else 0.0


def test(name):
    """What fusec took of a model, and by how much its results depart: outputs in evaluation from PyTorch's, outputs and gradients
    in training from float64's, as PyTorch's own do."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    model, inputs = MODELS[name]()
    without_dropout(model)
    with torch.no_grad():
        for p in model.parameters():
            if not p.any():
                p.normal_(std=0.02)
    other = copy.deepcopy(model)
    records = []

    def backend(gm, example_inputs):
        return fusec.torch.backend(gm, example_inputs, records=records)

    compiled = torch.compile(other, backend=backend)
    worst = {}
    model.eval(), other.eval()
    with torch.no_grad():
        worst["inference"] = departure(first(compiled(*inputs)), first(model(*inputs)))
    model.train(), other.train()
    exact = copy.deepcopy(model).double()
    try:
        want, gradients = step(exact, exact, [x.double() if x.is_floating_point() else x for x in inputs])
    except RuntimeError:  # PyTorch's grouped products are not there in float64
        exact = copy.deepcopy(model)
        want, gradients = step(exact, exact, inputs)
    largest = max(g.abs().max() for g in gradients)
    for who, (m, f) in {"PyTorch's": (model, model), "": (other, compiled)}.items():
        got, mine = step(m, f, inputs)
        worst[f"{who} forward".strip()] = departure(got, want)
        worst[f"{who} gradients".strip()] = (max((a - b).abs().max() for a, b in zip(mine, gradients)) / largest).item()
    worst["buffers"] = max([departure(q.float(), p.float()) for p, q in zip(model.buffers(), other.buffers())] or [0.0])
    return records, worst


def main(names):
    passed = 0
    for name in names:
        start = time.monotonic()
        try:
            records, worst = test(name)
        except Exception as e:
            print(f"{name:24} failed: {type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}", flush=True)
            if len(names) == 1:
                raise
            continue
        nodes, taken = sum(r.nodes for r in records), sum(r.taken for r in records)
        ok = worst["inference"] < 1e-4 and all(worst[k] < max(1e-4, 3 * worst[f"PyTorch's {k}"]) for k in ("forward", "gradients"))
        passed += ok
        print(f"{name:24} {'ok ' if ok else 'BAD'} {taken}/{nodes} operations, {len(records)} graphs, "
              f"{sum(len(r.programs) for r in records)} programs; " + ", ".join(f"{k} {v:.1e}" for k, v in worst.items())
              + f"; {time.monotonic() - start:.0f} s", flush=True)
        left = {}
        for r in records:
            for target, position, node, reason in r.left:
                left.setdefault((target, reason), []).append(position)
        for (target, reason), where in left.items():
            print(f"    {len(where)} × {target}: {reason} ({where[0]})")
    print(f"{passed} of {len(names)} models pass")
    return 0 if passed >= 0.9 * len(names) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or list(MODELS)))
