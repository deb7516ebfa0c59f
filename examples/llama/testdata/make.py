"""Makes small checkpoints with random weights of every family that examples/llama reads, with what transformers computes.

make.py FOLDER          all, as .ci/long compares them
make.py FOLDER NAME...  some of them

Each folder gets config.json, tokenizer.json, weights, and expected.json: texts with their tokens and what these decode to,
and for a prompt the logits of each position and the tokens that follow when the greatest logit is picked each time.
"""

import json
import math
import sys
from pathlib import Path

import gguf
import numpy
import safetensors.torch
import tokenizers
import torch
import transformers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

TEXTS = [
    "Once upon a time, there were 1234 words; they'd all gone.",
    "  two  spaces\n\nand lines\t\tof tabs \n ",
    "It's I'LL we've THEY'RE don't 'tis",
    "naïve café — 東京 \U0001f600! Ünïcödé e\u0301",
    "<s>special</s> <|end|>tokens <|end|> in  <mask> it<mask>",
    "",
    " ",
    "x = [1, 22, 333, 4444]; // done?!\r\n",
]
CORPUS = Path(__file__).resolve().parents[3] / "testdata/text/northanger-abbey.txt"


def lines():
    return CORPUS.read_text(encoding="utf-8").splitlines(keepends=True)[:4000]


LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def byte_level(size, pattern=None, nfc=False, bos=False, ignore_merges=False):
    t = tokenizers.Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if nfc:
        t.normalizer = normalizers.NFC()
    if pattern:
        t.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ])
    else:
        t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(lines(), trainers.BpeTrainer(
        vocab_size=size - 2, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    t.add_special_tokens(["<s>", AddedToken("<|end|>", rstrip=True)])
    t.add_tokens([AddedToken("<mask>", lstrip=True, single_word=True)])
    if bos:
        b = t.token_to_id("<s>")
        t.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", b)]),
        ])
    return t


def sentencepiece(size, metaspace):
    """The form of Llama 2 and Mistral: spaces are a letter, what has no token is spelled by bytes."""
    t = tokenizers.Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    if metaspace:
        t.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    else:
        t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    special = ["<unk>", "<s>", "</s>"] + ["<0x%02X>" % b for b in range(256)]
    learn = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    learn.normalizer = normalizers.Replace(" ", "▁")
    learn.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    learn.train_from_iterator(lines(), trainers.BpeTrainer(vocab_size=size, special_tokens=special, show_progress=False))
    model = json.loads(learn.to_str())["model"]
    whole = json.loads(t.to_str())
    whole["model"]["vocab"], whole["model"]["merges"] = model["vocab"], model["merges"]
    t = tokenizers.Tokenizer.from_str(json.dumps(whole))
    t.add_special_tokens(["<unk>", "<s>", "</s>"])
    t.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return t


def ascii_only():
    """A vocabulary so small that it can be kept with the tests."""
    t = byte_level(400)
    whole = json.loads(t.to_str())
    letters = [chr(c) for c in range(33, 127)] + ["Ġ", "Ċ"]
    merges = [m for m in whole["model"]["merges"] if all(ord(c) < 127 or c in "ĠĊ" for c in "".join(m))][:28]
    tokens = letters + ["".join(m) for m in merges] + ["<s>", "</s>"]
    whole["model"]["vocab"] = {c: i for i, c in enumerate(tokens)}
    whole["model"]["merges"] = merges
    whole["added_tokens"] = [
        {"id": i, "content": c, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        for i, c in enumerate(tokens) if c in ("<s>", "</s>")]
    t = tokenizers.Tokenizer.from_str(json.dumps(whole))
    b = t.token_to_id("<s>")
    t.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", b)])
    return t


SMALL = dict(hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2,
             max_position_embeddings=256)
LLAMA3_ROPE = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                   original_max_position_embeddings=32, rope_theta=500.0)

GGUF = ("tiny", "llama", "llama-shards", "mistral", "qwen2", "mixtral", "gpt2")


