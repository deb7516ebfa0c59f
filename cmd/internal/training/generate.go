package training

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"
	"unicode"

	"fusec"
	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/modelio"
	"fusec/examples"
	"fusec/graph"
	"fusec/graph/memlimit"
)

// Generate is fusec generate.
var Generate = &cli.Command{
	Name:    "generate",
	Args:    "[flags] model.graph",
	Summary: "let a language model write",
	Doc: `
Goes on from a prompt with a model that fusec train language --save has saved, and prints the text as it comes. Each
character is one run of a program of its own, whose state is a cache of the keys and values of all characters so far;
each attends as many as the model was trained on.`,
	Examples: []cli.Example{
		{"fusec generate novel.graph", "from a prompt of its time"},
		{`fusec generate novel.graph --prompt "Mr. Tilney" --tokens 1000 --temperature 0.6`, "more of it, and tamer"},
		{"fusec generate novel.graph --temperature 0", "always the likeliest character"},
	},
	Setup: func(f *cli.FlagSet) cli.Action {
		g := &generator{prompt: "Catherine ", tokens: 500, seed: 1, temperature: 0.8, topK: 20}
		f.StringVar(&g.prompt, "prompt", g.prompt, "go on from `TEXT`, in ASCII (default \"Catherine \")")
		f.Count(&g.tokens, "tokens", 1, "write `N` characters (default 500)")
		f.Func("temperature", "divide the logits by `T`: 0 always picks the likeliest (default 0.8)", func(s string) error {
			v, err := strconv.ParseFloat(s, 64)
			if err != nil || !(v >= 0) || math.IsInf(v, 0) {
				return errors.New("want 0 or a positive number")
			}
			g.temperature = v
			return nil
		})
		f.Count(&g.topK, "top-k", 0, "pick among the `K` likeliest; 0 among all (default 20)")
		f.Seed(&g.seed, "`N` decides the picks (default 1)")
		f.Target(&g.target, "cpu", "cuda", "ref")
		f.Threads(&g.threads, "1: a character has little for more")
		return g.run
	},
}

// generator is fusec generate with its flags.
type generator struct {
	prompt      string
	tokens      int
	temperature float64
	topK        int
	seed        uint64
	threads     int
	target      string // empty for the default
}

// maxWritten bounds how much a model may be asked to write: the cache grows with it.
const maxWritten = 1 << 30

func (g *generator) run(e *cli.Env, args []string) error {
	path, err := modelio.ModelArgument(args)
	if err != nil {
		return err
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
	if g.prompt == "" {
		return cli.Usage("--prompt is empty: the model goes on from something")
	}
	if g.tokens > maxWritten {
		return cli.Usage("--tokens %d: at most %d", g.tokens, maxWritten)
	}
	elems := 2 * size.Layers * size.KVHeads * size.Dim / max(size.Heads, 1) // of a character's keys and values
	if err := memlimit.Check(int64(len(g.prompt)+g.tokens) * int64(elems) * int64(graph.F32.Size())); err != nil {
		return err
	}
	sampler, err := examples.NewSampler(g.temperature, g.topK, g.seed)
	if err != nil {
		return err
	}
	p, err := examples.NewGenerator(weights.Tensors, size, window, len(g.prompt)+g.tokens,
		modelio.OnTarget(g.target), fusec.WithWorkers(max(g.threads, 1)))
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
		r := rune(c)
		if r != '\n' && !unicode.IsPrint(r) { // which a terminal would obey
			r = unicode.ReplacementChar
		}
		e.Out.WriteRune(r)
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
