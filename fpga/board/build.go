package board

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"fusec/fpga/isa"
)

// Use is how much of something a design takes.
type Use struct {
	Used      int `json:"used"`
	Available int `json:"available,omitempty"` // 0: the tool does not say
}

// Share is the used part, 0 where it is not known.
func (u Use) Share() float64 {
	if u.Available == 0 {
		return 0
	}
	return float64(u.Used) / float64(u.Available)
}

// String gives "5120 of 7680 (67 %)".
func (u Use) String() string {
	if u.Available == 0 {
		return strconv.Itoa(u.Used)
	}
	return fmt.Sprintf("%d of %d (%.0f %%)", u.Used, u.Available, 100*u.Share())
}

// Step is a step of a build and the seconds it took.
type Step struct {
	Name    string  `json:"name"`
	Tool    string  `json:"tool"` // with its version
	Seconds float64 `json:"seconds"`
}

// Report is the result of a build. None of the tools estimates power.
type Report struct {
	Board       string     `json:"board"`
	Config      isa.Config `json:"config"`
	Cells       Use        `json:"cells"` // logic cells; before placement, look-up tables
	Registers   Use        `json:"registers"`
	Multipliers Use        `json:"multipliers"`
	Memories    Use        `json:"memories"` // block RAMs
	// FmaxMHz is the clock at which the placed and routed design meets its timing, 0 if it was only synthesised.
	FmaxMHz    float64        `json:"fmax_mhz,omitempty"`
	TargetMHz  float64        `json:"target_mhz,omitempty"`
	Seed       int            `json:"seed,omitempty"`
	Floorplan  *Use           `json:"floorplan,omitempty"` // cells of the netlist with a fixed site, of those in the board's plan
	Bitstream  string         `json:"bitstream,omitempty"` // the file's name in the folder
	Steps      []Step         `json:"steps"`
	Primitives map[string]int `json:"primitives"` // of the synthesised netlist
}

// Options are the options of a build.
type Options struct {
	Config isa.Config // other than the board's own, if it has rows
	Seed   int        // of the placement, 0: the board's
	// Sources is the hardware: files by name.
	Sources fs.FS
	// Progress is called as a step begins.
	Progress func(step string)
}

// Build synthesises the overlay for the board, places and routes it, and writes bitstream and report.json into dir, which is made.
// Errors name the tool and the file with its log.
func Build(ctx context.Context, b Board, dir string, o Options) (*Report, error) {
	cfg := b.Config
	if o.Config.Rows != 0 {
		cfg = o.Config
	}
	if err := errors.Join(cfg.Check(), b.Missing()); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	r := &Report{Board: b.Name, Config: cfg, TargetMHz: b.Target, Primitives: map[string]int{}}
	sources, err := writeSources(dir, cfg, o.Sources)
	if err != nil {
		return nil, err
	}
	step := func(name string, t tool, args ...string) error {
		if o.Progress != nil {
			o.Progress(name)
		}
		start := time.Now()
		if err := t.run(ctx, dir, name, args...); err != nil {
			return err
		}
		r.Steps = append(r.Steps, Step{name, t.version(ctx), time.Since(start).Round(100 * time.Millisecond).Seconds()})
		return nil
	}
	plan := b.floorplan(cfg)
	if err := os.WriteFile(filepath.Join(dir, "synth.ys"), []byte(b.script(sources, plan)), 0o644); err != nil {
		return nil, err
	}
	if err := step("synthesis", yosys, "-q", "-s", "synth.ys"); err != nil {
		return nil, err
	}
	if err := r.readStat(filepath.Join(dir, "stat.txt")); err != nil {
		return nil, err
	}
	if len(plan) > 0 {
		if err := r.readPlanned(filepath.Join(dir, planned), len(plan)); err != nil {
			return nil, err
		}
	}
	if b.Family != Series7 {
		if err := b.route(dir, cmp.Or(o.Seed, b.Seed, 1), r, step); err != nil {
			return nil, err
		}
	}
	text, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return nil, err
	}
	return r, os.WriteFile(filepath.Join(dir, "report.json"), append(text, '\n'), 0o644)
}

// ReadReport reads the report of a build from its folder.
func ReadReport(dir string) (*Report, error) {
	text, err := os.ReadFile(filepath.Join(dir, "report.json"))
	if err != nil {
		return nil, err
	}
	r := new(Report)
	if err := json.Unmarshal(text, r); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, "report.json"), err)
	}
	return r, nil
}