def checkpoints():
    t = transformers
    yield "tiny", ascii_only, lambda v: t.LlamaConfig(
        vocab_size=v, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=64, tie_word_embeddings=True, bos_token_id=v - 2, eos_token_id=v - 1), torch.bfloat16, {}
    yield "llama", lambda: byte_level(500, LLAMA3, bos=True, ignore_merges=True), lambda v: t.LlamaConfig(
        vocab_size=v, rope_scaling=LLAMA3_ROPE, rope_theta=500.0, eos_token_id=[3, 5], **SMALL), torch.float32, {}
    yield "llama-biases", lambda: sentencepiece(600, False), lambda v: t.LlamaConfig(
        vocab_size=v, attention_bias=True, mlp_bias=True, head_dim=10, tie_word_embeddings=True,
        rope_scaling=dict(rope_type="linear", factor=2.5), hidden_act="gelu", **SMALL), torch.float16, {}
    yield "llama-shards", lambda: byte_level(500), lambda v: t.LlamaConfig(
        vocab_size=v, **SMALL), torch.bfloat16, dict(max_shard_size="100KB")
    yield "mistral", lambda: sentencepiece(600, True), lambda v: t.MistralConfig(
        vocab_size=v, sliding_window=9, **SMALL), torch.float32, {}
    yield "qwen2", lambda: byte_level(500, LLAMA3, nfc=True), lambda v: t.Qwen2Config(
        vocab_size=v, tie_word_embeddings=True, **SMALL), torch.float32, {}
    yield "qwen2-window", lambda: byte_level(500, LLAMA3, nfc=True), lambda v: t.Qwen2Config(
        vocab_size=v, use_sliding_window=True, sliding_window=7, max_window_layers=1, **SMALL), torch.float32, {}
    yield "mixtral", lambda: sentencepiece(600, False), lambda v: t.MixtralConfig(
        vocab_size=v, num_local_experts=5, num_experts_per_tok=2, sliding_window=None, **SMALL), torch.float32, {}
    yield "gpt2", lambda: byte_level(500), lambda v: t.GPT2Config(
        vocab_size=v, n_embd=48, n_layer=3, n_head=4, n_positions=256), torch.float32, {}


GGUF_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "block_sparse_moe.gate": "ffn_gate_inp", "mlp.gate": "ffn_gate_inp",
    "transformer.wte": "token_embd", "transformer.wpe": "position_embd", "transformer.ln_f": "output_norm", "ln_1": "attn_norm",
    "ln_2": "ffn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
}


def gguf_tensors(folder, cfg):
    """The weights of a checkpoint under the names of GGUF, as llama.cpp's converter makes them."""
    tensors, experts = {}, {}
    for shard in sorted(folder.glob("*.safetensors")):
        tensors |= safetensors.torch.load_file(shard)
    out = {}
    for name, w in tensors.items():
        w = w.float()
        stem, ending = name.rsplit(".", 1)
        layer = ""
        for prefix in ("model.layers.", "transformer.h."):
            if stem.startswith(prefix):
                number, stem = stem[len(prefix):].split(".", 1)
                layer = f"blk.{number}."
        if ".experts." in stem:
            e, which = stem.split(".")[-2:]
            part = {"w1": "ffn_gate_exps", "w2": "ffn_down_exps", "w3": "ffn_up_exps"}[which]
            experts.setdefault(layer + part, {})[int(e)] = w
            continue
        if cfg.model_type == "gpt2" and stem.split(".")[-1].startswith("c_") and ending == "weight":
            w = w.T.contiguous()
        if cfg.model_type in ("llama", "mistral", "mixtral") and stem.split(".")[-1] in ("q_proj", "k_proj"):
            heads = cfg.num_attention_heads if stem.endswith("q_proj") else cfg.num_key_value_heads
            w = w.reshape(heads, 2, -1, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)  # pairs become neighbours
        out[f"{layer}{GGUF_NAMES[stem]}.{ending}"] = w
    for name, parts in experts.items():
        out[name + ".weight"] = torch.stack([parts[e] for e in sorted(parts)])
    return {name: w.contiguous().numpy() for name, w in out.items()}


