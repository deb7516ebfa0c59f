package cpu

import (
	"slices"

	"fusec/graph"
	"fusec/graph/body"
)

// A hidden is the elementwise part of an expert, or of its gradient, as a vector program; see moe.Hidden.
type hidden[T float] struct {
	p       *program[T]
	at      int // where its registers start in a worker's scratch
	workers []hiddenWorker[T]
}

type hiddenWorker[T float] struct {
	frame         *frame[T]
	args, results []Memory
}

// newHidden compiles the activation of a mixture: of u, and v if it is gated. The gradient follows from the graph's own
// rule.
func newHidden[T float](op graph.MoE, backward bool, env *Env) (*hidden[T], error) {
	f, err := body.Hidden(op, dtypeOf[T](), segment, backward)
	if err != nil {
		return nil, err
	}
	each := Contiguous(graph.TypeOf(dtypeOf[T](), segment))
	results := slices.Repeat([]Operand{each}, len(f.Body.Outputs))
	args := []Operand{each} // u, v, da
	for _, further := range []bool{op.Gated, backward} {
		if further {
			args = append(args, each)
		}
	}
	p, err := body.Lower(f, args, results)
	if err != nil {
		return nil, err
	}
	c := newCompiler[T](p, p.Space)
	if err := c.outputs(results); err != nil {
		return nil, err
	}
	c.p.dom = newDomain(c.space, 0, c.p.accesses())
	if backward {
		c.direct(-1, -1)
	} else { // h takes u's place
		i := slices.IndexFunc(p.Values, func(v body.Value) bool { return v.Kind == body.Load && v.Arg == 0 })
		c.direct(c.values[i].slot, 0)
	}
	k := &hidden[T]{p: c.p, workers: make([]hiddenWorker[T], env.Pool.Workers())}
	for i := range k.workers {
		k.workers[i] = hiddenWorker[T]{c.p.newFrame(), make([]Memory, len(args)), make([]Memory, len(results))}
	}
	return k, nil
}

// begin takes registers for a run.
func (k *hidden[T]) begin(env *Env) {
	for w := range k.workers {
		k.p.begin(k.workers[w].frame, scratchOf[T](env, w, k.at, k.p.regs*roundLine[T](segment)), segment)
	}
}

// forward is the Forward of moe.Hidden.
func (k *hidden[T]) forward(worker int, u, v []T) {
	w := &k.workers[worker]
	for at := 0; at < len(u); at += segment {
		n := min(segment, len(u)-at)
		w.args[0] = memoryOf(u[at:][:n])
		if v != nil {
			w.args[1] = memoryOf(v[at:][:n])
		}
		w.results[0] = w.args[0]
		k.p.exec(w.frame, 0, 0, n, w.args, w.results)
	}
	w.release()
}

// backward is the Backward of moe.Hidden.
func (k *hidden[T]) backward(worker int, u, v, da, h, du, dv []T) {
	w := &k.workers[worker]
	last := len(w.args) - 1
	for at := 0; at < len(u); at += segment {
		n := min(segment, len(u)-at)
		w.args[0], w.args[last] = memoryOf(u[at:][:n]), memoryOf(da[at:][:n])
		w.results[0], w.results[1] = memoryOf(h[at:][:n]), memoryOf(du[at:][:n])
		if v != nil {
			w.args[1], w.results[2] = memoryOf(v[at:][:n]), memoryOf(dv[at:][:n])
		}
		k.p.exec(w.frame, 0, 0, n, w.args, w.results)
	}
	w.release()
}

// release lets go of the memory that the program ran on.
func (w *hiddenWorker[T]) release() {
	clear(w.args)
	clear(w.results)
}
