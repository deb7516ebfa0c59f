"""Compares fusec with ONNX Runtime on models that PyTorch exports, with random weights.

    exported.py export DIR [NAME...]     writes each model as DIR/NAME.onnx and an example of its inputs as DIR/NAME.npz
    exported.py compare DIR [NAME...]    runs each in both, compares the answers, and times both in turn

Exporting needs the packages torch, torchvision, transformers, onnx, onnxscript and onnxruntime; comparing needs onnxruntime and
fusec. What `fusec quantise` makes of a model, by the command that --fusec names, is compared with what ONNX Runtime makes of it.
Without names, all models are taken. An answer of fusec that differs by more than 1e-3, of a number's size where that is more
than 1, is an error. Those of models with quantised values, where a number halfway between two may be rounded to the other one, may
differ by as much, in the root of the mean of squares, as quantising changes. Those of `fusec quantise` may be a quarter farther from
the model in f32 than ONNX Runtime's."""
import argparse
import functools
import os
import statistics
import subprocess
import sys
import time

import numpy as np

MODELS = {}
QUANTISED = {}
# What fusec quantises: by which model of QUANTISED it is compared, and the flags.
OWN = {"block-i8": ("block-dynamic", ["--weights", "i8", "--activations", "i8"])}


def model(f):
    """A model that is exported: what f gives is a module, its arguments as a dict, and options of the exporter."""
    MODELS[f.__name__.replace("_", "-")] = f
    return f


def ids(steps, words=1000, batch=1):
    import torch
    return torch.randint(0, words, (batch, steps))


def module(f):
    """A module that computes f, of the module's operands, with the module inner inside."""
    import torch

    class Module(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, *args):
            return f(self.inner, *args)
    return Module


def pick(inner, field, more={}, **args):
    """A model of transformers that gives one field of its results, and its operands."""
    return module(lambda m, *values: m(**dict(zip(args, values)), **more)[field])(inner), args


