package fpga

import (
	"fusec/fpga/isa"
	"fusec/graph"
)

// taking is how the overlay computes an operation: launch gives the tasks of a fusion that it is the anchor of; alone those
// of a launch of it; value gives it to a task as value i of a body. All but one are nil.
type taking struct {
	launch func(m *partition, i int, f graph.Fusion) ([]*task, error)
	alone  func(m *partition, i int) ([]*task, error)
	value  func(t *matcher, i int) error
}

var answers = graph.NewAnswers[taking]("the overlay").
	Add("attention", taking{launch: (*partition).matchAttention}).
	Add("moe", taking{launch: (*partition).matchMoE}).
	Add("pool", taking{alone: (*partition).matchPool}).
	Add("copy", taking{alone: (*partition).matchCopy}).
	Add("matmul", taking{value: (*matcher).matmul}).
	Add("conv2d", taking{value: (*matcher).conv}).
	Add("reduce", taking{value: (*matcher).reduce}).
	Add("unary", taking{value: (*matcher).unary}).
	Add("binary", taking{value: (*matcher).binary}).
	Add("layer_norm", taking{value: (*matcher).norm}).
	Add("rms_norm", taking{value: (*matcher).norm})

// norm is the operation of EXEC for a norm.
func (t *task) norm() (kind isa.VectorOp, eps float64) {
	switch op := t.op.(type) {
	case graph.LayerNorm:
		return isa.VectorLayerNorm, op.Eps
	case graph.RMSNorm:
		return isa.VectorRMSNorm, op.Eps
	}
	return isa.VectorAffine, 0
}

func init() {
	answers.Rest("it has no circuit for it")
	answers.RefuseNotLaunched()
	for reason, names := range map[string][]string{
		"its code runs on the host":                           {"host"},
		"it has no circuit for a function of the program's":   {"custom"},
		"it quantises by itself":                              {"quantize", "dequantize"},
		"its weights lie in an order of their own":            {"pack_weights", "matmul_panels"},
		"fusions are taken apart before":                      {"fusion"},
		"it has patches for convolutions and pools alone":     {"im2col", "col2im", "conv2d_transpose"},
		"it has no softmax but that of attention and routers": {"softmax", "log_softmax"},
		"it reduces no axis but in norms":                     {"squared_norm"},
		"it normalises rows only":                             {"batch_norm", "group_norm"},
		"it has no backward pass":                             {"attention_grad", "moe_grad", "pool_grad", "conv2d_filter_grad"},
		"it draws no random numbers":                          {"dropout", "random", "sample"},
		"it runs alone": {"reduce_scatter", "all_gather", "all_to_all", "part", "permute",
			"broadcast_from"},
		"its numbers are of one type":                          {"cast"},
		"it compares and chooses nothing but a router's gates": {"select", "top_k", "route"},
		"its addresses are fixed when a program is compiled":   {"slice", "gather", "scatter_add", "update_slice"},
		"it copies nothing that it does not compute":           {"concat", "pad", "unslice", "all_reduce"},
		"it has no table of angles":                            {"rope"},
	} {
		answers.Refuse(reason, names...)
	}
	if err := answers.Check(); err != nil {
		panic(err)
	}
}
