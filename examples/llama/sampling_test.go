package llama

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"fusec"
	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/kernels/ref"
	"fusec/lowering"
)

// written has a model pick tokens after a prompt. After three it takes the last one back, and appends it.
func written(t *testing.T, c *Checkpoint, o Options, prompt []int, n int) []int {
	t.Helper()
	m := modelOf(t, c, o)
	if err := m.Prepare(len(prompt)); err != nil {
		t.Fatal(err)
	}
	logits, err := m.Append(prompt)
	if err != nil || logits != nil {
		t.Fatalf("it gives %d logits, %v", len(logits), err)
	}
	var list []int
	for {
		if list = append(list, m.Token()); len(list) == n {
			return list
		}
		if err := m.Step(); err != nil {
			t.Fatal(err)
		}
		if len(list) == 3 {
			if err := m.Truncate(m.Len() - 1); err != nil {
				t.Fatal(err)
			}
			if m.Token() >= 0 || m.Step() == nil {
				t.Error("a token follows a sequence that was cut")
			}
			if _, err := m.Append(list[2:]); err != nil {
				t.Fatal(err)
			}
		}
		if m.Len() != len(prompt)+len(list) {
			t.Errorf("the sequence has %d tokens, want %d", m.Len(), len(prompt)+len(list))
		}
	}
}

// TestSampling has models pick tokens in their programs, and compares these with what the reference picks by the logits of the same
// model.
func TestSampling(t *testing.T) {
	for _, dir := range checkpoints(t) {
		c := opened(t, dir)
		prompt := []int{3, 1, 4, 1, 5, 9, 2, 6, 5}
		const n = 12
		plain := modelOf(t, c, Options{Capacity: len(prompt) + n, Block: 4})
		for _, s := range []Sampling{{}, {Temperature: 1, Seed: 7}, {Temperature: 3, TopK: 40, TopP: 0.9, Seed: 1<<63 + 5},
			{Temperature: 2, TopP: 1e-60}} {
			options, err := s.options()
			if err != nil {
				t.Fatal(err)
			}
			if err := plain.Truncate(0); err != nil {
				t.Fatal(err)
			}
			var want []int
			for next := prompt; len(want) < n; next = want[len(want)-1:] {
				logits, err := plain.Append(next)
				if err != nil {
					t.Fatal(err)
				}
				row, err := graph.TensorOf(logits, 1, len(logits))
				if err != nil {
					t.Fatal(err)
				}
				args := []ref.Value{ref.FromTensor(row)}
				for _, o := range options {
					args = append(args, ref.FromTensor(o.value))
				}
				y, err := ref.Op(graph.Sample{}, append(args, ref.FromTensor(graph.Scalar(graph.I64, float64(plain.Len())))))
				if err != nil {
					t.Fatal(err)
				}
				want = append(want, int(y[0].I[0]))
			}
			for _, block := range []int{4, 1} {
				for _, target := range []string{"cpu", "ref"} {
					if target == "ref" && block == 1 {
						continue
					}
					got := written(t, c, Options{Capacity: len(prompt) + n, Block: block, Sampling: &s,
						Compile: []fusec.CompileOption{fusec.WithTarget(target)}}, prompt, n)
					if !slices.Equal(got, want) {
						t.Errorf("%+v, blocks of %d on %s: it picks %v, want %v", s, block, target, got, want)
					}
				}
			}
		}
	}
}

