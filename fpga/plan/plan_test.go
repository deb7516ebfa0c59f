package plan_test

import (
	"context"
	"fmt"
	"math"
	"os"
	"testing"

	"fusec/fpga"
	"fusec/fpga/isa"
	"fusec/fpga/link"
	"fusec/fpga/model"
	"fusec/fpga/plan"
	"fusec/fpga/sim"
	"fusec/fpga/testtools"
)

// ordered places semaphores in a list of commands, as the compiler does.
func ordered(t *testing.T, cfg isa.Config, commands []isa.Command) []isa.Command {
	t.Helper()
	m, err := model.New(cfg, model.Options{Memory: 1 << 24})
	if err != nil {
		t.Fatal(err)
	}
	var o model.Orderer
	for i, c := range commands {
		touched, err := m.Step(c)
		if err != nil {
			t.Fatalf("%d: %s: %v", i, isa.Text(c), err)
		}
		o.Add(c, touched)
	}
	return append(commands, &isa.End{})
}

// products is a stream of n products of size × size matrices, each from memory and back to it, on scratchpads of two halves.
func products(cfg isa.Config, size, n int) (commands []isa.Command) {
	words, panels, tiles := size/cfg.WordBytes, size/cfg.Rows, size/cfg.Cols
	at := uint32(0)
	for i := range n {
		x, w, y := uint16(i%2*cfg.XWords/2), uint16(i%2*cfg.WWords/2), uint16(i%2*cfg.YWords/2)
		load := func(space isa.Space, base uint16, lanes, panel int, from uint32) {
			commands = append(commands, &isa.Load{Space: space, Addr: from + uint32(panel*lanes*size), Stride: uint32(size),
				Rows: uint16(lanes), Words: uint16(words), Base: base + uint16(panel*words), Panel: uint16(words)})
		}
		for j := range tiles {
			load(isa.SpaceW, w, cfg.Cols, j, at+1<<16)
			if j == 0 {
				load(isa.SpaceX, x, cfg.Rows, 0, at)
			}
		}
		for p := range panels {
			if p > 0 {
				load(isa.SpaceX, x, cfg.Rows, p, at)
			}
			first := tiles
			if p == 0 {
				first = 1 // the first panel goes on as its weights come
			}
			for j := 0; j < tiles; j += first {
				commands = append(commands, &isa.Gemm{X: x + uint16(p*words), XPanel: uint16(words), W: w + uint16(j*words),
					WPanel: uint16(words), Words: uint16(words), Panels: 1, Tiles: uint8(first),
					Out: isa.Out{Base: y + uint16(p*words+j*cfg.Cols/cfg.WordBytes), Panel: uint16(words), Param: uint16(j * cfg.Cols)}})
			}
			commands = append(commands, &isa.Store{Space: isa.SpaceY, Addr: at + 2<<16 + uint32(p*cfg.Rows*size), Stride: uint32(size),
				Rows: uint16(cfg.Rows), Words: uint16(words), Base: y + uint16(p*words), Panel: uint16(words)})
		}
	}
	return commands
}

// TestPredictProducts compares predictions with simulation on streams of products.
func TestPredictProducts(t *testing.T) {
	for _, name := range []string{"sim8", "sim16"} {
		t.Run(name, func(t *testing.T) {
			cfg, l := simulator(t, name)
			memories, sizes := []plan.Memory{{Bytes: 8, Latency: 40}}, []int{32, 64}
			if os.Getenv("FUSEC_LONG") != "" {
				memories = append(memories, plan.Memory{Bytes: 4, Latency: 40}, plan.Memory{Bytes: 8, Latency: 100, Gap: 4},
					plan.Memory{Bytes: 4, Latency: 40, Shared: true})
				sizes = append(sizes, 128, 256)
			}
			for _, mem := range memories {
				for _, size := range sizes {
					if size*size/cfg.Rows/cfg.WordBytes > cfg.XWords/2 {
						continue
					}
					for _, n := range []int{1, 8} {
						cycles := compare(t, fmt.Sprintf("%+v, %d × %d³", mem, n, size), cfg, l, mem, ordered(t, cfg, products(cfg, size, n)))
						t.Logf("  %.3f of ideal", cycles*float64(cfg.Rows*cfg.Cols)/float64(n*size*size*size))
					}
				}
			}
		})
	}
}

