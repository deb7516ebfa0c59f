package fpga

import (
	"fmt"
	"math"

	"fusec/graph"
	"fusec/lowering"
	"fusec/lowering/host"
)

// calibrator runs the program in floating point on the processor: to find the range of every value that crosses,
// which is the least and the greatest number that it had on any sample, and to say by how much the overlay departs
// from it.
type calibrator struct {
	l    *laid
	host *host.Launches
}

// newCalibrator compiles all launches for the processor.
func newCalibrator(l *laid, workers int) (*calibrator, error) {
	h, i, err := host.New(l.p, workers, func(*lowering.Launch) bool { return true })
	if err != nil {
		return nil, inLaunch(l.p, i, err)
	}
	for i, b := range l.p.Buffers {
		if b.Role == lowering.Const && h.Copies[i] != nil {
			h.Copies[i] = b.Value
		}
	}
	return &calibrator{l, h}, nil
}

// bind gives the program's sources their values.
func (c *calibrator) bind(bound []*graph.Tensor) error {
	for i, b := range c.l.p.Buffers {
		switch b.Role {
		case lowering.Input, lowering.Param, lowering.State:
			if c.host.Copies[i] == nil {
				continue
			}
			if bound[i] == nil {
				return fmt.Errorf("%s %q has no value", b.Role, b.Name)
			}
			c.host.Copies[i] = bound[i]
		}
	}
	return nil
}

// run runs launch by launch and calls after each.
func (c *calibrator) run(after func(launch int) error) error {
	for i := range c.l.p.Launches {
		if err := c.host.Run(i); err != nil {
			return inLaunch(c.l.p, i, err)
		}
		if err := after(i); err != nil {
			return inLaunch(c.l.p, i, err)
		}
	}
	return nil
}

// observe runs the program once and widens the ranges.
func (c *calibrator) observe() error {
	for _, v := range c.l.values {
		if v.buffer >= 0 && v.first <= 0 && !v.made {
			c.see(v)
		}
	}
	return c.run(func(i int) error {
		for _, r := range c.l.p.Launches[i].Results {
			if v := c.l.partition.values[r.Buffer]; v != nil {
				c.see(v)
			}
		}
		for _, t := range c.l.launches[i].tasks {
			if err := c.inside(i, t); err != nil {
				return err
			}
		}
		return nil
	})
}

// see widens the range of a buffer's value.
func (c *calibrator) see(v *value) {
	if t := c.host.Copies[v.buffer]; t != nil {
		for j := range t.Type.Shape.Elems() {
			v.calibre.add(t.Float(j))
		}
	}
}

// inside widens the ranges of the internal values of a task.
func (c *calibrator) inside(i int, t *task) error {
	if t.kind == taskMoE {
		return c.insideMoE(t)
	}
	add := func(n *graph.Node, to *calibre) error {
		y, err := c.node(i, t.part, n)
		if err != nil {
			return err
		}
		for j := range y.Type.Shape.Elems() {
			to.add(y.Float(j))
		}
		return nil
	}
	if t.out.v.buffer < 0 {
		if err := add(t.node, &t.out.v.calibre); err != nil {
			return err
		}
	}
	if t.act.table() {
		if t.pre != nil {
			return add(t.pre, &t.preCalibre)
		}
		t.preCalibre = t.x.v.calibre
	}
	return nil
}

// node computes a node of a launch's body, or of a part of it, from the launch's operands.
func (c *calibrator) node(i int, part *graph.Segment, n *graph.Node) (*graph.Tensor, error) {
	l := &c.l.p.Launches[i]
	f, args := l.Op.(graph.Fusion), l.Args
	if part != nil {
		f.Body, args = part.Body, make([]lowering.View, len(part.Args))
		for j, a := range part.Args {
			args[j] = l.Args[a]
		}
	}
	need := map[*graph.Node]bool{n: true}
	for k := len(f.Body.Nodes) - 1; k >= 0; k-- {
		if x := f.Body.Nodes[k]; need[x] {
			for _, a := range x.Args {
				need[a] = true
			}
		}
	}
	body := graph.New("")
	b := graph.Extend(body)
	copies := map[*graph.Node]*graph.Node{}
	for _, x := range f.Body.Nodes {
		if _, input := x.Op.(graph.Input); !input && !need[x] {
			continue
		}
		var args []*graph.Node
		for _, a := range x.Args {
			args = append(args, copies[a])
		}
		copies[x] = b.Add(x.Op, args...)
		copies[x].Name = x.Name
	}
	b.Output("part", copies[n])
	if err := b.Err(); err != nil {
		return nil, err
	}
	f.Body = body
	if f.Anchored() == nil {
		f.Anchor = graph.AnchorNone
	}
	return c.host.Compute(f, args, n.Type)
}