@model
def block():
    """The transformer block of cmd/peers."""
    import torch
    width, heads, hidden = 256, 8, 1024

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
            self.up, self.down = torch.nn.Linear(width, hidden), torch.nn.Linear(hidden, width)
            self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)

        def forward(self, x):
            batch, steps, _ = x.shape
            q, k, v = self.qkv(x).reshape(batch, steps, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
            y = torch.nn.functional.scaled_dot_product_attention(q, k, v).permute(0, 2, 1, 3).reshape(batch, steps, width)
            x = self.norm1(x + self.out(y))
            return self.norm2(x + self.down(torch.nn.functional.gelu(self.up(x), approximate="tanh")))
    return Block(), {"x": torch.randn(4, 128, width)}


@model
def bert():
    import torch
    from transformers import BertConfig, BertModel
    m = BertModel(BertConfig(vocab_size=1000, hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024))
    mask = torch.ones(2, 128, dtype=torch.int64)
    mask[1, 100:] = 0
    return pick(m, "last_hidden_state", input_ids=ids(128, batch=2), attention_mask=mask)


@model
def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel
    m = GPT2LMHeadModel(GPT2Config(vocab_size=1000, n_embd=256, n_layer=4, n_head=4, n_positions=256))
    return pick(m, "logits", {"use_cache": False}, input_ids=ids(128))


@model
def llama():
    from transformers import LlamaConfig, LlamaForCausalLM
    m = LlamaForCausalLM(LlamaConfig(vocab_size=1000, hidden_size=256, intermediate_size=688, num_hidden_layers=4, num_attention_heads=8,
                                     num_key_value_heads=2, max_position_embeddings=256))
    return pick(m, "logits", {"use_cache": False}, input_ids=ids(128))


@model
def t5_encoder():
    from transformers import T5Config, T5EncoderModel
    m = T5EncoderModel(T5Config(vocab_size=1000, d_model=256, d_kv=64, d_ff=1024, num_layers=4, num_heads=4))
    return pick(m, "last_hidden_state", input_ids=ids(128))


@model
def vit():
    import torch
    from transformers import ViTConfig, ViTModel
    m = ViTModel(ViTConfig(hidden_size=192, num_hidden_layers=6, num_attention_heads=3, intermediate_size=768), add_pooling_layer=False)
    return pick(m, "last_hidden_state", pixel_values=torch.randn(1, 3, 224, 224))


@model
def swin():
    import torch
    import torchvision
    m = torchvision.models.SwinTransformer(patch_size=[4, 4], embed_dim=48, depths=[2, 2, 2], num_heads=[3, 6, 12], window_size=[7, 7])
    return m, {"x": torch.randn(1, 3, 224, 224)}


@model
def whisper_encoder():
    import torch
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder
    m = WhisperEncoder(WhisperConfig(d_model=256, encoder_layers=4, encoder_attention_heads=4, encoder_ffn_dim=1024, max_source_positions=300))
    return pick(m, "last_hidden_state", input_features=torch.randn(1, 80, 600))


@model
def wav2vec2():
    import torch
    from transformers import Wav2Vec2Config, Wav2Vec2ForCTC
    m = Wav2Vec2ForCTC(Wav2Vec2Config(hidden_size=192, num_hidden_layers=4, num_attention_heads=4, intermediate_size=768, conv_dim=(64,) * 7,
                                      num_conv_pos_embedding_groups=16))
    return pick(m, "logits", input_values=torch.randn(1, 16000))


def vision(name):
    import torch
    import torchvision
    m = getattr(torchvision.models, name)(weights=None)
    for part in m.modules():  # statistics as after training
        if isinstance(part, torch.nn.BatchNorm2d):
            torch.nn.init.normal_(part.running_mean, 0, 0.1)
            torch.nn.init.uniform_(part.running_var, 0.5, 1.5)
    return m, {"x": torch.randn(1, 3, 224, 224)}


@model
def resnet18():
    return vision("resnet18")


@model
def mobilenet_v3():
    return vision("mobilenet_v3_small")


@model
def efficientnet():
    return vision("efficientnet_b0")


@model
def convnext():
    return vision("convnext_tiny")


@model
def ocr():
    """Recognition of a line of text: convolutions, two LSTMs in both directions, classes for each column (CRNN)."""
    import torch
    from torch import nn

    class OCR(nn.Module):
        def __init__(self):
            super().__init__()
            layers, size = [], 1
            for i, n in enumerate((32, 64, 128, 128, 256)):
                layers += [nn.Conv2d(size, n, 3, padding=1), nn.BatchNorm2d(n), nn.ReLU(), nn.MaxPool2d(2 if i < 2 else (2, 1))]
                size = n
            self.conv = nn.Sequential(*layers)
            self.lstm = nn.LSTM(256, 128, num_layers=2, bidirectional=True)
            self.head = nn.Linear(256, 97)

        def forward(self, x):
            x = self.conv(x).squeeze(2).permute(2, 0, 1)
            return self.head(self.lstm(x)[0]).log_softmax(-1)
    return OCR(), {"x": torch.randn(1, 1, 32, 320)}


@model
def text_detector():
    """Where text is in an image: a network for mobile devices, features of several sizes joined, enlarged by transposed
    convolutions (DBNet)."""
    import torch
    import torchvision
    from torch import nn
    from torch.nn import functional as F

    class Detector(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = torchvision.models.mobilenet_v3_small(weights=None).features
            self.at = {1: 16, 3: 24, 8: 48, 12: 576}
            self.lift = nn.ModuleList(nn.Conv2d(n, 64, 1) for n in self.at.values())
            self.smooth = nn.ModuleList(nn.Conv2d(64, 16, 3, padding=1) for _ in self.at)
            self.head = nn.Sequential(nn.Conv2d(64, 16, 3, padding=1), nn.BatchNorm2d(16), nn.Hardswish(), nn.ConvTranspose2d(16, 16, 2, 2),
                                      nn.BatchNorm2d(16), nn.ReLU(), nn.ConvTranspose2d(16, 1, 2, 2), nn.Sigmoid())

        def forward(self, x):
            seen = []
            for i, layer in enumerate(self.stem):
                x = layer(x)
                if i in self.at:
                    seen.append(x)
            up = [lift(x) for lift, x in zip(self.lift, seen)]
            for i in range(len(up) - 1, 0, -1):
                up[i - 1] = up[i - 1] + F.interpolate(up[i], size=up[i - 1].shape[2:], mode="nearest")
            all = [F.interpolate(s(u), size=up[0].shape[2:], mode="bilinear") for s, u in zip(self.smooth, up)]
            return self.head(torch.cat(all, 1))
    return Detector(), {"x": torch.randn(1, 3, 320, 320)}


@model
def speech():
    """Recognition of speech from a spectrogram: two convolutions, two GRUs in both directions (Deep Speech 2)."""
    import torch
    from torch import nn

    class Speech(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Sequential(nn.Conv2d(1, 32, (21, 11), (2, 2), (10, 5)), nn.BatchNorm2d(32), nn.Hardtanh(0, 20),
                                      nn.Conv2d(32, 32, (11, 11), (2, 1), (5, 5)), nn.BatchNorm2d(32), nn.Hardtanh(0, 20))
            self.gru = nn.GRU(32 * 20, 256, num_layers=2, bidirectional=True, batch_first=True)
            self.head = nn.Linear(512, 29)

        def forward(self, x):
            x = self.conv(x).flatten(1, 2).transpose(1, 2)
            return self.head(self.gru(x)[0])
    return Speech(), {"x": torch.randn(1, 1, 80, 200)}


@model
def voice_activity():
    """Is there speech: convolutions over samples, one LSTM whose state goes in and out."""
    import torch
    from torch import nn

    class Voice(nn.Module):
        def __init__(self):
            super().__init__()
            layers, size = [], 1
            for n, k, s in ((64, 16, 8), (128, 3, 2), (64, 3, 2), (64, 3, 2)):
                layers += [nn.Conv1d(size, n, k, s, k // 2), nn.ReLU()]
                size = n
            self.conv = nn.Sequential(*layers)
            self.lstm = nn.LSTM(64, 128)
            self.head = nn.Conv1d(128, 1, 1)

        def forward(self, x, h, c):
            x = self.conv(x.unsqueeze(1)).permute(2, 0, 1)
            y, (h, c) = self.lstm(x, (h, c))
            return torch.sigmoid(self.head(torch.relu(y).permute(1, 2, 0))).mean((1, 2)), h, c
    return Voice(), {"x": torch.randn(1, 4096), "h": torch.zeros(1, 1, 128), "c": torch.zeros(1, 1, 128)}


def recurrence(kind, batch):
    import torch
    return module(lambda m, x: m(x)[0])(getattr(torch.nn, kind)(256, 256)), {"x": torch.randn(100, batch, 256)}


for kind in ("LSTM", "GRU", "RNN"):
    for batch in (1, 16):
        MODELS[f"{kind.lower()}-{batch}"] = functools.partial(recurrence, kind, batch)


def quantised(of):
    """A model that onnxruntime.quantization makes of another one: what f does, given its path, that of the result and a reader of
    examples."""
    def keep(f):
        QUANTISED[f.__name__.replace("_", "-")] = of, f
        return f
    return keep


@quantised("bert")
def bert_dynamic(source, to, reader):
    from onnxruntime import quantization as q
    q.quantize_dynamic(source, to, weight_type=q.QuantType.QInt8, per_channel=True)


@quantised("block")
def block_dynamic(source, to, reader):
    bert_dynamic(source, to, reader)


@quantised("vit")
def vit_qdq(source, to, reader):
    from onnxruntime import quantization as q
    q.quantize_static(source, to, reader, quant_format=q.QuantFormat.QDQ, per_channel=True)


@quantised("resnet18")
def resnet18_qdq(source, to, reader):
    from onnxruntime import quantization as q
    q.quantize_static(source, to, reader, quant_format=q.QuantFormat.QDQ, per_channel=True)


@quantised("resnet18")
def resnet18_qlinear(source, to, reader):
    from onnxruntime import quantization as q
    q.quantize_static(source, to, reader, quant_format=q.QuantFormat.QOperator, activation_type=q.QuantType.QUInt8)


@quantised("llama")
def llama_4_bits(source, to, reader):
    import onnx
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
    m = MatMulNBitsQuantizer(onnx.load(source), block_size=32, is_symmetric=False, accuracy_level=1)  # products in f32
    m.process()
    m.model.save_model_to_file(to)


def quantise_own(dir, name, fusec):
    """Has fusec quantise a model; what it is compared with is exported first."""
    other, flags = OWN[name]
    if not os.path.exists(os.path.join(dir, other) + ".onnx"):
        quantise(dir, other)
    source = os.path.join(dir, QUANTISED[other][0])
    subprocess.run([fusec, "quantise", source + ".onnx", *flags, "-o", os.path.join(dir, name) + ".graph"], check=True)
    np.savez(os.path.join(dir, name) + ".npz", **np.load(source + ".npz"))


def quantise(dir, name):
    """Quantises a model that is exported, or is exported first, by its example and others like it."""
    from onnxruntime import quantization as q
    of, f = QUANTISED[name]
    source, to = os.path.join(dir, of), os.path.join(dir, name)
    if not os.path.exists(source + ".onnx"):
        export(dir, of, False)
    args = dict(np.load(source + ".npz"))

    class Reader(q.CalibrationDataReader):
        def __init__(self):
            rng = np.random.default_rng(1)
            self.rest = iter([args] + [{k: rng.standard_normal(v.shape, np.float32) if v.dtype == np.float32 else v for k, v in args.items()}
                                       for _ in range(3)])

        def get_next(self):
            return next(self.rest, None)
    f(source + ".onnx", to + ".onnx", Reader())
    np.savez(to + ".npz", **args)


def export(dir, name, old, fusec=None):
    if name in OWN:
        return quantise_own(dir, name, fusec)
    if name in QUANTISED:
        return quantise(dir, name)
    import torch
    torch.manual_seed(1)
    m, args = MODELS[name]()
    m.eval()
    path = os.path.join(dir, name + (".old" if old else ""))
    with torch.no_grad():
        torch.onnx.export(m, tuple(args.values()), path + ".onnx", input_names=list(args), dynamo=not old, **({} if old else {"external_data": False}))
    np.savez(path + ".npz", **{k: v.numpy() for k, v in args.items()})


def compare(dir, name, seconds, rounds, threads):
    """Runs a model in both and returns the two times in seconds, how far the answers are from each other and may be, and how many
    launches it has."""
    import fusec
    import onnxruntime as ort
    path = os.path.join(dir, name)
    args = dict(np.load(path + ".npz"))
    rival = OWN[name][0] if name in OWN else name
    o = ort.SessionOptions()
    o.intra_op_num_threads, o.log_severity_level = threads, 3
    session = ort.InferenceSession(os.path.join(dir, rival) + ".onnx", o, providers=["CPUExecutionProvider"])
    args = {i.name: args[i.name] for i in session.get_inputs()}
    names = [x.name for x in session.get_outputs()]
    want = dict(zip(names, session.run(None, args)))
    mine = fusec.load(path + (".graph" if name in OWN else ".onnx"), threads=threads)
    for k, v in args.items():
        mine.set(k, v)
    mine.run()
    off = max(np.max(np.abs(mine.get(k) - want[k]) / np.maximum(1, np.abs(want[k]))) for k in names)
    bound = 1e-3
    if rival in QUANTISED:
        wide = ort.InferenceSession(os.path.join(dir, QUANTISED[rival][0]) + ".onnx", o, providers=["CPUExecutionProvider"]).run(names, args)
    if name in OWN:
        errors = [(np.mean(np.square(mine.get(k) - x)) / np.mean(np.square(want[k] - x))) ** 0.5 for k, x in zip(names, wide)]
        off, bound = max(errors), 1.25
    elif name in QUANTISED:
        apart = [(np.mean(np.square(mine.get(k) - want[k])) / np.mean(np.square(x - want[k]))) ** 0.5 for k, x in zip(names, wide)]
        if off > bound:
            off, bound = max(apart), 1

    def timed(f):
        times, end = [], time.perf_counter() + seconds
        while time.perf_counter() < end or len(times) < 3:
            start = time.perf_counter()
            f()
            times.append(time.perf_counter() - start)
        time.sleep(0.02)  # threads of the other one that still spin stop
        return statistics.median(times)
    both = [], []
    if rounds:
        timed(mine.run), timed(lambda: session.run(None, args))
    for _ in range(rounds):
        both[0].append(timed(mine.run))
        both[1].append(timed(lambda: session.run(None, args)))
    launches = len(mine.fusions)
    mine.close()
    return [min(b) if b else 0 for b in both], float(off), bound, launches


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=("export", "compare", "list"))
    p.add_argument("dir", nargs="?", default=".")
    p.add_argument("names", nargs="*")
    p.add_argument("--seconds", type=float, default=0.3, help="of each in one round")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--fusec", default="fusec", help="the command")
    p.add_argument("--old", action="store_true", help="export by TorchScript, as PyTorch did before 2.9")
    a = p.parse_args()
    wrong = []
    for name in a.names or [*MODELS, *QUANTISED, *OWN]:
        if a.what == "list":
            print(name)
        elif a.what == "export":
            print(name, flush=True)
            os.makedirs(a.dir, exist_ok=True)
            export(a.dir, name, a.old, a.fusec)
        else:
            try:
                (mine, other), off, bound, launches = compare(a.dir, name, a.seconds, a.rounds, a.threads)
            except Exception as e:
                print(f"{name:20} {e}", flush=True)
                wrong.append(name)
                continue
            if not off <= bound:
                wrong.append(name)
            ratio = f"{other / mine:5.2f}" if mine else "    -"
            print(f"{name:20} fusec {mine * 1e3:8.3f} ms  ONNX Runtime {other * 1e3:8.3f} ms  ratio {ratio}  off {off:.1e}  launches {launches}", flush=True)
    if wrong:
        sys.exit("wrong: " + " ".join(wrong))


main()
