package cpu

import (
	"math"
	"slices"

	"fusec/graph"
	"fusec/graph/body"
	"fusec/kernels/cpu/depthwise"
	"fusec/kernels/cpu/vec"
)

// A channelwise kernel convolves each channel of images of NHWC with filters of its own, or computes the transpose of
// that, see package depthwise. Scaling, a bias, a residual and bounds are applied to sums in registers. Other programs
// run over each row of the result while it is in the cache.
type channelwise[T float] struct {
	epilogue[T]
	plan *depthwise.Correlation[T]
	x, w body.Operand

	finish        depthwise.Finish[T]
	fused         *fusedFinish[T] // what is applied in registers, or nil: the epilogue does the rest
	shift         *body.Value     // the bias that is applied in registers before the epilogue, or nil
	rows, columns int             // of the result
	scratchAt     int             // element of the scratch behind the epilogue's
}

// isChannelwise reports whether a convolution of NHWC of images of channels has filters of one channel, and operands
// that package depthwise can read.
func isChannelwise(groups, channels int, image, filters graph.Layout) bool {
	return groups > 1 && groups == channels && filters.Shape.At(3) > 0 && filters.IsContiguous() && unitColumns(image)
}

// newChannelwise compiles a Fusion anchored on such a convolution, or its transpose. Windows slide over images of the
// given shape.
func newChannelwise[T float](b *body.Program, op graph.Conv2D, images, windows graph.Shape, transposed bool, results []Operand,
	env *Env) (Kernel, error) {
	x, w, out := b.Operands[0], b.Operands[1], b.Space
	k := &channelwise[T]{epilogue: epilogue[T]{env: env}, x: x, w: w, finish: depthwise.Unfinished[T](),
		rows: out.At(1), columns: out.At(2)}
	kernel := graph.IntsOf(w.Layout.Shape.At(0), w.Layout.Shape.At(1))
	g := depthwise.NewGeometry(images, windows, kernel, op.Stride, op.Dilation, op.Pad)
	each := w.Layout.Shape.At(3) / max(op.Groups, 1)
	plan := depthwise.NewConv[T]
	if transposed {
		plan = depthwise.NewConvTransposed[T]
	}
	if f := fusedFinishOf[T](b, 3); f != nil && !(transposed && each > 1) {
		k.fused, k.finish.Low, k.finish.High, k.finish.Gate = f, f.low, f.high, f.gate
		k.home, k.c = 0, b.Stores[0].Layout
		if f.residual != nil {
			k.finish.Image = imageOf(f.residual.Layout)
		}
	} else {
		if !(transposed && each > 1) {
			b, k.shift = withoutShift[T](b, 3)
		}
		if err := k.compile(b, 3, results, unitColumns); err != nil {
			return nil, err
		}
	}
	k.plan = plan(g, each, imageOf(x.Layout), imageOf(k.c), env.Pool.Workers())
	k.cut(out.At(0) * k.rows)
	k.scratchAt = k.regs * roundLine[T](k.width)
	env.reserve((k.scratchAt + k.plan.Scratch()) * dtypeOf[T]().Size())
	return k, nil
}

// Run implements [Kernel].
func (k *channelwise[T]) Run(args, results []Memory) error {
	y := k.begin(args, results)
	defer k.done()
	if k.fused != nil {
		k.finish.Shift, k.finish.Scale, k.finish.Residual = k.fused.operands(args)
	}
	if k.shift != nil {
		k.finish.Shift = loadOf[T](k.shift, args)
	}
	k.plan.Bind(elems[T](args[k.x.Arg])[k.x.Layout.Offset:], elems[T](args[k.w.Arg])[k.w.Layout.Offset:], y, k.finish)
	defer k.plan.Bind(nil, nil, nil, depthwise.Unfinished[T]())
	k.env.Pool.Run(k.plan.Items(), k)
	if k.p == nil {
		return nil
	}
	return k.end()
}

