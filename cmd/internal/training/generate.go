package training

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"time"
	"unicode"

	"fusec"
	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/modelio"
	"fusec/examples"
	"fusec/examples/llama"
	"fusec/graph"
	"fusec/graph/memlimit"
	"fusec/lowering"
)

// Generate is fusec generate.
var Generate = &cli.Command{
	Name:    "generate",
	Args:    "[flags] FOLDER | model.gguf | model.graph",
	Summary: "let a language model write",
	Doc: `
Goes on from a prompt, and prints the text as it comes. The model is a folder in the form of Hugging Face (config.json,
tokenizer.json and model.safetensors, in one file or several) or a GGUF file with weights of F32, F16, BF16, Q8_0 or
Q4_0, of the Llama, Mistral, Qwen2, Mixtral or GPT-2 families; or what fusec train language --save has saved, whose
tokens are characters. A run takes a block of the prompt or one token. Its state is a cache of the keys and values of
all tokens so far.

Text goes to standard output, as soon as it is there. On a terminal, a line on the speed of the prompt and of the tokens
after it follows.`,
	Examples: []cli.Example{
		{"fusec generate novel.graph", "from the default prompt"},
		{`fusec generate novel.graph --prompt "Mr. Tilney" --tokens 1000 --temperature 0.6`, "more text, at a lower temperature"},
		{"fusec generate novel.graph --temperature 0", "always the likeliest character"},
		{`fusec generate folder --prompt "Once upon a time" --max-tokens 100 --top-p 0.95`, "a model of another program"},
		{"fusec generate model.gguf --json", "the text and the speeds as JSON"},
	},
	Setup: func(f *cli.FlagSet) cli.Action {
		g := &generator{prompt: "Catherine ", tokens: 500, seed: 1, temperature: 0.8, topK: 20, topP: 1, activations: "f32"}
		f.StringVar(&g.prompt, "prompt", g.prompt, "go on from `TEXT`, of ASCII for a model.graph (default \"Catherine \")")
		f.Count(&g.tokens, "tokens", 1, "write at most `N` tokens (default 500)")
		f.Alias("tokens", "max-tokens")
		f.Func("temperature", "divide the logits by `T`: 0 always picks the likeliest (default 0.8)", func(s string) error {
			v, err := strconv.ParseFloat(s, 64)
			if err != nil || !(v >= 0) || math.IsInf(v, 0) {
				return errors.New("want 0 or a positive number")
			}
			g.temperature = v
			return nil
		})
		f.Count(&g.topK, "top-k", 0, "pick among the `K` likeliest; 0 among all (default 20)")
		f.Func("top-p", "pick among the likeliest that have the probability `P` together (default 1)", func(s string) error {
			v, err := strconv.ParseFloat(s, 64)
			if err != nil || !(v > 0 && v <= 1) {
				return errors.New("want a number of more than 0 and at most 1")
			}
			g.topP = v
			return nil
		})
		f.Seed(&g.seed, "`N` decides the picks (default 1)")
		f.Target(&g.target, cli.Targets(func(t lowering.Target) bool { return !t.Integers })...)
		f.Precision(&g.precision)
		f.Choice(&g.activations, "activations", []string{"f32", "i8"},
			"round what is multiplied by weights of Q8_0 and Q4_0 to `TYPE`: f32, or i8, which is faster (default f32)")
		f.Choice(&g.kept, "cache", []string{"f32", "bf16", "f16", "i8"},
			"keep keys and values in `TYPE`: f32, bf16, f16, or i8 with a scale for each key and head (default that of --precision)")
		f.Threads(&g.threads, "all; 1 for a model.graph, whose characters have little for more")
		f.StringVar(&g.report, "report", "", "write a page on the run of a token, such as fusec report writes, to `FILE`")
		f.BoolVar(&g.json, "json", false, "print the text with counts and speeds as JSON, when it is complete")
		return g.run
	},
}

// generator is fusec generate with its flags.
type generator struct {
	prompt      string
	tokens      int
	temperature float64
	topK        int
	topP        float64
	seed        uint64
	threads     int
	target      string // empty for the default
	precision   fusec.Precision
	activations string
	kept        string // type of keys and values; empty for that of the precision
	report      string // empty for none
	json        bool
}

// maxWritten bounds how much a model may be asked to write: the cache grows with it.
const maxWritten = 1 << 30

func (g *generator) run(e *cli.Env, args []string) error {
	if len(args) == 0 {
		return cli.Usage("which model? Give its folder, a .gguf file, or a .graph that fusec train has made")
	}
	path, err := modelio.ModelArgument(args)
	if err != nil {
		return err
	}
	if g.prompt == "" {
		return cli.Usage("--prompt is empty: the model goes on from something")
	}
	if g.tokens > maxWritten {
		return cli.Usage("--tokens %d: at most %d", g.tokens, maxWritten)
	}
	if info, err := os.Stat(path); err == nil && (info.IsDir() || filepath.Ext(path) == ".gguf") {
		return g.runCheckpoint(e, path)
	}
	if g.json || g.report != "" {
		return cli.Usage("--json and --report are for a folder or a GGUF file")
	}
	if g.kept != "" {
		return cli.Usage("--cache is for a folder or a GGUF file: a model.graph keeps keys and values in f32")
	}
	if path == modelio.StdinName {
		return cli.Usage("a graph on standard input comes without weights: give the path of a model.graph")
	}
	model, weights, err := graph.Load(path)
	if err != nil {
		return err
	}
	size, window, err := examples.SizeOf(model)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	elems := 2 * size.Layers * size.KVHeads * size.Dim / max(size.Heads, 1) // of a character's keys and values
	if err := memlimit.Check(int64(len(g.prompt)+g.tokens) * int64(elems) * int64(graph.F32.Size())); err != nil {
		return err
	}
	sampler, err := llama.NewSampler(g.temperature, g.topK, g.topP, g.seed)
	if err != nil {
		return err
	}
	p, err := examples.NewGenerator(weights.Tensors, size, window, len(g.prompt)+g.tokens,
		modelio.OnTarget(g.target), fusec.WithWorkers(max(g.threads, 1)), fusec.WithPrecision(g.precision))
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	defer p.Close()
	start, prompt := time.Now(), g.prompt
	err = p.Generate([]byte(g.prompt), g.tokens, sampler, func(c byte) error {
		if e.Ctx.Err() != nil {
			return e.Ctx.Err()
		}
		e.Out.WriteString(prompt) // once the model has taken it
		prompt = ""
		e.Out.WriteRune(printed(rune(c)))
		return e.Out.Flush()
	})
	if err != nil {
		return err
	}
	fmt.Fprintln(e.Out)
	if cli.IsTerminal(e.Stderr) {
		n := len(g.prompt) + g.tokens
		e.Note("%s characters/s", cli.Digits(float64(n)/time.Since(start).Seconds()))
	}
	return nil
}

// printed is a character as it may go to a terminal, which would obey some.
func printed(r rune) rune {
	if r != '\n' && r != '\t' && !unicode.IsPrint(r) {
		return unicode.ReplacementChar
	}
	return r
}