// TestPredictRoutes does so on tokens that go to experts, whose gates are shared out among the chosen or among all.
func TestPredictRoutes(t *testing.T) {
	for _, name := range []string{"sim8", "sim16"} {
		t.Run(name, func(t *testing.T) {
			cfg, l := simulator(t, name)
			for _, experts := range []int{4, 16, 64} {
				words := experts * 2 / cfg.WordBytes
				for _, chosen := range []int{1, 2, 4} {
					for _, among := range []bool{true, false} {
						program := ordered(t, cfg, []isa.Command{
							&isa.Load{Space: isa.SpaceX, Stride: uint32(2 * experts), Rows: 64, Words: uint16(words), Panel: uint16(words)},
							&isa.Route{First: true, Renormalise: among, XPanel: uint16(words), Rows: 64, Experts: uint16(experts), TopK: uint8(chosen)}})
						compare(t, fmt.Sprintf("64 tokens to %d of %d experts, among these %v", chosen, experts, among), cfg, l,
							plan.Memory{Bytes: 8, Latency: 40}, program)
					}
				}
			}
		})
	}
}

// TestPredictLoads loads words into Y while results go there, from some lane in every cycle: neither waits for the other for long.
func TestPredictLoads(t *testing.T) {
	cfg, l := simulator(t, "sim8")
	compare(t, "a load beside a vector", cfg, l, plan.Memory{Bytes: 8, Latency: 40}, ordered(t, cfg, []isa.Command{
		&isa.Vector{Words: 32, Panels: 8, XPanel: 32, OneParam: true, Out: isa.Out{Panel: 32}},
		&isa.Load{Space: isa.SpaceY, Stride: 64, Rows: 64, Words: 8, Base: 512, Panel: 8},
	}))
}

// simulator starts the simulator of a named overlay; the large one takes long to build.
func simulator(t *testing.T, name string) (isa.Config, *link.Process) {
	t.Helper()
	testtools.Need(t, "verilator", "g++", "make")
	cfg, err := isa.Overlay(name)
	if err != nil {
		t.Fatal(err)
	}
	if name != isa.Overlays()[0] {
		testtools.Long(t)
	}
	built, err := sim.Build(context.Background(), cfg, sim.Options{})
	if err != nil {
		t.Fatal(err)
	}
	l, err := link.StartProcess(built.Program, link.Options{Memory: 1 << 24})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return cfg, l
}

// compare runs a program on a simulator, checks the predicted cycles, and returns the simulated ones.
func compare(t *testing.T, name string, cfg isa.Config, l link.Simulator, mem plan.Memory, program []isa.Command) float64 {
	t.Helper()
	num := uint32(math.Round(mem.Bytes * 16))
	if err := l.SetMemory(link.MemoryModel{Num: num, Den: uint32(16 * cfg.WordBytes), Latency: uint32(mem.Latency),
		Burst: uint32(mem.Gap), Shared: mem.Shared}); err != nil {
		t.Fatal(err)
	}
	m, err := fpga.Open(l)
	if err != nil {
		t.Fatal(err)
	}
	p, err := m.Load(8<<20, program)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Run(context.Background(), p); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	counted, err := m.Counters()
	if err != nil {
		t.Fatal(err)
	}
	predicted, err := plan.Predict(cfg, mem, program, nil)
	if err != nil {
		t.Fatal(err)
	}
	cycles, multiply := float64(counted[isa.CountCycles]), float64(counted[isa.CountMultiply])
	t.Logf("%s: simulated %.0f cycles, predicted %.0f, %+.2f %%", name, cycles, predicted.Cycles, 100*(predicted.Cycles/cycles-1))
	if math.Abs(predicted.Cycles/cycles-1) > 0.05 {
		t.Errorf("%s: predicted %.0f cycles, simulated %.0f", name, predicted.Cycles, cycles)
	}
	if predicted.Multiply != multiply {
		t.Errorf("%s: the array multiplies in %.0f cycles by prediction, %.0f by simulation", name, predicted.Multiply, multiply)
	}
	return cycles
}
