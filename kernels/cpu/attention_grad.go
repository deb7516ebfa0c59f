package cpu

import (
	"fusec/graph"
	"fusec/graph/body"
	"fusec/kernels/cpu/attention"
	"fusec/kernels/cpu/gemm"
)

// An attendGrad kernel computes an AttentionGrad whose operands and results are seen through views.
type attendGrad[T float] struct {
	attendInputs[T]
	plan *attention.Backward[T]

	out, lse, dout, dlse body.Operand
	results              [3]int // where dq, dk and dv go, -1 where nowhere
}

func newAttendGrad[T float](op graph.AttentionGrad, b *body.Program, args []Operand, env *Env) (Kernel, error) {
	k := &attendGrad[T]{attendInputs: newAttendInputs[T](env), results: [3]int{-1, -1, -1}}
	shared := k.config(op.Attention, b, args, map[*body.Operand]int{
		&k.out: op.OutArg(), &k.lse: op.LSEArg(), &k.dout: op.DOutArg(), &k.dlse: op.DLSEArg(),
	})
	cfg := attention.BackwardConfig{Config: shared, DOut: matrices(k.dout.Layout, 1)}
	cfg.Out, cfg.LSE = matrices(k.out.Layout, 1), columns(k.lse.Layout)
	if op.HasDlse {
		cfg.DLSE = columns(k.dlse.Layout)
	}
	to := [3]*gemm.Layout{&cfg.DQ, &cfg.DK, &cfg.DV}
	err := handed(b, func(i, which int, l graph.Layout) { k.results[which], *to[which] = i, matrices(l, 1) })
	if err != nil {
		return nil, err
	}
	if k.plan, err = attention.NewBackward[T](cfg, env.Pool); err != nil {
		return nil, err
	}
	env.reserve(k.plan.Room() * b.Anchor.Type.DType.Size())
	return k, nil
}

// Run implements [Kernel].
func (k *attendGrad[T]) Run(args, results []Memory) error {
	run := attention.BackwardArgs[T]{Args: k.inputs(args), DOut: elems[T](args[k.dout.Arg])}
	run.Out, run.LSE = elems[T](args[k.out.Arg]), elems[T](args[k.lse.Arg])
	if k.dlse.Arg >= 0 {
		run.DLSE = elems[T](args[k.dlse.Arg])
	}
	for i, to := range [...]*[]T{&run.DQ, &run.DK, &run.DV} {
		if at := k.results[i]; at >= 0 {
			*to = elems[T](results[at])
		}
	}
	k.share(k.plan.Room())
	k.plan.Run(run, k.scratch)
	return nil
}

func (k *attendGrad[T]) bytes() int64 { return k.plan.Bytes() }
