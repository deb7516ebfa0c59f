package fpga

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"fusec/graph"
	"fusec/lowering"
	"fusec/lowering/host"
)

// errGates says that gates are not of the form that the overlay's router computes.
var errGates = errors.New("gates that are not a softmax of logits, or its largest: the overlay's router makes no other")

// mostGateLaunches bounds how many launches may lead from logits to gates.
const mostGateLaunches = 6

// router finds the launches that make a mixture's gates, a buffer seen through a layout, of logits as the overlay's router does,
// their results read by nobody else.
func (m *partition) router(i, gates int, layout graph.Layout, e *experts) ([]int, error) {
	if !layout.IsContiguous() || layout.Offset != 0 {
		return nil, errGates
	}
	// From the gates backwards, launch by launch. The first value on the way that could be the logits is used, because
	// its readers determine the router's input.
	var walked, taken []int
	logits := -1
	open := []int{gates} // buffers that the launches read and do not make
	for len(walked) < mostGateLaunches && len(open) > 0 {
		slices.SortFunc(open, func(a, b int) int { return cmp.Compare(m.maker(b), m.maker(a)) })
		made := m.maker(open[0])
		if made < 0 || m.p.Buffers[open[0]].Role != lowering.Temp {
			break
		}
		walked = append(walked, made)
		open = slices.DeleteFunc(open, func(b int) bool { return m.maker(b) == made })
		for _, v := range m.p.Launches[made].Args {
			if !m.constant(v.Buffer) && !slices.Contains(open, v.Buffer) {
				open = append(open, v.Buffer)
			}
		}
		if len(open) != 1 || m.p.Buffers[open[0]].Type.Shape.Elems() != e.dims.Tokens*e.op.Experts {
			continue
		}
		if k, renorm, err := m.routing(walked, open[0], gates, e.op.Experts); err == nil {
			logits, taken = open[0], slices.Clone(walked)
			e.topK, e.renorm = k, renorm
		}
	}
	switch {
	case logits < 0:
		return nil, errGates
	case e.topK > m.cfg.TopK:
		return nil, fmt.Errorf("%d experts for each token: the overlay %s takes %d", e.topK, m.cfg.Name, m.cfg.TopK)
	}
	inside := map[int]bool{} // buffers between the logits and the mixture
	for _, j := range taken {
		for _, v := range m.p.Launches[j].Results {
			inside[v.Buffer] = true
		}
	}
	for j, l := range m.p.Launches {
		for _, v := range l.Args {
			if (inside[v.Buffer] && j != i || v.Buffer == logits) && !slices.Contains(taken, j) {
				return nil, fmt.Errorf("%s reads what leads to the gates, too: the overlay's router keeps it",
					l.Node.Where())
			}
		}
	}
	v := m.value(logits)
	var err error
	if e.logits, err = matrixOf(v, graph.Contiguous(graph.ShapeOf(e.dims.Tokens, e.op.Experts)), e.dims.Tokens,
		e.op.Experts); err != nil {
		return nil, err
	}
	if e.logits != whole(v) {
		return nil, errors.New("a router's logits that are part of a value")
	}
	return taken, nil
}

// maker is the launch that makes a buffer, or −1.
func (m *partition) maker(buffer int) int {
	return slices.IndexFunc(m.p.Launches, func(l lowering.Launch) bool {
		return slices.ContainsFunc(l.Results, func(v lowering.View) bool { return v.Buffer == buffer })
	})
}

// routing recognises the function of launches from logits to gates: the softmax of each row, of which the largest topK
// are kept and, with renorm, normalised again. There are many ways to write it, so it is tried on random logits:
// launches of a softmax, maxima, comparisons and sums that agree on all of them to rounding also agree on others.
func (m *partition) routing(launches []int, logits, gates, experts int) (topK int, renorm bool, err error) {
	for _, i := range launches {
		if limited(m.p.Launches[i].Op) {
			return 0, false, errors.New("a router with a capacity: the overlay's has none")
		}
		for _, v := range m.p.Launches[i].Args {
			if v.Buffer != logits && m.constant(v.Buffer) && m.p.Buffers[v.Buffer].Value == nil {
				return 0, false, errGates
			}
		}
	}
	h, _, err := host.New(m.p, 1, func(l *lowering.Launch) bool {
		return slices.ContainsFunc(launches, func(i int) bool { return l == &m.p.Launches[i] })
	})
	if err != nil {
		return 0, false, err
	}
	defer h.Close()
	for i, b := range m.p.Buffers {
		if h.Copies[i] != nil && b.Value != nil {
			h.Copies[i] = b.Value
		}
	}
	in, out := h.Copies[logits], h.Copies[gates]
	if !in.Type.DType.IsReal() || !out.Type.DType.IsReal() {
		return 0, false, errGates
	}
	r := rand.New(rand.NewPCG(1, 2))
	for rows := 0; rows < 64; {
		for j := range in.Type.Shape.Elems() {
			in.SetFloat(j, 2*r.NormFloat64())
		}
		for _, i := range slices.Backward(launches) {
			if err := h.Run(i); err != nil {
				return 0, false, err
			}
		}
		x, y := in.Floats(), out.Floats()
		for at := 0; at < len(x); at += experts {
			k, shared, ok := routed(x[at:at+experts], y[at:at+experts])
			if !ok || rows > 0 && (k != topK || shared != renorm) {
				return 0, false, errGates
			}
			topK, renorm = k, shared
			rows++
		}
	}
	return topK, renorm, nil
}

// limited reports whether an operation routes to experts that are full at some point, or that choose themselves.
func limited(op graph.Op) bool {
	if f, ok := op.(graph.Fusion); ok {
		return slices.ContainsFunc(f.Body.Nodes, func(n *graph.Node) bool { return limited(n.Op) })
	}
	r, ok := op.(graph.Route)
	return ok && (r.Capacity > 0 || r.ExpertChoice)
}

// routed returns how many of a token's gates are not zero and whether they are normalised among themselves, if they are
// a softmax of the logits with the largest ones kept.
func routed(logits, gates []float64) (topK int, renorm, ok bool) {
	order, want := make([]int, len(logits)), make([]float64, len(logits))
	sum := 0.0
	for j, x := range logits {
		order[j] = j
		want[j] = math.Exp(x)
		sum += want[j]
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(want[b], want[a]) })
	for _, g := range gates {
		if g != 0 {
			topK++
		}
	}
	chosen, total := 0.0, 0.0
	for k, j := range order {
		want[j] /= sum
		if k >= topK {
			want[j] = 0
		}
		chosen += want[j]
		total += gates[j]
	}
	renorm = topK < len(logits) && math.Abs(total-1) < 1e-5
	for j, g := range gates {
		if renorm {
			want[j] /= chosen
		}
		if !(math.Abs(want[j]-g) < 1e-5) {
			return 0, false, false
		}
	}
	return topK, renorm, topK > 0
}
