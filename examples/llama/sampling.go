package llama

import (
	"errors"
	"fmt"
	"math"

	"fusec/graph"
)

// Sampling says how runs pick tokens by themselves, as [graph.Sample] does. A token depends on the logits, the options, the
// seed and its place in the sequence alone: the same seed picks the same tokens on every target, unless their logits round so
// differently that a pick is on the edge between two.
type Sampling struct {
	Temperature float64 // as in [Sampler]
	TopK        int     // as in [Sampler]
	TopP        float64 // as in [Sampler]
	Seed        uint64
}

// An option is an input of programs that sample.
type option struct {
	name  string
	value *graph.Tensor
}

// options are those of programs that sample.
func (s *Sampling) options() ([]option, error) {
	if err := checkSampling(s.Temperature, s.TopK, s.TopP); err != nil {
		return nil, err
	}
	temperature, topP := s.Temperature, s.TopP
	if temperature > 0 { // and not 0, or infinite, as F32
		temperature = min(max(temperature, math.SmallestNonzeroFloat32), math.MaxFloat32)
	}
	if topP > 0 {
		topP = max(topP, math.SmallestNonzeroFloat32)
	}
	seed := graph.Scalar(graph.I64, 0)
	seed.SetInt(0, int64(s.Seed))
	return []option{{temperatureName, graph.Scalar(graph.F32, temperature)}, {topKName, graph.Scalar(graph.I64, float64(s.TopK))},
		{topPName, graph.Scalar(graph.F32, topP)}, {seedName, seed}}, nil
}

// checkSampling refuses options that mean nothing.
func checkSampling(temperature float64, topK int, topP float64) error {
	switch {
	case !(temperature >= 0) || math.IsInf(temperature, 0):
		return fmt.Errorf("a temperature of %v: want 0 or a positive number", temperature)
	case topK < 0:
		return fmt.Errorf("the best %d tokens: want a positive number, or 0 for all", topK)
	case !(topP >= 0 && topP <= 1):
		return fmt.Errorf("tokens with a probability of %v together: want a number from 0 to 1", topP)
	}
	return nil
}

// Token is the token that the last run has picked to follow the sequence. It needs [Options.Sampling]; without a run, or after
// [Model.Truncate], it is −1.
func (m *Model) Token() int {
	if !m.picked {
		return -1
	}
	return int(m.last.picked[0])
}

// Step adds to the sequence the token that the last run has picked, which is in the memory of the device, and picks the next. It
// needs [Options.Sampling], and an [Model.Append] before it.
func (m *Model) Step() error {
	switch {
	case m.options == nil:
		return errors.New("the model picks no tokens: it has no options for sampling")
	case !m.picked:
		return errors.New("no token was picked to follow the sequence: append one")
	case m.done == m.limit:
		return fmt.Errorf("the sequence is full: it has %d tokens", m.done)
	}
	_, err := m.run(m.step, nil)
	return err
}

// runSampling is the run of a program that picks a token, of one that was picked before if there are no tokens. It gives the
// program what it does not have: the token, and where it comes.
func (m *Model) runSampling(r *run, tokens []int) error {
	fed := len(tokens) == 0
	m.picked = false
	if m.at != m.done {
		m.position.SetInt(0, int64(m.done))
		if err := r.p.Set(positionName, m.position); err != nil {
			return err
		}
		m.at = m.done
	}
	if !fed && r == m.step {
		m.token.SetInt(0, int64(tokens[0]))
		if err := r.p.Set(tokenName, m.token); err != nil {
			return err
		}
	}
	if err := r.p.Exec(); err != nil {
		return err
	}
	if err := find(r.p, "picked", &r.picked); err != nil {
		return err
	}
	m.done += max(len(tokens), 1)
	m.at, m.picked = m.done, true
	return nil
}
