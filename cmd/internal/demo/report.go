package demo

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"fusec"
	"fusec/cmd/internal/bench"
	"fusec/cmd/internal/cli"
	"fusec/graph"
)

// demoReport is what fusec demo shows, and its JSON form. Times are in nanoseconds.
type demoReport struct {
	Schema   string         `json:"schema"` // fusec.demo/1
	Machine  cli.Machine    `json:"machine"`
	Device   string         `json:"device"`
	Threads  int            `json:"threads"`
	Rounds   int            `json:"rounds"`
	Shape    demoShape      `json:"shape"`
	Blocks   demoBlocks     `json:"attention_block"`
	Sections []*demoSection `json:"sections"`

	profiled bool
}

// demoBlocks is how the attention is cut.
type demoBlocks struct {
	Queries int  `json:"queries"` // of a work item
	Keys    int  `json:"keys"`    // of a step
	Asked   bool `json:"asked"`   // for by --block-size
}

// demoSection is one graph, with fusion and without.
type demoSection struct {
	Name       string       `json:"name"`
	Unfused    demoSide     `json:"unfused"`
	Fused      demoSide     `json:"fused"`
	Ratio      demoRatio    `json:"ratio"`
	Kinds      []kindCount  `json:"fused_kinds"`
	Difference cli.Number   `json:"difference"` // of the outputs, as a part of their largest value
	Rerouted   int          `json:"rerouted"`   // tokens that the two programs send to different experts
	Routing    *demoRouting `json:"routing,omitempty"`
}

// demoSide is one program and its time.
type demoSide struct {
	MedianNS int64        `json:"median_ns"`
	BestNS   int64        `json:"best_ns"`
	Spread   float64      `json:"spread"` // (slowest − fastest round) ÷ median
	Traffic  int64        `json:"traffic_bytes"`
	Launches int          `json:"launches"`
	FLOPs    int64        `json:"flops"`
	Memory   demoMemory   `json:"memory"`
	Largest  []demoBuffer `json:"largest,omitempty"` // values; with --profile-memory
}

// demoRatio is how many times as much the unfused program takes; 0 where the fused one takes nothing.
type demoRatio struct {
	Time     float64 `json:"time"` // the median of the rounds' ratios
	Memory   float64 `json:"memory"`
	Traffic  float64 `json:"traffic"`
	Launches float64 `json:"launches"`
	FLOPs    float64 `json:"flops"`
}

// kindCount counts launches of a kind.
type kindCount struct {
	Kind     string `json:"kind"`
	Launches int    `json:"launches"`
}

// demoRouting is what the router of a mixture decided, as the fused program handed it out.
type demoRouting struct {
	Loads   []int      `json:"loads"`   // tokens that each expert takes
	Dropped []int      `json:"dropped"` // choices of each expert that are over its capacity
	Balance cli.Number `json:"balance_loss"`
	Z       cli.Number `json:"z_loss"`
}

// newDemoSide describes a program that has been measured.
func newDemoSide(p *fusec.Program, t bench.Timing, profiled bool) demoSide {
	s := demoSide{MedianNS: t.Duration().Nanoseconds(), BestNS: int64(t.Best * 1e9), Spread: t.Spread(),
		Memory: newDemoMemory(p)}
	for _, l := range p.Lowered().Launches[p.Lowered().Prepared:] {
		s.Launches++
		s.Traffic += l.Bytes
		s.FLOPs += l.FLOPs
	}
	if profiled {
		s.Largest = largestBuffers(p.Lowered())
	}
	return s
}

// launchKinds counts a program's launches by kind, in the order in which they first appear.
func launchKinds(p *fusec.Program) []kindCount {
	var list []kindCount
	for _, f := range p.Fusions()[p.Lowered().Prepared:] {
		at := slices.IndexFunc(list, func(k kindCount) bool { return k.Kind == f.Kind })
		if at < 0 {
			at, list = len(list), append(list, kindCount{Kind: f.Kind})
		}
		list[at].Launches++
	}
	return list
}

