package rtl_test

import (
	"math/rand"
	"testing"

	"fusec/fpga/isa"
)

// TestExp2 compares fx_exp2 with isa.Exp2 for every argument of 21 bits that does not give zero, and some beyond.
func TestExp2(t *testing.T) {
	b := newBench(t, "fx_exp2", []port{{"t", 21}, {"zero", 1}}, []port{{"p", 17}})
	const latency = 6
	var in [][]uint64
	for x := range uint64(20 << 10) {
		in = append(in, []uint64{x, 0})
	}
	r := rand.New(rand.NewSource(1))
	for range 5000 {
		in = append(in, []uint64{uint64(r.Intn(1 << 21)), uint64(r.Intn(2))})
	}
	for range latency {
		in = append(in, []uint64{0, 0})
	}
	out := b.run(t, in)
	for i := range len(in) - latency {
		want := uint64(isa.Exp2(int32(in[i][0])))
		if in[i][1] == 1 {
			want = 0
		}
		if got := out[i+latency][0]; got != want {
			t.Fatalf("exp2(%d), zero %d: %d, want %d", in[i][0], in[i][1], got, want)
		}
	}
}

// TestReciprocal compares fx_reciprocal with isa.Reciprocal for powers of two, their neighbours, zero and random sums.
func TestReciprocal(t *testing.T) {
	b := newBench(t, "fx_reciprocal", []port{{"rst", 1}, {"start", 1}, {"sum", 32}},
		[]port{{"done", 1}, {"r", 16}, {"z", 5}})
	sums := []uint32{0, 1, 1<<32 - 1}
	for i := 1; i < 32; i++ {
		sums = append(sums, 1<<i-1, 1<<i, 1<<i+1)
	}
	rnd := rand.New(rand.NewSource(2))
	for range 1000 {
		sums = append(sums, rnd.Uint32()>>rnd.Intn(32))
	}
	const period = 24 // of which the last is the one with done
	in := [][]uint64{{1, 0, 0}}
	for _, s := range sums {
		in = append(in, []uint64{0, 1, uint64(s)})
		for range period - 1 {
			in = append(in, []uint64{0, 0, uint64(rnd.Uint32())})
		}
	}
	out := b.run(t, in)
	for i, s := range sums {
		wantR, wantZ := isa.Reciprocal(s)
		for k := range period {
			if done := out[1+i*period+k][0] == 1; done != (k == period-1) {
				t.Fatalf("sum %d: done is %v after %d cycles", s, done, k)
			}
		}
		got := out[i*period+period]
		if got[1] != uint64(wantR) || got[2] != uint64(wantZ) {
			t.Fatalf("sum %#x: r %d, z %d, want %d, %d", s, got[1], got[2], wantR, wantZ)
		}
	}
}
