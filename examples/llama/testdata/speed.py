"""Compares fusec with llama.cpp on a random model of the Llama family, with weights of Q8_0 and Q4_0: tokens a second of a prompt
and of the tokens after it. Both run in turn on all processors, which have to be idle: the threads of llama.cpp wait for each other.

speed.py FUSEC FOLDER [--rounds N] [--prompt N] [--tokens N]

FUSEC is the command; models are made in FOLDER, once. A table and how often both pick the same token go to standard output.
"""

import argparse
import json
import os
import statistics
import subprocess
import time
from pathlib import Path

import gguf
import numpy

VOCABULARY, DIM, HIDDEN, LAYERS, HEADS, KV_HEADS = 32000, 1024, 2816, 16, 16, 4
KINDS = {"Q8_0": gguf.GGMLQuantizationType.Q8_0, "Q4_0": gguf.GGMLQuantizationType.Q4_0}


def byte_tokens():
    """The letters of byte-level encodings, as GPT-2 has them."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return [chr(b) for b in plain] + [chr(256 + i) for i in range(256 - len(plain))]


def make(path, kind):
    w = gguf.GGUFWriter(path, "llama")
    w.add_block_count(LAYERS)
    w.add_embedding_length(DIM)
    w.add_feed_forward_length(HIDDEN)
    w.add_head_count(HEADS)
    w.add_head_count_kv(KV_HEADS)
    w.add_context_length(2048)
    w.add_rope_dimension_count(DIM // HEADS)
    w.add_rope_freq_base(10000.0)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_vocab_size(VOCABULARY)
    w.add_file_type({"Q8_0": 7, "Q4_0": 2}[kind])
    letters = byte_tokens()
    tokens = letters + ["~|"] + [f"<unused{i}>" for i in range(VOCABULARY - len(letters) - 1)]
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    w.add_token_list(tokens)
    w.add_token_types([1] * VOCABULARY)
    w.add_token_merges(["~ |"])  # there has to be one
    w.add_bos_token_id(VOCABULARY - 2)
    w.add_eos_token_id(VOCABULARY - 1)
    w.add_add_bos_token(False)
    r = numpy.random.default_rng(1)

    def matrix(name, rows, columns):
        x = r.standard_normal((rows, columns), dtype=numpy.float32) / numpy.float32(columns**0.5)
        w.add_tensor(name + ".weight", gguf.quants.quantize(x, KINDS[kind]), raw_dtype=KINDS[kind])

    def gains(name):
        w.add_tensor(name + ".weight", numpy.ones(DIM, numpy.float32))

    matrix("token_embd", VOCABULARY, DIM)
    kv = DIM // HEADS * KV_HEADS
    for i in range(LAYERS):
        gains(f"blk.{i}.attn_norm")
        gains(f"blk.{i}.ffn_norm")
        for name, rows, columns in [("attn_q", DIM, DIM), ("attn_k", kv, DIM), ("attn_v", kv, DIM), ("attn_output", DIM, DIM),
                                    ("ffn_gate", HIDDEN, DIM), ("ffn_up", HIDDEN, DIM), ("ffn_down", DIM, HIDDEN)]:
            matrix(f"blk.{i}.{name}", rows, columns)
    gains("output_norm")
    matrix("output", VOCABULARY, DIM)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def fusec(command, path, text, tokens, activations):
    out = subprocess.run([command, "generate", path, "--prompt", text, "--max-tokens", str(tokens + 1), "--temperature", "0",
                          "--activations", activations, "--json"], check=True, capture_output=True, text=True).stdout
    result = json.loads(out)
    return result["prompt_tokens_per_second"], result["tokens_per_second"], result["tokens"]


class LlamaCpp:
    def __init__(self, path):
        import llama_cpp

        threads = len(os.sched_getaffinity(0))
        self.model = llama_cpp.Llama(path, n_ctx=1024, n_batch=512, n_threads=threads, n_threads_batch=threads, verbose=False)

    def likeliest(self):
        context = self.model._ctx
        return int(numpy.argmax(numpy.ctypeslib.as_array(context.get_logits(), shape=(VOCABULARY,))))

    def run(self, text, tokens):
        m = self.model
        prompt = m.tokenize(text.encode(), add_bos=False)
        m.reset()
        m.eval(prompt[:64])
        m.reset()
        start = time.perf_counter()
        m.eval(prompt)
        picked = [self.likeliest()]  # which waits for the prompt
        read = time.perf_counter()
        for _ in range(tokens):
            m.eval(picked[-1:])
            picked.append(self.likeliest())
        return len(prompt) / (read - start), tokens / (time.perf_counter() - read), picked


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("fusec")
    a.add_argument("folder", type=Path)
    a.add_argument("--rounds", type=int, default=3)
    a.add_argument("--prompt", type=int, default=512)
    a.add_argument("--tokens", type=int, default=64)
    a.add_argument("--kinds", default="Q8_0,Q4_0")
    args = a.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    corpus = Path(__file__).resolve().parents[3] / "testdata/text/northanger-abbey.txt"
    text = "".join(c for c in corpus.read_text(encoding="utf-8")[2000:] if c.isascii() and c.isprintable())[: args.prompt]
    print("weights  what     llama.cpp  fusec f32  fusec i8  times as fast, f32 and i8")
    for kind in args.kinds.split(","):
        path = args.folder / f"speed-{kind}.gguf"
        if not path.exists():
            make(path.with_suffix(".part"), kind)
            path.with_suffix(".part").rename(path)
        rival = LlamaCpp(str(path))
        found = {"llama.cpp": [], "f32": [], "i8": []}
        for _ in range(args.rounds):
            found["llama.cpp"].append(rival.run(text, args.tokens))
            for activations in ("f32", "i8"):
                found[activations].append(fusec(args.fusec, str(path), text, args.tokens, activations))
        for i, what in enumerate(("prompt", "tokens")):
            rate = {k: statistics.median(r[i] for r in v) for k, v in found.items()}
            print(f"{kind:8} {what:8} {rate['llama.cpp']:9.1f} {rate['f32']:10.1f} {rate['i8']:9.1f}   "
                  f"{rate['f32'] / rate['llama.cpp']:.2f} {rate['i8'] / rate['llama.cpp']:.2f}", flush=True)
        same = [sum(x == y for x, y in zip(found["llama.cpp"][0][2], found[k][0][2])) for k in ("f32", "i8")]
        print(f"{kind}: of {args.tokens + 1} tokens, {same[0]} and {same[1]} are those that llama.cpp picks")


if __name__ == "__main__":
    main()