// writeSources puts the hardware and its configuration into the folder, and lists the files to read.
func writeSources(dir string, cfg isa.Config, sources fs.FS) (names []string, err error) {
	if err := os.WriteFile(filepath.Join(dir, "fx_config.svh"), []byte(cfg.Header()), 0o644); err != nil {
		return nil, err
	}
	files, err := fs.Glob(sources, "*.sv*")
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, errors.New("there are no hardware sources")
	}
	for _, f := range files {
		text, err := fs.ReadFile(sources, f)
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(dir, f), text, 0o644); err != nil {
			return nil, err
		}
		if strings.HasSuffix(f, ".sv") {
			names = append(names, f)
		}
	}
	return names, nil
}

// top is the module that a board's design begins with.
const top = "fx_board_uart"

// divisor is the clocks of a bit on the serial line.
func (b Board) divisor() int { return (b.Clock + b.Baud/2) / b.Baud }

// script is the script for yosys. Only modules below the top are elaborated, so that the netlist, and with it the
// effect of a seed, does not depend on modules that the configuration does not use. Cells of the plan get their sites.
func (b Board) script(sources []string, plan []fixed) string {
	var s strings.Builder
	fmt.Fprintf(&s, "read_verilog -sv -defer -I. %s\n", strings.Join(sources, " "))
	fmt.Fprintf(&s, "hierarchy -top %s -chparam DIVISOR %d\n", top, b.divisor())
	// The modules of lanes and multipliers are synthesised once and joined at the end. Otherwise equal registers of two
	// lanes would be merged (a lane's third stage has the same value as the first stage of the third lane from it),
	// with long wires.
	apart := func() {
		for _, module := range []string{"fx_lane", "fx_vector_lane", "fx_softmax", "fx_route_lane", "fx_pe"} {
			fmt.Fprintf(&s, "setattr -mod -set keep_hierarchy 1 *%s*\n", module)
		}
	}
	together := func() { s.WriteString("setattr -mod -unset keep_hierarchy *\nflatten\nopt_clean\n") }
	switch b.Family {
	case ICE40:
		// The eight cells of a tile share clock enable and reset: those of fewer registers than four become logic, or a
		// chip that is nearly full is not placed.
		fmt.Fprintf(&s, "synth_ice40 -abc9 -device hx -top %s -run begin:map_ffs\n", top)
		s.WriteString("dfflegalize -cell $_DFF_?_ 0 -cell $_DFFE_?P_ 0 -cell $_DFF_?P?_ 0 -cell $_DFFE_?P?P_ 0 " +
			"-cell $_SDFF_?P?_ 0 -cell $_SDFFCE_?P?P_ 0 -cell $_DLATCH_?_ x -mince 4 -minsrst 4\n")
		fmt.Fprintf(&s, "synth_ice40 -abc9 -device hx -top %s -run map_ffs:\n", top)
	case ECP5:
		apart()
		fmt.Fprintf(&s, "synth_ecp5 -abc9 -top %s\n", top)
		together()
		for _, f := range plan {
			fmt.Fprintf(&s, "setattr -set BEL %q c:%s\n", f.site, f.cell)
		}
		if len(plan) > 0 {
			fmt.Fprintf(&s, "tee -q -o %s select -count a:BEL\n", planned)
		}
	case Series7:
		apart()
		fmt.Fprintf(&s, "synth_xilinx -family xc7 -flatten -top %s\n", top)
		together()
	}
	s.WriteString("delete t:$scopeinfo\ntee -q -o stat.txt stat\n")
	if b.Family != Series7 {
		s.WriteString("write_json netlist.json\n")
	}
	return s.String()
}

// cells are the primitives that count as look-up tables, registers, multipliers and memories.
var cells = []struct {
	pattern *regexp.Regexp
	of      func(*Report) *Use
}{
	{regexp.MustCompile(`^(SB_LUT4|LUT[1-6]|CCU2C|TRELLIS_COMB)$`), func(r *Report) *Use { return &r.Cells }},
	{regexp.MustCompile(`^(SB_DFF\w*|TRELLIS_FF|FD[RSCP]E)$`), func(r *Report) *Use { return &r.Registers }},
	{regexp.MustCompile(`^(SB_MAC16|MULT18X18D|DSP48E1)$`), func(r *Report) *Use { return &r.Multipliers }},
	{regexp.MustCompile(`^(SB_RAM40_4K\w*|DP16KD|PDPW16KD|RAMB18E1|RAMB36E1)$`), func(r *Report) *Use { return &r.Memories }},
}

