package main

import (
	"context"
	"fmt"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"

	"fusec"
	"fusec/cmd/internal/bench"
	"fusec/cmd/internal/cli"
	"fusec/cmd/peers/workload"
	"fusec/lowering"
)

var doctorCommand = &cli.Command{
	Name:    "doctor",
	Summary: "tell what this machine offers, and what is missing for what",
	Doc: `
Lists the processor and the kernels in use for it, runs a small model and checks its result, and looks for the tools
that other targets and the benchmarks need. Only a wrong result is a failure: what is missing is needed for nothing
but what the last column says.`,
	Examples: []cli.Example{
		{"fusec doctor", "the report"},
		{"fusec doctor --json", "for programs and bug reports"},
	},
	Setup: func(f *cli.FlagSet) cli.Action {
		json := f.Bool("json", false, "print the report as JSON")
		return func(e *cli.Env, args []string) error {
			if err := cli.NoArguments(args); err != nil {
				return err
			}
			return doctor(e, *json)
		}
	},
}

// doctorReport is what fusec doctor found, and its JSON form.
type doctorReport struct {
	Schema  string      `json:"schema"` // fusec.doctor/1
	Version string      `json:"version"`
	Targets []string    `json:"targets"` // that this version compiles for
	Machine cli.Machine `json:"machine"`
	Checks  []check     `json:"checks"`
}

// check is one thing that is there or not.
type check struct {
	Name   string `json:"name"`
	State  string `json:"state"` // ok, missing or wrong
	Detail string `json:"detail"`
	For    string `json:"for"` // what it is good for
}

// The states of a check.
const (
	stateOK      = "ok"
	stateMissing = "missing"
	stateWrong   = "wrong"
)

func doctor(e *cli.Env, json bool) error {
	rep := &doctorReport{Schema: "fusec.doctor/1", Version: cli.Version(), Targets: fusec.Targets(), Machine: cli.ThisMachine()}
	rep.Checks = append(rep.Checks, vectorCheck(rep.Machine), selfCheck())
	for _, name := range rep.Targets {
		if t, _ := fusec.TargetNamed(name); t.Needs != nil {
			for _, n := range t.Needs() {
				rep.Checks = append(rep.Checks, targetCheck(e.Ctx, name, n))
			}
		}
	}
	for _, t := range tools {
		rep.Checks = append(rep.Checks, t.check(e.Ctx))
	}
	var err error
	if json {
		err = cli.WriteJSON(e.Out, rep)
	} else {
		err = e.Print(rep.text())
	}
	if i := slices.IndexFunc(rep.Checks, func(c check) bool { return c.State == stateWrong }); err == nil && i >= 0 {
		err = fmt.Errorf("%s: %s", rep.Checks[i].Name, rep.Checks[i].Detail)
	}
	return err
}

// vectorCheck tells whether the kernels in assembly are in use.
func vectorCheck(m cli.Machine) check {
	c := check{Name: "vector kernels", State: stateOK, Detail: m.GEMM + "; for weights of few bits " + m.Panels,
		For: "target cpu at full speed"}
	if m.GEMM == "portable" {
		c.State, c.Detail = stateMissing, "portable Go is in use; the kernels in assembly require AVX2 and FMA, or NEON"
	}
	return c
}

// selfCheck runs a small model and checks its result.
func selfCheck() check {
	const name = "mlp"
	c := check{Name: "self-test", State: stateWrong, For: "target cpu"}
	rec := bench.PeerRecord{Threads: runtime.GOMAXPROCS(0)}
	w, _ := workload.ByName(name)
	if err := rec.Measure(&cli.Env{Ctx: context.Background()}, w, 1e-3); err != nil {
		c.Detail = err.Error()
	} else if !w.Right(rec.Checksum) {
		c.Detail = fmt.Sprintf("%s gives the checksum %v, not %v", w.Name, rec.Checksum, w.Checksum)
	} else {
		c.State, c.Detail = stateOK, fmt.Sprintf("%s (%s): right, %s", w.Name, w.Meaning,
			cli.HumanTime(time.Duration(rec.MedianMS*1e6)))
	}
	return c
}

// targetCheck looks for what a target needs.
func targetCheck(ctx context.Context, target string, n lowering.Need) check {
	c := check{Name: n.Name, State: stateOK, Detail: n.Found, For: "target " + target + n.For}
	switch {
	case n.Version != nil:
		return tool{n.Name, c.For, n.Version}.check(ctx)
	case n.Err != nil:
		c.State = stateMissing
		c.Detail, _, _ = strings.Cut(n.Err.Error(), "\n")
	}
	return c
}

// tool is a program that something needs.
type tool struct {
	name, use string
	version   []string // the arguments that make it print its version
}

var tools = []tool{
	{"yosys", "fusec fpga build", []string{"--version"}},
	{"nextpnr-ice40", "fusec fpga build for hx8k", []string{"--version"}},
	{"nextpnr-ecp5", "fusec fpga build for ecp5-85f", []string{"--version"}},
	{"gcc", "the OpenBLAS rival of cmd/peers", []string{"--version"}},
	{"python3", "the Python rivals of cmd/peers", []string{"--version"}},
	{"dot", "nothing: pictures need no Graphviz", []string{"-V"}},
}

// versionTime bounds how long a tool may take to print its version.
const versionTime = 5 * time.Second

// check looks for the tool.
func (t tool) check(ctx context.Context) check {
	c := check{Name: t.name, State: stateMissing, Detail: "was not found on the path", For: t.use}
	path, err := exec.LookPath(t.name)
	if err != nil {
		return c
	}
	c.State, c.Detail = stateOK, path
	ctx, cancel := context.WithTimeout(ctx, versionTime)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, t.version...).CombinedOutput()
	if line := versionLine(string(out)); err == nil && line != "" {
		c.Detail = line
	}
	return c
}

// versionLine is the line of a tool's output that has its version: the first that says release, or else the first.
func versionLine(out string) string {
	first := ""
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if strings.Contains(line, "release") {
			return line
		}
		if first == "" {
			first = line
		}
	}
	return first
}

// text prints the report for people.
func (rep *doctorReport) text() string {
	m := rep.Machine
	has := strings.Join(m.Features, " ")
	if has == "" {
		has = "none that matter"
	}
	t := cli.NewTable("", "")
	t.Row("fusec", rep.Version+", targets: "+strings.Join(rep.Targets, ", "))
	t.Row("processor", fmt.Sprintf("%s, %s", m.CPU, cli.Plural(m.Cores, "core", "cores")))
	t.Row("instructions", has)
	if m.Memory > 0 {
		t.Row("memory", fmt.Sprintf("%s, %s available", cli.HumanBytes(m.Memory), cli.HumanBytes(m.Free)))
	}
	t.Row("platform", fmt.Sprintf("%s/%s, %s", m.OS, m.Arch, m.Go))
	c := cli.NewTable("state", "what", "found", "needed for")
	for _, k := range rep.Checks {
		c.Row(k.State, k.Name, k.Detail, k.For)
	}
	_, machine, _ := strings.Cut(t.String(), "\n") // without the empty head
	return machine + "\n" + c.String()
}
