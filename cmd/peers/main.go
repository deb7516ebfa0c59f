// Command peers times fusec's rivals, and fusec beside them, on the same work in one run: on the CPU, and on a GPU.
//
//	peers setup                                 install the rivals (pinned versions) in a cache folder
//	peers run                                   measure all of them, one after another, in turn
//	peers run --with 'fusec bench --peer-protocol'   … and another contestant beside them
//	peers gpu                                   measure fusec and its rivals on a GPU
//	peers list                                  the workloads and the rivals
//
// Every contestant is a program that is run as
//
//	COMMAND workload threads seconds
//
// and prints one line of JSON (a Record, see protocol.go). A fresh process does each measurement. Rounds are
// interleaved (A, B, C, A, B, C, …), so that a machine that drifts hurts everybody alike; what counts is the median of
// the rounds' medians, and the spread between the rounds is shown. Each result's checksum is compared with the right
// answer, computed in float64 (package fusec/cmd/peers/workload).
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"fusec/cmd/peers/workload"
)

// Exit codes.
const (
	exitOK      = 0
	exitFailed  = 1 // something could not be done; the message says what
	exitUsage   = 2
	exitNothing = 3 // nothing was measured, or nothing installed
	exitWrong   = 4 // a contestant computed something else than the right answer
)

