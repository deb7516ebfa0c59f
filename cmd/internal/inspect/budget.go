package inspect

import (
	"fmt"
	"strings"

	"fusec/cmd/internal/cli"
	"fusec/graph/trace"
)

// budgetReport is what fusec explain tells about a memory budget.
type budgetReport struct {
	BudgetBytes int64 `json:"budget_bytes"`
	BeforeBytes int64 `json:"before_bytes"` // for intermediate values without recomputation
	AfterBytes  int64 `json:"after_bytes"`  // and with it
	// What computing again adds, and its share of the work without.
	FLOPs      int64          `json:"flops"`
	FLOPsShare float64        `json:"flops_share"`
	Bytes      int64          `json:"bytes"` // of memory traffic
	BytesShare float64        `json:"bytes_share"`
	Launches   []repeatReport `json:"launches"`
}

// repeatReport is a launch that computes again what an earlier one has computed; numbers are from 1.
type repeatReport struct {
	Launch  int    `json:"launch"`
	Repeats int    `json:"repeats"`
	Kind    string `json:"kind"`
	Name    string `json:"name"`
	FLOPs   int64  `json:"flops"`
	Bytes   int64  `json:"bytes"`
}

// explainBudget gathers the report, or nil where there was no budget. Work is counted as the program counts it.
func explainBudget(tr *trace.Trace) *budgetReport {
	var rec *trace.Recompute
	for _, s := range tr.Stages {
		if s.Recompute != nil {
			rec = s.Recompute
		}
	}
	if rec == nil {
		return nil
	}
	rep := &budgetReport{BudgetBytes: rec.Budget, BeforeBytes: rec.Before, AfterBytes: rec.After,
		Launches: []repeatReport{}}
	number := map[int]int{} // of the launch of a node
	all := tr.Program.Work()
	for i, l := range tr.Program.Launches {
		number[l.Node] = i
	}
	for _, r := range rec.Launches {
		l := tr.Program.Launches[number[r.Node]]
		rep.Launches = append(rep.Launches,
			repeatReport{number[r.Node] + 1, number[r.Of] + 1, l.Kind, l.Name, l.FLOPs, l.Bytes})
		rep.FLOPs += l.FLOPs
		rep.Bytes += l.Bytes
	}
	rep.FLOPsShare = share(rep.FLOPs, all.FLOPs-rep.FLOPs)
	rep.BytesShare = share(rep.Bytes, all.Bytes-rep.Bytes)
	return rep
}

func share(part, of int64) float64 {
	if of == 0 {
		return 0
	}
	return float64(part) / float64(of)
}

// text prints the report for people.
func (rep *budgetReport) text() string {
	var b strings.Builder
	met := "met"
	if rep.AfterBytes > rep.BudgetBytes {
		met = "not met"
	}
	fmt.Fprintf(&b, "memory budget of %s for values, %s: %s without recomputation, %s with it\n",
		cli.HumanBytes(rep.BudgetBytes), met, cli.HumanBytes(rep.BeforeBytes), cli.HumanBytes(rep.AfterBytes))
	if len(rep.Launches) == 0 {
		b.WriteString("nothing is computed again")
		if rep.AfterBytes < rep.BeforeBytes {
			b.WriteString("; launches in another order take less memory")
		}
		b.WriteByte('\n')
		return b.String()
	}
	fmt.Fprintf(&b, "computed again: %s, %s (+%s), %s of traffic (+%s)\n",
		cli.Plural(len(rep.Launches), "launch", "launches"), cli.HumanFLOPs(rep.FLOPs), cli.Percent(rep.FLOPsShare),
		cli.HumanBytes(rep.Bytes), cli.Percent(rep.BytesShare))
	t := cli.NewTable(">#", ">repeats", "kind", "name", ">arithmetic", ">traffic")
	for _, l := range rep.Launches {
		t.Row(fmt.Sprint(l.Launch), fmt.Sprint(l.Repeats), l.Kind, l.Name, cli.HumanFLOPs(l.FLOPs), cli.HumanBytes(l.Bytes))
	}
	b.WriteString(t.String())
	return b.String()
}
