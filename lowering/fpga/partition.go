package fpga

import (
	"errors"
	"fmt"

	"fusec/fpga/isa"
	"fusec/graph"
	"fusec/lowering"
)

// partition says of each launch of a program whether the overlay takes it, as which tasks, or why not.
type partition struct {
	cfg      isa.Config
	p        *lowering.Program
	values   map[int]*value            // by buffer
	images   map[int]graph.ImageLayout // of buffers that are images
	launches []placed
}

// placed is a launch's place.
type placed struct {
	tasks   []*task
	refusal error
	routes  int // the mixture that computes the launch in its router, plus one; 0: none
}

// newPartition looks at every launch of a program; some are refused already.
func newPartition(cfg isa.Config, p *lowering.Program, refused map[int]error) *partition {
	m := &partition{cfg: cfg, p: p, values: map[int]*value{}, launches: make([]placed, len(p.Launches))}
	for i, err := range refused {
		m.launches[i].refusal = err
	}
	for i := range p.Prepared {
		m.launches[i].refusal = errPrepared
	}
	m.findImages()
	for i := range p.Launches { // mixtures first, since their routers take over the launches that make the gates
		if m.launches[i].refusal != nil {
			continue
		}
		if f, ok := p.Launches[i].Op.(graph.Fusion); ok && f.Anchor == graph.AnchorMoE {
			m.launches[i].tasks, m.launches[i].refusal = m.match(i)
		}
	}
	for i := range p.Launches {
		l := &m.launches[i]
		if l.tasks == nil && l.refusal == nil && l.routes == 0 {
			l.tasks, l.refusal = m.match(i)
		}
	}
	m.refuseLogits()
	m.mark()
	m.turn()
	return m
}

// errPrepared is why the overlay does not take launches of the prepared part.
var errPrepared = errors.New("what follows from weights alone is computed once")

// match lists the tasks of a launch.
func (m *partition) match(i int) ([]*task, error) {
	f, ok := m.p.Launches[i].Op.(graph.Fusion)
	if !ok {
		op := m.p.Launches[i].Op
		how, err := answers.Of(op)
		switch {
		case err != nil:
			return nil, err
		case how.alone != nil:
			return how.alone(m, i)
		}
		return nil, fmt.Errorf("%s alone: the overlay takes fusions, as the pass fuse-regions makes them", op.OpName())
	}
	for _, v := range m.p.Launches[i].Results {
		if r := m.p.Buffers[v.Buffer].Role; r == lowering.State || r == lowering.Param {
			return nil, fmt.Errorf("it changes %s %q in place", r, m.p.Buffers[v.Buffer].Name)
		}
	}
	for _, n := range f.Body.Nodes {
		if a, _ := graph.AnchorOf(n.Op); a == graph.AnchorNone || a != f.Anchor {
			continue
		}
		switch how, err := answers.Of(n.Op); {
		case err != nil:
			return nil, err
		case how.launch != nil:
			return how.launch(m, i, f)
		}
	}
	return m.matchFusion(i, f)
}

// value is that of a buffer.
func (m *partition) value(buffer int) *value {
	if m.values[buffer] == nil {
		m.values[buffer] = newValue(m.p, buffer)
	}
	return m.values[buffer]
}

// inner is a value that a launch keeps to itself.
func (m *partition) inner(l *lowering.Launch, n *graph.Node, rows, cols int) *value {
	name := n.Op.OpName()
	if n.Name != "" {
		name = n.Name
	}
	return &value{name: name + " inside " + l.Node.String(), buffer: -1, rows: rows, cols: cols, first: -1, last: -1}
}

// constant reports whether a value is known before a run and is no input: a weight.
func (m *partition) constant(buffer int) bool {
	if buffer < 0 {
		return true
	}
	switch m.p.Buffers[buffer].Role {
	case lowering.Param, lowering.Const, lowering.Prepared:
		return true
	}
	return false
}

// fitsContraction refuses rows whose sums may not fit the accumulators.
func (m *partition) fitsContraction(k int) error {
	if limit := (1<<(m.cfg.AccBits-1) - 1) / (128 * 127); k > limit {
		return fmt.Errorf("a product over %d elements: sums of %d bits take %d", k, m.cfg.AccBits, limit)
	}
	return nil
}