// insideMoE widens the ranges of the internal values of a mixture, over the tokens of each expert.
func (c *calibrator) insideMoE(t *task) error {
	e := t.experts
	d := e.dims
	bound := make([]*graph.Tensor, len(c.l.p.Buffers))
	for i := range bound {
		bound[i] = c.host.Copies[i]
	}
	x := bound[t.x.v.buffer]
	e.choose(bound[e.logits.v.buffer])
	in, hidden, acted := make([]float32, d.Width), make([]float32, d.Hidden), make([]float32, d.Hidden)
	product := func(w, b graph.MoEWeight, k int) (func(x, y []float32), error) {
		at, err := e.weights[w][k].values(bound)
		if err != nil {
			return nil, err
		}
		shape := e.weights[w][k].layout.Shape
		m := make([]float32, shape.Elems())
		for i := range shape.At(0) {
			for j := range shape.At(1) {
				m[i*shape.At(1)+j] = float32(at(i, j))
			}
		}
		bias := make([]float32, shape.At(1))
		if e.weights[b] != nil {
			v, err := e.weights[b][k].values(bound)
			if err != nil {
				return nil, err
			}
			for j := range bias {
				bias[j] = float32(v(0, j))
			}
		}
		return func(x, y []float32) {
			copy(y, bias)
			for i, v := range x {
				for j, u := range m[i*len(y) : (i+1)*len(y)] {
					y[j] += v * u
				}
			}
		}, nil
	}
	for k := range e.op.Experts {
		w1, err := product(graph.MoEW1, graph.MoEB1, k)
		if err != nil {
			return err
		}
		w2, err := product(graph.MoEW2, graph.MoEB2, k)
		if err != nil {
			return err
		}
		w3 := func(x, y []float32) {}
		if e.op.Gated {
			if w3, err = product(graph.MoEW3, graph.MoEB3, k); err != nil {
				return err
			}
		}
		second, out := make([]float32, d.Hidden), make([]float32, d.Result)
		for token := range e.chosen {
			if !e.chosen[token][k] {
				continue
			}
			for j := range in {
				in[j] = float32(x.Float(t.x.start + token*t.x.step + j))
			}
			w1(in, hidden)
			w3(in, second)
			for j, v := range hidden {
				e.pre.add(float64(v))
				acted[j] = float32(e.act.f(float64(v)))
				e.acted.add(float64(acted[j]))
				if e.op.Gated {
					e.up.add(float64(second[j]))
					acted[j] *= second[j]
				}
				e.hidden.add(float64(acted[j]))
			}
			w2(acted, out)
			for _, v := range out {
				e.slots.calibre.add(float64(v))
			}
		}
	}
	return nil
}

// choose finds out which experts each token goes to.
func (e *experts) choose(logits *graph.Tensor) {
	e.chosen = make([][]bool, e.dims.Tokens)
	for k := range e.chosen {
		e.chosen[k] = largest(logits, k*e.op.Experts, e.op.Experts, e.topK)
	}
}

// loads counts the tokens that some of all send to each expert, nil if that is not known.
func (e *experts) loads(from, n int) []int {
	if e.chosen == nil {
		return nil
	}
	loads := make([]int, e.op.Experts)
	for _, chosen := range e.chosen[from : from+n] {
		for k, yes := range chosen {
			if yes {
				loads[k]++
			}
		}
	}
	return loads
}

// choose runs the program on values of its sources, by name, and finds out where its routers send the tokens.
func (l *laid) choose(workers int, values map[string]*graph.Tensor) error {
	mixtures := l.mixtures()
	if len(mixtures) == 0 {
		return nil
	}
	c, err := newCalibrator(l, workers)
	if err != nil {
		return err
	}
	defer c.close()
	if err := c.bind(l.sources(values)); err != nil {
		return err
	}
	return c.run(func(i int) error {
		for _, t := range mixtures {
			if t.launch == i {
				t.experts.choose(c.host.Copies[t.experts.logits.v.buffer])
			}
		}
		return nil
	})
}

// mixtures lists the mixtures of experts.
func (l *laid) mixtures() (list []*task) {
	for i := range l.launches {
		for _, t := range l.launches[i].tasks {
			if t.kind == taskMoE {
				list = append(list, t)
			}
		}
	}
	return list
}

// sources are the values of the program's sources by buffer.
func (l *laid) sources(values map[string]*graph.Tensor) []*graph.Tensor {
	bound := make([]*graph.Tensor, len(l.p.Buffers))
	for i, b := range l.p.Buffers {
		if b.Role <= lowering.State {
			bound[i] = values[b.Name]
		}
	}
	return bound
}

// largest marks the k largest of n elements, the first of equal ones.
func largest(t *graph.Tensor, at, n, k int) []bool {
	chosen := make([]bool, n)
	for range k {
		best := -1
		for i := range n {
			if !chosen[i] && (best < 0 || t.Float(at+i) > t.Float(at+best)) {
				best = i
			}
		}
		chosen[best] = true
	}
	return chosen
}

func (c *calibrator) close() { c.host.Close() }

// departure is the error of a value: the largest and the root-mean-square difference from the expected value, both
// relative to the range of the expected value.
type departure struct{ max, rms float64 }

// compare computes it; both have the same number of elements.
func compare(got, want *graph.Tensor) departure {
	n := want.Type.Shape.Elems()
	var seen calibre
	var d departure
	for i := range n {
		w := want.Float(i)
		seen.add(w)
		e := math.Abs(got.Float(i) - w)
		d.max = max(d.max, e)
		d.rms += e * e
	}
	span := seen.span()
	if span == 0 {
		span = 1
	}
	return departure{d.max / span, math.Sqrt(d.rms/float64(max(n, 1))) / span}
}
