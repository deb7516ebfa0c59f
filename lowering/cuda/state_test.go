package cuda_test

import (
	"errors"
	"testing"

	"fusec/graph"
	"fusec/lowering"
	"fusec/lowering/cuda"
	"fusec/lowering/cuda/driver"
	"fusec/lowering/cuda/pool"
)

// appending writes a row to a state where an input says.
func appending(b *graph.Builder) {
	s, x := b.State("s", graph.TypeOf(graph.F32, 5, 3)), b.Input("x", graph.TypeOf(graph.F32, 1, 3))
	b.Update(s, b.Add(graph.UpdateSlice{Axis: 0}, s, x, b.Input("at", graph.TypeOf(graph.I64))))
}

// TestTakeState has two programs on one GPU take their turns with one state, whose value stays there until it is asked for, from
// either; one on another GPU gets it from the tensor.
func TestTakeState(t *testing.T) {
	gpu, compiler := open(t)
	shared := pool.NewShared(func(int) (driver.GPU, error) { return gpu, nil })
	t.Cleanup(func() {
		if err := shared.Release(); err != nil {
			t.Error(err)
		}
	})
	state, at := graph.NewTensor(graph.TypeOf(graph.F32, 5, 3)), graph.NewTensor(graph.TypeOf(graph.I64))
	var buffer int
	program := func(on cuda.Option, x float64) lowering.Executable {
		d := cuda.New(on)
		p := lowered(t, built(t, appending), d)
		e, err := d.Compile(p)
		if err != nil {
			t.Fatal(err)
		}
		buffer = bufferOf(t, p, "s")
		row := graph.NewTensor(graph.TypeOf(graph.F32, 1, 3))
		for i := range 3 {
			row.SetFloat(i, x)
		}
		err = errors.Join(e.Bind(buffer, state), e.Bind(bufferOf(t, p, "x"), row), e.Bind(bufferOf(t, p, "at"), at))
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	one, two := program(cuda.On(sharedGPU(t, shared), compiler), 1), program(cuda.On(sharedGPU(t, shared), compiler), 2)
	apart := program(cuda.On(open(t)), 3)
	takes := func(e, from lowering.Executable, want bool) {
		t.Helper()
		if err := e.Bind(buffer, state); err != nil {
			t.Fatal(err)
		}
		if taken, err := e.TakeState(buffer, from, buffer); taken != want || err != nil {
			t.Fatalf("taken: %v, %v", taken, err)
		}
	}
	write := func(e lowering.Executable, row int) {
		t.Helper()
		at.SetFloat(0, float64(row))
		run(t, e)
	}
	holds := func(e lowering.Executable, want ...float64) {
		t.Helper()
		if err := e.Sync(buffer); err != nil {
			t.Fatal(err)
		}
		for i, x := range want {
			if got := state.Float(3 * i); got != x {
				t.Errorf("row %d is %v, want %v", i, got, x)
			}
		}
	}
	takes(two, one, false) // there is nothing on the GPU
	write(one, 0)
	takes(two, &lowering.Owned{Executable: one}, true)
	write(two, 1)
	if state.Float(0) != 0 {
		t.Error("the state was copied to the host")
	}
	holds(one, 1, 2, 0)
	write(two, 2)
	takes(one, two, true)
	write(one, 3)
	holds(two, 1, 2, 2, 1)
	takes(apart, one, false)
	write(apart, 4)
	holds(apart, 1, 2, 2, 1, 3)
	takes(one, one, false)
	for _, e := range []lowering.Executable{one, two, apart} {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
	taken, err := two.TakeState(buffer, one, buffer)
	if taken || err != nil {
		t.Errorf("of a closed program: %v, %v", taken, err)
	}
}
