package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// gpuParts are the parts of the workloads on a GPU; each is measured with all contestants before the next.
var gpuParts = []string{"memory_bound", "linear", "shapes", "attention", "moe", "conv", "decode", "layer", "training"}

// gpuFigure is a line of JSON that a contestant on a GPU prints about a workload: a rate, or why there is none.
type gpuFigure struct {
	Workload string  `json:"workload"`
	Peer     string  `json:"peer"`
	MS       float64 `json:"ms"`
	Rate     float64 `json:"rate"`
	Unit     string  `json:"unit"`
	Error    string  `json:"error"`
}

// gpuOpts are the flags of peers gpu.
type gpuOpts struct {
	python, fusec, raw, only, rival string
	timeout                         time.Duration
	parts                           []string
}

func gpuOptions(args []string) (*gpuOpts, error) {
	o := &gpuOpts{}
	f := flag.NewFlagSet("gpu", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.StringVar(&o.python, "python", "python3", "")
	f.StringVar(&o.fusec, "fusec", "fusec bench gpu --json", "")
	f.StringVar(&o.raw, "raw", "", "")
	f.StringVar(&o.only, "only", "", "")
	f.StringVar(&o.rival, "rival", "", "")
	f.DurationVar(&o.timeout, "timeout", 10*time.Minute, "")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	o.parts = f.Args()
	for _, p := range o.parts {
		if !slices.Contains(gpuParts, p) {
			return nil, fmt.Errorf("there is no part %q: want %s", p, strings.Join(gpuParts, ", "))
		}
	}
	switch {
	case o.only != "" && len(o.parts) != 1:
		return nil, errors.New("--only requires the one part whose workloads it chooses from")
	case len(o.parts) == 0:
		o.parts = gpuParts
	}
	return o, nil
}

// gpu measures fusec and its rivals on a GPU, part by part in turn, and prints a table with ratios.
func gpu(ctx context.Context, o *gpuOpts, stdout, stderr io.Writer) int {
	dir, err := os.MkdirTemp("", "fusec-peers")
	if err != nil {
		fmt.Fprintf(stderr, "peers: %v\n", err)
		return exitFailed
	}
	defer os.RemoveAll(dir)
	script := filepath.Join(dir, "gpu_bench.py")
	source, err := files.ReadFile("rivals/gpu_bench.py")
	if err == nil {
		err = os.WriteFile(script, source, 0o644)
	}
	var raw io.WriteCloser
	if err == nil && o.raw != "" {
		raw, err = os.Create(o.raw)
	}
	if err != nil {
		fmt.Fprintf(stderr, "peers: %v\n", err)
		return exitFailed
	}
	var all []gpuFigure
	for _, part := range o.parts {
		word := part // of fusec's workloads
		if o.only != "" {
			word = o.only
		}
		ours := []string{"sh", "-c", o.fusec + ` "$@"`, "sh", word}
		theirs := []string{o.python, script, "--only", o.only, "--rival", o.rival, part}
		for _, argv := range [][]string{ours, theirs} {
			lines, err := gpuLines(ctx, argv, o.timeout, raw, stderr)
			if err != nil {
				fmt.Fprintf(stderr, "peers: %s: %v\n", part, err)
			}
			all = append(all, lines...)
		}
	}
	if raw != nil {
		if err := raw.Close(); err != nil {
			fmt.Fprintf(stderr, "peers: %v\n", err)
			return exitFailed
		}
	}
	if len(all) == 0 {
		return exitNothing
	}
	gpuTable(stdout, all)
	return exitOK
}

// gpuLines runs a contestant and reads its figures as they come, so that what it measured before it failed counts.
func gpuLines(ctx context.Context, argv []string, limit time.Duration, raw, stderr io.Writer) ([]gpuFigure, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	inGroup(cmd)
	cmd.WaitDelay = 5 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, stderr
	failed := cmd.Run()
	if ctx.Err() == context.DeadlineExceeded {
		failed = fmt.Errorf("not done within %v", limit)
	}
	var list []gpuFigure
	for s := bufio.NewScanner(&out); s.Scan(); {
		var f gpuFigure
		if err := json.Unmarshal(s.Bytes(), &f); err != nil || f.Workload == "" || f.Peer == "" {
			failed = errors.Join(failed, fmt.Errorf("no figure: %q", s.Text()))
			continue
		}
		list = append(list, f)
		if raw != nil {
			if _, err := fmt.Fprintln(raw, s.Text()); err != nil {
				return list, err
			}
		}
	}
	return list, failed
}

// gpuTable prints for each workload fusec's rate, the rivals' from the best on, and the ratio to the best.
func gpuTable(w io.Writer, all []gpuFigure) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "workload\tfusec\t× best rival\tthe rivals")
	var names []string
	for _, f := range all {
		if !slices.Contains(names, f.Workload) {
			names = append(names, f.Workload)
		}
	}
	for _, name := range names {
		var ours *gpuFigure
		var rivals []gpuFigure
		for i, f := range all {
			switch {
			case f.Workload != name:
			case f.Peer == "fusec":
				ours = &all[i]
			default:
				rivals = append(rivals, f)
			}
		}
		slices.SortStableFunc(rivals, func(a, b gpuFigure) int {
			switch {
			case a.Rate > b.Rate:
				return -1
			case a.Rate < b.Rate:
				return 1
			}
			return 0
		})
		mine, ratio := "–", "–"
		if ours != nil {
			mine = ours.String()
			if ours.Error == "" && len(rivals) > 0 && rivals[0].Rate > 0 {
				ratio = fmt.Sprintf("%.2f", ours.Rate/rivals[0].Rate)
			}
		}
		var others []string
		for _, r := range rivals {
			others = append(others, r.Peer+" "+r.String())
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", name, mine, ratio, strings.Join(others, "; "))
	}
	t.Flush()
}

// String gives the rate and the time.
func (f gpuFigure) String() string {
	if f.Error != "" {
		return "failed: " + f.Error
	}
	return fmt.Sprintf("%.4g %s (%.4g ms)", f.Rate, f.Unit, f.MS)
}
