package fpga

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"fusec/fpga/isa"
	"fusec/fpga/link"
	"fusec/fpga/testtools"
	"fusec/graph"
	"fusec/lowering"
)

// overSimulator runs programs on the hardware in simulation.
func overSimulator(ctx context.Context, cfg isa.Config, memory int64) (link.Link, error) {
	return link.Open(ctx, "sim", link.Options{Config: cfg, Memory: memory})
}

// both runs a graph on the model and on the hardware in simulation, requires all of it to be on the overlay and the same
// results to the bit, and returns the executable on the hardware.
func both(t *testing.T, cfg isa.Config, build func(b *graph.Builder)) (*executable, *lowering.Program) {
	t.Helper()
	var e [2]*executable
	var p *lowering.Program
	for i, open := range []func(context.Context, isa.Config, int64) (link.Link, error){overModel, overSimulator} {
		e[i], p = compiledOf(t, built(t, build), true, For(cfg), Over(open))
		bindVariances(t, e[i], p)
		if err := e[i].Run(); err != nil {
			t.Fatal(err)
		}
	}
	for i, b := range p.Buffers {
		if b.Role == lowering.Output && !slices.Equal(e[0].tensors[i].Bytes(), e[1].tensors[i].Bytes()) {
			t.Errorf("%s: the simulator and the model differ", b.Name)
		}
	}
	for i, l := range p.Launches {
		if l.Device != "" && i >= p.Prepared {
			t.Errorf("launch %d, %s, runs on the processor: %s", i, l.Kind(), l.Reason)
		}
		t.Logf("launch %d, %s: %d cycles, estimated %d, ideal %d", i, l.Kind(), e[1].counts[i].cycles, int(l.Estimates.Get(Cycles)),
			e[1].l.ideal(i))
	}
	return e[1], p
}

// TestImagesSimulated runs convolutions and pools, and whole networks, on the hardware in simulation: the results are
// those of the model to the bit, and the cycles those that are estimated. A convolution of 3×3 by 64 channels takes at most
// a tenth more than its products.
func TestImagesSimulated(t *testing.T) {
	testtools.Need(t, "verilator", "g++", "make")
	for _, name := range []string{"sim8", "sim16"} {
		t.Run(name, func(t *testing.T) {
			side := 28
			if name != "sim8" {
				testtools.Long(t)
				side = 56
			}
			cfg := overlay(t, name)
			for seed := range uint64(8) {
				r := rand.New(rand.NewPCG(seed, 19))
				t.Run(fmt.Sprint("random ", seed), func(t *testing.T) { both(t, cfg, randomImages(r)) })
			}
			for _, c := range []struct {
				name  string
				build func(b *graph.Builder)
				most  float64 // cycles over ideal, 0: not compared
			}{
				{"LeNet", lenet, 0},
				{"residual network", func(b *graph.Builder) { residualNet(b, 3, 8) }, 0},
				{"depthwise", func(b *graph.Builder) {
					b.Output("y", convolved(b, b.Input("x", f32(1, 40, 15, 17)), "l", 40, 3, 1, 1, 40))
				}, 0},
				{"64 channels", func(b *graph.Builder) {
					b.Output("y", b.Unary(graph.Relu, convolved(b, b.Input("x", f32(1, 64, side, side)), "l", 64, 3, 1, 1, 1)))
				}, 1.1},
			} {
				t.Run(c.name, func(t *testing.T) {
					e, p := both(t, cfg, c.build)
					var cycles, estimate, ideal float64
					for i, l := range p.Launches {
						cycles += float64(e.counts[i].cycles)
						estimate += l.Estimates.Get(Cycles)
						ideal += float64(e.l.ideal(i))
					}
					off := estimate/cycles - 1
					t.Logf("%.0f cycles, %.3f of the ideal; estimated %+.2f %%", cycles, cycles/ideal, 100*off)
					if math.Abs(off) > 0.05 {
						t.Errorf("estimated %.0f cycles, counted %.0f", estimate, cycles)
					}
					if c.most > 0 && cycles > c.most*ideal {
						t.Errorf("%.0f cycles, the products alone would take %.0f", cycles, ideal)
					}
				})
			}
		})
	}
}
