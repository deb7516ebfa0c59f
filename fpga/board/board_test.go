package board

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
)

// TestBoards checks what is declared: configurations that hold, pins that are there, names that differ.
func TestBoards(t *testing.T) {
	seen := map[string]bool{}
	for _, b := range Boards() {
		if seen[b.Name] {
			t.Errorf("two boards are called %s", b.Name)
		}
		seen[b.Name] = true
		if err := b.Config.Check(); err != nil {
			t.Errorf("%s: %v", b.Name, err)
		}
		if b.Family == Series7 {
			continue
		}
		if _, err := pins.ReadFile("pins/" + b.Pins); err != nil {
			t.Errorf("%s: %v", b.Name, err)
		}
	}
	if _, err := Find("ecp6"); err == nil || !strings.Contains(err.Error(), "ecp5-85f") {
		t.Errorf("an unknown board: %v", err)
	}
}

// TestMissing checks that a tool that is not there is named with where it comes from.
func TestMissing(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	b, err := Find("hx8k")
	if err != nil {
		t.Fatal(err)
	}
	if _, err = Build(context.Background(), b, t.TempDir(), Options{Sources: fstest.MapFS{}}); err == nil ||
		!strings.Contains(err.Error(), "yosys is not installed") || !strings.Contains(err.Error(), "fpga-icestorm") {
		t.Errorf("without tools: %v", err)
	}
}

// TestToolFails checks that a failing tool's error has the end of its log.
func TestToolFails(t *testing.T) {
	bin := t.TempDir()
	script := "#!/bin/sh\necho first\necho 'ERROR: no module'\nexit 3\n"
	if err := os.WriteFile(filepath.Join(bin, "yosys"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	b, err := Find("xc7")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	_, err = Build(context.Background(), b, dir, Options{Sources: fstest.MapFS{"a.sv": {Data: []byte("module a; endmodule")}}})
	if err == nil || !strings.Contains(err.Error(), "ERROR: no module") || !strings.Contains(err.Error(), "synthesis.log") {
		t.Errorf("a failing yosys: %v", err)
	}
}

// TestReadStat checks that both forms of yosys's statistics are understood.
func TestReadStat(t *testing.T) {
	for name, text := range map[string]string{
		"old": "   Number of cells:               1234\n     CCU2C                          10\n     LUT4                          " +
			"100\n     MULT18X18D                      4\n     TRELLIS_FF                     77\n     DP16KD    3\n",
		"new": "     1234 cells\n       10   CCU2C\n      100   LUT4\n        4   MULT18X18D\n       77   TRELLIS_FF\n        3   " +
			"DP16KD\n",
	} {
		path := filepath.Join(t.TempDir(), "stat.txt")
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		r := &Report{Primitives: map[string]int{}}
		if err := r.readStat(path); err != nil {
			t.Fatal(err)
		}
		if r.Cells.Used != 120 || r.Registers.Used != 77 || r.Multipliers.Used != 4 || r.Memories.Used != 3 {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// TestReadTiming checks that the slowest clock counts.
func TestReadTiming(t *testing.T) {
	path := filepath.Join(t.TempDir(), "timing.json")
	text := `{"fmax":{"clk":{"achieved":91.5,"constraint":100},"slow":{"achieved":70.25}},
		"utilization":{"ICESTORM_LC":{"available":7680,"used":7199},"ICESTORM_RAM":{"available":32,"used":20}}}`
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	var r Report
	if err := r.readTiming(path); err != nil {
		t.Fatal(err)
	}
	if r.FmaxMHz != 70.25 || r.Cells.String() != "7199 of 7680 (94 %)" || r.Memories.Used != 20 {
		t.Errorf("got %+v", r)
	}
}

// TestFloorplan checks that the plan of the ECP5 gives every memory and multiplier of the overlay a different site, in
// the device's rows, and that no other build has one.
func TestFloorplan(t *testing.T) {
	b, err := Find("ecp5-85f")
	if err != nil {
		t.Fatal(err)
	}
	site := regexp.MustCompile(`^X(\d+)/Y(22|46|70|82)/EBR[0-3]$|^X(\d+)/Y(10|34|58)/MULT18_[0145]$`)
	sites, names := map[string]bool{}, map[string]bool{}
	for _, f := range b.floorplan(b.Config) {
		if sites[f.site] || names[f.cell] {
			t.Errorf("%s at %s: there twice", f.cell, f.site)
		}
		sites[f.site], names[f.cell] = true, true
		m := site.FindStringSubmatch(f.site)
		if m == nil {
			t.Fatalf("%s: no site is called %s", f.cell, f.site)
		}
		if x, err := strconv.Atoi(m[1] + m[3]); err != nil || x < 4 || x > 120 {
			t.Errorf("%s: %s is outside the rows", f.cell, f.site)
		}
		if strings.ContainsAny(f.cell, "[]*") {
			t.Errorf("%s is a pattern that finds more than one cell", f.cell)
		}
	}
	if len(sites) != 99+104 {
		t.Errorf("%d cells have a site; the overlay has 99 memories and 104 multipliers", len(sites))
	}
	for _, other := range Boards() {
		if other.Name != b.Name && other.floorplan(other.Config) != nil {
			t.Errorf("%s has a plan that is of another device", other.Name)
		}
	}
	smaller := b.Config
	smaller.Rows = 4
	if b.floorplan(smaller) != nil {
		t.Error("an array of 4 rows has the plan of one of 8")
	}
	if b.floorplan(overlay("sim8")) != nil {
		t.Error("an overlay with a router and other memories has the plan of the board's own")
	}
}
