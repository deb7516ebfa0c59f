package fpga

import (
	"fmt"
	"slices"

	"fusec/fpga/isa"
	"fusec/graph"
	"fusec/graph/arena"
	"fusec/lowering"
)

// laid is a program laid out for an overlay: what each launch's tasks are, where every value and constant lies in
// external memory, and the stretches of launches that run there without the host.
//
//	0: a stamp for each launch │ constants │ values, by their lifetimes │ the programs
type laid struct {
	*partition
	values []*value // all, in the order of the launches that first touch them
	blobs  []*blob
	parts  []part
	stamps []int64 // of each launch
	code   int64   // where the first part's descriptors begin
	arena  int64   // bytes of values
}

// A part is a stretch of launches that run on the overlay one after the other, or one on the host.
type part struct {
	from, to int
	host     bool
}

// stampBytes is the size of the result of a Stamp.
const stampBytes = 16

// layOut lays a program out. Launches that do not fit into the scratchpads run on the processor.
func layOut(cfg isa.Config, p *lowering.Program) *laid {
	refused := map[int]error{}
	for {
		l := &laid{partition: newPartition(cfg, p, refused)}
		l.layOut()
		all := true
		for i := range p.Launches {
			if err := l.fits(i); err != nil {
				refused[i], all = err, false
			}
		}
		if all {
			return l
		}
	}
}

// fits tries a launch's descriptors.
func (l *laid) fits(i int) error {
	a := &assembler{cfg: l.cfg, launch: i}
	l.emit(a, i)
	for _, s := range a.steps {
		if f := l.cfg.Verify(s.Cmd, 1<<32); a.err == nil && f != nil {
			a.err = fmt.Errorf("%s: %w", isa.Text(s.Cmd), f)
		}
	}
	return a.err
}

// layOut cuts the program into parts, and gives constants and values their places.
func (l *laid) layOut() {
	for i := range l.p.Launches {
		n := len(l.parts)
		switch {
		case l.launches[i].refusal != nil:
			l.parts = append(l.parts, part{i, i + 1, true})
		case n == 0 || l.parts[n-1].host:
			l.parts = append(l.parts, part{i, i + 1, false})
		default:
			l.parts[n-1].to = i + 1
		}
	}
	l.findValues()
	at := int64(0)
	for range l.p.Launches {
		l.stamps = append(l.stamps, at)
		at += up64(stampBytes, int64(l.cfg.WordBytes))
	}
	at = arena.Align(at)
	for i := range l.launches {
		for _, t := range l.launches[i].tasks {
			l.constants(t, &at)
		}
	}
	l.place(&at)
	l.code = up64(at, isa.DescBytes)
}

func up64(n, m int64) int64 { return (n + m - 1) / m * m }

// findValues lists the values of all tasks.
func (l *laid) findValues() {
	seen := map[*value]bool{}
	add := func(v *value) {
		if v != nil && !seen[v] {
			seen[v] = true
			l.values = append(l.values, v)
		}
	}
	for i := range l.launches {
		for _, t := range l.launches[i].tasks {
			for _, o := range t.operands() {
				add(o.v)
			}
			if t.kind == taskMoE {
				add(t.experts.slots)
			}
			add(t.out.v)
		}
	}
}

// constants gives a task's weights, records and tables their places.
func (l *laid) constants(t *task, at *int64) {
	c := l.cfg
	take := func(rows, bytes int) *blob {
		b := &blob{addr: *at, size: rows * up(bytes, c.WordBytes), rows: rows}
		*at = arena.Align(*at + int64(b.size))
		l.blobs = append(l.blobs, b)
		return b
	}
	records := func(n, of int) *blob { return take(1, up(max(n, 1), of)*isa.RecordBytes) }
	few := max(1, c.WordBytes/isa.RecordBytes)
	if t.act.table() {
		t.codes.table = take(1, 256)
	}
	switch t.kind {
	case taskGemm:
		n, of := t.w.rows, c.Cols
		if t.weight != nil {
			n = t.weight.n
			if t.swapped {
				of = c.Rows
			}
			t.codes.weights = take(up(n, of), t.weight.k)
		}
		t.codes.records = records(n, max(of, few))
	case taskTranspose:
		t.codes.weights = take(up(t.x.cols, c.Rows), t.x.cols)
		t.codes.records = records(t.x.cols, max(c.Rows, few))
	case taskConv:
		w, k := t.window, 0
		for _, u := range w.units(c.Cols, c.WordBytes) {
			k = max(k, w.taps()*u.words*c.WordBytes)
		}
		t.codes.weights = take(up(w.o, c.Cols), k)
		t.codes.records = records(w.o, max(c.Cols, few))
		t.codes.fill = take(1, w.fill(c.WordBytes)*c.WordBytes)
	case taskMax:
		w := t.window
		t.codes.records = records(maxRecords, few)
		t.codes.fill = take(1, w.fill(c.WordBytes)*c.WordBytes)
	case taskAffine, taskMul:
		n := 1
		if len(t.terms) > 0 {
			n = up(t.x.cols, c.WordBytes)
		}
		t.codes.records = records(n, few)
	case taskNorm:
		t.codes.records = records(up(t.x.cols, c.WordBytes), few)
	case taskMoE:
		e := t.experts
		if e.act.table() {
			e.codes.table = take(1, 256)
		}
		for _, w := range e.op.Weights() {
			if w.Bias() {
				continue
			}
			n, k := e.dims.Hidden, up(e.dims.Width, c.WordBytes)
			if w == graph.MoEW2 {
				n, k = e.dims.Result, up(e.dims.Hidden, c.Cols)
			}
			for range e.op.Experts {
				e.codes.of[w] = append(e.codes.of[w], codes{weights: take(up(n, c.Cols), k),
					records: records(n, max(c.Cols, few))})
			}
		}
		e.codes.product, e.codes.combine = records(1, few), records(1, few)
	}
}

