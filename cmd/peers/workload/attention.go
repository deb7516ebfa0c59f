package workload

import "fmt"

// The attention workloads' heads: of AttentionDim numbers each, side by side in a token's row.
const AttentionHeads, AttentionDim = 8, 64

// AttentionScale multiplies the scores: 1/√AttentionDim.
const AttentionScale = 0.125

// attentions lists full and causal attention over sequences of growing length.
func attentions() []Workload {
	return []Workload{
		attends(512, false, -305.69390952431689, 248223.7167899292),
		attends(512, true, -353.31174838274427, 247815.26034185707),
		attends(1024, false, -628.6784752585163, 496453.67187562044),
		attends(1024, true, -683.41766758541701, 495983.65930432756),
		attends(2048, false, -1274.1387922102679, 992929.54702150461),
		attends(2048, true, -1337.897548212216, 992392.99624333752),
		attends(4096, false, -2547.8324529172623, 1985856.3375404754),
		attends(4096, true, -2620.6858607777035, 1985261.7695378312),
		attends(16384, false, -10235.649582635227, 7943433.3229867276),
		attends(16384, true, -10325.131122640258, 7942723.6658218512),
	}
}

func attends(seq int, causal bool, sum, abs float64) Workload {
	const width = AttentionHeads * AttentionDim
	w := Workload{
		Name:    fmt.Sprintf("attention-%d", seq),
		Meaning: fmt.Sprintf("softmax(q·kᵀ/8)·v, %d tokens, %d heads of %d", seq, AttentionHeads, AttentionDim),
		Out:     []int{seq, width}, FLOPs: 4 * float64(seq) * float64(seq) * width, Checksum: sum, AbsSum: abs,
	}
	if causal {
		w.Name += "-causal"
		w.Meaning += ", causal"
		w.FLOPs = 2 * float64(seq) * float64(seq+1) * width
	}
	for i, name := range []string{"q", "k", "v"} {
		w.Tensors = append(w.Tensors, Tensor{Name: name, Seed: i + 1, Scale: 4, Shape: []int{seq, width}})
	}
	return w
}
