package board

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"fusec/fpga/fpgatest"
	"fusec/fpga/isa"
	"fusec/fpga/link"
	"fusec/fpga/rtl"
	"fusec/fpga/sim"
	"fusec/fpga/testtools"
)

// TestBitstream builds the bitstream of the HX8K, decodes it to gates, and runs random programs on them over the board's
// serial line, played bit by bit: placement, routing and packing are in what is tested.
func TestBitstream(t *testing.T) {
	if os.Getenv("FUSEC_BITSTREAM") == "" {
		t.Skip("takes minutes: make fpga-bitstream runs it")
	}
	testtools.Need(t, "yosys", "nextpnr-ice40", "icepack", "icebox_vlog", "verilator", "g++")
	ctx := context.Background()
	b, err := Find("hx8k")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	r, err := Build(ctx, b, dir, Options{Sources: rtl.Files, Progress: func(step string) { t.Log(step) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%v cells, %v memories, %.1f MHz", r.Cells, r.Memories, r.FmaxMHz)
	if r.FmaxMHz < b.Target {
		t.Errorf("routed for %.1f MHz, want %.0f", r.FmaxMHz, b.Target)
	}
	gates, err := Decode(ctx, b, dir)
	if err != nil {
		t.Fatal(err)
	}
	program, err := sim.BuildBoard(ctx, b.Config, sim.Options{Sources: gates, Defines: []string{"NO_ICE40_DEFAULT_ASSIGNMENTS"}, Divisor: b.divisor()})
	if err != nil {
		t.Fatal(err)
	}
	l, err := link.Open(ctx, fmt.Sprintf("serial:%s@%d", testtools.Board(t, program), b.Baud), link.Options{Timeout: 2 * time.Minute, Memory: 1 << 16})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for seed := range uint64(3) {
		p, err := fpgatest.Random(seed, b.Config, fpgatest.Options{Commands: 12, Ops: []isa.Op{isa.OpLoad, isa.OpStore, isa.OpGemm}, MaxWork: 1 << 12})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Compare(ctx, l); err != nil {
			t.Fatalf("program %d on the gates of the bitstream: %v", seed, err)
		}
	}
}
