package main

import (
	"io"
	"os"
	"testing"
	"time"

	_ "fusec/graph/graphtest/untuned"
)

// TestPrograms runs each program on Gorgonia's machine and on fusec's: all that it sees must be the same, step by step.
func TestPrograms(t *testing.T) {
	for _, p := range programs {
		t.Run(p.name, func(t *testing.T) {
			r, err := compare(p, 1)
			if err != nil {
				t.Fatal(err)
			}
			if r.values == 0 {
				t.Error("the program saw nothing, so nothing was compared")
			}
		})
	}
}

// TestSame makes sure that a difference is found.
func TestSame(t *testing.T) {
	a := []sight{{"cost", []float64{1, 2}}, {"w", []float64{100}}}
	for _, c := range []struct {
		what string
		b    []sight
		ok   bool
	}{
		{"the same", []sight{{"cost", []float64{1, 2}}, {"w", []float64{100}}}, true},
		{"within the tolerance", []sight{{"cost", []float64{1, 2.0005}}, {"w", []float64{100.05}}}, true},
		{"beyond it", []sight{{"cost", []float64{1, 2.1}}, {"w", []float64{100}}}, false},
		{"not a number", []sight{{"cost", []float64{1, 2}}, {"w", []float64{nan()}}}, false},
		{"a value less", a[:1], false},
		{"another name", []sight{{"cost", []float64{1, 2}}, {"b", []float64{100}}}, false},
		{"an element less", []sight{{"cost", []float64{1}}, {"w", []float64{100}}}, false},
	} {
		if _, _, err := same(a, c.b, 1e-3); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.what, err)
		}
	}
}

func nan() float64 { var zero float64; return zero / zero }

// TestReport prints a line for a program, and refuses one that is not there.
func TestReport(t *testing.T) {
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout := os.Stdout
	os.Stdout = write
	err = report([]string{"linear-regression"}, 1)
	os.Stdout = stdout
	write.Close()
	text, _ := io.ReadAll(read)
	if err != nil || len(text) == 0 {
		t.Errorf("%q, %v", text, err)
	}
	if err := report([]string{"line"}, 1); err == nil {
		t.Error("a program that is not there was run")
	}
	if err := report(nil, 0); err == nil {
		t.Error("no rounds were run")
	}
}

// BenchmarkPrograms runs the programs whole, from building the graph to the last step, in turn on both machines.
func BenchmarkPrograms(b *testing.B) {
	for _, p := range programs {
		b.Run(p.name, func(b *testing.B) {
			var tape, ours time.Duration
			for b.Loop() {
				_, t, err := play(p, p.gorgonias())
				if err != nil {
					b.Fatal(err)
				}
				_, f, err := play(p, fusecs)
				if err != nil {
					b.Fatal(err)
				}
				tape, ours = tape+t, ours+f
			}
			b.ReportMetric(tape.Seconds()*1e3/float64(b.N), "TapeMachine-ms")
			b.ReportMetric(ours.Seconds()*1e3/float64(b.N), "fusec-ms")
			b.ReportMetric(tape.Seconds()/ours.Seconds(), "times-as-fast")
		})
	}
}