// Do runs one item; see pool.Task.
func (k *channelwise[T]) Do(worker, item int) {
	scratch := scratchOf[T](k.env, worker, k.scratchAt, k.plan.Scratch())
	if k.p == nil {
		k.plan.Do(worker, item, scratch, &k.finish)
		return
	}
	image, lo, hi := k.plan.Rows(item)
	for row := lo; row < hi; row++ {
		k.plan.DoRows(worker, image, row, row+1, scratch, &k.finish)
		line := image*k.rows + row
		k.tile(worker, line, line*k.columns, 0, k.columns, k.c.Shape.At(3))
	}
}

func (k *channelwise[T]) bytes() int64 { return k.epilogue.bytes() + k.plan.Bytes() }

// A fusedFinish is a body that is applied to sums in registers: where its operands lie.
type fusedFinish[T float] struct {
	scale, shift, residual *body.Value // loads, or nil
	low, high              T
	gate                   vec.Gate[T]
}

// fusedFinishOf reads a body of one result: bounds of the gated sum with a residual of shifted, scaled products, each of which
// may be missing. It is nil for other bodies. Shift and scale have a number for each channel, which are along an axis.
func fusedFinishOf[T float](b *body.Program, channels int) *fusedFinish[T] {
	d := dtypeOf[T]()
	if len(b.Stores) != 1 || b.Stores[0].Sums || b.Stores[0].PerRow || b.Stores[0].Node.Type.DType != d ||
		!unitColumns(b.Stores[0].Layout) || overlaps(b.Stores[0].Layout) {
		return nil
	}
	f := &fusedFinish[T]{low: T(math.Inf(-1)), high: T(math.Inf(1))}
	for at := b.Stores[0].Value; ; {
		v := &b.Values[at]
		if v.Kind == body.AnchorResult {
			if !(f.low <= f.high) {
				return nil
			}
			return f
		}
		if v.Kind != body.Elementwise || v.Node.Type.DType != d {
			return nil
		}
		inner := f.scale == nil && f.shift == nil && f.residual == nil && f.gate.Slope == 0 // of what is applied after the bounds
		if op, ok := v.Node.Op.(graph.Unary); ok {
			if op.Fn != graph.Relu || !inner {
				return nil
			}
			f.low = max(f.low, 0)
			at = v.Args[0]
			continue
		}
		op, ok := v.Node.Op.(graph.Binary)
		if !ok {
			return nil
		}
		if inner && op.Fn == graph.Mul {
			if x, gate, ok := gateOf[T](b, v.Args[0], v.Args[1]); ok {
				f.gate, at = gate, x
				continue
			}
		}
		chain, other := v.Args[0], v.Args[1]
		if k := b.Values[chain].Kind; k == body.Load || k == body.Constant {
			chain, other = other, chain
		}
		with := &b.Values[other]
		switch {
		case with.Kind == body.Constant && inner && (op.Fn == graph.Max || op.Fn == graph.Min):
			c := T(with.Number.Float(0))
			if c != c {
				return nil
			}
			if op.Fn == graph.Max {
				f.low = max(f.low, c)
			} else {
				f.high = min(f.high, c)
			}
		case with.Kind != body.Load || with.Node.Type.DType != d || f.scale != nil:
			return nil
		case op.Fn == graph.Mul && perChannel(with.Layout, channels):
			f.scale = with
		case op.Fn == graph.Add && f.shift == nil && perChannel(with.Layout, channels):
			f.shift = with
		case op.Fn == graph.Add && f.residual == nil && unitColumns(with.Layout):
			f.residual = with
		default:
			return nil
		}
		at = chain
	}
}

// gateOf reads the product of two values as a gate of one of them, x.
func gateOf[T float](b *body.Program, p, q int) (x int, gate vec.Gate[T], ok bool) {
	for _, pair := range [][2]int{{p, q}, {q, p}} {
		if g, ok := boundedLine[T](b, pair[0], pair[1]); ok {
			return pair[0], g, true
		}
	}
	return 0, gate, false
}