// statLine is a primitive's line of yosys's statistics; newer versions put the count first.
var statLine = regexp.MustCompile(`(?m)^\s+(?:(\d+)\s+(?:[\d.e+]+\s+)?(\$?\w+)|(\$?\w+)\s+(\d+))\s*$`)

// readStat counts the primitives of the synthesised netlist.
func (r *Report) readStat(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for _, m := range statLine.FindAllStringSubmatch(string(text), -1) {
		name, count := cmp.Or(m[2], m[3]), cmp.Or(m[1], m[4])
		n, err := strconv.Atoi(count)
		if err != nil || name != strings.ToUpper(name) {
			continue
		}
		r.Primitives[name] = n
	}
	for _, name := range slices.Sorted(maps.Keys(r.Primitives)) {
		for _, c := range cells {
			if !c.pattern.MatchString(name) {
				continue
			}
			n := r.Primitives[name]
			if name == "CCU2C" { // two cells of carry
				n *= 2
			}
			c.of(r).Used += n
		}
	}
	if len(r.Primitives) == 0 {
		return fmt.Errorf("%s: no statistics of cells", path)
	}
	return nil
}

// planned is the file with the number of cells that were given a site.
const planned = "floorplan.txt"

// readPlanned takes from it how many of the plan's cells there were.
func (r *Report) readPlanned(path string, all int) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	r.Floorplan = &Use{Available: all}
	if _, err := fmt.Sscanf(string(text), "%d objects", &r.Floorplan.Used); err != nil {
		return fmt.Errorf("%s: no number of cells: %w", path, err)
	}
	return nil
}

// route places and routes the netlist and writes the bitstream.
func (b Board) route(dir string, seed int, r *Report, step func(string, tool, ...string) error) error {
	pin, err := pins.ReadFile("pins/" + b.Pins)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, b.Pins), pin, 0o644); err != nil {
		return err
	}
	r.Seed = seed
	common := []string{"--json", "netlist.json", "--seed", strconv.Itoa(seed), "--freq", fmt.Sprint(b.Target * 1.2),
		"--timing-allow-fail",
		"--report", "timing.json", "--package", b.Package}
	switch b.Family {
	case ICE40:
		r.Bitstream = b.Name + ".bin"
		if err := step("place and route", nextpnrICE40,
			append(common, "--"+b.Device, "--pcf", b.Pins, "--asc", "routed.asc")...); err != nil {
			return err
		}
		if err := step("bitstream", icepack, "routed.asc", r.Bitstream); err != nil {
			return err
		}
	case ECP5:
		r.Bitstream = b.Name + ".bit"
		if err := step("place and route", nextpnrECP5, append(common, "--"+b.Device, "--speed", b.Speed, "--lpf", b.Pins,
			"--placer", "static", "--router", "router1", "--textcfg", "routed.config")...); err != nil {
			return err
		}
		if err := step("bitstream", ecppack, "--compress", "routed.config", r.Bitstream); err != nil {
			return err
		}
	}
	return r.readTiming(filepath.Join(dir, "timing.json"))
}

// readTiming takes clock and use from nextpnr's report.
func (r *Report) readTiming(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var t struct {
		Fmax map[string]struct {
			Achieved float64 `json:"achieved"`
		} `json:"fmax"`
		Utilization map[string]Use `json:"utilization"`
	}
	if err := json.Unmarshal(text, &t); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if len(t.Fmax) == 0 {
		return fmt.Errorf("%s: no clock", path)
	}
	for _, f := range t.Fmax {
		if r.FmaxMHz == 0 || f.Achieved < r.FmaxMHz {
			r.FmaxMHz = f.Achieved
		}
	}
	for _, u := range []struct {
		names []string
		to    *Use
	}{
		{[]string{"ICESTORM_LC", "TRELLIS_COMB"}, &r.Cells}, {[]string{"TRELLIS_FF"}, &r.Registers},
		{[]string{"ICESTORM_DSP", "MULT18X18D"}, &r.Multipliers}, {[]string{"ICESTORM_RAM", "DP16KD"}, &r.Memories},
	} {
		for _, name := range u.names {
			if use, ok := t.Utilization[name]; ok {
				*u.to = use
			}
		}
	}
	return nil
}