// place gives the values their places: two that do not live at the same time may share memory. What the host brings or
// fetches lives as long as the part in which that is done.
func (l *laid) place(at *int64) {
	partOf := func(launch int) part {
		i := slices.IndexFunc(l.parts, func(p part) bool { return launch >= p.from && launch < p.to })
		return l.parts[i]
	}
	var places []arena.Value
	type image struct {
		v    *value
		kind int
	}
	var images []image
	for _, v := range l.values {
		first, last := v.first, v.last
		if first < 0 {
			first, last = 0, 0
		}
		if v.hosted {
			last = max(last, partOf(last).to-1)
			first = min(first, partOf(first).from)
		}
		for kind, on := range []bool{v.plain, v.turned} {
			if on {
				places = append(places, arena.Value{Bytes: v.size(kind, l.cfg.WordBytes), First: first, Last: last})
				images = append(images, image{v, kind})
			}
		}
	}
	l.arena = arena.Place(places)
	for i, m := range images {
		m.v.addr[m.kind] = *at + places[i].Offset
	}
	*at += l.arena
}

// assemble makes the descriptors of the launches from from to to, each followed by its stamp, then End.
func (l *laid) assemble(from, to int) ([]Step, error) {
	if limit := int64(1) << l.cfg.AddrBits; l.code > limit {
		return nil, fmt.Errorf("program %q: values and weights take %d bytes of the overlay's memory: "+
			"addresses of %d bits reach %d", l.p.Name,
			l.code, l.cfg.AddrBits, limit)
	}
	a := &assembler{cfg: l.cfg}
	for i := from; i < to; i++ {
		if l.emit(a, i); a.err != nil {
			return nil, inLaunch(l.p, i, a.err)
		}
		a.emit(&isa.Stamp{Addr: uint32(l.stamps[i])})
	}
	order(a.steps)
	a.launch = to - 1
	a.steps = append(a.steps, Step{Launch: to - 1, Cmd: &isa.End{}})
	for i, s := range a.steps {
		if f := l.cfg.Verify(s.Cmd, 1<<l.cfg.AddrBits); f != nil {
			return nil, inLaunch(l.p, s.Launch, fmt.Errorf("descriptor %d, %s: %w", i, isa.Text(s.Cmd), f))
		}
	}
	return a.steps, nil
}

// emit makes the descriptors of a launch.
func (l *laid) emit(a *assembler, i int) {
	a.launch = i
	for _, t := range l.launches[i].tasks {
		switch t.kind {
		case taskGemm, taskTranspose:
			a.gemm(t)
		case taskAttention:
			a.attention(t)
		case taskMoE:
			a.moe(t)
		case taskConv:
			a.conv(t)
		case taskMax:
			a.maximum(t)
		default:
			a.vector(t)
		}
		if a.err != nil {
			return
		}
	}
}

// quantise chooses the quantisation of every value by its range, and fills all constants. Tensors are those that are
// bound to the program's buffers.
func (l *laid) quantise(bound []*graph.Tensor) error {
	for _, v := range l.values {
		v.choose()
	}
	for i := range l.launches {
		for _, t := range l.launches[i].tasks {
			if err := t.quantise(bound, l.cfg); err != nil {
				return inLaunch(l.p, i, err)
			}
		}
	}
	return nil
}
