//go:build linux && (amd64 || arm64)

package capi

import (
	"math/rand/v2"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"fusec/graph"
	"fusec/kernels/ref"
	"fusec/lowering"
	"fusec/lowering/cuda"
	"fusec/lowering/cuda/driver"
	"fusec/lowering/cuda/emulator"
)

// lend is memory of n numbers whose address runs take: outside of Go's, in which the emulator has what kernels read besides.
func lend(t *testing.T, n int) []float32 {
	t.Helper()
	b, err := unix.Mmap(-1, 0, 4*n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Munmap(b); err != nil {
			t.Error(err)
		}
	})
	return unsafe.Slice((*float32)(unsafe.Pointer(&b[0])), n)
}

// TestQueue queues runs on the emulator, whose addresses are the process's.
func TestQueue(t *testing.T) {
	ExtraOptions = []lowering.TargetOption{cuda.Driver(func(int) (driver.GPU, driver.Compiler, error) {
		return emulator.Open(emulator.Options{})
	})}
	defer func() { ExtraOptions = nil }()
	text := strings.Replace(model, "  output y", "  spare = input : f32[2]\n  output y", 1)
	p, err := Parse([]byte(text), []string{"target=cuda", "memory=caller", "gradient=dw:loss:w"})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	r := rand.New(rand.NewPCG(7, 8))
	w := random(r, 4, 2)
	if err := p.Set("w", w); err != nil {
		t.Fatal(err)
	}
	bytes, err := p.QueueBytes()
	if err != nil {
		t.Fatal(err)
	}
	scratch := lend(t, int(bytes)/4+1)
	temporary := uintptr(unsafe.Pointer(&scratch[0]))
	x, y, loss, dw := lend(t, 12), lend(t, 6), lend(t, 1), lend(t, 8)
	at := func(list ...[]float32) (p []unsafe.Pointer) {
		for _, b := range list {
			p = append(p, unsafe.Pointer(unsafe.SliceData(b)))
		}
		return p
	}
	g, err := graph.Parse("text", []byte(model), nil)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		for i := range x {
			x[i] = float32(r.NormFloat64())
		}
		for _, out := range [][]float32{y, loss, dw} {
			clear(out)
		}
		if err := p.Queue(at(x, nil), at(y, loss, dw), temporary, 0); err != nil {
			t.Fatal(err)
		}
		if err := p.Wait(); err != nil {
			t.Fatal(err)
		}
		value := func(of []float32, dims ...int) *graph.Tensor {
			return graph.TensorAt(unsafe.Slice((*byte)(unsafe.Pointer(&of[0])), 4*len(of)), graph.TypeOf(graph.F32, dims...))
		}
		want, _, err := ref.EvalBound(g, map[string]*graph.Tensor{"x": value(x, 3, 4), "w": value(values(w), 4, 2)})
		if err != nil {
			t.Fatal(err)
		}
		for name, got := range map[string]*graph.Tensor{"y": value(y, 3, 2), "loss": value(loss)} {
			if err := ref.Check(got, want[name]); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if dw[0] == 0 {
			t.Error("the gradient was not written")
		}
	}
	for want, f := range map[string]func() error{
		"2 inputs and 3 outputs":       func() error { return p.Queue(nil, at(y, loss, dw), 0, 0) },
		`"x" has no memory`:            func() error { return p.Queue(at(nil, nil), at(y, loss, dw), temporary, 0) },
		"its runs are queued":          p.Run,
		`"x": the program runs in the`: func() error { return p.Set("x", tensor(x, []int64{3, 4})) },
		`"y": the program runs in the`: func() error { return p.Get("y", &Tensor{}) },
	} {
		if err := f(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	host, err := Parse([]byte(model), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	if _, err := host.QueueBytes(); err == nil || !strings.Contains(err.Error(), "memory=caller") {
		t.Errorf("of a program for the processor: %v", err)
	}
	if err := host.Queue(at(x), at(y, loss), 0, 0); err == nil || !strings.Contains(err.Error(), "memory=caller") {
		t.Errorf("a run of a program for the processor: %v", err)
	}
}