// boundedLine reads value at as a bounded linear function of value x: min(max(x·Slope + Offset, Floor), Ceiling), with a positive
// slope. Bounds that stand inside of a linear function are moved out of it.
func boundedLine[T float](b *body.Program, x, at int) (vec.Gate[T], bool) {
	slope, offset, floor, ceiling := 1., 0., math.Inf(-1), math.Inf(1)
	raise := func(c float64) bool {
		floor = max(floor, slope*c+offset)
		return floor <= ceiling
	}
	for at != x {
		v := &b.Values[at]
		if v.Kind != body.Elementwise || v.Node.Type.DType != dtypeOf[T]() {
			return vec.Gate[T]{}, false
		}
		if op, ok := v.Node.Op.(graph.Unary); ok {
			if op.Fn != graph.Relu || !raise(0) {
				return vec.Gate[T]{}, false
			}
			at = v.Args[0]
			continue
		}
		op, ok := v.Node.Op.(graph.Binary)
		if !ok {
			return vec.Gate[T]{}, false
		}
		chain, other := v.Args[0], v.Args[1]
		if b.Values[chain].Kind == body.Constant && op.Fn != graph.Div && op.Fn != graph.Sub {
			chain, other = other, chain
		}
		if b.Values[other].Kind != body.Constant {
			return vec.Gate[T]{}, false
		}
		c := b.Values[other].Number.Float(0)
		switch op.Fn {
		case graph.Mul:
			slope *= c
		case graph.Div:
			slope /= c
		case graph.Add:
			offset += slope * c
		case graph.Sub:
			offset -= slope * c
		case graph.Max:
			ok = raise(c)
		case graph.Min:
			ceiling = min(ceiling, slope*c+offset)
			ok = floor <= ceiling
		default:
			ok = false
		}
		if !ok || !(slope > 0) || math.IsInf(slope, 0) || !(offset-offset == 0) {
			return vec.Gate[T]{}, false
		}
		at = chain
	}
	return vec.Gate[T]{Slope: T(slope), Offset: T(offset), Floor: T(floor), Ceiling: T(ceiling)}, T(slope) > 0
}

// perChannel reports whether a layout has one number for each index of the axis of channels, side by side.
func perChannel(l graph.Layout, channels int) bool {
	for i := range l.Shape.Rank() {
		if i != channels && l.Stride[i] != 0 && l.Shape.At(i) != 1 {
			return false
		}
	}
	return l.Shape.At(channels) == 1 || l.Stride[channels] == 1
}

// operands finds the operands, nil for what is missing.
func (f *fusedFinish[T]) operands(args []Memory) (shift, scale, residual []T) {
	return loadOf[T](f.shift, args), loadOf[T](f.scale, args), loadOf[T](f.residual, args)
}

// loadOf is what a load reads, nil of nil.
func loadOf[T float](v *body.Value, args []Memory) []T {
	if v == nil {
		return nil
	}
	return elems[T](args[v.Arg])[v.Layout.Offset:]
}

// withoutShift is a body without the bias that it adds to the anchor's result at first, and that bias, which has a number for each
// channel. It is nil where the body begins otherwise.
func withoutShift[T float](b *body.Program, channels int) (*body.Program, *body.Value) {
	at, d := b.IndexOf(0), dtypeOf[T]()
	if at < 0 || b.Values[at].Node.Type.DType != d || slices.ContainsFunc(b.Stores, func(s body.Store) bool { return s.Value == at }) {
		return b, nil
	}
	sum := slices.IndexFunc(b.Values, func(v body.Value) bool { return slices.Contains(v.Args, at) })
	if sum < 0 || slices.ContainsFunc(b.Values[sum+1:], func(v body.Value) bool { return slices.Contains(v.Args, at) }) {
		return b, nil
	}
	v := &b.Values[sum]
	if op, ok := v.Node.Op.(graph.Binary); !ok || op.Fn != graph.Add || v.Node.Type.DType != d {
		return b, nil
	}
	shift := &b.Values[v.Args[0]]
	if v.Args[0] == at {
		shift = &b.Values[v.Args[1]]
	}
	if shift.Kind != body.Load || shift.Node.Type.DType != d || !perChannel(shift.Layout, channels) {
		return b, nil
	}
	rest := *b
	rest.Values = slices.Clone(b.Values)
	rest.Values[sum], rest.Values[at].Result = b.Values[at], -1 // which nothing reads
	return &rest, shift
}
