package lowering

import (
	"slices"

	"fusec/graph"
)

// Strides lets the operands of a Concat be written where they stand in its result, if the device has kernels that read and
// write what then lies in strides: can reports that of a launch.
func Strides(can func(op graph.Op, args, results []graph.Operand) bool) Option {
	return func(l *lowerer) { l.strided = can }
}

// joinInPlace gives the operands of a Concat their place in its result, so that the launches that make them write there. A
// Concat that has nothing left to copy goes. Later ones come first, since an operand may itself be the result of a Concat.
//
//	conv ─► a ─┐                  conv ─► r[.., 0:32]
//	conv ─► b ─┴ concat ─► r  to  conv ─► r[.., 32:64]
//
// An operand is moved if it is a temporary value of its own, made once, outside the prepared part, and all launches that touch
// it can do so in strides.
func (p *Program) joinInPlace(can func(op graph.Op, args, results []graph.Operand) bool) {
	if !slices.ContainsFunc(p.Launches, func(l Launch) bool { _, joins := l.Op.(graph.Concat); return joins }) {
		return
	}
	moved, gone := map[int]bool{}, map[int]bool{}
	users := make([][]int, len(p.Buffers)) // the launches that touch each buffer
	for i, l := range p.Launches {
		for _, list := range [][]View{l.Args, l.Results} {
			for _, v := range list {
				if u := users[v.Buffer]; len(u) == 0 || u[len(u)-1] != i {
					users[v.Buffer] = append(u, i)
				}
			}
		}
	}
	for at := len(p.Launches) - 1; at >= p.Prepared; at-- {
		l := &p.Launches[at]
		op, ok := l.Op.(graph.Concat)
		if !ok || p.Buffers[l.Results[0].Buffer].Role != Temp {
			continue
		}
		start, left := 0, 0
		for i := range l.Args {
			size := l.Args[i].Layout.Shape.At(op.Axis)
			to := l.Results[0]
			to.Layout = to.Layout.Slice(op.Axis, start, size, 1)
			if from := l.Args[i].Buffer; p.move(at, i, to, users[from], can) {
				moved[from] = true
				users[to.Buffer] = append(users[to.Buffer], users[from]...)
				slices.Sort(users[to.Buffer])
				users[to.Buffer] = slices.Compact(users[to.Buffer])
			} else {
				left++
			}
			start += size
		}
		if left == 0 {
			gone[at] = true
		}
	}
	if len(gone) > 0 {
		kept := p.Launches[:0]
		for i, l := range p.Launches {
			if !gone[i] {
				kept = append(kept, l)
			}
		}
		p.Launches = kept
	}
	if len(moved) > 0 {
		p.drop(moved)
	}
}

// move puts operand i of launch at, a Concat, to a place in the Concat's result. Its buffer has the given users.
func (p *Program) move(at, i int, to View, users []int, can func(op graph.Op, args, results []graph.Operand) bool) bool {
	from := p.Launches[at].Args[i]
	b := &p.Buffers[from.Buffer]
	if n := b.Type.Shape.Elems(); b.Role != Temp || n == 0 || from.Layout.Shape.Elems() != n || !from.Layout.IsContiguous() {
		return false
	}
	from.Layout = graph.Contiguous(from.Layout.Shape)
	chunk, step, ok := chunks(from.Layout, to.Layout)
	if !ok {
		return false
	}
	type change struct {
		launch int
		l      Launch
	}
	var changes []change
	made := 0
	for _, j := range users {
		l := p.Launches[j]
		touches := func(v View) bool { return v.Buffer == from.Buffer }
		reads, writes := slices.ContainsFunc(l.Args, touches), slices.ContainsFunc(l.Results, touches)
		switch {
		case !reads && !writes:
			continue
		case j < p.Prepared || writes && (reads || j > at):
			return false
		case writes:
			made++
		}
		l.Args, l.Results = slices.Clone(l.Args), slices.Clone(l.Results)
		for _, views := range [][]View{l.Args, l.Results} {
			for k, v := range views {
				if !touches(v) {
					continue
				}
				if v.Layout, ok = placed(v.Layout, chunk, step, to.Layout.Offset); !ok {
					return false
				}
				v.Buffer = to.Buffer
				views[k] = v
			}
		}
		if j == at {
			l.Args[i].Layout = to.Layout
			if slices.ContainsFunc(p.Launches[at].Args[i+1:], touches) {
				return false // an operand that is there twice
			}
		} else if args, results := l.Operands(); !can(l.Op, args, results) {
			return false
		}
		changes = append(changes, change{j, l})
	}
	if made != 1 {
		return false
	}
	for _, c := range changes {
		p.Launches[c.launch] = c.l
	}
	return true
}

// chunks compares the strides of a contiguous value with those of a place for it: runs of chunk elements, which begin step
// apart there. It reports false if these do not express the place.
func chunks(from, to graph.Layout) (chunk, step int, ok bool) {
	n := from.Shape.Elems()
	chunk, step = n, n
	for i := range from.Shape.Rank() {
		if from.Shape.At(i) != 1 && to.Stride[i] != from.Stride[i] {
			chunk, step = from.Stride[i], to.Stride[i] // the innermost axis that differs
		}
	}
	for i := range from.Shape.Rank() {
		s := from.Stride[i]
		if from.Shape.At(i) != 1 && (s >= chunk && to.Stride[i] != s/chunk*step || s < chunk && to.Stride[i] != s) {
			return 0, 0, false
		}
	}
	return chunk, step, true
}

// placed is a view of a contiguous value after its chunks have moved apart; see [chunks].
func placed(l graph.Layout, chunk, step, offset int) (graph.Layout, bool) {
	within := l.Offset % chunk // the last element of the view within a chunk
	for i := range l.Shape.Rank() {
		switch s := l.Stride[i]; {
		case s != 0 && s%chunk == 0:
			l.Stride[i] = s / chunk * step
		case l.Shape.At(i) > 0:
			within += (l.Shape.At(i) - 1) * s
		}
	}
	l.Offset = offset + l.Offset/chunk*step + l.Offset%chunk
	return l, within < chunk
}
