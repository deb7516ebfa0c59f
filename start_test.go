package fusec_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"fusec"
	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/graph/loader"
	"fusec/graph/optim"
)

// trainedOn trains on mini-batches for some steps and returns the costs and the weights: by RunAll, or by Start and
// Wait with the next batch read into the same memory, and copied ahead, in between.
func trainedOn(t *testing.T, steps int, halves, ahead bool, opts ...gorgonia.VMOpt) (losses []float64, w [][]float64) {
	t.Helper()
	b := newNet(tensor.Float64)
	x := b.node("x", 4, 5)
	batch := b.value(0, 0, 4, 5)
	gorgonia.WithValue(batch)(x)
	data := make([]*tensor.Dense, steps)
	for i := range data {
		data[i] = b.value(0, 1, 4, 5)
	}
	y, weight, bias := b.linear("out", x, 5, 3)
	made := task{must(gorgonia.Mean(must(gorgonia.Square(must(gorgonia.Tanh(y)))))), gorgonia.Nodes{weight, bias}}
	if _, err := gorgonia.Grad(made.cost, made.wrt...); err != nil {
		t.Fatal(err)
	}
	o := &optim.Optimizer{Rule: optim.AdamW{}, Rate: optim.Constant(0.1)}
	m := machine(t, b.g, append(opts, fusec.WithOptimizer(o))...)
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ok(tensor.Copy(batch, data[0]))
	for i := range steps {
		if !halves {
			ok(tensor.Copy(batch, data[i]))
			run(t, m)
			losses = append(losses, made.cost.Value().Data().(float64))
			continue
		}
		m.Reset()
		ok(m.Start())
		wantError(t, m.Start(), "started already")
		if i+1 < steps {
			ok(tensor.Copy(batch, data[i+1]))
			if ahead && i%4 != 2 {
				ok(m.Prefetch(x))
				ok(batch.Memset(-7.0)) // it has been read
			}
		}
		ok(m.Wait())
		ok(m.Wait())
		losses = append(losses, made.cost.Value().Data().(float64))
		if ahead && i%4 == 3 && i+1 < steps { // another value takes it back
			ok(m.Let(x, data[i+1].Clone()))
			batch = x.Value().(*tensor.Dense)
		}
	}
	ok(m.Sync())
	return losses, valuesOf(t, made)
}

// TestStart trains in halves of runs on every kind of device: to the bits of whole runs.
func TestStart(t *testing.T) {
	for name, opts := range map[string][]gorgonia.VMOpt{"cpu": nil, "apart": {fusec.OnApart()},
		"emulator": {fusec.WithTarget("cuda"), emulated(t)}} {
		t.Run(name, func(t *testing.T) {
			losses, weights := trainedOn(t, 10, false, false, opts...)
			for _, ahead := range []bool{false, true} {
				got, w := trainedOn(t, 10, true, ahead, opts...)
				if !slices.Equal(got, losses) || fmt.Sprint(w) != fmt.Sprint(weights) {
					t.Errorf("in halves, ahead %v: costs %v, want %v", ahead, got, losses)
				}
			}
		})
	}
}

// TestPrefetchProgram copies inputs of a program ahead, and names what cannot be.
func TestPrefetchProgram(t *testing.T) {
	for name, opts := range map[string][]fusec.CompileOption{"cpu": nil, "emulator": {fusec.WithTarget("cuda"), emulated(t)}} {
		t.Run(name, func(t *testing.T) {
			b := graph.NewBuilder("product")
			b.Output("y", b.MatMul(b.Input("x", f32(1, 2)), b.Param("w", f32(2, 1)), false, false))
			b.Output("unread", b.BinaryScalar(graph.Add, b.Input("z", f32()), 1))
			p := compiled(t, b, opts...)
			x := tensorOf(t, []float32{0, 0}, 1, 2)
			err := errors.Join(p.Set("w", tensorOf(t, []float32{1, 10}, 2, 1)), p.Set("z", graph.Scalar(graph.F32, 1)))
			if err != nil {
				t.Fatal(err)
			}
			for i := range 4 {
				copy(x.Data.([]float32), []float32{1, float32(i)})
				if err := p.Prefetch("x", x); err != nil {
					t.Fatal(err)
				}
				clear(x.Data.([]float32))
				for range 2 { // it holds until another is given
					if err := p.Start(); err != nil {
						t.Fatal(err)
					}
					if err := p.Wait(); err != nil {
						t.Fatal(err)
					}
					y, err := p.Output("y")
					if err != nil || y.Float(0) != float64(1+10*i) {
						t.Errorf("run %d gives %v, %v", i, y.Data, err)
					}
				}
			}
			wantError(t, p.Prefetch("w", x), `param "w" is not copied ahead`)
			wantError(t, p.Prefetch("v", x), `no input, parameter or state "v"`)
			wantError(t, p.Prefetch("x", nil), `"x"`)
			wantError(t, p.Prefetch("x", graph.NewTensor(f32(3))), `"x" is f32[1,2]`)
			wantError(t, p.Prefetch("x", &graph.Tensor{Type: f32(1, 2), Data: []float32{1}}), `"x"`)
		})
	}
}

