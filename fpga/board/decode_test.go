package board

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing/fstest"
)

var (
	icebox      = tool{[]string{"icebox_vlog"}, "Debian's fpga-icestorm"}
	yosysConfig = tool{[]string{"yosys-config"}, "Debian's yosys-dev or yosys"}
)

// chip is the head of the module that icebox_vlog writes.
var chip = regexp.MustCompile(`(?s)module chip \([^)]*\);`)

// decode turns the routed design of an iCE40 build back into gates: Verilog from the bitstream's bits, with the board's
// top and the cells in it. It is for simulating the board, as far as the tools know its bits.
func decode(ctx context.Context, b Board, dir string) (fs.FS, error) {
	if b.Family != ICE40 {
		return nil, fmt.Errorf("%s: only bitstreams of iCE40 devices can be decoded", b.Name)
	}
	path, err := icebox.find()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, path, "-s", "-p", b.Pins, "routed.asc")
	cmd.Dir = dir
	text, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("icebox_vlog: %w", err)
	}
	if !chip.Match(text) {
		return nil, fmt.Errorf("icebox_vlog wrote no module chip")
	}
	// icebox_vlog declares the ports again as wires, which only a header without directions allows.
	text = chip.ReplaceAll(text, []byte("module "+top+" (clk, rx, tx, led);\n  input clk, rx;\n  output tx, led;"))
	cells, err := cellLibrary(ctx)
	if err != nil {
		return nil, err
	}
	return fstest.MapFS{"bitstream.v": {Data: text}, "cells.v": {Data: cells}}, nil
}

// cellLibrary reads yosys's models of the iCE40's cells.
func cellLibrary(ctx context.Context) ([]byte, error) {
	data := "/usr/share/yosys"
	if path, err := yosysConfig.find(); err == nil {
		if out, err := exec.CommandContext(ctx, path, "--datdir").Output(); err == nil {
			data = string(out[:max(0, len(out)-1)])
		}
	}
	return os.ReadFile(filepath.Join(data, "ice40", "cells_sim.v"))
}
