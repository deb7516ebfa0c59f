package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"fusec"
	"fusec/fpga/isa"
	"fusec/fpga/plan"
	"fusec/lowering/fpga"
)

// planner is fusec fpga plan with its flags.
type planner struct {
	arrays, memories, clocks string
	latency, lane            int
	plot                     string
}

func (p *planner) declare(f *flagSet) {
	f.StringVar(&p.arrays, "arrays", "4,8,16,32", "plan: the `sizes` of arrays: 8 is 8×8, 4x16 has 4 rows and no attention (default 4,8,16,32)")
	f.StringVar(&p.memories, "memories", "2,4,8,16", "plan: external memory's `bytes` a cycle, each way (default 2,4,8,16)")
	f.StringVar(&p.clocks, "clocks", "100", "plan: clocks in `MHz` (default 100)")
	f.IntVar(&p.latency, "latency", 40, "plan: external memory's latency in `cycles` (default 40)")
	f.IntVar(&p.lane, "lane", 8192, "plan: `bytes` that a lane of each scratchpad holds, a power of two (default 8192)")
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

func (p *planner) run(e *env, args []string, json bool) error {
	path, err := modelArgument(args)
	if err != nil {
		return err
	}
	arrays, err := shapes(p.arrays)
	if err != nil {
		return err
	}
	memories, err := numbers("--memories", p.memories)
	if err != nil {
		return err
	}
	clocks, err := numbers("--clocks", p.clocks)
	if err != nil {
		return err
	}
	if p.latency < 0 {
		return usage("--latency %d: want cycles, 0 or more", p.latency)
	}
	if p.lane <= 0 || p.lane&(p.lane-1) != 0 {
		return usage("--lane %d: want bytes, a power of two", p.lane)
	}
	if p.plot != "" {
		if err := checkPlot(p.plot); err != nil {
			return usage("--plot %s: %v", p.plot, err)
		}
	}
	g, err := e.loadGraph(path)
	if err != nil {
		return err
	}
	rep := &planReport{Schema: "fusec.fpga.plan/1", Model: path, Latency: p.latency, LaneBytes: p.lane}
	show := newProgress(e.stderr)
	for _, shape := range arrays {
		for _, bytes := range memories {
			if err := e.ctx.Err(); err != nil {
				return err
			}
			cfg, err := p.config(shape[0], shape[1], bytes)
			show.show("%s, %d bytes a cycle", cfg.Name, bytes)
			if err != nil {
				show.done()
				return usage("%v", err)
			}
			row := planRow{Array: cfg.Name, MemoryBytes: bytes}
			listing, err := fusec.PlanFPGA(g, cfg)
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
	show.done()
	if p.plot != "" {
		if err := rep.draw(p.plot); err != nil {
			return err
		}
	}
	if json {
		return writeJSON(e.out, rep)
	}
	return rep.print(e.out)
}

// numbers reads a list such as 4,8,16.
func numbers(flag, list string) (ns []int, err error) {
	for word := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(word))
		if err != nil || n <= 0 {
			return nil, usage("%s %s: %q is no positive whole number", flag, list, word)
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
			return nil, usage("--arrays %s: %q is no size: want 8, or 4x16 for rows and columns", list, word)
		}
		s = append(s, [2]int{r, c})
	}
	return s, nil
}

// config is the overlay with everything that its array allows, for a memory of so many bytes a cycle.
func (p *planner) config(rows, cols, bytes int) (isa.Config, error) {
	c, err := isa.Overlay(isa.Overlays()[0])
	if err != nil {
		return c, err
	}
	c.Name = fmt.Sprintf("%d×%d", rows, cols)
	c.Rows, c.Cols, c.WordBytes = rows, cols, 2
	for c.WordBytes < min(bytes, cols, 16) {
		c.WordBytes *= 2
	}
	c.XWords, c.WWords, c.YWords = p.lane/c.WordBytes, p.lane/c.WordBytes, p.lane/c.WordBytes
	c.KeyBlock = max(c.KeyBlock, cols)
	if rows != cols {
		c.KeyBlock, c.HeadDim, c.QPanels = 0, 0, 0
	}
	return c, c.Check()
}

// predict fills in what a listing takes.
func (r *planRow) predict(cfg isa.Config, mem plan.Memory, l *fpga.Listing) error {
	var sum plan.Timing
	for _, part := range l.Parts {
		commands := make([]isa.Command, len(part))
		for i, s := range part {
			commands[i] = s.Cmd
		}
		t, err := plan.Predict(cfg, mem, commands)
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
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "array\tbytes/cycle\tclock\tcycles\ttime\tutilisation\tbusiest\tmultipliers\ton chip\tcells")
	for _, r := range rep.Rows {
		if r.Refused != "" {
			fmt.Fprintf(t, "%s\t%d\t%g MHz\t%s\n", r.Array, r.MemoryBytes, r.ClockMHz, r.Refused)
			continue
		}
		fmt.Fprintf(t, "%s\t%d\t%g MHz\t%d\t%s\t%.0f %%\t%s\t%d\t%.0f KiB\t%d\n", r.Array, r.MemoryBytes, r.ClockMHz, r.Cycles,
			humanTime(time.Duration(r.TimeNS)), 100*r.Utilisation, r.Bound, r.Multipliers, r.MemoryKiB, r.Cells)
	}
	return t.Flush()
}

// draw plots time against multipliers, a curve for each memory and clock.
func (rep *planReport) draw(path string) error {
	c := chart{title: rep.Model, x: "multipliers", y: "milliseconds", logX: true, logY: true}
	at := map[string]int{}
	for _, r := range rep.Rows {
		if r.Refused != "" {
			continue
		}
		name := fmt.Sprintf("%d bytes a cycle, %g MHz", r.MemoryBytes, r.ClockMHz)
		i, ok := at[name]
		if !ok {
			i = len(c.curves)
			at[name] = i
			c.curves = append(c.curves, curve{name: name})
		}
		c.curves[i].x = append(c.curves[i].x, float64(r.Multipliers))
		c.curves[i].y = append(c.curves[i].y, float64(r.TimeNS)/1e6)
	}
	return c.save(path)
}