// agree compares the outputs of two programs of a graph. Where rounding made them route tokens differently, what was
// computed of those tokens is left out, and so is what sums over all tokens.
func (s *demoSection) agree(g *graph.Graph, p, q *fusec.Program) error {
	var same []bool // tokens that are sent to the same experts
	for _, o := range g.Outputs {
		if o.Name != demoRoutes {
			continue
		}
		x, y, err := bothOutputs(o.Name, p, q)
		if err != nil {
			return err
		}
		tokens := o.Node.Type.Shape.At(0)
		same = make([]bool, tokens)
		for i, each := 0, len(x)/tokens; i < tokens; i++ {
			if same[i] = slices.Equal(x[i*each:(i+1)*each], y[i*each:(i+1)*each]); !same[i] {
				s.Rerouted++
			}
		}
	}
	worst := 0.0
	for _, o := range g.Outputs {
		if o.Name == demoRoutes || o.Name != demoY && s.Rerouted > 0 {
			continue
		}
		x, y, err := bothOutputs(o.Name, p, q)
		if err != nil {
			return err
		}
		if s.Rerouted > 0 {
			x, y = rowsOf(x, same), rowsOf(y, same)
		}
		worst = max(worst, bench.Difference(x, y)) // NaN wins
	}
	s.Difference = cli.Number(worst)
	return nil
}

// bothOutputs is the value of an output in each of two programs.
func bothOutputs(name string, p, q *fusec.Program) (x, y []float64, err error) {
	a, err := p.Output(name)
	if err != nil {
		return nil, nil, err
	}
	b, err := q.Output(name)
	if err != nil {
		return nil, nil, err
	}
	return a.Floats(), b.Floats(), nil
}

// rowsOf keeps some rows of x.
func rowsOf(x []float64, keep []bool) []float64 {
	var kept []float64
	each := len(x) / len(keep)
	for i, k := range keep {
		if k {
			kept = append(kept, x[i*each:(i+1)*each]...)
		}
	}
	return kept
}

// wrong is the error that the programs did not compute the same; nil if they did.
func (s *demoSection) wrong(tokens int) error {
	if s.Rerouted > tokens/100 {
		return fmt.Errorf("%s: fused and unfused send %d of %d tokens to different experts", s.Name, s.Rerouted, tokens)
	}
	if !(float64(s.Difference) <= bench.Agreement) {
		return fmt.Errorf("%s: fused and unfused differ by %.1e of the largest value, more than %.0e",
			s.Name, float64(s.Difference), bench.Agreement)
	}
	return nil
}

// routing takes over what a router decided, if the graph hands it out.
func (s *demoSection) routing(g *graph.Graph, p *fusec.Program) error {
	values := map[string][]float64{}
	for _, o := range g.Outputs {
		v, err := p.Output(o.Name)
		if err != nil {
			return err
		}
		values[o.Name] = v.Floats()
	}
	if values[demoLoads] == nil {
		return nil
	}
	whole := func(x []float64) []int {
		n := make([]int, len(x))
		for i, v := range x {
			n[i] = int(v)
		}
		return n
	}
	s.Routing = &demoRouting{Loads: whole(values[demoLoads]), Dropped: whole(values[demoDropped]),
		Balance: cli.Number(values[demoBalance][0]), Z: cli.Number(values[demoZ][0])}
	return nil
}

// text prints the report for people.
func (rep *demoReport) text() string {
	var b strings.Builder
	s := &rep.Shape
	fmt.Fprintf(&b, "fusion on %s, %s (%s)\n", rep.Device, cli.Plural(rep.Threads, "thread", "threads"), rep.Machine)
	fmt.Fprintf(&b, "%d × %d tokens of %d numbers, float32; median of %d rounds, in turn\n",
		s.Batch, s.Seq, s.Model, rep.Rounds)
	for i, section := range rep.Sections {
		fmt.Fprintf(&b, "\n%d. %s: %s\n\n%s", i+1, section.Name, rep.describe(i), section.table())
		fmt.Fprintf(&b, "\nfused launches: %s\n", kindsText(section.Kinds))
		fmt.Fprintf(&b, "outputs differ by %.1e of the largest value", float64(section.Difference))
		if section.Rerouted > 0 {
			fmt.Fprintf(&b, ", but for %s sent to other experts by rounding", cli.Plural(section.Rerouted, "token", "tokens"))
		}
		b.WriteString("\n")
		if section.Routing != nil {
			fmt.Fprintf(&b, "\n%s", section.Routing.text(s))
		}
		if rep.profiled {
			fmt.Fprintf(&b, "\n%s", section.memoryText())
		}
	}
	return b.String()
}

