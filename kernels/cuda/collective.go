package cuda

import (
	"fmt"
	"slices"
	"strings"

	"fusec/graph"
)

// An Exchange is a step in which the participants of a group exchange values: all_reduce, reduce_scatter, all_gather,
// all_to_all, permute or broadcast_from, of values whose parts follow one another, that is, along an axis 0. Params[0] of the
// step is where the operand begins, and Params[1] where the result does.
type Exchange struct {
	Op    graph.Collective
	DType graph.DType
	Elems int // of the operand
}

// Exchanges reports whether some step of the kernel is an exchange.
func (k *Kernel) Exchanges() bool {
	return slices.ContainsFunc(k.Steps, func(s Step) bool { return s.Exchange != nil })
}

var _ = answers.Add("all_reduce", collective).Add("reduce_scatter", collective).Add("all_gather", collective).
	Add("all_to_all", collective).Add("part", collective).Add("permute", collective).Add("broadcast_from", collective)

// collective compiles a collective operation: what is exchanged, and before and after it steps that bring parts into the order
// in which they are sent. In a group of one it is a copy.
func collective(o graph.Op, args, results []Operand, cfg Config) (*Kernel, error) {
	op := o.(graph.Collective)
	n := op.Of().Parts
	if n == 0 {
		if len(cfg.Mesh) > 0 {
			axes, err := op.Of().Axes(cfg.Mesh)
			if err != nil {
				return nil, err
			}
			n = cfg.Mesh.Parts(axes)
		}
		n = max(n, 1)
	}
	if n == 1 {
		return copied(o, args[:1], results, cfg) // a permute does not read the others
	}
	if args[0].Layout.Shape.Elems() == 0 {
		return &Kernel{}, nil
	}
	x, y := args[0], results[0]
	c := &exchanger{n: n, d: x.DType, k: &Kernel{}, text: preamble("collective") + swapEntries,
		x: Arg(0, int64(x.Layout.Offset*x.DType.Size())), y: Result(0, int64(y.Layout.Offset*y.DType.Size()))}
	elems := x.Layout.Shape.Elems()
	switch op := op.(type) {
	case graph.Part:
		return ownPart(op, n, args, results, cfg)
	case graph.AllReduce:
		c.reduce(op, op.Fn, elems, nil)
	case graph.ReduceScatter:
		outer, _, _ := x.Layout.Shape.Around(op.Axis, 1)
		c.reduce(op, op.Fn, elems, c.pack(outer, elems))
	case graph.AllGather:
		outer, _, _ := x.Layout.Shape.Around(op.Axis, 1)
		c.exchange(op, c.x, elems, outer)
	case graph.AllToAll:
		outer, _, _ := x.Layout.Shape.Around(op.Split, 1)
		from := c.x
		if p := c.pack(outer, elems); p != nil {
			from = *p
		}
		outer, _, _ = y.Layout.Shape.Around(op.Join, 1)
		c.exchange(op, from, elems, outer)
	case graph.Permute, graph.BroadcastFrom:
		c.exchange(op, c.x, elems, 1)
	default:
		return nil, fmt.Errorf("CUDA has no kernel for %s", o.OpName())
	}
	for _, s := range c.k.Steps {
		if s.Entry != "" {
			c.k.Source = c.text
		}
	}
	return c.k, nil
}

// exchanger makes the steps of a collective operation of n participants on values of type d.
type exchanger struct {
	n    int
	d    graph.DType
	k    *Kernel
	text string
	x, y Param
}

// stage takes scratch memory for some elements.
func (c *exchanger) stage(elems int) Param {
	p := Scratch(c.k.Scratch)
	c.k.Scratch += int64(roundUp(elems*c.d.Size(), 256))
	return p
}

// swapEntries are the entries that copy words of all sizes. What they copy is in their parameter, so that all collective
// operations share their text.
var swapEntries = func() string {
	var b strings.Builder
	b.WriteString("struct Params { u8 *to; const u8 *from; i64 outer, inner, row; };\n")
	for w := 1; w <= 16; w *= 2 {
		fmt.Fprintf(&b,
			"KERNEL(swap_%d, %d, 1) { swap_axes<%d>(p.to, p.from, p.outer, p.inner, p.row, i64(blockIdx.x) * %d + threadIdx.x); }\n",
			w, blockThreads, w, blockThreads)
	}
	return b.String()
}()