// refuseLogits sends the launch back that makes a router's logits by a table: those have 8 bits.
func (m *partition) refuseLogits() {
	for i := range m.launches {
		for _, t := range m.launches[i].tasks {
			if t.out.v != nil && t.out.v.logits && (t.act.table() || t.res != nil || t.kind == taskMax) {
				m.launches[i] = placed{refusal: errors.New("a router's logits behind an activation or a sum: " +
					"the overlay has 8 bits for those")}
				break
			}
		}
	}
}

// operands lists the operands of a task in external memory, without weights.
func (t *task) operands() (list []matrix) {
	switch t.kind {
	case taskAttention:
		return t.heads.operands()
	case taskMoE:
		return []matrix{t.x, t.experts.logits}
	}
	list = append(list, t.x)
	if t.kind == taskGemm && t.weight == nil {
		list = append(list, t.w)
	}
	if t.kind == taskMul {
		list = append(list, t.y)
	}
	if t.res != nil {
		list = append(list, *t.res)
	}
	return list
}

// mark notes who reads and makes each value.
func (m *partition) mark() {
	at := func(v *value, i int) {
		if v.first < 0 || i < v.first {
			v.first = i
		}
		v.last = max(v.last, i)
	}
	wide := map[*value]bool{}
	for i := range m.launches {
		for _, t := range m.launches[i].tasks {
			for _, o := range t.operands() {
				at(o.v, i)
				o.v.plain = o.v.plain || o.image == plain
				o.v.turned = o.v.turned || o.image == turned
				o.v.narrow = o.v.narrow || !o.v.logits
			}
			t.wantSymmetric()
			at(t.out.v, i)
			t.out.v.made = true
			wide[t.out.v] = !t.act.table() && t.kind != taskMax
		}
	}
	for i := range m.p.Launches {
		if m.launches[i].tasks != nil || m.launches[i].routes > 0 {
			continue
		}
		l := &m.p.Launches[i]
		for _, views := range [][]lowering.View{l.Args, l.Results} {
			for _, v := range views {
				if x := m.values[v.Buffer]; x != nil {
					x.hosted = true
					at(x, i)
				}
			}
		}
	}
	for i := len(m.launches) - 1; i >= 0; i-- { // a maximum has its operand's quantisation
		for _, t := range m.launches[i].tasks {
			if t.kind == taskMax && t.out.v.symmetric {
				t.x.v.symmetric = true
			}
		}
	}
	for _, x := range m.values {
		switch m.p.Buffers[x.buffer].Role {
		case lowering.Temp:
		case lowering.Output, lowering.Prepared:
			x.hosted = true
			x.last = len(m.p.Launches) - 1
		default:
			x.hosted = true
			x.first = 0
		}
		x.plain = x.plain || x.made && (x.hosted || !x.turned)
		x.wide = x.logits || x.made && !x.narrow && wide[x]
	}
}

// wantSymmetric notes of which operands a zero would not vanish.
func (t *task) wantSymmetric() {
	switch t.kind {
	case taskAttention:
		for _, o := range t.heads.operands() {
			o.v.symmetric = true
		}
		t.out.v.symmetric = true
	case taskMul:
		t.x.v.symmetric, t.y.v.symmetric = true, true
	case taskGemm:
		if t.weight == nil {
			t.x.v.symmetric, t.w.v.symmetric = true, true
		}
		if t.out.v.logits { // whose range has no space for the contribution of a zero point to sums
			t.x.v.symmetric = true
		}
	case taskNorm:
		if kind, _ := t.norm(); kind == isa.VectorRMSNorm {
			t.x.v.symmetric = true
		}
	}
}

// turn provides the transposes of the overlay's results that are read. A product with weights computes the transpose
// itself, by exchanging its operands, if only the transpose is read. Otherwise a product with the unit matrix follows.
func (m *partition) turn() {
	for i := range m.launches {
		l := &m.launches[i]
		var tasks []*task
		for _, t := range l.tasks {
			tasks = append(tasks, t)
			v := t.out.v
			if !v.turned {
				continue
			}
			if t.kind == taskGemm && t.weight != nil && t.res == nil && !v.plain && t.out == whole(v) {
				t.swapped = true
				t.out = t.out.turn()
				continue
			}
			v.plain = true
			tasks = append(tasks, &task{launch: i, kind: taskTranspose, x: whole(v), out: whole(v).turn(), share: 1,
				node: t.node})
		}
		l.tasks = tasks
	}
}