// TestPrefetchNode names the nodes that cannot be copied ahead.
func TestPrefetchNode(t *testing.T) {
	b := newNet(tensor.Float64)
	x, none := b.in("x", 2, 3), b.node("none", 2, 3)
	s := gorgonia.NewScalar(b.g, tensor.Float64, gorgonia.WithName("s"), gorgonia.WithValue(1.5))
	y := must(gorgonia.Sum(must(gorgonia.HadamardProd(must(gorgonia.Add(x, none)), s))))
	m := machine(t, b.g)
	wantError(t, m.Prefetch(nil), "the node is nil")
	wantError(t, m.Prefetch(none), "none", "want a tensor")
	wantError(t, m.Prefetch(s), "want a tensor")
	wantError(t, m.Prefetch(y), "is computed")
	if err := m.Prefetch(x); err != nil {
		t.Fatal(err)
	}
	want := floats(t, x.Value())
	clear(x.Value().Data().([]float64))
	wantError(t, m.Start(), `"none" has no value`) // after which x still has what was copied
	if err := errors.Join(m.Wait(), m.Let(none, b.value(0, 0, 2, 3))); err != nil {
		t.Fatal(err)
	}
	run(t, m)
	sum := 0.0
	for _, v := range want {
		sum += 1.5 * v
	}
	sameFloats(t, "the sum", floats(t, y.Value()), []float64{sum}, 1e-12)
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	wantError(t, m.Start(), "closed")
	wantError(t, m.Prefetch(x), "closed")
	wantError(t, fusec.NewMachine(b.g, fusec.WithTarget("abacus")).Prefetch(x), "abacus")
}

// TestPrefetchFile trains on batches that the device reads from their file, to the same costs as on those that the loader reads.
func TestPrefetchFile(t *testing.T) {
	rows := make([]float32, 40*3)
	for i := range rows {
		rows[i] = float32(i*7%11) / 11
	}
	path := graphtest.NPY(t, rows, 40, 3)
	costs := func(locate bool) (list []float64) {
		b := graph.NewBuilder("autoencoder")
		x, w := b.Input("x", f32(8, 3)), b.Param("w", f32(3, 3))
		d := b.Binary(graph.Sub, b.MatMul(x, w, false, false), x)
		b.Output("cost", b.Reduce(graph.Mean, b.Unary(graph.Square, d), false, 0, 1))
		p := compiled(t, b, fusec.WithTarget("cuda"), emulated(t),
			fusec.CompileOption(fusec.WithOptimizer(&optim.Optimizer{Rule: optim.SGD{}, Rate: optim.Constant(0.1)})))
		l, err := loader.Open(loader.Options{Batch: 8, Shuffle: true, Seed: 1}, loader.Source{Name: "x", Path: path, Locate: locate})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		next := func() error {
			batch, err := l.Next()
			switch {
			case err != nil:
				return err
			case locate:
				return p.PrefetchFile("x", batch.Located["x"])
			}
			return p.Prefetch("x", batch.Tensors["x"])
		}
		err = p.Set("w", graph.NewTensor(f32(3, 3)))
		if locate {
			err = errors.Join(err, p.OpenFile(path))
		}
		if err = errors.Join(err, next()); err != nil {
			t.Fatal(err)
		}
		for range 12 {
			if err := errors.Join(p.Start(), next(), p.Wait()); err != nil {
				t.Fatal(err)
			}
			y, err := p.Output("cost")
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, y.Float(0))
		}
		wantError(t, p.PrefetchFile("v", nil), `no input, parameter or state "v"`)
		return list
	}
	if got, want := costs(true), costs(false); !slices.Equal(got, want) || want[11] >= want[0] {
		t.Errorf("costs %v, want %v", got, want)
	}
	b := graph.NewBuilder("on the processor")
	b.Output("y", b.Unary(graph.Neg, b.Input("x", f32(3))))
	p := compiled(t, b)
	wantError(t, p.OpenFile(path), "read no files by themselves")
	wantError(t, p.PrefetchFile("x", nil), "read no files by themselves")
}