// swap copies a value [inner, outer, row] to [outer, inner, row]. A row is some elements.
func (c *exchanger) swap(to, from Param, outer, inner, row int) {
	bytes, w := row*c.d.Size(), 16
	for bytes%w != 0 || to.Byte%int64(w) != 0 || from.Byte%int64(w) != 0 {
		w /= 2
	}
	number := func(n int) Param { return Param{Kind: Int64, Bits: uint64(n)} }
	c.k.Steps = append(c.k.Steps, Step{Entry: fmt.Sprint("swap_", w), Block: blockThreads,
		Grid:   [3]int{ceilDiv(outer*inner*(bytes/w), blockThreads), 1, 1},
		Params: []Param{to, from, number(outer), number(inner), number(bytes / w)}})
}

// pack brings the parts of the operand together, where its axis has outer rows around it. It is nil where they are.
func (c *exchanger) pack(outer, elems int) *Param {
	if outer == 1 {
		return nil
	}
	to := c.stage(elems)
	c.swap(to, c.x, c.n, outer, elems/outer/c.n)
	return &to
}

// exchange exchanges elements and puts the parts of the result into their places, where its axis has outer rows around it.
func (c *exchanger) exchange(op graph.Collective, from Param, elems, outer int) {
	to, all := c.y, elems
	if _, gather := op.(graph.AllGather); gather {
		all *= c.n
	}
	if outer > 1 {
		to = c.stage(all)
	}
	c.step(op, from, to, elems)
	if outer > 1 {
		c.swap(c.y, to, outer, c.n, all/outer/c.n)
	}
}

func (c *exchanger) step(op graph.Collective, from, to Param, elems int) {
	c.k.Steps = append(c.k.Steps, Step{Exchange: &Exchange{op, c.d, elems}, Params: []Param{from, to}})
}

// reduce combines values of all participants: by the exchange itself, or after it in their order. Packed is where the parts of
// the operand follow one another, if that is not the operand itself.
func (c *exchanger) reduce(op graph.Collective, f graph.ReduceFn, elems int, packed *Param) {
	from := c.x
	if packed != nil {
		from = *packed
	}
	if f.Info().Join == graph.Add && Reduces(c.d) {
		c.step(op, from, c.y, elems)
		return
	}
	of := op.Of()
	of.Parts = c.n
	var all Param
	if _, scatter := op.(graph.ReduceScatter); scatter {
		all = c.stage(elems)
		c.step(graph.AllToAll{Group: of}, from, all, elems)
		elems /= c.n
	} else {
		all = c.stage(elems * c.n)
		c.step(graph.AllGather{Group: of}, from, all, elems)
	}
	divisor := 1
	if f.Info().Averages {
		divisor = c.n
	}
	w := 16 / c.d.Size() // elements that are combined together
	if elems%w != 0 || c.y.Byte%16 != 0 || all.Byte%16 != 0 {
		w = 1
	}
	c.text += fmt.Sprintf(`namespace combining {
struct Params { %[1]s *to; const %[1]s *from; i64 values, n; };
struct Join { template <class T> static DEVICE T of(T x, T y) { return op::%[2]v(x, y); } };
KERNEL(combine_all, %[3]d, 1) {
  combine<%[1]s, %[4]s, Join, %[5]d, %[6]d>(p.to, p.from, p.values, p.n, i64(blockIdx.x) * %[3]d + threadIdx.x);
}
}  // namespace
`, ctype(c.d), f.Info().Join, blockThreads, lane(c.d), divisor, w)
	c.k.Steps = append(c.k.Steps, Step{Entry: "combine_all", Block: blockThreads, Grid: [3]int{ceilDiv(elems/w, blockThreads), 1, 1},
		Params: []Param{c.y, all, {Kind: Int64, Bits: uint64(c.n)}, {Kind: Int64, Bits: uint64(elems)}}})
}

// Reduces reports whether NCCL adds elements of a type. Maxima and minima it does not take as [graph.Reduce] does: a NaN is lost.
func Reduces(d graph.DType) bool {
	switch d {
	case graph.F16, graph.BF16, graph.F32, graph.F64, graph.I8, graph.U8, graph.I32, graph.U32, graph.I64, graph.U64:
		return true
	}
	return false
}

// ownPart copies the participant's part of the operand.
func ownPart(op graph.Part, n int, args, results []Operand, cfg Config) (*Kernel, error) {
	place := 0
	if len(cfg.Mesh) > 0 {
		axes, err := op.Axes(cfg.Mesh)
		if err != nil {
			return nil, err
		}
		_, place = cfg.Mesh.Ranks(axes, cfg.Rank)
	}
	x := args[0]
	size := x.Layout.Shape.At(op.Axis) / n
	x.Layout = x.Layout.Slice(op.Axis, place*size, size, 1)
	return copied(op, []Operand{x}, results, cfg)
}
