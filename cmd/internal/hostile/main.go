// Command hostile is a differential fuzzer of the compiler: it makes random graphs of every operation, and compares what
// each way of compiling and running them gives with the reference in float64.
//
//	go run ./cmd/internal/hostile -for 10m           # until then; the first seed follows from the date
//	go run ./cmd/internal/hostile -seed 7 -n 1       # one seed
//	go run ./cmd/internal/hostile finding.graph      # the checks of a case that was kept
//	out/hostile -target cuda -for 8m                 # built with the tag gpu: every case on the GPU, and nothing else
//
// A case is a graph with values and gradients to ask for; [graphtest.Hostile] makes it of its seed. The checks are:
//
//   - the graph reads back from its text form and from its files as it was;
//   - the reference's gradients are those of finite differences, where these tell anything;
//   - compiled with all passes, with each left out that may be, and with none, on the processor with its best
//     instructions and with fewer, on the CUDA emulator (with the tag gpu on a GPU): outputs, updates and gradients are
//     the reference's, within its bounds;
//   - a second run, another number of workers and a memory budget give the same bits; frozen parameters and copied
//     updates the same values; no run changes what it was given, and no pass the graph;
//   - on the model of the FPGA's overlay, which rounds to 8 bits, the program runs, to the same bits twice.
//
// Cases run in processes of their own, so that one that ends its process is told by its seed. What fails is made as small
// as it can be and written to a folder; the exit status is then 1. Findings that have been corrected are in testdata, and the
// tests of this package run all checks over them.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/cpu"

	"fusec/graph/graphtest"
	"fusec/lowering/cuda"
	"fusec/lowering/cuda/driver"
)

// options are the flags.
type options struct {
	seed      uint64
	n         int
	last      time.Duration
	folder    string
	cuda      int
	fpga      int
	workers   int
	minimise  time.Duration
	child     bool
	most      int
	timeLimit time.Duration
	target    string
	apart     bool
}

func main() {
	var o options
	flag.Uint64Var(&o.seed, "seed", 0, "the first seed; 0 for one of the date")
	flag.IntVar(&o.n, "n", 0, "how many seeds; 0 for as many as there is time for")
	flag.DurationVar(&o.last, "for", 10*time.Minute, "how long to go on, if -n does not say how many")
	flag.StringVar(&o.folder, "o", filepath.Join("out", "hostile"), "the folder for findings")
	flag.IntVar(&o.cuda, "cuda", 40, "run one case in so many on CUDA, too: the emulator compiles slowly; 0 for none")
	flag.IntVar(&o.fpga, "fpga", 5, "run one case in so many on the FPGA's model, too; 0 for none")
	flag.IntVar(&o.workers, "workers", runtime.NumCPU(), "how many processes run cases")
	flag.DurationVar(&o.minimise, "minimise", 20*time.Second, "how long to make a finding smaller")
	flag.DurationVar(&o.timeLimit, "limit", 2*time.Minute, "how long one case may take")
	flag.IntVar(&o.most, "most", 20, "stop after so many findings")
	flag.StringVar(&o.target, "target", "", "cuda to run every case there, and no other check")
	flag.BoolVar(&o.apart, "apart", false, "on CUDA give every buffer memory of its own, for compute-sanitizer to find what misses it")
	flag.BoolVar(&o.child, "child", false, "run -n cases from -seed on in this process, and tell on standard output how each went")
	flag.Parse()
	var err error
	if o.target != "" && o.target != cuda.Target.Name {
		fmt.Fprintf(os.Stderr, "hostile: -target %s: want cuda\n", o.target)
		os.Exit(2)
	}
	switch {
	case o.child:
		o.runChild(os.Stdout)
	case flag.NArg() > 0:
		err = o.repeat(flag.Args())
	default:
		err = o.hunt(os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "hostile:", err)
		os.Exit(1)
	}
}

