package cuda

import "fusec/graph"

// SetFreeSlots changes from how many bytes on mixtures of experts run in waves, and returns what it was.
func SetFreeSlots(bytes int) (was int) {
	was, freeSlots = freeSlots, bytes
	return was
}

// SetPortableTime changes what products of f32 are taken to need beside their operations, in ns, and returns what it was.
func SetPortableTime(ns int) (was int) {
	was, portableTime = portableTime, ns
	return was
}

// OnlyAcross leaves of the tiles of products across only those of the given size, until restore is called.
func OnlyAcross(bm, bn int, strict, writes bool) (restore func()) {
	return onlyAcross(func(t acrossTile) bool { return t.bm == bm && t.bn == bn && t.strict == strict && t.writes == writes })
}

// OnlyMeeting leaves of them only that of so many rows whose shares of k meet, for short products, too, as if it took no time.
func OnlyMeeting(bm int) (restore func()) {
	was, tiles := meetingSteps, onlyAcross(func(t acrossTile) bool { return t.bm == bm && t.meets })
	meetingSteps, acrossTiles[0].step, acrossTiles[0].fixed = 2, 0, 0
	return func() {
		meetingSteps = was
		tiles()
	}
}

func onlyAcross(stays func(t acrossTile) bool) (restore func()) {
	was := acrossTiles
	acrossTiles = nil
	for _, c := range was {
		if stays(c.acrossTile) {
			acrossTiles = append(acrossTiles, c)
		}
	}
	return func() { acrossTiles = was }
}

// SetRoPEPairs changes up to how many pairs each thread of a RoPE computes its angle, and returns what it was.
func SetRoPEPairs(pairs int) (was int) {
	was, ropePairs = ropePairs, pairs
	return was
}

// SetSplitTime changes what attentions of f32 by products of f16 are taken to need beside their work, in ns, and returns what it
// was.
func SetSplitTime(ns int) (was int) {
	was, splitTime = splitTime, ns
	return was
}

// HasKernel reports whether there is a kernel for an operation alone.
func HasKernel(op graph.Op) bool {
	_, ok := answers.Lookup(op)
	return ok
}
