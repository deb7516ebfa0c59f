package fusec

import (
	"errors"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"fusec/graph"
	fgorgonia "fusec/graph/gorgonia"
	"fusec/graph/optim"
	"fusec/lowering"
	"fusec/lowering/cpu"
)

// closing is a device with memory of its own that counts the executables that are open.
type closing struct {
	apart
	open *atomic.Int32
}

func (d closing) Compile(p *lowering.Program) (lowering.Executable, error) {
	e, err := d.apart.Compile(p)
	if err == nil {
		d.open.Add(1)
	}
	return &closingExecutable{Executable: e, open: d.open}, err
}

type closingExecutable struct {
	lowering.Executable
	open   *atomic.Int32
	closed bool
}

func (e *closingExecutable) Close() error {
	if e.closed {
		return errors.New("closed twice")
	}
	e.closed = true
	e.open.Add(-1)
	return e.Executable.Close()
}

// onClosing compiles for such a device.
func onClosing() (Option, *atomic.Int32) {
	open := &atomic.Int32{}
	return option(func(c *config) { c.on = closing{apart{cpu.New()}, open} }), open
}

// allClosed waits until no executable is open.
func allClosed(t *testing.T, open *atomic.Int32) {
	t.Helper()
	for wait := time.Millisecond; open.Load() > 0; wait *= 2 {
		if wait > 4*time.Second {
			t.Fatalf("%d executables are open", open.Load())
		}
		runtime.GC()
		time.Sleep(wait)
	}
}

// A machine on a device that is dropped without Close gives the device back, while its nodes are still in use. What it has
// handed out stays, values of inner nodes are computed all the same, and one that was closed is closed once.
func TestDroppedDevices(t *testing.T) {
	on, open := onClosing()
	g := gorgonia.NewGraph()
	x := gorgonia.NewVector(g, tensor.Float64, gorgonia.WithShape(3), gorgonia.WithName("x"),
		gorgonia.WithValue(tensor.New(tensor.WithBacking([]float64{1, 2, 3}))))
	h := gorgonia.Must(gorgonia.Square(x))
	y := gorgonia.Must(gorgonia.Neg(h))
	func() {
		for i := range 4 {
			opts := [][]MachineOption{{on}, {on}, {on, WithWatchNonFinite()}, {on, gorgonia.WithNaNWatch(), gorgonia.WithInfWatch()}}[i]
			m := NewMachine(g, opts...)
			if err := m.RunAll(); err != nil {
				t.Fatal(err)
			}
			if i == 0 {
				closed(t, m)
			}
		}
	}()
	allClosed(t, open)
	if got := y.Value().Data(); !slices.Equal(got.([]float64), []float64{-1, -4, -9}) {
		t.Errorf("the result is %v", got)
	}
	if got := h.Value().Data(); !slices.Equal(got.([]float64), []float64{1, 4, 9}) {
		t.Errorf("the inner value is %v", got)
	}
}

// What a dropped program has changed on the device is not written to the user's memory behind his back.
func TestDroppedDevicesWriteNothing(t *testing.T) {
	on, open := onClosing()
	var s *sentence
	func() {
		s = newSentence(t, "", 2, 0.1)
		m := NewMachine(s.g, on, WithOptimizer(&optim.Optimizer{Rule: optim.Adam{}, Rate: func(int) float64 { return 0.1 }}))
		for range 2 {
			if err := m.RunAll(); err != nil {
				t.Fatal(err)
			}
			m.Reset()
		}
	}()
	want := slices.Clone(s.weights[0].Value().Data().([]float32))
	allClosed(t, open)
	time.Sleep(10 * time.Millisecond)
	if got := s.weights[0].Value().Data().([]float32); !slices.Equal(got, want) {
		t.Errorf("a weight was %v and is %v", want, got)
	}
	refused := 0
	for _, n := range s.g.AllNodes() {
		if u, ok := n.Value().(fgorgonia.Unstored); ok {
			if _, err := u.Computed(); errors.Is(err, errDropped) {
				refused++
			}
		}
	}
	if refused == 0 {
		t.Error("inner values were computed from weights that are not those of the last run")
	}
}

// A program that has handed out a tensor of its own stays open; one that has handed out copies does not.
func TestDroppedPrograms(t *testing.T) {
	on, open := onClosing()
	make := func(opts ...CompileOption) *Program {
		b := graph.NewBuilder("g")
		b.Output("y", b.Unary(graph.Square, b.Input("x", graph.TypeOf(graph.F64, 2))))
		g, err := b.Graph()
		if err != nil {
			t.Fatal(err)
		}
		p, err := Compile(g, append(opts, on)...)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Run(map[string]*graph.Tensor{"x": graph.Filled(graph.TypeOf(graph.F64, 2), 3)}); err != nil {
			t.Fatal(err)
		}
		return p
	}
	make()
	make(WithWatchNonFinite()) // nothing that looks at launches keeps it
	allClosed(t, open)
	y, err := make().Output("y")
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		runtime.GC()
		time.Sleep(time.Millisecond)
	}
	if open.Load() != 1 || y.Float(0) != 9 {
		t.Errorf("%d programs are open; the output is %v", open.Load(), y)
	}
}
