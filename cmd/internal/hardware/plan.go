package hardware

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/modelio"
	"fusec/cmd/internal/plotting"
	"fusec/fpga/isa"
	"fusec/fpga/plan"
	"fusec/lowering/fpga"
)

// planner is fusec fpga plan with its flags.
type planner struct {
	overlay                  string // that the planned ones begin from; empty: the default, in arrays of several sizes
	arrays, memories, clocks string // empty: as the overlay has it
	latency                  int
	lane                     int // 0: as the overlay has it
	plot                     string
	in                       modelio.InputFiles
	shapes                   modelio.Shapes
}

// What is planned where neither an overlay nor these are given.
const planArrays, planMemories = "4,8,16,32", "2,4,8,16"

func (p *planner) declare(f *cli.FlagSet) {
	f.StringVar(&p.arrays, "arrays", "",
		"plan: the `sizes` of arrays: 8 is 8×8, 4x16 has 4 rows and no attention (default "+planArrays+", or the overlay's)")
	f.StringVar(&p.memories, "memories", "",
		"plan: external memory's `bytes` a cycle, each way: 2, 4, 8 or 16; an array takes at most one for each column "+
			"(default "+planMemories+", or the overlay's)")
	f.StringVar(&p.clocks, "clocks", "100", "plan: clocks in `MHz` (default 100)")
	f.IntVar(&p.latency, "latency", 40, "plan: external memory's latency in `cycles` (default 40)")
	f.Func("lane", "plan: `bytes` that a lane of each scratchpad holds, a power of two (default 8192, or the overlay's)",
		func(s string) (err error) {
			if p.lane, err = strconv.Atoi(s); err != nil || p.lane <= 0 || p.lane&(p.lane-1) != 0 {
				return errors.New("want bytes, a power of two")
			}
			return nil
		})
	p.in = modelio.InputFiles{}
	p.in.Declare(f, "plan: ")
	p.shapes.Declare(f, "plan: ")
	p.shapes.In = p.in
	f.StringVar(&p.plot, "plot", "", "plan: draw time against multipliers into an .svg or .png `file`")
}

// planReport is the JSON form of what fusec fpga plan prints.
type planReport struct {
	Schema    string    `json:"schema"` // fusec.fpga.plan/1
	Model     string    `json:"model"`
	Latency   int       `json:"latency_cycles"`
	LaneBytes int       `json:"lane_bytes"` // of each scratchpad
	Rows      []planRow `json:"rows"`
}

// planRow is one piece of hardware and what the model takes on it.
type planRow struct {
	Array       string  `json:"array"` // rows×columns of multipliers
	MemoryBytes int     `json:"memory_bytes_per_cycle"`
	ClockMHz    float64 `json:"clock_mhz"`
	Cycles      int64   `json:"cycles"`
	Utilisation float64 `json:"utilisation"` // of the multipliers
	Bound       string  `json:"bound"`       // what is busiest: array, reads, writes, vector work, or waits
	TimeNS      int64   `json:"time_ns"`
	Multipliers int     `json:"multipliers"`
	MemoryKiB   float64 `json:"on_chip_kib"`
	Cells       int     `json:"cells"`
	Refused     string  `json:"refused,omitempty"` // why the model cannot run there
}

func (p *planner) run(e *cli.Env, args []string, json bool) error {
	path, err := modelio.ModelArgument(args)
	if err != nil {
		return err
	}
	if p.overlay == "" {
		p.arrays, p.memories = cmp.Or(p.arrays, planArrays), cmp.Or(p.memories, planMemories)
	}
	base, err := isa.Overlay(cmp.Or(p.overlay, isa.Overlays()[0]))
	if err != nil {
		return cli.Usage("%v", err)
	}
	arrays, err := shapes(cmp.Or(p.arrays, fmt.Sprintf("%dx%d", base.Rows, base.Cols)))
	if err != nil {
		return err
	}
	memories, err := numbers("--memories", cmp.Or(p.memories, strconv.Itoa(base.WordBytes)))
	if err != nil {
		return err
	}
	for _, n := range memories {
		if n < 2 || n > 16 || n&(n-1) != 0 {
			return cli.Usage("--memories %s: %d bytes a cycle: want 2, 4, 8 or 16", p.memories, n)
		}
	}
	clocks, err := numbers("--clocks", p.clocks)
	if err != nil {
		return err
	}
	if p.latency < 0 {
		return cli.Usage("--latency %d: want cycles, 0 or more", p.latency)
	}
	if p.plot != "" {
		if err := plotting.CheckPlot(p.plot); err != nil {
			return cli.Usage("--plot %s: %v", p.plot, err)
		}
	}
	g, vals, err := (&modelio.ValueFlags{Seed: modelio.DefaultSeed, AllowNaN: true}).Load(e, path, &p.shapes, true)
	if err != nil {
		return err
	}
	if err := p.in.Read(g, vals); err != nil {
		return err
	}
	rep := &planReport{Schema: "fusec.fpga.plan/1", Model: path, Latency: p.latency,
		LaneBytes: cmp.Or(p.lane, base.XWords*base.WordBytes)}
	show := cli.NewProgress(e.Stderr)
	for _, shape := range arrays {
		for _, bytes := range memories {
			if err := e.Ctx.Err(); err != nil {
				return err
			}
			cfg, err := p.config(base, shape[0], shape[1], bytes)
			show.Show("%s, %d bytes a cycle", cfg.Name, bytes)
			if err != nil {
				show.Done()
				return cli.Usage("%v", err)
			}
			row := planRow{Array: cfg.Name, MemoryBytes: bytes}
			var listing *fpga.Listing
			device, program, err := modelio.PlanFor[*fpga.Device](g,
				modelio.OnTarget(fpga.Target.Name, fpga.For(cfg), fpga.Routed(vals.All())))
			if err == nil {
				listing, err = device.Plan(program)
			}
			if err == nil {
				err = row.predict(cfg, plan.Memory{Bytes: float64(bytes), Latency: p.latency}, listing)
			}
			if err != nil {
				row.Refused = err.Error()
			}
			for _, mhz := range clocks {
				r := row
				r.ClockMHz, r.TimeNS = float64(mhz), r.Cycles*1000/int64(mhz)
				rep.Rows = append(rep.Rows, r)
			}
		}
	}
	show.Done()
	if p.plot != "" {
		if err := rep.draw(p.plot); err != nil {
			return err
		}
	}
	if json {
		return cli.WriteJSON(e.Out, rep)
	}
	return rep.print(e.Out)
}