// repeat runs the checks over files.
func (o *options) repeat(paths []string) error {
	failed := 0
	for _, path := range paths {
		c, err := graphtest.Load(path)
		if err != nil {
			return err
		}
		k := checker{cuda: o.cuda > 0, fpga: o.fpga > 0, target: o.target, apart: o.apart}
		if f := k.check(c); f != nil {
			fmt.Printf("%s: %v\n", path, f)
			failed++
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d files fail", failed, len(paths))
	}
	return nil
}

// message is a line that a child writes: it begins with a seed, and has done with it.
type message struct {
	Seed    uint64
	Begins  bool   `json:",omitempty"`
	Finding string `json:",omitempty"` // what failed
	Path    string `json:",omitempty"` // where the case is
	Lost    bool   `json:",omitempty"` // the process has lost its GPU, and ends
}

// runChild runs cases in this process.
func (o *options) runChild(w io.Writer) {
	out := json.NewEncoder(w)
	end := time.Now().Add(o.last)
	for i := range uint64(o.n) {
		if i > 0 && time.Now().After(end) {
			return
		}
		seed := o.seed + i
		out.Encode(message{Seed: seed, Begins: true})
		done := message{Seed: seed}
		c := graphtest.Hostile(seed, nil)
		k := o.checker(seed)
		f := k.check(c)
		switch {
		case f != nil && lasting && strings.Contains(f.text, driver.ErrLost.Error()):
			done.Finding, done.Path, done.Lost = f.Error(), o.keep(c, seed), true
			out.Encode(done)
			return
		case f != nil:
			again := k
			again.only = f.check
			small := minimise(c, func(c *graphtest.Case) bool { return f.like(again.check(c)) }, time.Now().Add(o.minimise))
			if g := again.check(small); g != nil {
				f = g // of the smaller case
			}
			done.Finding = f.Error()
			done.Path = o.keep(small, seed)
		}
		out.Encode(done)
	}
}

// checker says which targets a seed runs on.
func (o *options) checker(seed uint64) checker {
	return checker{cuda: o.cuda > 0 && seed%uint64(o.cuda) == 0, fpga: o.fpga > 0 && seed%uint64(o.fpga) == 0,
		target: o.target, apart: o.apart}
}

// keep writes a finding to the folder.
func (o *options) keep(c *graphtest.Case, seed uint64) string {
	path := filepath.Join(o.folder, fmt.Sprintf("%d.graph", seed))
	os.Remove(strings.TrimSuffix(path, ".graph") + ".safetensors") // of a run before, which Save would not replace
	if err := os.MkdirAll(o.folder, 0o777); err != nil {
		return err.Error()
	}
	if err := c.Save(path); err != nil {
		return err.Error()
	}
	return path
}

// size is how many cases a child runs. A process takes long to open a GPU.
func (o *options) size() int {
	if o.target != "" {
		return 100
	}
	return 25
}

// hunt runs children until the time is over, and tells what they find.
func (o *options) hunt(w io.Writer) error {
	if o.seed == 0 {
		o.seed = uint64(time.Now().Year()*10000+int(time.Now().Month())*100+time.Now().Day()) * 1_000_000
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	h := &hunter{o: o, w: w, self: self, end: time.Now().Add(o.last), next: o.seed}
	if info, err := os.Stdout.Stat(); err == nil {
		h.terminal = info.Mode()&os.ModeCharDevice != 0
	}
	fmt.Fprintf(w, "hostile: from seed %d on; -seed N -n 1 repeats one\n", o.seed)
	var wg sync.WaitGroup
	for range o.workers {
		wg.Go(func() {
			for h.batch() {
			}
		})
	}
	wg.Wait()
	h.line("")
	fmt.Fprintf(w, "hostile: %d graphs from seed %d on, %d findings\n", h.done, o.seed, h.found)
	if h.found > 0 {
		return fmt.Errorf("%d findings in %s", h.found, o.folder)
	}
	return errors.Join(h.errs...)
}

type hunter struct {
	o        *options
	w        io.Writer
	self     string
	end      time.Time
	terminal bool

	mu          sync.Mutex
	next        uint64
	done, found int
	errs        []error
}

// instructions are the settings by which processes run on the kernels of fewer instructions, too.
func instructions() []string {
	sets := []string{""}
	if cpu.X86.HasAVX512F {
		sets = append(sets, "cpu.avx512f=off")
	}
	if cpu.X86.HasAVX2 {
		sets = append(sets, "cpu.avx2=off,cpu.avx512f=off")
	}
	if cpu.ARM64.HasASIMDDP {
		sets = append(sets, "cpu.i8mm=off", "cpu.asimddp=off")
	}
	if cpu.ARM64.HasASIMD {
		sets = append(sets, "cpu.asimd=off")
	}
	return sets
}

// batch runs the next cases in a child, and reports whether there is time for more.
func (h *hunter) batch() bool {
	h.mu.Lock()
	from, n := h.next, h.o.size()
	if h.o.n > 0 {
		n = min(n, h.o.n-int(from-h.o.seed))
	}
	h.next += uint64(max(n, 0))
	stop := n <= 0 || h.found >= h.o.most || len(h.errs) > 0 || h.o.n == 0 && time.Now().After(h.end)
	h.mu.Unlock()
	if stop {
		return false
	}
	sets := instructions()
	if h.o.target != "" {
		sets = sets[:1]
	}
	for n > 0 { // a child that dies leaves cases to another
		did, err := h.child(from, n, sets[int(from)/h.o.size()%len(sets)])
		if err != nil {
			h.mu.Lock()
			h.errs = append(h.errs, err)
			h.mu.Unlock()
			return false
		}
		from, n = from+uint64(did), n-did
	}
	return true
}

// child runs n cases, fewer if one ends the process, which is a finding; it returns how many.
func (h *hunter) child(from uint64, n int, debug string) (did int, err error) {
	o := h.o
	args := []string{"-child", fmt.Sprint("-seed=", from), fmt.Sprint("-n=", n), "-o=" + o.folder,
		fmt.Sprint("-cuda=", o.cuda), fmt.Sprint("-fpga=", o.fpga), fmt.Sprint("-minimise=", o.minimise),
		"-target=" + o.target, fmt.Sprint("-apart=", o.apart)}
	if o.n == 0 {
		args = append(args, fmt.Sprint("-for=", max(time.Until(h.end), 0)))
	} else {
		args = append(args, "-for=1000h")
	}
	cmd := exec.Command(h.self, args...)
	if debug != "" {
		cmd.Env = append(os.Environ(), "GODEBUG="+debug)
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	var slow bool
	timer := time.AfterFunc(o.timeLimit, func() { slow = true; cmd.Process.Kill() })
	defer timer.Stop()
	running, lost := false, false
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var m message
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			continue // what a target prints
		}
		timer.Reset(o.timeLimit + o.minimise)
		if running = m.Begins; running {
			continue
		}
		did++
		lost = m.Lost
		h.tell(m, debug)
	}
	err = cmd.Wait()
	if lost {
		return did, nil
	}
	if err == nil || did == n {
		return n, nil
	}
	if !running {
		return did, fmt.Errorf("a process that runs cases: %w\n%s", err, stderr.String())
	}
	m := message{Seed: from + uint64(did), Finding: "the process ended: " + err.Error() + "\n" + stderr.String()}
	if slow {
		m.Finding = fmt.Sprintf("took more than %v", o.timeLimit)
	}
	m.Path = o.keep(graphtest.Hostile(m.Seed, nil), m.Seed)
	h.tell(m, debug)
	return did + 1, nil
}

// tell counts a case and tells a finding.
func (h *hunter) tell(m message, debug string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.done++
	if m.Finding == "" {
		h.line(fmt.Sprintf("hostile: seed %d, %d graphs, %d findings", m.Seed, h.done, h.found))
		return
	}
	h.found++
	h.line("")
	if debug != "" {
		debug = " with GODEBUG=" + debug
	}
	fmt.Fprintf(h.w, "seed %d%s: go run ./cmd/internal/hostile %s\n\t%s\n", m.Seed, debug, m.Path,
		strings.ReplaceAll(strings.TrimSpace(m.Finding), "\n", "\n\t"))
}

// line shows how far it is on a terminal, in place of the line before.
func (h *hunter) line(s string) {
	if h.terminal {
		fmt.Fprintf(h.w, "\r\x1b[K%s", s)
	}
}
