package cpu

import (
	"fusec/graph"
	"fusec/graph/body"
	"fusec/kernels/cpu/gemm"
	"fusec/kernels/cpu/moe"
)

// A mixture kernel computes a MoE, or its gradient, whose operands and results are seen through views. Package moe says
// how.
type mixture[T float] struct {
	env    *Env
	plan   *moe.Plan[T]
	hidden *hidden[T]
	cfg    moe.Config

	x, gates, y, dx, dgates int // arguments and results, −1 where there is none; y is dy of a gradient
	weights, dweights       []expertPart
	load                    int // result
	loads                   graph.Layout

	run     moe.Args[T]
	scratch [][]T
}

// An expertPart says where a weight of an expert lies: in which argument or result, from which element on.
type expertPart struct {
	weight      graph.MoEWeight
	expert      int
	buf, offset int
}

// newMixture compiles a Fusion anchored on a MoE or a MoEGrad.
func newMixture[T float](b *body.Program, args []Operand, env *Env) (Kernel, error) {
	k := &mixture[T]{env: env, y: -1, dx: -1, dgates: -1, load: -1, scratch: make([][]T, env.Pool.Workers())}
	op, forward := b.Anchor.Op.(graph.MoE)
	if !forward {
		op = b.Anchor.Op.(graph.MoEGrad).MoE()
	}
	k.cfg = moe.Config{Op: op, Dims: op.Dims(b.OperandTypes()), Backward: !forward, Frozen: forward}
	k.operands(b.Operands, args)
	err := handed(b, func(i, which int, l graph.Layout) {
		switch {
		case which == 0 && k.cfg.Backward:
			k.dx, k.cfg.DX = i, rowsOf(l)
		case which == 0:
			k.y, k.cfg.Y = i, rowsOf(l)
		case !k.cfg.Backward:
			k.load, k.loads = i, l
		case which == 1:
			k.dgates, k.cfg.DGates = i, rowsOf(l)
		default:
			k.gradient(which, i, l)
		}
	})
	if err != nil {
		return nil, err
	}
	if k.hidden, err = newHidden[T](op, !forward, env); err != nil {
		return nil, err
	}
	elementwise := moe.Hidden[T]{Forward: k.hidden.forward, Backward: k.hidden.backward}
	if k.plan, err = moe.New(k.cfg, elementwise, env.Pool); err != nil {
		return nil, err
	}
	k.hidden.at = roundLine[T](k.plan.Room())
	size := dtypeOf[T]().Size()
	env.reserve(k.hidden.at*size + k.hidden.p.scratchBytes(segment))
	env.reserveShared(k.plan.Shared() * size)
	return k, nil
}

// operands finds where the operands of the anchor are.
func (k *mixture[T]) operands(views []body.Operand, args []Operand) {
	k.x, k.cfg.X = views[0].Arg, rowsOf(views[0].Layout)
	k.gates, k.cfg.Gates = views[1].Arg, rowsOf(views[1].Layout)
	if last := len(views) - 1; k.cfg.Backward {
		k.y, k.cfg.Y = views[last].Arg, rowsOf(views[last].Layout)
	}
	for _, w := range k.cfg.Op.Weights() {
		for e := range k.cfg.Op.Experts {
			v := views[k.cfg.Op.Weight(w, e)]
			of, row, col := body.Expert(k.cfg.Op, v.Layout, e)
			k.cfg.Weights[w] = append(k.cfg.Weights[w], gemm.Layout{RowStride: row, ColStride: col})
			k.weights = append(k.weights, expertPart{w, e, v.Arg, of.Offset})
			bias := w == graph.MoEB1 || w == graph.MoEB2 || w == graph.MoEB3
			k.cfg.Frozen = k.cfg.Frozen && (bias || args[v.Arg].Frozen)
		}
		k.run.Weights[w] = make([][]T, k.cfg.Op.Experts)
	}
}

// gradient notes that the gradient of an operand, which is a weight, is a result.
func (k *mixture[T]) gradient(operand, result int, l graph.Layout) {
	op := k.cfg.Op
	for _, w := range op.Weights() {
		for e := range op.Experts {
			if op.Weight(w, e) != operand {
				continue
			}
			if k.cfg.DWeights[w] == nil {
				k.cfg.DWeights[w] = make([]gemm.Layout, op.Experts)
				k.run.DWeights[w] = make([][]T, op.Experts)
			}
			of, row, col := body.Expert(op, l, e)
			k.cfg.DWeights[w][e] = gemm.Layout{RowStride: row, ColStride: col}
			k.dweights = append(k.dweights, expertPart{w, e, result, of.Offset})
		}
	}
}

// rowsOf is the layout of the rows in the last axis.
func rowsOf(l graph.Layout) gemm.Layout {
	r := l.Shape.Rank()
	rows := gemm.Layout{ColStride: l.Stride[r-1], Offsets: offsets(l, r-1)}
	if l.Shape.At(r-1) == 1 {
		rows.ColStride = 1
	}
	if l.Shape.Elems() == 0 {
		clear(rows.Offsets) // they stand nowhere
	}
	return rows
}

// Run implements [Kernel].
func (k *mixture[T]) Run(args, results []Memory) error {
	run := &k.run
	run.X, run.Gates = elems[T](args[k.x]), elems[T](args[k.gates])
	for _, p := range k.weights {
		run.Weights[p.weight][p.expert] = elems[T](args[p.buf])[p.offset:]
	}
	if k.cfg.Backward {
		run.Y, run.DX = elems[T](args[k.y]), elems[T](results[k.dx])
		if k.dgates >= 0 {
			run.DGates = elems[T](results[k.dgates])
		}
		for _, p := range k.dweights {
			run.DWeights[p.weight][p.expert] = elems[T](results[p.buf])[p.offset:]
		}
	} else {
		run.Y = elems[T](results[k.y])
	}
	for w := range k.scratch {
		k.scratch[w] = scratchOf[T](k.env, w, 0, k.plan.Room())
	}
	k.hidden.begin(k.env)
	k.plan.Run(*run, sharedOf[T](k.env, k.plan.Shared()), k.scratch)
	if k.load >= 0 {
		for e, n := range k.plan.Loads() {
			elems[int64](results[k.load])[k.loads.Offset+e*k.loads.Stride[0]] = int64(n)
		}
	}
	k.done()
	return nil
}

// done lets go of the caller's memory.
func (k *mixture[T]) done() {
	for _, p := range k.weights {
		k.run.Weights[p.weight][p.expert] = nil
	}
	for _, p := range k.dweights {
		k.run.DWeights[p.weight][p.expert] = nil
	}
	k.run.X, k.run.Gates, k.run.Y, k.run.DX, k.run.DGates = nil, nil, nil, nil, nil
}

func (k *mixture[T]) thaw() { k.plan.Thaw() }

func (k *mixture[T]) bytes() int64 { return k.plan.Bytes() }