// TestSamplingStep checks that a step reads nothing that the host changes, allocates nothing, and writes its state in place.
func TestSamplingStep(t *testing.T) {
	c := opened(t, "testdata/tiny")
	m := modelOf(t, c, Options{Capacity: 20, Sampling: &Sampling{Temperature: 1}})
	if m.Step() == nil {
		t.Error("a step without a token")
	}
	if _, err := m.Append([]int{1, 2}); err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(10, func() {
		if err := m.Step(); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("a step allocates %v times", n)
	}
	var inputs []string
	for _, b := range m.Program().Lowered().Buffers {
		if b.Role == lowering.Input {
			inputs = append(inputs, b.Name)
		}
	}
	slices.Sort(inputs)
	if want := []string{"seed", "temperature", "top_k", "top_p"}; !slices.Equal(inputs, want) {
		t.Errorf("the step has the inputs %v, want %v", inputs, want)
	}
	for m.Len() < 20 {
		if err := m.Step(); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.Step(); err == nil || !strings.Contains(err.Error(), "is full") {
		t.Errorf("error %v", err)
	}
	if err := modelOf(t, c, Options{Capacity: 4}).Step(); err == nil || !strings.Contains(err.Error(), "no options") {
		t.Errorf("error %v", err)
	}
	_, err := New(c, Options{Sampling: &Sampling{Temperature: -1}})
	if err == nil || !strings.Contains(err.Error(), "a temperature of -1") {
		t.Errorf("error %v", err)
	}
	if _, err := m.Append([]int{1}); err == nil {
		t.Error("a sequence that is full takes a token")
	}
}

// TestBatchSampling has two sequences with different options pick tokens together, the second of which joins later: each has
// those that a model of its own picks.
func TestBatchSampling(t *testing.T) {
	for _, dir := range checkpoints(t) {
		c := opened(t, dir)
		b, err := NewBatch(c, BatchOptions{Slots: 3, Tokens: 30, Samples: true})
		if err != nil {
			t.Fatal(err)
		}
		const n = 7
		prompts := [][]int{{3, 1, 4, 1, 5}, {2, 7, 1, 8, 2, 8, 1, 8, 2}}
		options := []Sampling{{Temperature: 2, TopK: 30, Seed: 4}, {Temperature: 3, TopP: 0.8, Seed: 5}}
		got := make([][]int, 2)
		var list []*Sequence
		for step := range n + 2 {
			if step%2 == 0 && step < 4 {
				s, err := b.JoinSampling(prompts[len(list)], options[len(list)])
				if err != nil {
					t.Fatal(err)
				}
				list = append(list, s)
			}
			for i, s := range list {
				got[i] = append(got[i], s.Token())
				if err := s.Feed(s.Token()); err != nil {
					t.Fatal(err)
				}
			}
			if err := b.Step(); err != nil {
				t.Fatal(err)
			}
		}
		for i := range got {
			want := written(t, c, Options{Capacity: 30, Sampling: &options[i]}, prompts[i], n)
			if !slices.Equal(got[i][:n], want) {
				t.Errorf("%s, sequence %d: it picks %v, want %v", dir, i, got[i], want)
			}
		}
		if _, _, err := b.Join(prompts[0]); err == nil || !strings.Contains(err.Error(), "JoinSampling") {
			t.Errorf("error %v", err)
		}
		if _, err := b.JoinSampling(prompts[0], Sampling{TopK: -1}); err == nil || !strings.Contains(err.Error(), "-1 tokens") {
			t.Errorf("error %v", err)
		}
		b.samples = false
		if _, err := b.JoinSampling(prompts[0], options[0]); err == nil || !strings.Contains(err.Error(), "picks no tokens") {
			t.Errorf("error %v", err)
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// BenchmarkPick picks one of 32,000 tokens in a program and by a [Sampler], in turn.
func BenchmarkPick(b *testing.B) {
	logits := graph.NewTensor(graph.TypeOf(graph.F32, 1, 32000))
	r := rand.New(rand.NewPCG(1, 1))
	for i := range logits.Type.Shape.Elems() {
		logits.SetFloat(i, 2*r.NormFloat64())
	}
	for _, c := range []struct {
		name string
		Sampling
	}{{"greatest", Sampling{}}, {"all", Sampling{Temperature: 0.8}}, {"top-k", Sampling{Temperature: 0.8, TopK: 20}},
		{"top-p", Sampling{Temperature: 0.8, TopP: 0.9}}} {
		options, err := c.options()
		if err != nil {
			b.Fatal(err)
		}
		g := graph.NewBuilder("pick")
		args := []*graph.Node{g.Input("logits", logits.Type)}
		for _, o := range options {
			args = append(args, g.Input(o.name, o.value.Type))
		}
		g.Output("picked", g.Add(graph.Sample{}, append(args, g.Scalar(graph.I64, 1))...))
		built := graphtest.Graph(b, g)
		p, err := fusec.Compile(built)
		if err != nil {
			b.Fatal(err)
		}
		defer p.Close()
		for _, o := range append(options, option{"logits", logits}) {
			err = errors.Join(err, p.Set(o.name, o.value))
		}
		s, failed := NewSampler(c.Temperature, c.TopK, c.TopP, 1)
		if err = errors.Join(err, failed); err != nil {
			b.Fatal(err)
		}
		b.Run(c.name+"/program", func(b *testing.B) {
			for b.Loop() {
				if err := p.Exec(); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(c.name+"/Sampler", func(b *testing.B) {
			for b.Loop() {
				s.Pick(logits.Data.([]float32))
			}
		})
	}
}
