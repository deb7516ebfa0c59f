package ref

import "fusec/graph"

// A formula computes the results of an operation, of the given types, and their magnitudes if bound is true.
type formula func(op graph.Op, args []Value, types []graph.Type, bound bool) ([]Value, error)

// formulas has the reference of each operation but those whose decomposition is enough: their parts have formulas, and finite
// differences check gradients.
var formulas graph.Answers[formula]

func init() {
	own := "a graph gives its value"
	var err error
	formulas, err = graph.NewAnswers("the reference", map[string]formula{
		"const": one(func(op graph.Const, _ []Value, _ graph.Type, _ bool) (Value, error) { return FromTensor(op.Value), nil }),

		"unary": one(func(op graph.Unary, a []Value, t graph.Type, bound bool) (Value, error) {
			return unary(op, a[0], t, bound), nil
		}),
		"binary": one(func(op graph.Binary, a []Value, t graph.Type, bound bool) (Value, error) {
			return binary(op, a[0], a[1], t, bound)
		}),
		"select": one(func(_ graph.Select, a []Value, t graph.Type, bound bool) (Value, error) {
			return choose(a[0], a[1], a[2], t, bound), nil
		}),
		"cast": one(func(_ graph.Cast, a []Value, t graph.Type, bound bool) (Value, error) {
			return cast(a[0], t, bound), nil
		}),
		"custom": one(func(op graph.Custom, a []Value, t graph.Type, bound bool) (Value, error) {
			return custom(op, a, t, bound), nil
		}),
		"matmul": one(func(op graph.MatMul, a []Value, t graph.Type, bound bool) (Value, error) {
			return bilinear(a[0], a[1], bound, func(x, y Value) Value { return matMul(op, x, y, t) }), nil
		}),
		"conv2d": one(func(op graph.Conv2D, a []Value, t graph.Type, bound bool) (Value, error) {
			if op.Winograd != 0 && bound {
				return winograd(op, a[0], a[1], t)
			}
			x, w := a[0], a[1]
			if x.F == nil { // integers
				x, w = cast(x, x.Type.With(graph.F32), bound), cast(w, w.Type.With(graph.F32), bound)
			}
			return bilinear(x, w, bound, func(x, w Value) Value { return conv2D(op, x, w, t) }), nil
		}),
		"conv2d_transpose": one(func(op graph.Conv2DTranspose, a []Value, t graph.Type, bound bool) (Value, error) {
			if op.Winograd != 0 && bound {
				return winogradTransposed(op, a[0], a[1], t)
			}
			return bilinear(a[0], a[1], bound, func(dy, w Value) Value { return conv2DTranspose(op, dy, w, t) }), nil
		}),
		"conv2d_filter_grad": one(func(op graph.Conv2DFilterGrad, a []Value, t graph.Type, bound bool) (Value, error) {
			return bilinear(a[0], a[1], bound, func(x, dy Value) Value { return conv2DFilterGrad(op, x, dy, t) }), nil
		}),
		"reduce": one(func(op graph.Reduce, a []Value, t graph.Type, bound bool) (Value, error) {
			return reduce(op, a[0], t, bound), nil
		}),

		"reshape": one(same), "copy": one(same),
		"all_reduce": one(alone), "reduce_scatter": one(alone), "all_gather": one(alone), "all_to_all": one(alone),
		"part": one(alone), "permute": one(alone), "broadcast_from": one(alone),
		"transpose": moved(func(op graph.Transpose, a []Value, t graph.Type) (Value, error) {
			return pick(a[0], t, transposeIndex(op, a[0].Type.Shape, t.Shape)), nil
		}),
		"broadcast": moved(func(_ graph.Broadcast, a []Value, t graph.Type) (Value, error) {
			return pick(a[0], t, broadcastIndex(a[0].Type.Shape, t.Shape)), nil
		}),
		"slice":   moved(func(op graph.Slice, a []Value, t graph.Type) (Value, error) { return slice(op, a[0], a[1], t) }),
		"unslice": moved(func(op graph.Unslice, a []Value, t graph.Type) (Value, error) { return unslice(op, a[0], a[1], t) }),
		"update_slice": moved(func(op graph.UpdateSlice, a []Value, _ graph.Type) (Value, error) {
			return updateSlice(op, a[0], a[1], a[2])
		}),
		"concat": moved(func(op graph.Concat, a []Value, t graph.Type) (Value, error) { return concat(op, a, t), nil }),
		"pad":    moved(func(op graph.Pad, a []Value, t graph.Type) (Value, error) { return pad(op, a[0], t), nil }),
		"im2col": moved(func(op graph.Im2Col, a []Value, t graph.Type) (Value, error) {
			return pick(a[0], t, im2colIndex(op, a[0].Type.Shape, t.Shape)), nil
		}),
		"col2im": moved(func(op graph.Col2Im, a []Value, t graph.Type) (Value, error) {
			patches := graph.Im2Col{Kernel: op.Kernel, Stride: op.Stride, Dilation: op.Dilation, Pad: op.Pad}
			return spread(a[0], t, im2colIndex(patches, t.Shape, a[0].Type.Shape)), nil
		}),
		"gather": moved(func(op graph.Gather, a []Value, t graph.Type) (Value, error) { return gather(op, a[0], a[1], t) }),
		"scatter_add": moved(func(op graph.ScatterAdd, a []Value, t graph.Type) (Value, error) {
			return scatterAdd(op, a[0], a[1], t)
		}),
		"dropout": moved(func(op graph.Dropout, a []Value, t graph.Type) (Value, error) { return dropout(op, a[0], a[1], t), nil }),
		"random":  moved(func(op graph.Random, a []Value, t graph.Type) (Value, error) { return random(op, a[0], t), nil }),
		"pool":    moved(func(op graph.Pool, a []Value, t graph.Type) (Value, error) { return pool(op, a[0], t), nil }),
		"pool_grad": moved(func(op graph.PoolGrad, a []Value, t graph.Type) (Value, error) {
			return poolGrad(op, a[0], a[1], t), nil
		}),
		"host": moved(host),
		"quantize": one(func(op graph.Quantize, a []Value, t graph.Type, bound bool) (Value, error) {
			return quantize(op, a, t, bound), nil
		}),
		"dequantize": one(func(op graph.Dequantize, a []Value, t graph.Type, bound bool) (Value, error) {
			return dequantize(op, a, t, bound), nil
		}),
		"pack_weights": one(func(op graph.PackWeights, a []Value, t graph.Type, bound bool) (Value, error) {
			return packWeights(op, a, t, bound), nil
		}),
		"matmul_panels": one(func(op graph.PanelMatMul, a []Value, t graph.Type, bound bool) (Value, error) {
			return panelMatMul(op, a, t, bound), nil
		}),

		"top_k": func(op graph.Op, a []Value, types []graph.Type, bound bool) ([]Value, error) {
			return topK(op.(graph.TopK), a[0], types, bound), nil
		},
		"route": func(op graph.Op, a []Value, types []graph.Type, bound bool) ([]Value, error) {
			return route(op.(graph.Route), a[0], types, bound), nil
		},
		"sample": moved(func(_ graph.Sample, a []Value, t graph.Type) (Value, error) { return sample(a, t), nil }),
		"fusion": func(op graph.Op, a []Value, _ []graph.Type, bound bool) ([]Value, error) {
			return evalArgs(op.(graph.Fusion).Body, a, bound, nil)
		},

		"softmax": composite(func(op graph.Softmax, a []Value, _ []graph.Type) ([]Value, error) {
			return []Value{softmax(a[0], op.Axis, false)}, nil
		}),
		"log_softmax": composite(func(op graph.LogSoftmax, a []Value, _ []graph.Type) ([]Value, error) {
			return []Value{softmax(a[0], op.Axis, true)}, nil
		}),
		"layer_norm": composite(func(op graph.LayerNorm, a []Value, _ []graph.Type) ([]Value, error) {
			last := a[0].Type.Shape.Rank() - 1
			y, _, _ := normalise(a[0], op.Eps, rows(a[0].Type.Shape, last))
			return []Value{affine(y, a[1], a[2], last)}, nil
		}),
		"rms_norm": composite(func(op graph.RMSNorm, a []Value, _ []graph.Type) ([]Value, error) {
			return []Value{rmsNorm(a[0], a[1], op.Eps)}, nil
		}),
		"batch_norm": composite(func(op graph.BatchNorm, a []Value, _ []graph.Type) ([]Value, error) { return batchNorm(op, a), nil }),
		"group_norm": composite(func(op graph.GroupNorm, a []Value, _ []graph.Type) ([]Value, error) {
			y, _, _ := normalise(a[0], op.Eps, groups(a[0].Type.Shape, op.Groups))
			return []Value{affine(y, a[1], a[2], 1)}, nil
		}),
		"attention": composite(attention),
		"attention_grad": composite(func(op graph.AttentionGrad, a []Value, types []graph.Type) ([]Value, error) {
			return attentionGrad(op, a, types), nil
		}),
		"rope": composite(func(op graph.RoPE, a []Value, _ []graph.Type) ([]Value, error) {
			var divisors []float64
			if len(a) > 2 {
				divisors = a[2].F
			}
			return []Value{rope(op, a[0], a[1].I[0], divisors)}, nil
		}),
		"recurrence": composite(func(op graph.Recurrence, a []Value, types []graph.Type) ([]Value, error) {
			return recurrence(op, a, types), nil
		}),
		"squared_norm": composite(func(_ graph.SquaredNorm, a []Value, _ []graph.Type) ([]Value, error) {
			return []Value{squaredNorm(a)}, nil
		}),
		"moe": composite(func(op graph.MoE, a []Value, types []graph.Type) ([]Value, error) { return moe(op, a, types), nil }),
		"moe_grad": func(op graph.Op, a []Value, _ []graph.Type, _ bool) ([]Value, error) { // finite differences check the decomposition
			return moeGrad(op.(graph.MoEGrad), a)
		},
	}, map[string]string{"input": own, "param": own, "state": own, "result": "it is another result of its operand"})
	if err != nil {
		panic(err)
	}
}

// one is a formula for an operation of one result.
func one[O graph.Op](f func(op O, args []Value, t graph.Type, bound bool) (Value, error)) formula {
	return func(op graph.Op, args []Value, types []graph.Type, bound bool) ([]Value, error) {
		v, err := f(op.(O), args, types[0], bound)
		return []Value{v}, err
	}
}

// moved is a formula for an operation that makes magnitudes as it makes values.
func moved[O graph.Op](f func(op O, args []Value, t graph.Type) (Value, error)) formula {
	return one(func(op O, args []Value, t graph.Type, _ bool) (Value, error) { return f(op, args, t) })
}

// same has the elements of its operand in their order.
func same(_ graph.Op, args []Value, t graph.Type, _ bool) (Value, error) {
	v := args[0]
	v.Type = t
	return v, nil
}
