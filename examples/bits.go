package examples

import (
	"fmt"
	"math"

	"fusec"
	"fusec/examples/llama"
	"fusec/graph"
	"fusec/testdata"
)

// HeldOut is the part of the novel that language models are not trained on, and Known the part before it.
func HeldOut() []byte { return testdata.Novel[knownOf(len(testdata.Novel)):] }

// Known is the part of the novel that language models are trained on.
func Known() []byte { return testdata.Novel[:knownOf(len(testdata.Novel))] }

// BitsPerCharacter is the mean −log₂ of the probability that a language model, saved by fusec train language, gives each byte of a
// text but the first, given those before it in its window.
func BitsPerCharacter(g *graph.Graph, weights map[string]*graph.Tensor, text []byte, opts ...fusec.CompileOption) (float64, error) {
	x := g.Lookup("tokens")
	if x == nil || x.Type.Shape.Rank() != 2 || x.Type.Shape.At(0) != 1 || len(g.Outputs) != 1 ||
		g.Outputs[0].Node.Type.Shape.Elems() != x.Type.Shape.At(1)*Vocabulary {
		return 0, fmt.Errorf("the graph %q has no tokens [1,n] and logits of them: is it a model of fusec train language?", g.Name)
	}
	tokens, err := tokensOf(text)
	if err != nil {
		return 0, err
	}
	if len(tokens) < 2 {
		return 0, fmt.Errorf("a text of %d bytes", len(text))
	}
	p, err := fusec.Compile(g, opts...)
	if err != nil {
		return 0, err
	}
	defer p.Close()
	for name, t := range weights {
		if err := p.Set(name, t); err != nil {
			return 0, err
		}
	}
	in, nats := graph.NewTensor(x.Type), 0.0
	for at := 0; at < len(tokens)-1; {
		n := min(x.Type.Shape.At(1), len(tokens)-1-at)
		for i := range x.Type.Shape.At(1) {
			in.SetInt(i, 0)
			if i < n {
				in.SetInt(i, int64(tokens[at+i]))
			}
		}
		out, err := p.Run(map[string]*graph.Tensor{"tokens": in})
		if err != nil {
			return 0, err
		}
		logits := out[g.Outputs[0].Name].Floats()
		for i := range n {
			nats -= logProbability(logits[i*Vocabulary:][:Vocabulary], tokens[at+i+1])
		}
		at += n
	}
	return nats / float64(len(tokens)-1) / math.Ln2, nil
}

// BitsByCaches is [BitsPerCharacter] of a checkpoint of a language model whose tokens are characters. It reads the text one by one
// in pieces of window bytes, with keys and values kept in a type; see [llama.Options].
func BitsByCaches(c *llama.Checkpoint, text []byte, window int, cache graph.DType, opts ...fusec.CompileOption) (float64, error) {
	tokens, err := tokensOf(text)
	if err != nil {
		return 0, err
	}
	if len(tokens) < 2 || window < 1 {
		return 0, fmt.Errorf("a text of %d bytes in pieces of %d", len(text), window)
	}
	m, err := llama.New(c, llama.Options{Capacity: window, Cache: cache, Compile: opts})
	if err != nil {
		return 0, err
	}
	defer m.Close()
	nats, wide := 0.0, make([]float64, c.Config.Vocabulary)
	for i, token := range tokens[:len(tokens)-1] {
		if i%window == 0 {
			if err := m.Truncate(0); err != nil {
				return 0, err
			}
		}
		logits, err := m.Append([]int{token})
		if err != nil {
			return 0, err
		}
		for j, v := range logits {
			wide[j] = float64(v)
		}
		nats -= logProbability(wide, tokens[i+1])
	}
	return nats / float64(len(tokens)-1) / math.Ln2, nil
}

// logProbability is the logarithm of the probability that logits give a token.
func logProbability(logits []float64, token int) float64 {
	most, sum := math.Inf(-1), 0.0
	for _, v := range logits {
		most = max(most, v)
	}
	for _, v := range logits {
		sum += math.Exp(v - most)
	}
	return logits[token] - most - math.Log(sum)
}

// Windows are n windows of the text that language models are trained on, evenly spread, as values of tokens [1,length] one after
// another: samples to calibrate on.
func Windows(n, length int) (*graph.Tensor, error) {
	tokens, err := tokensOf(Known())
	if err != nil {
		return nil, err
	}
	if n < 1 || length < 1 || length > len(tokens) || n > len(tokens) {
		return nil, fmt.Errorf("%d windows of %d bytes", n, length)
	}
	t := graph.NewTensor(graph.TypeOf(graph.I64, n, 1, length))
	for i := range n {
		start := (len(tokens) - length) / n * i
		for j := range length {
			t.SetInt(i*length+j, int64(tokens[start+j]))
		}
	}
	return t, nil
}
