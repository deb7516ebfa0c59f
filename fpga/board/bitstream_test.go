package board

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"go/scanner"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fusec/fpga/fpgatest"
	"fusec/fpga/isa"
	"fusec/fpga/link"
	"fusec/fpga/rtl"
	"fusec/fpga/sim"
	"fusec/fpga/testtools"
)

// passed holds the digest of the hardware and its build that passed TestBitstream last.
const passed = "testdata/bitstream.sha256"

// digest is that of all that the bitstream is made of: the hardware's source, the board's pins and the build. Comments of
// Go files do not count.
func digest(t *testing.T) string {
	t.Helper()
	h := sha256.New()
	for _, pattern := range []string{"../rtl/*.sv", "../isa/*.go", "pins/*", "*.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", pattern, len(files), err)
		}
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasSuffix(name, ".go") {
				text = tokens(text)
			}
			fmt.Fprintf(h, "%s %d\n%s", name, len(text), text)
		}
	}
	return fmt.Sprintf("%x\n", h.Sum(nil))
}

// tokens is a Go file without comments, other than directives, and layout, which make no difference to the hardware.
func tokens(source []byte) []byte {
	var s scanner.Scanner
	s.Init(token.NewFileSet().AddFile("", -1, len(source)), source, nil, scanner.ScanComments)
	var b bytes.Buffer
	for {
		_, tok, lit := s.Scan()
		switch {
		case tok == token.EOF:
			return b.Bytes()
		case tok == token.COMMENT && !strings.HasPrefix(lit, "//go:"), tok == token.SEMICOLON:
		default:
			fmt.Fprintf(&b, "%v %s\n", tok, lit)
		}
	}
}

func TestTokens(t *testing.T) {
	const file = "package p\n\n//go:embed pins\nvar a = f(1, 'x') // set\n"
	one := string(tokens([]byte(file)))
	for change, same := range map[string]bool{
		"// Package p is.\npackage p\n//go:embed pins\nvar a = f(1,\n\t'x')": true,
		"package p\n\nvar a = f(1, 'x')\n":                                   false,
		"package p\n\n//go:embed pins\nvar a = f(2, 'x')\n":                  false,
	} {
		if got := string(tokens([]byte(change))); (got == one) != same {
			t.Errorf("%q has the tokens\n%s\nof %q\n%s", change, got, file, one)
		}
	}
}

// TestBitstream builds the bitstream of the HX8K, decodes it to gates, and runs random programs on them over the board's
// serial line, played bit by bit: placement, routing and packing are in what is tested. It takes minutes. What makes the
// bitstream gives the same one each time, so with FUSEC_BITSTREAM=changed it runs only if something of that has changed
// since it passed; with FUSEC_BITSTREAM=1 it always runs, and notes what passed.
func TestBitstream(t *testing.T) {
	last, _ := os.ReadFile(passed) // none is noted before it passes for the first time
	now := digest(t)
	switch mode := os.Getenv("FUSEC_BITSTREAM"); {
	case mode == "":
		t.Skip("takes minutes: make fpga-bitstream runs it")
	case mode == "changed" && string(last) == now:
		return
	case mode == "changed":
		t.Errorf("the hardware is not that of %s: make fpga-bitstream notes it once it passes", passed)
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
	gates, err := decode(ctx, b, dir)
	if err != nil {
		t.Fatal(err)
	}
	program, err := sim.BuildBoard(ctx, b.Config, sim.Options{Sources: gates, Defines: []string{"NO_ICE40_DEFAULT_ASSIGNMENTS"},
		Divisor: b.divisor()})
	if err != nil {
		t.Fatal(err)
	}
	l, err := link.Open(ctx, fmt.Sprintf("serial:%s@%d", testtools.Board(t, program), b.Baud),
		link.Options{Timeout: 2 * time.Minute, Memory: 1 << 16})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for seed := range uint64(3) {
		p, err := fpgatest.Random(seed, b.Config, fpgatest.Options{Commands: 12, Ops: []isa.Op{isa.OpLoad, isa.OpStore, isa.OpGemm},
			MaxWork: 1 << 12})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Compare(ctx, l); err != nil {
			t.Fatalf("program %d on the gates of the bitstream: %v", seed, err)
		}
	}
	if os.Getenv("FUSEC_BITSTREAM") != "changed" && string(last) != now && !t.Failed() {
		if err := os.WriteFile(passed, []byte(now), 0o644); err != nil {
			t.Error(err)
		}
	}
}