// numbers reads a list such as 4,8,16.
func numbers(flag, list string) (ns []int, err error) {
	for word := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(word))
		if err != nil || n <= 0 {
			return nil, cli.Usage("%s %s: %q is no positive whole number", flag, list, word)
		}
		ns = append(ns, n)
	}
	return ns, nil
}

// shapes reads a list such as 4,8,4x16 as rows and columns.
func shapes(list string) (s [][2]int, err error) {
	for word := range strings.SplitSeq(list, ",") {
		rows, cols, two := strings.Cut(strings.TrimSpace(word), "x")
		if !two {
			cols = rows
		}
		r, err1 := strconv.Atoi(rows)
		c, err2 := strconv.Atoi(cols)
		if err1 != nil || err2 != nil || r <= 0 || c <= 0 {
			return nil, cli.Usage("--arrays %s: %q is no size: want 8, or 4x16 for rows and columns", list, word)
		}
		s = append(s, [2]int{r, c})
	}
	return s, nil
}

// config is an overlay with an array of another size and all that it allows, for a memory of so many bytes a cycle.
func (p *planner) config(c isa.Config, rows, cols, bytes int) (isa.Config, error) {
	word := max(min(bytes, cols), 2)
	for _, words := range []*int{&c.XWords, &c.WWords, &c.YWords} {
		*words = cmp.Or(p.lane, *words*c.WordBytes) / word
	}
	c.Name = fmt.Sprintf("%d×%d", rows, cols)
	c.Rows, c.Cols, c.WordBytes = rows, cols, word
	if c.Attention() {
		c.KeyBlock = max(c.KeyBlock, cols)
	}
	if rows != cols {
		c.KeyBlock, c.HeadDim, c.QPanels = 0, 0, 0
	}
	return c, c.Check()
}

// predict fills in what a listing takes.
func (r *planRow) predict(cfg isa.Config, mem plan.Memory, l *fpga.Listing) error {
	var sum plan.Timing
	for _, part := range l.Parts {
		t, err := fpga.Predict(cfg, mem, part)
		if err != nil {
			return err
		}
		sum.Add(t)
	}
	res := plan.ResourcesOf(cfg)
	r.Cycles, r.Utilisation, r.Bound = int64(sum.Cycles), sum.Utilisation(), sum.Bound(cfg, mem)
	r.Multipliers, r.MemoryKiB, r.Cells = res.Multipliers, float64(res.MemoryBits)/8192, res.Cells
	return nil
}

func (rep *planReport) print(w io.Writer) error {
	t := cli.NewTable("array", ">B/cycle", ">clock", ">cycles", ">time", ">used", ">busiest", ">multipliers", ">on chip",
		">cells", "why not")
	for _, r := range rep.Rows {
		array, memory, clock := r.Array, fmt.Sprint(r.MemoryBytes), fmt.Sprintf("%g MHz", r.ClockMHz)
		if r.Refused != "" {
			t.Row(array, memory, clock, "", "", "", "", "", "", "", r.Refused)
			continue
		}
		t.Row(array, memory, clock, fmt.Sprint(r.Cycles), cli.HumanTime(time.Duration(r.TimeNS)),
			fmt.Sprintf("%.0f %%", 100*r.Utilisation),
			r.Bound, fmt.Sprint(r.Multipliers), fmt.Sprintf("%.0f KiB", r.MemoryKiB), fmt.Sprint(r.Cells), "")
	}
	_, err := io.WriteString(w, t.String())
	return err
}

// draw plots time against multipliers, a curve for each memory and clock.
func (rep *planReport) draw(path string) error {
	c := plotting.Chart{Title: rep.Model, X: "multipliers", Y: "milliseconds", LogX: true, LogY: true}
	at := map[string]int{}
	for _, r := range rep.Rows {
		if r.Refused != "" {
			continue
		}
		name := fmt.Sprintf("%d bytes a cycle, %g MHz", r.MemoryBytes, r.ClockMHz)
		i, ok := at[name]
		if !ok {
			i = len(c.Curves)
			at[name] = i
			c.Curves = append(c.Curves, plotting.Curve{Name: name})
		}
		c.Curves[i].X = append(c.Curves[i].X, float64(r.Multipliers))
		c.Curves[i].Y = append(c.Curves[i].Y, float64(r.TimeNS)/1e6)
	}
	return c.Save(path)
}