const help = `peers times fusec's rivals on the CPU, and fusec beside them, on the same work in one run.

usage:
  peers setup [--dir DIR] [--only NAMES]     install the rivals in DIR (PyTorch takes 5 GB, the rest 1 GB)
  peers run   [flags]                        measure, and print a table
  peers gpu   [flags] [PART...]              measure on GPUs, and print a table: memory_bound, linear, shapes, attention, moe,
                                             conv, decode, layer, model, training or all of them. First all is compiled at the
                                             same time, then each part is measured by fusec and its rivals on one GPU; several
                                             GPUs measure several parts at the same time
  peers list                                 the workloads and the rivals

flags of run:
  --dir DIR          where the rivals are installed (default: fusec-peers in the user's cache folder)
  --only NAMES       only these rivals, separated by commas; "none" for the --with contestants alone
  --with COMMAND     another contestant, may be repeated; run by sh as: COMMAND workload threads seconds
  --workloads NAMES  only these workloads, separated by commas; a name may end in * (gemm-*)
  --threads LIST     1, 2 or 1,2 (default: 1,2, or 1 on a machine with one core)
  --seconds S        least time of one measurement (default 1.5)
  --rounds N         rounds of A, B, C, A, B, C, … (default 3)
  --timeout D        longest time for one measurement, start of the process included (default 5m)
  --baseline NAME    the contestant of which the ratios are multiples (default: fusec, else the first)
  --json FILE        write all records and results as JSON, "-" for standard output instead of the table
  --python-torch P   a Python with PyTorch, instead of the installed one (Debian's python3-torch: /usr/bin/python3)
  --quiet            no progress on standard error

flags of gpu:
  --python P         a Python with PyTorch for CUDA (default: python3)
  --fusec COMMAND    fusec, built for GPUs, as it is run by sh (default: fusec bench gpu --json)
  --only TEXT        only the part's workloads with TEXT in their names
  --rival TEXT       only the rivals with TEXT in their names, such as cuDNN
  --raw FILE         write the contestants' lines of JSON to FILE
  --page FILE.md     write a page with a table and a picture of bars for each part; the pictures go to the folder FILE
  --from FILE        measure nothing: show what an earlier run wrote with --raw
  --beside FILE      add the ratios of another run to the page, such as that of another GPU; FILE or a folder of them
  --timeout D        longest time for one contestant at one part (default 10m)
  --quiet            no progress on standard error

exit code: 0 all well, 1 a failure, 2 wrong usage, 3 nothing was measured (or installed), 4 a result was wrong
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(command(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// command is main without the process: it gives the exit code.
func command(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		fmt.Fprint(stderr, help)
		return exitUsage
	}
	refused := func(err error) int {
		if errors.Is(err, flag.ErrHelp) {
			fmt.Fprint(stdout, help)
			return exitOK
		}
		fmt.Fprintf(stderr, "peers: %v; see peers --help\n", err)
		return exitUsage
	}
	switch args[0] {
	case "help", "-h", "-help", "--help":
		fmt.Fprint(stdout, help)
		return exitOK
	case "list":
		list(stdout)
		return exitOK
	case "gpu":
		o, err := gpuOptions(args[1:])
		if err != nil {
			return refused(err)
		}
		return gpu(ctx, o, stdout, stderr)
	case "setup", "run":
	default:
		return refused(fmt.Errorf("unknown command %q", args[0]))
	}
	o, err := options(args[0], args[1:])
	if err != nil {
		return refused(err)
	}
	if args[0] == "setup" {
		return setup(ctx, o, stdout, stderr)
	}
	return run(ctx, o, stdout, stderr)
}

func list(w io.Writer) {
	fmt.Fprintln(w, "workloads:")
	for _, l := range workload.All() {
		fmt.Fprintf(w, "  %-18s %8.1f MFLOP  %s\n", l.Name, l.FLOPs/1e6, l.Meaning)
	}
	fmt.Fprintln(w, "rivals:")
	for _, r := range rivals {
		fmt.Fprintf(w, "  %-18s %s\n", r.name, r.meaning)
	}
}

// opts are the flags, checked.
type opts struct {
	dir, baseline, json, torch string
	rivals                     []rival
	with                       []string
	workloads                  []workload.Workload
	threads                    []int
	seconds                    float64
	rounds                     int
	timeout                    time.Duration
	quiet                      bool
}

func options(cmd string, args []string) (*opts, error) {
	o := &opts{}
	f := flag.NewFlagSet(cmd, flag.ContinueOnError)
	f.SetOutput(io.Discard)
	only, names, threads := "", "", ""
	f.StringVar(&o.dir, "dir", "", "")
	f.StringVar(&only, "only", "", "")
	if cmd == "run" {
		f.Func("with", "", func(s string) error {
			if strings.TrimSpace(s) == "" {
				return errors.New("empty command")
			}
			o.with = append(o.with, s)
			return nil
		})
		f.StringVar(&names, "workloads", "", "")
		f.StringVar(&threads, "threads", "", "")
		f.Float64Var(&o.seconds, "seconds", 1.5, "")
		f.IntVar(&o.rounds, "rounds", 3, "")
		f.DurationVar(&o.timeout, "timeout", 5*time.Minute, "")
		f.StringVar(&o.baseline, "baseline", "", "")
		f.StringVar(&o.json, "json", "", "")
		f.StringVar(&o.torch, "python-torch", "", "")
		f.BoolVar(&o.quiet, "quiet", false, "")
	}
	err := f.Parse(args)
	if err != nil {
		return nil, err
	}
	if f.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	if o.dir == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return nil, fmt.Errorf("no cache folder (%v): name one with --dir", err)
		}
		o.dir = filepath.Join(cache, "fusec-peers")
	}
	if o.dir, err = filepath.Abs(o.dir); err != nil {
		return nil, err
	}
	if o.rivals, err = pickRivals(only); err != nil {
		return nil, err
	}
	if cmd == "setup" {
		return o, nil
	}
	if o.workloads, err = pickWorkloads(names); err != nil {
		return nil, err
	}
	if o.threads, err = parseThreads(threads); err != nil {
		return nil, err
	}
	if !(o.seconds > 0 && o.seconds <= 600) {
		return nil, fmt.Errorf("--seconds %v: want more than 0 and at most 600", o.seconds)
	}
	if o.rounds < 1 || o.rounds > 1000 {
		return nil, fmt.Errorf("--rounds %d: want 1 to 1000", o.rounds)
	}
	if o.timeout <= 0 {
		return nil, fmt.Errorf("--timeout %v: want more than 0", o.timeout)
	}
	return o, nil
}

func pickRivals(only string) ([]rival, error) {
	switch only {
	case "":
		return rivals, nil
	case "none":
		return nil, nil
	}
	var out []rival
	for _, name := range strings.Split(only, ",") {
		i := slices.IndexFunc(rivals, func(r rival) bool { return r.name == strings.TrimSpace(name) })
		if i < 0 {
			return nil, fmt.Errorf("--only: no rival is called %q", name)
		}
		out = append(out, rivals[i])
	}
	return out, nil
}

func pickWorkloads(names string) ([]workload.Workload, error) {
	if names == "" {
		return workload.All(), nil
	}
	pick := map[string]bool{}
	for _, name := range strings.Split(names, ",") {
		name = strings.TrimSpace(name)
		prefix, wild := strings.CutSuffix(name, "*")
		found := false
		for _, w := range workload.All() {
			if w.Name == name || wild && strings.HasPrefix(w.Name, prefix) {
				pick[w.Name], found = true, true
			}
		}
		if !found {
			return nil, fmt.Errorf("--workloads: none is called %q", name)
		}
	}
	return slices.DeleteFunc(workload.All(), func(w workload.Workload) bool { return !pick[w.Name] }), nil
}

func parseThreads(s string) ([]int, error) {
	if s == "" {
		if cores() < 2 {
			return []int{1}, nil
		}
		return []int{1, 2}, nil
	}
	var out []int
	for _, p := range strings.Split(s, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(p))
		if err != nil || n < 1 || n > 1024 {
			return nil, fmt.Errorf("--threads: %q is not a number of threads", p)
		}
		if !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	return out, nil
}

// run measures every workload with every contestant, in rounds, and reports.
func run(ctx context.Context, o *opts, stdout, stderr io.Writer) int {
	say := func(format string, a ...any) {
		if !o.quiet {
			fmt.Fprintf(stderr, format+"\n", a...)
		}
	}
	var field []*contestant
	for _, c := range o.with {
		field = append(field, &contestant{name: commandName(c), argv: []string{"sh", "-c", c + ` "$@"`, "sh"}, renames: true})
	}
	rep := &report{Environment: environment(), Seconds: o.seconds, Rounds: o.rounds}
	for _, r := range o.rivals {
		c, err := r.contestant(o)
		if err != nil {
			rep.Missing = append(rep.Missing, missing{r.name, err.Error()})
			fmt.Fprintf(stderr, "peers: %s is left out: %v\n", r.name, err)
			continue
		}
		field = append(field, c)
	}
	if len(field) == 0 {
		fmt.Fprintln(stderr, "peers: nothing was measured: there is no contestant")
		return exitNothing
	}
	rep.measure(ctx, o, field, say)
	rep.finish(o.baseline)
	if o.json == "-" {
		if err := writeJSON(stdout, rep); err != nil {
			fmt.Fprintf(stderr, "peers: %v\n", err)
			return exitFailed
		}
	} else {
		rep.table(stdout)
		if o.json != "" {
			if err := saveJSON(o.json, rep); err != nil {
				fmt.Fprintf(stderr, "peers: %v\n", err)
				return exitFailed
			}
		}
	}
	switch {
	case ctx.Err() != nil:
		fmt.Fprintln(stderr, "peers: interrupted")
		return exitFailed
	case len(rep.Results) == 0:
		fmt.Fprintln(stderr, "peers: nothing was measured")
		return exitNothing
	case o.baseline != "" && !rep.has(o.baseline):
		fmt.Fprintf(stderr, "peers: the baseline %s measured nothing\n", o.baseline)
		return exitFailed
	case slices.ContainsFunc(rep.Results, func(r result) bool { return !r.Right }):
		fmt.Fprintln(stderr, "peers: a result was wrong")
		return exitWrong
	}
	return exitOK
}

func writeJSON(w io.Writer, rep *report) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(rep)
}

// saveJSON writes the whole file or leaves what was there.
func saveJSON(path string, rep *report) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".peers-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	err = errors.Join(writeJSON(f, rep), f.Chmod(0o644), f.Close())
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
