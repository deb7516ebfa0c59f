package training

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"fusec"
	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/modelio"
	"fusec/examples/llama"
	"fusec/graph"
	"fusec/graph/report"
)

// generated is what fusec generate --json prints.
type generated struct {
	Prompt       string  `json:"prompt"`
	Text         string  `json:"text"`
	Tokens       []int   `json:"tokens"`
	PromptTokens int     `json:"prompt_tokens"`
	Stop         string  `json:"stop"`                     // eos, or length
	Load         float64 `json:"load_seconds"`             // to read and compile
	PromptRate   float64 `json:"prompt_tokens_per_second"` // preparing the weights left out
	Rate         float64 `json:"tokens_per_second"`
}

// runCheckpoint goes on from the prompt with a model that other programs store.
func (g *generator) runCheckpoint(e *cli.Env, path string) (err error) {
	if g.report != "" {
		if err := cli.CanWrite(g.report); err != nil {
			return err
		}
	}
	began := time.Now()
	c, err := llama.Open(path)
	if err != nil {
		return err
	}
	defer c.Close()
	prompt, err := c.Tokenizer.Encode(g.prompt)
	if err != nil {
		return fmt.Errorf("the prompt: %w", err)
	}
	if len(prompt) == 0 {
		return cli.Usage("--prompt %q has no tokens: the model goes on from something", g.prompt)
	}
	room := len(prompt) + g.tokens
	if c.Config.RopeBase == 0 {
		room = min(room, c.Config.Context) // there are no positions for more
	}
	if len(prompt) > room {
		return fmt.Errorf("the prompt has %d tokens, and %s has positions for %d", len(prompt), path, c.Config.Context)
	}
	opts := []fusec.CompileOption{modelio.OnTarget(g.target), fusec.WithPrecision(g.precision)}
	if g.threads > 0 {
		opts = append(opts, fusec.WithWorkers(g.threads))
	}
	activations, err := graph.ParseDType(g.activations)
	if err != nil {
		return cli.Usage("--activations: %v", err)
	}
	cache, err := g.cache()
	if err != nil {
		return err
	}
	m, err := llama.New(c, llama.Options{Capacity: room, Block: blockOf(len(prompt)), Cache: cache, Activations: activations,
		Sampling: &llama.Sampling{Temperature: g.temperature, TopK: g.topK, TopP: g.topP, Seed: g.seed}, Compile: opts})
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	defer func() {
		if failed := m.Close(); err == nil {
			err = failed
		}
	}()
	if err := m.Prepare(len(prompt)); err != nil {
		return err
	}
	out := generated{Prompt: g.prompt, PromptTokens: len(prompt), Load: time.Since(began).Seconds(), Stop: "length", Tokens: []int{}}
	if err := g.write(e, c, m, prompt, room, &out); err != nil {
		return err
	}
	if g.report != "" {
		if err := g.writeReport(m, path, out.Tokens); err != nil {
			return err
		}
	}
	if g.json {
		return cli.WriteJSON(e.Out, out)
	}
	fmt.Fprintln(e.Out)
	if cli.IsTerminal(e.Stderr) {
		e.Note("prompt: %d tokens, %s tokens/s; after it: %d tokens, %s tokens/s", len(prompt), cli.Digits(out.PromptRate),
			len(out.Tokens), cli.Digits(out.Rate))
	}
	return nil
}

// cache is the type of the keys and values that are kept: that of the precision, unless another is asked for.
func (g *generator) cache() (graph.DType, error) {
	switch {
	case g.kept != "":
		return graph.ParseDType(g.kept)
	case g.precision == fusec.BF16:
		return graph.BF16, nil
	case g.precision == fusec.F16:
		return graph.F16, nil
	}
	return graph.F32, nil
}

// mostBlock is how many tokens of a prompt a run takes at most.
const mostBlock = 64

// blockOf is how many tokens of a prompt each run takes, so that runs are of one size and the last is hardly filled up.
func blockOf(tokens int) int {
	runs := (tokens + mostBlock - 1) / mostBlock
	return (tokens + runs - 1) / runs
}

// write feeds the prompt and the tokens after it, and prints these as they come, until one ends the text or room is full.
func (g *generator) write(e *cli.Env, c *llama.Checkpoint, m *llama.Model, prompt []int, room int, out *generated) error {
	start := time.Now()
	for rest := prompt; len(rest) > 0; { // in pieces, so that an interrupt does not wait for all
		if err := e.Ctx.Err(); err != nil {
			return err
		}
		n := min(len(rest), m.Block())
		if _, err := m.Append(rest[:n]); err != nil {
			return err
		}
		rest = rest[n:]
	}
	out.PromptRate = float64(len(prompt)) / time.Since(start).Seconds()

	stream := c.Tokenizer.Stream()
	var text strings.Builder
	show := func(b []byte) error {
		if g.json {
			text.Write(b)
			return nil
		}
		for _, r := range string(b) {
			e.Out.WriteRune(printed(r))
		}
		return e.Out.Flush()
	}
	if !g.json {
		if err := show([]byte(g.prompt)); err != nil {
			return err
		}
	}
	start = time.Now()
	for {
		token := m.Token()
		if slices.Contains(c.Config.EOS, token) {
			out.Stop = "eos"
			break
		}
		out.Tokens = append(out.Tokens, token)
		if err := show(stream.Next(token)); err != nil {
			return err
		}
		if m.Len() == room || len(out.Tokens) == g.tokens {
			break
		}
		if err := e.Ctx.Err(); err != nil {
			if !g.json {
				fmt.Fprintln(e.Out)
			}
			return err
		}
		if err := m.Step(); err != nil {
			return err
		}
	}
	if n := m.Len() - len(prompt); n > 0 {
		out.Rate = float64(n) / time.Since(start).Seconds()
	}
	if err := show(stream.Rest()); err != nil {
		return err
	}
	out.Text = text.String()
	return nil
}

// writeReport runs the last token once more, to measure its launches, and writes the page.
func (g *generator) writeReport(m *llama.Model, path string, tokens []int) error {
	if err := m.Truncate(m.Len() - 1); err != nil {
		return err
	}
	last := 0
	if len(tokens) > 0 {
		last = tokens[len(tokens)-1]
	}
	p := m.Program()
	p.Profile(true)
	if _, err := m.Append([]int{last}); err != nil {
		return err
	}
	tr := p.Trace()
	for i, t := range p.Times() {
		tr.Program.Launches[i].Measured = t
	}
	flags := []string{"--target " + g.target}
	return report.WriteAbout(g.report, tr, modelio.AboutHere(modelio.ModelName(filepath.Clean(path)), flags...))
}
