package cpu

import (
	"math/rand/v2"
	"testing"

	"fusec/graph"
	"fusec/kernels/cpu/pool"
	"fusec/kernels/ref/cases"
)

// seeds has one that f32 cannot hold.
var seeds = []int64{0, 1, -7, 1<<40 + 12345}

func TestDropout(t *testing.T) {
	r := rand.New(rand.NewPCG(22, 23))
	for _, d := range []graph.DType{graph.F32, graph.F64} {
		for _, seed := range seeds {
			s := &graph.Tensor{Type: graph.TypeOf(graph.I64), Data: []int64{seed}}
			for _, p := range []float64{0, 0.1, 0.5, 0.99} {
				for _, n := range []int{0, 1, 3, 4, 1023, 1025, 10001} {
					checkOp(t, graph.Dropout{P: p}, drawTensor(r, d, -2, 2, n), s)
				}
			}
		}
	}
}

// TestDropoutInBodies draws in bodies of every form, of odd sizes; [TestFusions] has the common ones.
func TestDropoutInBodies(t *testing.T) {
	r := rand.New(rand.NewPCG(24, 25))
	for _, f := range cases.Dropouts(r, 40) {
		op, types, err := f.Op()
		if err != nil {
			t.Fatal(err)
		}
		args := make([]*graph.Tensor, len(types))
		for i, u := range types {
			args[i] = cases.Arg{Type: u, Lo: -20, Hi: 20}.Draw(r)
		}
		t.Run(f.Name, func(t *testing.T) { checkOp(t, op, args...) })
	}
}

// TestDropoutBits requires of a long dropout what [graph.DropoutKeep] says of each element.
func TestDropoutBits(t *testing.T) {
	p := pool.New(2)
	defer p.Close()
	const n, seed, share = 3*grain + 3, -99, 0.3
	x := graph.Filled(graph.TypeOf(graph.F32, n), 0.7)
	s := &graph.Tensor{Type: graph.TypeOf(graph.I64), Data: []int64{seed}}
	k, err := stand(graph.Dropout{P: share}, []*graph.Tensor{x, s}, p)
	if err == nil {
		err = k.run()
	}
	if err != nil {
		t.Fatal(err)
	}
	by := float32(1 / graph.DropoutRuleOf(share).Kept())
	for i, y := range k.out[0].Data.([]float32) {
		want := float32(0)
		if from := int64(seed); graph.DropoutKeep(uint64(from), uint64(i), share) {
			want = 0.7 * by
		}
		if y != want {
			t.Fatalf("element %d is %v, want %v", i, y, want)
		}
	}
}

// TestRandom requires the very numbers of the definition.
func TestRandom(t *testing.T) {
	p := pool.New(2)
	defer p.Close()
	for _, d := range []graph.DType{graph.F32, graph.F64} {
		for _, seed := range seeds {
			s := &graph.Tensor{Type: graph.TypeOf(graph.I64), Data: []int64{seed}}
			for _, op := range []graph.Random{
				{Dist: graph.Uniform, A: -3, B: 5}, {Dist: graph.Normal, A: 2, B: 0.5},
				{Dist: graph.Bernoulli, A: 0.3}, {Dist: graph.Bernoulli}, {Dist: graph.Bernoulli, A: 1},
			} {
				for _, n := range []int{0, 1, 7, 1026, 9001} {
					op.Type = graph.TypeOf(d, n)
					checkOp(t, op, s)
					k, err := stand(op, []*graph.Tensor{s}, p)
					if err == nil {
						err = k.run()
					}
					if err != nil {
						t.Fatal(err)
					}
					want := graph.NewTensor(op.Type)
					for i := range n {
						want.SetFloat(i, graph.RandomAt(op.Dist, op.A, op.B, uint64(seed), uint64(i)))
					}
					if !k.out[0].Equal(want) {
						t.Errorf("%+v from %d is not what the definition says", op, seed)
					}
				}
			}
		}
	}
}