// describe says in a line what a section computes.
func (rep *demoReport) describe(i int) string {
	s := &rep.Shape
	kind := "full"
	if s.Causal {
		kind = "causal"
	}
	heads := fmt.Sprintf("%s attention of %s, %d wide", kind, cli.Plural(s.Heads, "head", "heads"), s.Model/s.Heads)
	mixture := fmt.Sprintf("%s %d wide, %d for each token", cli.Plural(s.Experts, "expert", "experts"), s.Hidden, s.TopK)
	switch {
	case i == 0:
		how := "chosen by the shape"
		if rep.Blocks.Asked {
			how = "asked for"
		}
		return fmt.Sprintf("%s\nblocks of %s × %s, %s", heads, cli.Plural(rep.Blocks.Queries, "query", "queries"),
			cli.Plural(rep.Blocks.Keys, "key", "keys"), how)
	case i == 1:
		return mixture
	case s.FFN:
		return fmt.Sprintf("%s; feed-forward network %d wide", heads, s.Hidden)
	}
	return heads + "; " + mixture
}

// table sets the two programs side by side.
func (s *demoSection) table() string {
	t := cli.NewTable("", ">unfused", ">fused", ">unfused ÷ fused")
	ratio := func(v float64) string {
		if v == 0 {
			return ""
		}
		return cli.Digits(v)
	}
	u, f := &s.Unfused, &s.Fused
	t.Row("time", cli.HumanTime(time.Duration(u.MedianNS)), cli.HumanTime(time.Duration(f.MedianNS)), ratio(s.Ratio.Time))
	t.Row("peak memory", cli.HumanBytes(u.Memory.peak()), cli.HumanBytes(f.Memory.peak()), ratio(s.Ratio.Memory))
	t.Row("memory traffic", cli.HumanBytes(u.Traffic), cli.HumanBytes(f.Traffic), ratio(s.Ratio.Traffic))
	t.Row("launches", fmt.Sprint(u.Launches), fmt.Sprint(f.Launches), ratio(s.Ratio.Launches))
	t.Row("arithmetic", cli.HumanFLOPs(u.FLOPs), cli.HumanFLOPs(f.FLOPs), ratio(s.Ratio.FLOPs))
	return t.String()
}

// kindsText lists kinds of launches with their numbers.
func kindsText(kinds []kindCount) string {
	var list []string
	for _, k := range kinds {
		text := k.Kind
		if k.Launches > 1 {
			text = fmt.Sprintf("%d %s", k.Launches, k.Kind)
		}
		list = append(list, text)
	}
	return strings.Join(list, ", ")
}

// Of more experts than barsMost, the chart shows so many, the busiest first; barCells is the length of the longest bar.
const barsMost, barCells = 32, 40

// text draws the loads as bars: taken tokens solid, dropped ones light.
func (r *demoRouting) text(s *demoShape) string {
	order := make([]int, len(r.Loads))
	chosen := make([]int, len(r.Loads))
	longest, dropped, total := max(s.Capacity, 1), 0, 0
	for e := range order {
		order[e], chosen[e] = e, r.Loads[e]+r.Dropped[e]
		longest = max(longest, chosen[e])
		dropped += r.Dropped[e]
		total += chosen[e]
	}
	if s.Capacity > s.tokens() { // no bar comes near it
		longest = max(1, slices.Max(chosen))
	}
	hidden := 0
	if len(order) > barsMost {
		slices.SortStableFunc(order, func(a, b int) int { return chosen[b] - chosen[a] })
		hidden = len(order) - barsMost
		order = order[:barsMost]
	}
	t := cli.NewTable(">expert", ">tokens", ">dropped", "taken █, over capacity ░")
	for _, e := range order {
		full := bar(r.Loads[e], longest)
		light, over := 0, ""
		if r.Dropped[e] > 0 {
			light, over = max(bar(chosen[e], longest)-full, 1), fmt.Sprint(r.Dropped[e])
		}
		t.Row(fmt.Sprint(e), fmt.Sprint(r.Loads[e]), over, strings.Repeat("█", full)+strings.Repeat("░", light))
	}
	var b strings.Builder
	b.WriteString(t.String())
	if hidden > 0 {
		fmt.Fprintf(&b, "and %s less busy\n", cli.Plural(hidden, "expert", "experts"))
	}
	if s.Capacity > 0 {
		fmt.Fprintf(&b, "capacity %d, %s times an even share: %d of %d choices dropped (%s)\n", s.Capacity, cli.Digits(s.Factor),
			dropped, total, cli.Percent(float64(dropped)/float64(max(total, 1))))
	} else {
		fmt.Fprintf(&b, "no capacity: none of %d choices dropped\n", total)
	}
	fmt.Fprintf(&b, "load-balance loss %.4f (1 if all experts are used alike), router z-loss %.4f\n",
		float64(r.Balance), float64(r.Z))
	return b.String()
}

// bar is the number of cells for n of most; what is not zero shows.
func bar(n, most int) int {
	cells := (n*barCells + most/2) / most
	if n > 0 {
		cells = max(cells, 1)
	}
	return cells
}
