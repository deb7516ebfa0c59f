package cpu

import (
	"fmt"

	"fusec/graph"
	"fusec/kernels/group"
)

var _ = answers.Add("all_reduce", collective).Add("reduce_scatter", collective).Add("all_gather", collective).
	Add("all_to_all", collective).Add("part", collective).Add("permute", collective).Add("broadcast_from", collective)

// collective compiles a collective operation. In a group of one it is a copy.
func collective(o graph.Op, args, results []Operand, env *Env) (Kernel, error) {
	op := o.(graph.Collective)
	args = args[:1] // of a permute, the others are not read
	if env.Group == nil {
		if n := op.Of().Parts; n > 1 {
			return nil, fmt.Errorf("%s of %d participants, and the program runs alone: run it in a group", op.OpName(), n)
		}
		return copied(op, args, results, env)
	}
	axes, err := op.Of().Axes(env.Mesh)
	if err != nil {
		return nil, err
	}
	ranks, _ := env.Mesh.Ranks(axes, env.Group.Rank())
	if len(ranks) == 1 {
		return copied(op, args, results, env)
	}
	team, err := env.Group.Team(ranks)
	if err != nil {
		return nil, err
	}
	k := &collectiveKernel{op: op, team: team, dtype: args[0].DType}
	n, x, y := team.Size(), args[0], results[0]
	split := func(s graph.Shape, axis int) pieces { return piecesOf(s, axis, n, x.DType.Size()) }
	switch op := op.(type) {
	case graph.ReduceScatter:
		k.cut = split(x.Layout.Shape, op.Axis)
	case graph.AllGather:
		k.join = split(y.Layout.Shape, op.Axis)
	case graph.AllToAll:
		k.cut, k.join = split(x.Layout.Shape, op.Split), split(y.Layout.Shape, op.Join)
	case graph.Part:
		k.cut = split(x.Layout.Shape, op.Axis)
	}
	for _, p := range []pieces{k.cut, k.join} {
		k.staged += p.bytes() * n
	}
	if k.staged > 0 && env.fits(int64(k.staged)) {
		k.stage = graph.NewTensor(graph.TypeOf(graph.F64, (k.staged+7)/8)).Bytes()
	}
	return k, nil
}

// pieces are the equal parts of a value along an axis: in each of the outer rows there is one of each part.
type pieces struct{ outer, row, parts int }

// piecesOf is the pieces of a shape cut into n parts along an axis; a row is in bytes.
func piecesOf(s graph.Shape, axis, n, size int) pieces {
	outer, dim, inner := s.Around(axis, 1)
	return pieces{outer, dim / n * inner * size, n}
}

// bytes is the size of a part.
func (p pieces) bytes() int { return p.outer * p.row }

// each calls f with where each row of part i stands in the value and in the part.
func (p pieces) each(i int, f func(whole, part int)) {
	for o := range p.outer {
		f((o*p.parts+i)*p.row, o*p.row)
	}
}

// take copies part i of a value.
func (p pieces) take(part, whole []byte, i int) {
	p.each(i, func(w, q int) { copy(part[q:q+p.row], whole[w:]) })
}

// put copies part i into a value.
func (p pieces) put(whole, part []byte, i int) {
	p.each(i, func(w, q int) { copy(whole[w:w+p.row], part[q:]) })
}

// list is the parts of a value where they follow one another, or else space for them.
func (p pieces) list(whole, stage []byte) [][]byte {
	if p.outer == 1 {
		stage = whole
	}
	list := make([][]byte, p.parts)
	for i := range list {
		list[i] = stage[i*p.bytes():][:p.bytes()]
	}
	return list
}

type collectiveKernel struct {
	op        graph.Collective
	team      *group.Team
	dtype     graph.DType
	cut, join pieces
	staged    int
	stage     []byte
}

// bytes is the memory that the kernel keeps.
func (k *collectiveKernel) bytes() int64 { return int64(len(k.stage)) }

// Run implements [Kernel].
func (k *collectiveKernel) Run(args, results []Memory) error {
	x, y := []byte(args[0]), []byte(results[0])
	n := k.team.Size()
	behind := k.stage[min(k.cut.bytes()*n, len(k.stage)):]
	parts := func() [][]byte {
		list := k.cut.list(x, k.stage)
		if k.cut.outer > 1 {
			for i, p := range list {
				k.cut.take(p, x, i)
			}
		}
		return list
	}
	joined := func(list [][]byte) {
		if k.join.outer > 1 {
			for i, p := range list {
				k.join.put(y, p, i)
			}
		}
	}
	switch op := k.op.(type) {
	case graph.ReduceScatter:
		return k.team.ReduceScatter(op.Fn, k.dtype, parts(), y)
	case graph.AllGather:
		list, same := k.join.list(y, behind), make([][]byte, n)
		for i := range same {
			same[i] = x
		}
		err := k.team.Swap(same, list)
		joined(list)
		return err
	case graph.AllToAll:
		list := k.join.list(y, behind)
		err := k.team.Swap(parts(), list)
		joined(list)
		return err
	case graph.Part:
		k.cut.take(y, x, k.team.Place())
		return nil
	}
	return k.team.Collective(k.op, k.dtype, x, y)
}