def save_gguf(folder, path, cfg, tok, kind):
    """Writes a GGUF file. Matrices with rows of whole blocks get the given type."""
    arch = {"gpt2": "gpt2", "qwen2": "qwen2"}.get(cfg.model_type, "llama")
    w = gguf.GGUFWriter(path, arch)
    w.add_block_count(cfg.num_hidden_layers)
    w.add_embedding_length(cfg.hidden_size)
    w.add_head_count(cfg.num_attention_heads)
    w.add_context_length(cfg.max_position_embeddings)
    w.add_file_type(kind)
    if arch == "gpt2":
        w.add_feed_forward_length(4 * cfg.hidden_size)
        w.add_layer_norm_eps(cfg.layer_norm_epsilon)
    else:
        w.add_feed_forward_length(cfg.intermediate_size)
        w.add_head_count_kv(cfg.num_key_value_heads)
        head = getattr(cfg, "head_dim", None) or cfg.hidden_size // cfg.num_attention_heads
        w.add_key_length(head)
        w.add_value_length(head)
        w.add_rope_dimension_count(head)
        w.add_layer_norm_rms_eps(cfg.rms_norm_eps)
        w.add_rope_freq_base(cfg.rope_parameters["rope_theta"])
    if getattr(cfg, "num_local_experts", 0):
        w.add_expert_count(cfg.num_local_experts)
        w.add_expert_used_count(cfg.num_experts_per_tok)
    if cfg.model_type == "mistral":
        w.add_sliding_window(cfg.sliding_window)
    model = json.loads(tok.to_str())["model"]
    tokens = [t for t, _ in sorted(tok.get_vocab().items(), key=lambda item: item[1])]
    added = {a.content: a.special for a in tok.get_added_tokens_decoder().values()}
    if model["byte_fallback"]:
        w.add_tokenizer_model("llama")
        w.add_token_scores([0.0 if t in added else -float(i) for i, t in enumerate(tokens)])
    else:
        w.add_tokenizer_model("gpt2")
        w.add_tokenizer_pre("llama-bpe" if arch == "llama" else "qwen2" if arch == "qwen2" else "gpt-2")
        w.add_token_merges([" ".join(m) for m in model["merges"]])
    w.add_token_list(tokens)
    w.add_token_types([3 if added.get(t) else 4 if t in added else 6 if model["byte_fallback"] and t.startswith("<0x") else 1
                       for t in tokens])
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    quantised = {}
    for name, x in gguf_tensors(folder, cfg).items():
        t = gguf.GGMLQuantizationType(kind)
        if x.ndim < 2 or t in (gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_0) and x.shape[-1] % 32:
            t = gguf.GGMLQuantizationType.F32
        data = gguf.quants.quantize(x, t)
        quantised[name] = gguf.quants.dequantize(data, t).reshape(x.shape)
        w.add_tensor(name, data, raw_dtype=t)
    if "rope_type" in cfg.to_dict().get("rope_parameters", {}) and cfg.rope_parameters["rope_type"] == "llama3":
        r, half = cfg.rope_parameters, head // 2
        factors = []
        for j in range(half):
            length = 2 * math.pi * r["rope_theta"] ** (2 * j / head)
            low, high = (r["original_max_position_embeddings"] / r[k] for k in ("low_freq_factor", "high_freq_factor"))
            if length < high:
                factors.append(1.0)
            elif length > low:
                factors.append(r["factor"])
            else:
                s = (r["original_max_position_embeddings"] / length - r["low_freq_factor"]) / (
                    r["high_freq_factor"] - r["low_freq_factor"])
                factors.append(1 / ((1 - s) / r["factor"] + s))
        w.add_tensor("rope_freqs.weight", numpy.array(factors, dtype=numpy.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def near_ties(model, tokens):
    """The places where a router prefers an expert by so little that another rounding of keys and values takes another one."""
    chosen = model.config.num_experts_per_tok
    with torch.no_grad():
        layers = model(torch.tensor([tokens]), output_router_logits=True).router_logits
    places = set()
    for logits in layers:
        best = logits.sort(-1, descending=True).values
        places |= {i for i, gap in enumerate((best[:, chosen - 1] - best[:, chosen]).tolist()) if gap < 0.01}
    return places


def make(folder, name, tokenizer, config, dtype, save):
    folder = folder / name
    folder.mkdir(parents=True, exist_ok=True)
    tok = tokenizer()
    tok.save(str(folder / "tokenizer.json"), pretty=False)
    torch.manual_seed(len(name))
    cfg = config(tok.get_vocab_size())
    cfg._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(cfg)
    with torch.no_grad():
        for p in model.parameters():  # larger than the usual ones, so that layers matter, and biases and gains as well
            scale = 0.1 if p.dim() == 1 else 1.2 / p.shape[-1] ** 0.5
            p.copy_(torch.randn(p.shape) * scale + (1 if p.dim() == 1 and float(p.mean()) == 1 else 0))
    model = model.to(dtype)
    model.save_pretrained(folder, **save)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    prompt = tok.encode("Catherine was then in a state of wonder, for nobody had told her how the house looked.").ids[:45]
    tokens = list(prompt)
    rows = []
    with torch.no_grad():
        for _ in range(8):
            y = model(torch.tensor([tokens])).logits[0]
            rows.append(y[-1])
            tokens.append(int(y[-1].argmax()))
        prompt_rows = model(torch.tensor([prompt])).logits[0]
        unsure = near_ties(model, tokens) if name == "mixtral" else set()
    every = 5 if name != "tiny" else 13
    numbers = lambda row: [float(f"{v:.7g}") for v in row.tolist()]
    expected = {
        "texts": [{"text": s, "tokens": tok.encode(s).ids, "decoded": tok.decode(tok.encode(s).ids)} for s in TEXTS
                  if name != "tiny" or s.isascii() and "\t" not in s and "\r" not in s],
        "prompt": prompt,
        "logits": {str(i): numbers(prompt_rows[i]) for i in range(0, len(prompt), every) if i not in unsure},
        "greedy": tokens[len(prompt):],
        "next": {str(i): numbers(rows[i]) for i in range(0, 8, 3 if name != "tiny" else 7)
                 if len(prompt) + i - 1 not in unsure},
    }
    for kind in (0, 1, 30) if name in GGUF else ():  # F32, F16 and BF16, from which the weights that are so already come exactly
        exact = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 30}[dtype]
        if kind == exact or kind == 0 and name != "tiny":
            save_gguf(folder, folder / f"f{kind}.gguf", cfg, tok, kind)
    (folder / "expected.json").write_text(json.dumps(expected, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


def main():
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    for name, *rest in checkpoints():
        if not names or name in names:
            make(folder, name, *rest)
            print(name)


if __name__ == "__main__":
    main()
