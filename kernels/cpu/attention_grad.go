package cpu

import (
	"fmt"

	"fusec/graph"
	"fusec/kernels/cpu/attention"
	"fusec/kernels/cpu/gemm"
)

// An attendGrad kernel computes an AttentionGrad whose operands and results are seen through views.
type attendGrad[T float] struct {
	attendInputs[T]
	plan *attention.Backward[T]

	out, lse, dout, dlse attentionView
	results              [3]int // where dq, dk and dv go, -1 where nowhere
}

func newAttendGrad[T float](body *graph.Graph, anchor *graph.Node, args, results []Operand, env *Env) (Kernel, error) {
	op := anchor.Op.(graph.AttentionGrad)
	k := &attendGrad[T]{attendInputs: newAttendInputs[T](env)}
	shared, err := k.config(op.Attention, body, anchor, args, map[*attentionView]int{
		&k.out: op.OutArg(), &k.lse: op.LSEArg(), &k.dout: op.DOutArg(), &k.dlse: op.DLSEArg(),
	})
	if err != nil {
		return nil, err
	}
	cfg := attention.BackwardConfig{Config: shared, DOut: matrices(k.dout.layout, 1)}
	cfg.Out, cfg.LSE = matrices(k.out.layout, 1), columns(k.lse.layout)
	if op.HasDlse {
		cfg.DLSE = columns(k.dlse.layout)
	}
	if err := k.gradients(body, anchor, results, [3]*gemm.Layout{&cfg.DQ, &cfg.DK, &cfg.DV}); err != nil {
		return nil, err
	}
	if k.plan, err = attention.NewBackward[T](cfg, env.Pool); err != nil {
		return nil, err
	}
	env.reserve(k.plan.Room() * anchor.Type.DType.Size())
	return k, nil
}

// gradients finds where the results of the anchor go.
func (k *attendGrad[T]) gradients(body *graph.Graph, anchor *graph.Node, results []Operand, to [3]*gemm.Layout) error {
	k.results = [3]int{-1, -1, -1}
	for i, o := range body.Outputs {
		n, l, err := storedBy(o.Node, results[i].Layout)
		if err != nil {
			return err
		}
		which := 0
		if r, ok := n.Op.(graph.Result); ok {
			n, which = n.Args[0], r.Index
		}
		if n != anchor || k.results[which] >= 0 {
			return fmt.Errorf("output %q is not a result of the attention's gradient", o.Name)
		}
		k.results[which], *to[which] = i, matrices(l, 1)
	}
	if k.results[0] < 0 {
		return fmt.Errorf("%s: its result is not handed out", anchor.Where())
	}
	return nil
}

// Run implements [Kernel].
func (k *attendGrad[T]) Run(args, results []Memory) error {
	run := attention.BackwardArgs[T]{Args: k.inputs(args), DOut: lanes[T](&args[k.dout.arg])}
	run.Out, run.LSE = lanes[T](&args[k.out.arg]), lanes[T](&args[k.lse.arg])
	if k.dlse.arg >= 0 {
		run.DLSE = lanes[T](&args[k.dlse.arg])
	}
	for i, to := range [...]*[]T{&run.DQ, &run.DK, &run.DV} {
		if at := k.results[i]; at >= 0 {
			*to = lanes[T](&results[at])
		}
	}
	k.share(k.plan.Room())
	k.plan.Run(run, k.scratch)
	return nil
}

func (k *attendGrad[T]) bytes() int64 { return k.plan.Bytes() }
