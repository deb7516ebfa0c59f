package cpu

import (
	"math/bits"
	"unsafe"

	"fusec/graph"
)

// A sampler draws an element of each row; see [graph.Sample]. An item is a row.
type sampler[T float] struct {
	env     *Env
	args    []Operand
	result  Operand
	rows, n int
	rooms   []samplingRoom // of each worker, or of each row if there are fewer

	mem []Memory
	x   []T
	dst []int64
}

// samplingRoom is what a worker needs: sums by digits of keys, and the elements that may be drawn.
type samplingRoom struct {
	sums [1 << samplingDigit]uint64
	left []sampled
}

// A sampled element is one that may be drawn.
type sampled struct {
	key, at uint32
	weight  uint64
}

// samplingDigit is how many bits of keys are told apart at a time.
const samplingDigit = 11

var _ = answers.Add(floats(newSample[float32], newSample[float64]))

func newSample[T float](_ graph.Sample, args, results []Operand, env *Env) (Kernel, error) {
	s := args[graph.SampleLogits].Layout.Shape
	k := &sampler[T]{env: env, args: args, result: results[0], n: s.At(s.Rank() - 1), rows: results[0].Layout.Shape.Elems()}
	k.rooms = make([]samplingRoom, min(env.Pool.Workers(), k.rows))
	for i := range k.rooms {
		k.rooms[i].left = make([]sampled, 0, k.n)
	}
	return k, nil
}

// Run implements [Kernel].
func (k *sampler[T]) Run(args, results []Memory) error {
	k.mem, k.x = args, numbers[T](args[graph.SampleLogits], k.args[graph.SampleLogits])
	k.dst = elems[int64](results[0])[k.result.Layout.Offset:]
	k.env.Pool.Run(k.rows, k)
	k.mem, k.x, k.dst = nil, nil, nil
	return nil
}

// option is an operand after the logits, of a row.
func option[N float | int64](o Operand, m Memory, row int) N {
	if o.Layout.Shape.Rank() == 0 {
		row = 0
	}
	return elems[N](m)[o.Layout.Offset+row]
}

// Do draws from a row; see pool.Task.
func (k *sampler[T]) Do(worker, row int) {
	integer := func(i int) int64 { return option[int64](k.args[i], k.mem[i], row) }
	number := func(i int) float32 { return option[float32](k.args[i], k.mem[i], row) }
	x := k.x[row*k.n:][:k.n]
	best := -1
	most := float32(0)
	for i, v := range x {
		if v := float32(v); v > most || best < 0 && v == v {
			best, most = i, v
		}
	}
	temperature := number(graph.SampleTemperature)
	if best < 0 || !(temperature > 0) {
		k.dst[row] = int64(max(best, 0))
		return
	}
	if len(k.rooms) == k.rows {
		worker = row
	}
	room := &k.rooms[worker]
	scale, total := graph.SampleScale(temperature), uint64(0)
	left := room.left[:0]
	if topK := integer(graph.SampleTopK); 0 < topK && topK < int64(k.n) {
		left = topLogits(room, left, x, uint64(topK), most, scale)
	} else {
		for i, v := range x {
			if w := graph.SampleWeight(float32(v), most, scale); w > 0 {
				left = append(left, sampled{graph.SampleKey(float32(v)), uint32(i), w})
			}
		}
	}
	for i := range left {
		total += left[i].weight
	}
	if topP := number(graph.SampleTopP); topP > 0 && topP < 1 {
		left = room.cut(left, graph.SampleShare(topP, total), false)
		total = 0
		for i := range left {
			total += left[i].weight
		}
	}
	own := k.args[graph.SampleSeed].Layout.Shape.Rank() > 0
	word := graph.SampleWord(integer(graph.SampleSeed), integer(graph.SampleStep), row, k.rows, own)
	mark, _ := bits.Mul64(word, total)
	for i := range left {
		if w := left[i].weight; mark < w {
			k.dst[row] = int64(left[i].at)
			return
		} else {
			mark -= w
		}
	}
}

// topLogits appends the k greatest elements of a row to a list, in the order of the row.
func topLogits[T float](room *samplingRoom, list []sampled, x []T, k uint64, most float32, scale float64) []sampled {
	const shift = 32 - samplingDigit
	clear(room.sums[:])
	for _, v := range x {
		room.sums[graph.SampleKey(float32(v))>>shift]++
	}
	digit, sum := uint32(len(room.sums)-1), uint64(0)
	for ; ; digit-- {
		if sum += room.sums[digit]; sum >= k {
			break
		}
	}
	for i, v := range x {
		if key := graph.SampleKey(float32(v)); key>>shift >= digit {
			list = append(list, sampled{key, uint32(i), graph.SampleWeight(float32(v), most, scale)})
		}
	}
	return room.cut(list, k, true)
}

// cut leaves the first candidates, in the order of falling keys, that have a sum together: of ones if count is true, else
// of weights. All of them have that much. They stay in the order of the row. It finds the last key of them digit by digit.
func (r *samplingRoom) cut(list []sampled, sum uint64, count bool) []sampled {
	measure := func(c *sampled) uint64 {
		if count {
			return 1
		}
		return c.weight
	}
	var last, mask uint32 // the last key, and which of its bits are known
	for shift := 32; shift > 0; {
		bits := min(samplingDigit, shift)
		shift -= bits
		clear(r.sums[:])
		for i := range list {
			if c := &list[i]; c.key&mask == last {
				r.sums[c.key>>shift&(1<<bits-1)] += measure(c)
			}
		}
		digit := uint32(1<<bits - 1)
		for ; r.sums[digit] < sum; digit-- {
			sum -= r.sums[digit]
		}
		last, mask = last|digit<<shift, mask|(1<<bits-1)<<shift
	}
	kept := 0
	for i := range list {
		c := list[i]
		if c.key < last {
			continue
		}
		if c.key == last {
			if sum == 0 {
				continue
			}
			sum -= min(sum, measure(&c))
		}
		list[kept] = c
		kept++
	}
	return list[:kept]
}

// bytes is the memory of the sums and candidates.
func (k *sampler[T]) bytes() int64 {
	return int64(len(k.rooms)) * (int64(unsafe.Sizeof(samplingRoom{})) + int64(k.n)*int64(unsafe.Sizeof(sampled{})))
}
