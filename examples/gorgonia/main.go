// Command gorgonia runs complete, typical Gorgonia programs, first on Gorgonia's TapeMachine, then on fusec's Machine,
// and compares all values that the programs read, step by step:
//
//	go run ./examples/gorgonia            # all programs, one line each
//	go run ./examples/gorgonia gan dqn    # some of them
//
// The programs import Gorgonia and nothing of fusec. Only the line that makes the machine changes. Each is written as
// for the TapeMachine, so that it shows what needs no change.
package main

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"gorgonia.org/gorgonia"

	"fusec"
)

func main() {
	rounds := flag.Int("rounds", 3, "how often each program runs on each machine; times are the best of all rounds")
	flag.Usage = func() {
		fmt.Fprintf(flag.CommandLine.Output(), "usage: gorgonia [-rounds N] [program…]\n\n"+
			"Runs programs written for Gorgonia on its TapeMachine and on fusec, and compares what they see.\n\n")
		flag.PrintDefaults()
		fmt.Fprintln(flag.CommandLine.Output(), "\nprograms:")
		for _, p := range programs {
			fmt.Fprintf(flag.CommandLine.Output(), "  %-18s %s\n", p.name, p.doc)
		}
	}
	flag.Parse()
	if err := report(flag.Args(), *rounds); err != nil {
		fmt.Fprintln(os.Stderr, "gorgonia:", err)
		os.Exit(1)
	}
}

// report runs the named programs, or all, and prints a line for each.
func report(names []string, rounds int) error {
	for _, name := range names {
		if !slices.ContainsFunc(programs, func(p program) bool { return p.name == name }) {
			return fmt.Errorf("no program %q: -help lists them", name)
		}
	}
	if rounds < 1 {
		return fmt.Errorf("%d rounds: want at least 1", rounds)
	}
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(out, "program\tvalues compared\tlargest difference\tTapeMachine\tfusec\ttimes as fast\t")
	var bad []string
	for _, p := range programs {
		if len(names) > 0 && !slices.Contains(names, p.name) {
			continue
		}
		r, err := compare(p, rounds)
		if err != nil {
			bad = append(bad, fmt.Sprintf("%s: %v", p.name, err))
			continue
		}
		fmt.Fprintf(out, "%s\t%d\t%.1g\t%v\t%v\t%.2f\t\n", p.name, r.values, r.largest,
			r.tape.Round(10*time.Microsecond), r.fusec.Round(10*time.Microsecond), float64(r.tape)/float64(r.fusec))
	}
	if err := out.Flush(); err != nil {
		return err
	}
	if len(bad) > 0 {
		return fmt.Errorf("%d programs differ or fail:\n%s", len(bad), strings.Join(bad, "\n"))
	}
	return nil
}

// machines has the functions with which a program makes its machines.
type machines struct {
	tape func(*gorgonia.ExprGraph, ...gorgonia.VMOpt) gorgonia.VM
	lisp func(*gorgonia.ExprGraph, ...gorgonia.VMOpt) gorgonia.VM
}

var (
	gorgonias = machines{
		tape: func(g *gorgonia.ExprGraph, opts ...gorgonia.VMOpt) gorgonia.VM {
			return gorgonia.NewTapeMachine(g, opts...)
		},
		lisp: func(g *gorgonia.ExprGraph, opts ...gorgonia.VMOpt) gorgonia.VM {
			return gorgonia.NewLispMachine(g, opts...)
		},
	}
	fusecs = machines{
		tape: func(g *gorgonia.ExprGraph, opts ...gorgonia.VMOpt) gorgonia.VM { return fusec.NewMachine(g, opts...) },
		lisp: func(g *gorgonia.ExprGraph, opts ...gorgonia.VMOpt) gorgonia.VM {
			return fusec.NewLispMachine(g, opts...)
		},
	}
)

// gorgonias makes Gorgonia's machines, whose values are the expected ones.
func (p program) gorgonias() machines {
	m := gorgonias
	if p.inner {
		m.tape = func(g *gorgonia.ExprGraph, opts ...gorgonia.VMOpt) gorgonia.VM {
			return gorgonia.NewTapeMachine(g, append(opts, gorgonia.TraceExec())...)
		}
	}
	return m
}

// result is the result of a comparison.
type result struct {
	values      int     // numbers compared
	largest     float64 // largest difference of a number, relative to the larger of 1 and its absolute value
	tape, fusec time.Duration
}

// compare runs a program on both kinds of machine in turn.
func compare(p program, rounds int) (r result, err error) {
	for range rounds {
		want, tape, err := play(p, p.gorgonias())
		if err != nil {
			return r, fmt.Errorf("on Gorgonia's machine: %w", err)
		}
		got, ours, err := play(p, fusecs)
		if err != nil {
			return r, fmt.Errorf("on fusec's machine: %w", err)
		}
		if r.values, r.largest, err = same(want, got, p.tolerance); err != nil {
			return r, err
		}
		if r.tape == 0 || tape < r.tape {
			r.tape = tape
		}
		if r.fusec == 0 || ours < r.fusec {
			r.fusec = ours
		}
	}
	return r, nil
}

// play runs a program once: it builds graphs, compiles and runs them. A panic, with which gorgonia.Must reports errors,
// becomes an error.
func play(p program, m machines) (seen []sight, took time.Duration, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%v", r)
		}
	}()
	s := newSession(m)
	start := time.Now()
	p.run(s)
	return s.seen, time.Since(start), nil
}
