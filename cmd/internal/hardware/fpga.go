// Package hardware is `fusec fpga`: overlays are built into bitstreams, and models planned on hardware that need not exist.
package hardware

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"fusec/cmd/internal/cli"
	"fusec/fpga/board"
	"fusec/fpga/isa"
	"fusec/fpga/rtl"
	"fusec/lowering/fpga"
)

// Command is fusec fpga.
var Command = &cli.Command{
	Name:    fpga.Target.Name,
	Args:    "build | report | plan model.graph [flags]",
	Summary: "build overlays into bitstreams, report what they take, and plan hardware for a model",
	Doc: `
fusec fpga build turns the overlay of a board into a bitstream by open tools (yosys, nextpnr, icepack or ecppack), in a folder
of its own with logs and a report; boards are hx8k, ecp5-85f and, by synthesis alone, xc7. fusec fpga report prints the
reports of such folders. fusec fpga plan predicts what a model takes on arrays, memories and clocks that need not exist,
and draws the trade-off; it does not simulate. A mixture's tokens go to the experts that its router chooses with the values that
fusec run gives the model: random ones, or those of --in. With --overlay it begins from that one, and changes what other flags say.
Models run on an overlay by --target fpga.`,
	Examples: []cli.Example{
		{"fusec fpga build --board ecp5-85f", "a bitstream and report.json in build/ecp5-85f"},
		{"fusec fpga build --board hx8k --seed 3", "placed from another seed"},
		{"fusec fpga report", "what the builds below build/ take"},
		{"fusec fpga plan model.graph --plot plan.svg", "cycles, resources and time for arrays from 4×4 to 32×32"},
		{"fusec fpga plan model.graph --overlay ecp5 --clocks 50,75", "what it takes on that overlay, at two clocks"},
	},
	Setup: func(f *cli.FlagSet) cli.Action {
		b := &boardBuilder{}
		names := boardNames()
		f.StringVar(&b.board, "board", names[0], "build: the `board` (default "+names[0]+"): "+strings.Join(names, ", "))
		f.Values("board", boardNames)
		f.StringVar(&b.overlay, "overlay", "",
			"build: a named `overlay` instead of the board's own; plan: the one to begin from: "+strings.Join(isa.Overlays(), ", "))
		f.Values("overlay", isa.Overlays)
		f.StringVar(&b.dir, "dir", "build", "build: the `folder` that gets one for the board; report: where they lie (default build)")
		f.IntVar(&b.seed, "seed", 0, "build: the placement's seed; 0 is the one known to be good")
		f.BoolVar(&b.json, "json", false, "print reports as JSON")
		p := &planner{}
		p.declare(f)
		return func(e *cli.Env, args []string) error {
			if len(args) == 0 {
				return cli.Usage("fpga requires what to do: build, report or plan")
			}
			switch rest := args[1:]; args[0] {
			case "build":
				if err := cli.NoArguments(rest); err != nil {
					return err
				}
				return b.build(e)
			case "report":
				if err := cli.NoArguments(rest); err != nil {
					return err
				}
				return b.report(e)
			case "plan":
				p.overlay = b.overlay
				return p.run(e, rest, b.json)
			}
			return cli.Usage("fpga cannot %q%s: build, report or plan", args[0],
				cli.Suggest(args[0], []string{"build", "report", "plan"}))
		}
	},
}

func boardNames() (names []string) {
	for _, b := range board.Boards() {
		names = append(names, b.Name)
	}
	return names
}

// boardBuilder is fusec fpga build and report with their flags.
type boardBuilder struct {
	board, overlay, dir string
	seed                int
	json                bool
}

// boardReport is the JSON form of what fusec fpga build and report print.
type boardReport struct {
	Schema string          `json:"schema"` // fusec.fpga/1
	Builds []*board.Report `json:"builds"`
}

func (b *boardBuilder) build(e *cli.Env) error {
	of, err := board.Find(b.board)
	if err != nil {
		return cli.Usage("%v", err)
	}
	if b.seed < 0 {
		return cli.Usage("--seed %d: a seed is 0 or more", b.seed)
	}
	o := board.Options{Seed: b.seed, Sources: rtl.Files}
	if b.overlay != "" {
		if o.Config, err = isa.Overlay(b.overlay); err != nil {
			return cli.Usage("%v", err)
		}
	}
	// Each step takes minutes.
	start, step := time.Now(), new(atomic.Value)
	step.Store("preparing")
	o.Progress = func(s string) { step.Store(s) }
	stop := cli.NewProgress(e.Stderr).Ticking(func() string {
		return fmt.Sprintf("%s: %s (%s since the start)", of.Name, step.Load(), time.Since(start).Round(time.Second))
	})
	dir := filepath.Join(b.dir, of.Name)
	r, err := board.Build(e.Ctx, of, dir, o)
	stop()
	if err != nil {
		return fmt.Errorf("building %s: %w", of.Name, err)
	}
	if err := b.print(e.Out, []*board.Report{r}); err != nil {
		return err
	}
	if p := r.Floorplan; p != nil && p.Used < p.Available {
		e.Note("%d of the %d memories and multipliers that have a site on %s were not found by their names in the netlist, and lie "+
			"where the placer put them",
			p.Available-p.Used, p.Available, of.Name)
	}
	if r.FmaxMHz != 0 && r.FmaxMHz < r.TargetMHz {
		return fmt.Errorf("%s: the design meets %.1f MHz, not the %.0f that the board is meant to; another --seed may", of.Name,
			r.FmaxMHz, r.TargetMHz)
	}
	return nil
}

func (b *boardBuilder) report(e *cli.Env) error {
	folders, err := os.ReadDir(b.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var reports []*board.Report
	for _, f := range folders {
		if _, err := os.Stat(filepath.Join(b.dir, f.Name(), "report.json")); err != nil {
			continue
		}
		r, err := board.ReadReport(filepath.Join(b.dir, f.Name()))
		if err != nil {
			return err
		}
		if err := r.Config.Check(); err != nil || r.Board == "" {
			return fmt.Errorf("%s is no report of a build: it names no board, or no overlay that can be; "+
				"fusec fpga build makes one again", filepath.Join(b.dir, f.Name(), "report.json"))
		}
		reports = append(reports, r)
	}
	if len(reports) == 0 {
		return fmt.Errorf("no build lies below %s: fusec fpga build makes one", b.dir)
	}
	return b.print(e.Out, reports)
}

func (b *boardBuilder) print(w io.Writer, reports []*board.Report) error {
	slices.SortFunc(reports, func(a, b *board.Report) int { return cmp.Compare(a.Board, b.Board) })
	if b.json {
		return cli.WriteJSON(w, boardReport{"fusec.fpga/1", reports})
	}
	t := cli.NewTable("board", "array", ">cells", ">registers", ">multipliers", ">memories", ">clock", ">seed", ">seconds")
	for _, r := range reports {
		clock, seed, seconds := "not routed", "", 0.0
		if r.FmaxMHz != 0 {
			clock, seed = fmt.Sprintf("%.1f MHz", r.FmaxMHz), fmt.Sprint(r.Seed)
		}
		for _, s := range r.Steps {
			seconds += s.Seconds
		}
		t.Row(r.Board, fmt.Sprintf("%d×%d", r.Config.Rows, r.Config.Cols), fmt.Sprint(r.Cells), fmt.Sprint(r.Registers),
			fmt.Sprint(r.Multipliers),
			fmt.Sprint(r.Memories), clock, seed, fmt.Sprintf("%.0f", seconds))
	}
	_, err := io.WriteString(w, t.String())
	return err
}
