package main

import (
	"bufio"
	"bytes"
	"cmp"
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
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"
)

// gpuPart is a part of the workloads on a GPU, measured with all contestants on the same one.
type gpuPart struct {
	name    string
	split   []string // words of workloads' names that processes of their own prepare
	meaning string   // of names and rates, for the page
}

// networks and steps are words of the workloads that take longest to compile.
var (
	networks = []string{"bf16 autocast", "bf16 b64", "bf16 resnet18", "bf16 resnet50 b64", "bf16 mobilenet", "bf16 resnet50 b1",
		"tf32 b64", "tf32 resnet18", "tf32 resnet50 b64", "tf32 mobilenet", "tf32 resnet50 b1", " f32 b64"}
	steps = []string{"bf16 autocast L12", "bf16 autocast L4", "tf32 L12", "tf32 L4", " f32 L12", " f32 L4"}
)

var gpuParts = []gpuPart{
	{"memory_bound", nil,
		"Values of f32. The rate is that of the bytes that have to be moved. A device copy is PyTorch's `copy_`."},
	{"linear", nil,
		"Rows × k × columns, without and with a bias and GELU by tanh. Strict f32 is three products of tf32 of split " +
			"operands."},
	{"shapes", nil,
		"Products in bf16, rows × k × columns; Aᵀ and Bᵀ are operands that lie transposed. The rival is the fastest of up " +
			"to twelve algorithms that cuBLASLt proposes for the shape, under a CUDA graph."},
	{"attention", nil,
		"Names are batch (b), heads (h), tokens (s) and the size of a head (d). Causal attention counts half of the " +
			"pairs, backward five products. A mask has one Boolean for each query and key and lets nine of ten through. " +
			"Dropout drops one weight in ten. Lengths are a number of keys for each sequence: all pairs count, so that they " +
			"count more than is computed."},
	{"moe", nil,
		"Mixtures, router included. Names are tokens (T), width (d), hidden size (f), experts (E) and experts of a token " +
			"(k). In a skewed load one expert has half of the tokens. Gradients are those of the tokens, the router and both " +
			"weights, and count twice the FLOPs of forward."},
	{"conv", networks,
		"Names are batch (b), rows × columns of the image, channels of input and output, kernel (k) and stride (s), each " +
			"with a bias and a rectifier; and networks of them. Rivals' images have their channels last."},
	{"decode", nil,
		"A step of decoding with the sizes of Llama 3 8B: one token for each of b sequences of c tokens, 32 heads of " +
			"queries, 8 of keys and values of 128. The rate is that of the bytes of weights and caches, scales included."},
	{"layer", nil,
		"A decoder layer with the sizes of Llama 3 8B, without its attention. The rate is that of the bytes of its frozen " +
			"weights as they are stored, scales included. Rivals' weights lie row by row or, with [n,k], column by column."},
	{"model", nil,
		"A step of decoding of a whole model with the sizes of Llama 3 8B, from the embedding to the token that is picked, for b " +
			"sequences of c tokens. The rate is that of the bytes of weights and caches. What bounds it is the rate of a device copy " +
			"of 256 MiB, which stands in the rival's place."},
	{"training", steps,
		"Forward, backward and AdamW. Names are layers (L), width (d), batch (b) and tokens (s)."},
}

func partNames() []string {
	names := make([]string, len(gpuParts))
	for i, p := range gpuParts {
		names[i] = p.name
	}
	return names
}

// gpuAbout is what figures were measured on.
type gpuAbout struct {
	Device   string `json:"device,omitempty"`
	Versions string `json:"versions,omitempty"`
	Date     string `json:"date,omitempty"`
	GPUs     int    `json:"gpus,omitempty"` // among which the parts are divided
	Note     string `json:"note,omitempty"` // what a reader has to know, added by hand
}

// gpuLine is a line of the raw figures: what they were measured on, at the beginning; or a figure, as the contestant printed it,
// with its part, which may also stand in a line before its figures.
type gpuLine struct {
	gpuAbout
	Part string `json:"part,omitempty"`
	gpuFigure
}

// gpuFigure is a line of JSON that a contestant on a GPU prints about a workload: a rate, or why there is none.
type gpuFigure struct {
	Workload string  `json:"workload"`
	Peer     string  `json:"peer"`
	MS       float64 `json:"ms"`
	Rate     float64 `json:"rate"`
	Unit     string  `json:"unit"`
	Error    string  `json:"error"`

	part string
}

// gpuOpts are the flags of peers gpu.
type gpuOpts struct {
	python, fusec, raw, from, beside, page, only, rival string
	timeout                                             time.Duration
	quiet                                               bool
	parts                                               []gpuPart
}

func gpuOptions(args []string) (*gpuOpts, error) {
	o := &gpuOpts{}
	f := flag.NewFlagSet("gpu", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.StringVar(&o.python, "python", "python3", "")
	f.StringVar(&o.fusec, "fusec", "fusec bench gpu --json", "")
	f.StringVar(&o.raw, "raw", "", "")
	f.StringVar(&o.from, "from", "", "")
	f.StringVar(&o.beside, "beside", "", "")
	f.StringVar(&o.page, "page", "", "")
	f.StringVar(&o.only, "only", "", "")
	f.StringVar(&o.rival, "rival", "", "")
	f.DurationVar(&o.timeout, "timeout", 10*time.Minute, "")
	f.BoolVar(&o.quiet, "quiet", false, "")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	for _, name := range f.Args() {
		i := slices.Index(partNames(), name)
		if i < 0 {
			return nil, fmt.Errorf("there is no part %q: want %s", name, strings.Join(partNames(), ", "))
		}
		o.parts = append(o.parts, gpuParts[i])
	}
	switch {
	case o.only != "" && len(o.parts) != 1:
		return nil, errors.New("--only requires the one part whose workloads it chooses from")
	case o.from != "" && (o.raw != "" || len(o.parts) > 0):
		return nil, errors.New("--from shows what was measured: it goes with --page and --beside alone")
	case o.beside != "" && o.page == "":
		return nil, errors.New("--beside is for the tables of a --page")
	case o.page != "" && filepath.Ext(o.page) != ".md":
		return nil, fmt.Errorf("--page %s: want a name that ends in .md", o.page)
	case len(o.parts) == 0:
		o.parts = gpuParts
	}
	return o, nil
}

// ours is the command of fusec, theirs that of its rivals.
func (o *gpuOpts) ours(args ...string) []string {
	return append([]string{"sh", "-c", o.fusec + ` "$@"`, "sh"}, args...)
}

func (o *gpuOpts) theirs(script, only, part string, args ...string) []string {
	return append([]string{o.python, script, "--only", only, "--rival", o.rival, part}, args...)
}

// word asks fusec for the workloads of a part.
func (o *gpuOpts) word(p gpuPart) string {
	if o.only != "" {
		return o.only
	}
	return p.name
}

// gpu measures fusec and its rivals, each part in turn on one GPU, or reads what was measured, and shows it with ratios.
func gpu(ctx context.Context, o *gpuOpts, stdout, stderr io.Writer) int {
	run := &gpuRun{}
	var err error
	if o.from != "" {
		err = run.read(o.from)
	} else {
		err = run.measure(ctx, o, stderr)
	}
	order := partNames()
	slices.SortStableFunc(run.figures, func(a, b gpuFigure) int {
		return cmp.Compare(slices.Index(order, a.part), slices.Index(order, b.part))
	})
	if len(run.figures) > 0 {
		gpuTable(stdout, run.figures)
	}
	if err == nil && len(run.figures) > 0 && o.page != "" {
		err = run.page(o.page, o.beside)
	}
	switch {
	case err != nil:
		fmt.Fprintf(stderr, "peers: %v\n", err)
		return exitFailed
	case len(run.figures) == 0:
		return exitNothing
	}
	return exitOK
}

// gpuRun is what a run measured.
type gpuRun struct {
	about   gpuAbout
	figures []gpuFigure
}

func (r *gpuRun) measure(ctx context.Context, o *gpuOpts, to io.Writer) (err error) {
	stderr := to
	if _, ok := to.(*os.File); !ok { // which all processes may have
		stderr = &shared{w: to}
	}
	say := func(format string, a ...any) {
		if !o.quiet {
			fmt.Fprintf(stderr, format+"\n", a...)
		}
	}
	dir, err := os.MkdirTemp("", "fusec-peers")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	script := filepath.Join(dir, "gpu_bench.py")
	source, err := files.ReadFile("rivals/gpu_bench.py")
	if err != nil {
		return err
	}
	if err := os.WriteFile(script, source, 0o644); err != nil {
		return err
	}
	raw := io.Discard
	if o.raw != "" {
		f, failed := os.Create(o.raw)
		if failed != nil {
			return failed
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		raw = f
	}
	if about, err := exec.CommandContext(ctx, o.python, script, "--about").Output(); err != nil {
		say("peers: the rivals cannot start: %v", err)
	} else if err := json.Unmarshal(about, &r.about); err != nil {
		say("peers: the rivals do not say what they are: %v", err)
	}
	r.about.Date = time.Now().UTC().Format(time.DateOnly)
	lines := gpuLines{run: r, raw: json.NewEncoder(raw)}
	if lines.write(r.about); lines.lost != nil {
		return lines.lost
	}
	say("all is compiled: %s", o.prepare(ctx, script))
	left := make(chan gpuPart, len(o.parts))
	for _, p := range slices.Backward(o.parts) { // the last ones take longest
		left <- p
	}
	close(left)
	var wait sync.WaitGroup
	var done atomic.Int32
	for gpu := range max(r.about.GPUs, 1) {
		var env []string
		if r.about.GPUs > 1 {
			env = append(os.Environ(), visible+"="+nthGPU(gpu))
		}
		wait.Go(func() {
			for part := range left {
				if ctx.Err() == nil && lines.err() == nil {
					took := o.inTurn(ctx, script, part, env, &lines, stderr)
					say("%d of %d, %s: %s", done.Add(1), len(o.parts), part.name, took)
				}
			}
		})
	}
	wait.Wait()
	return errors.Join(ctx.Err(), lines.lost)
}

// shared is a writer for several processes.
type shared struct {
	sync.Mutex
	w io.Writer
}

func (s *shared) Write(b []byte) (int, error) {
	s.Lock()
	defer s.Unlock()
	return s.w.Write(b)
}

// gpuLines takes the figures of parts that are measured at the same time, and writes the contestants' lines.
type gpuLines struct {
	sync.Mutex
	run  *gpuRun
	raw  *json.Encoder
	lost error // what first kept a line from being written
}

func (l *gpuLines) write(line any) {
	if err := l.raw.Encode(line); l.lost == nil {
		l.lost = err
	}
}

// err is what keeps lines from being written.
func (l *gpuLines) err() error {
	l.Lock()
	defer l.Unlock()
	return l.lost
}

// of gives what takes a figure of a part and its line.
func (l *gpuLines) of(part string) func(gpuFigure, []byte) {
	return func(f gpuFigure, line []byte) {
		l.Lock()
		defer l.Unlock()
		f.part = part
		l.run.figures = append(l.run.figures, f)
		l.write(json.RawMessage(fmt.Appendf(nil, `{"part":%q,%s`, part, bytes.TrimSpace(line)[1:])))
	}
}

// inTurn measures a part with fusec and then with its rivals, who load their libraries meanwhile, which does not touch the GPU. It
// says how long each took.
func (o *gpuOpts) inTurn(ctx context.Context, script string, p gpuPart, env []string, lines *gpuLines, stderr io.Writer) string {
	ours := &gpuProcess{argv: o.ours("--no-copies", o.word(p)), env: env}
	theirs := &gpuProcess{argv: o.theirs(script, o.only, p.name, "--wait"), env: env}
	theirs.start(ctx, stderr)
	ours.start(ctx, stderr)
	var took [2]time.Duration
	for i, c := range []*gpuProcess{ours, theirs} {
		begin := time.Now()
		if err := c.figures(o.timeout, lines.of(p.name)); err != nil {
			fmt.Fprintf(stderr, "peers: %s: %v\n", p.name, err)
		}
		took[i] = time.Since(begin).Round(time.Second)
	}
	return fmt.Sprintf("fusec took %v, the rivals %v", took[0], took[1])
}

// visible is the environment variable that has the GPUs which a process sees.
const visible = "CUDA_VISIBLE_DEVICES"

// nthGPU is how [visible] calls the n-th of the GPUs that this process sees.
func nthGPU(n int) string {
	if list := strings.Split(os.Getenv(visible), ","); n < len(list) && list[n] != "" {
		return list[n]
	}
	return strconv.Itoa(n)
}

// prepare has all contestants compile what they measure, at the same time, so that they find it in their caches on the disk. What
// fails here fails again when it is measured. It says how long that took, and what took longest.
func (o *gpuOpts) prepare(ctx context.Context, script string) string {
	var commands [][]string
	for _, p := range slices.Backward(o.parts) { // the last ones take longest
		commands = append(commands, o.ours("--prepare", o.word(p)))
		split := p.split
		if o.only != "" || split == nil {
			split = []string{o.only}
		}
		for _, only := range split {
			commands = append(commands, o.theirs(script, only, p.name, "--prepare"))
		}
	}
	var slowest struct {
		sync.Mutex
		took time.Duration
		argv string
	}
	begin := time.Now()
	var wait sync.WaitGroup
	slots := make(chan struct{}, cores())
	for _, argv := range commands {
		slots <- struct{}{}
		wait.Go(func() {
			defer func() { <-slots }()
			ctx, cancel := context.WithTimeout(ctx, o.timeout)
			defer cancel()
			cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
			cmd.Env = append(os.Environ(), "TORCHINDUCTOR_COMPILE_THREADS=4") // for each of the processes
			inGroup(cmd)
			start := time.Now()
			_ = cmd.Run()
			slowest.Lock()
			defer slowest.Unlock()
			if took := time.Since(start); took > slowest.took {
				slowest.took, slowest.argv = took, strings.Join(argv, " ")
			}
		})
	}
	wait.Wait()
	return fmt.Sprintf("%v, of which %v by %s", time.Since(begin).Round(time.Second), slowest.took.Round(time.Second), slowest.argv)
}

// gpuProcess is a contestant at one part. It waits until its standard input ends.
type gpuProcess struct {
	argv   []string
	env    []string // if not that of this process
	cmd    *exec.Cmd
	in     io.Closer
	out    io.Reader
	cancel context.CancelFunc
	failed error
}

func (p *gpuProcess) start(ctx context.Context, stderr io.Writer) {
	ctx, p.cancel = context.WithCancel(ctx)
	p.cmd = exec.CommandContext(ctx, p.argv[0], p.argv[1:]...)
	inGroup(p.cmd)
	p.cmd.Env = p.env
	p.cmd.Stderr, p.cmd.WaitDelay = stderr, 5*time.Second
	var err1, err2 error
	p.in, err1 = p.cmd.StdinPipe()
	p.out, err2 = p.cmd.StdoutPipe()
	if p.failed = errors.Join(err1, err2); p.failed == nil {
		p.failed = p.cmd.Start()
	}
}

// figures lets the contestant measure, and hands out each figure as it comes, so that what it measured before it failed counts.
func (p *gpuProcess) figures(limit time.Duration, each func(f gpuFigure, line []byte)) error {
	defer p.cancel()
	if p.failed != nil {
		return p.failed
	}
	var late atomic.Bool
	timer := time.AfterFunc(limit, func() { late.Store(true); p.cancel() })
	defer timer.Stop()
	var failed []error
	_ = p.in.Close()
	for s := bufio.NewScanner(p.out); s.Scan(); {
		var f gpuFigure
		if err := json.Unmarshal(s.Bytes(), &f); err != nil || f.Workload == "" || f.Peer == "" {
			failed = append(failed, fmt.Errorf("no figure: %q", s.Text()))
		} else {
			each(f, s.Bytes())
		}
	}
	err := p.cmd.Wait()
	if late.Load() {
		err = fmt.Errorf("not done within %v", limit)
	}
	return errors.Join(append(failed, err)...)
}

// read reads what a run wrote with --raw, or all such files of a folder.
func (r *gpuRun) read(path string) error {
	list := []string{path}
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		if list, err = filepath.Glob(filepath.Join(path, "*.jsonl")); err != nil {
			return err
		}
	}
	for _, name := range list {
		b, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		part := ""
		for i, text := range strings.Split(strings.TrimSpace(string(b)), "\n") {
			var l gpuLine
			if err := json.Unmarshal([]byte(text), &l); err != nil {
				return fmt.Errorf("%s:%d: %w", name, i+1, err)
			}
			part = cmp.Or(l.Part, part)
			switch {
			case l.Workload != "" && l.Peer != "":
				l.gpuFigure.part = part
				r.figures = append(r.figures, l.gpuFigure)
			case l.Part != "":
			case l.Date != "":
				r.about = l.gpuAbout
			default:
				return fmt.Errorf("%s:%d: no figure: %q", name, i+1, text)
			}
		}
	}
	return nil
}

// gpuRow is what the contestants did at a workload, rivals from the best on.
type gpuRow struct {
	name   string
	ours   *gpuFigure
	rivals []gpuFigure
}

// rows are the workloads in their order.
func rows(all []gpuFigure) []*gpuRow {
	var list []*gpuRow
	for _, f := range all {
		i := slices.IndexFunc(list, func(r *gpuRow) bool { return r.name == f.Workload })
		if i < 0 {
			i = len(list)
			list = append(list, &gpuRow{name: f.Workload})
		}
		if f.Peer == "fusec" {
			list[i].ours = &f
		} else {
			list[i].rivals = append(list[i].rivals, f)
		}
	}
	for _, r := range list {
		slices.SortStableFunc(r.rivals, func(a, b gpuFigure) int { return cmp.Compare(b.Rate, a.Rate) })
	}
	return list
}

// ratio is how many times as fast as its best rival fusec is, "–" where one of them is missing.
func (r *gpuRow) ratio() string {
	if r.ours == nil || r.ours.Error != "" || len(r.rivals) == 0 || r.rivals[0].Rate == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f", r.ours.Rate/r.rivals[0].Rate)
}

// gpuTable prints for each workload fusec's rate, the rivals' from the best on, and the ratio to the best.
func gpuTable(w io.Writer, all []gpuFigure) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "workload\tfusec\t× best rival\tthe rivals")
	for _, r := range rows(all) {
		mine := "–"
		if r.ours != nil {
			mine = r.ours.String()
		}
		var others []string
		for _, f := range r.rivals {
			others = append(others, f.Peer+" "+f.String())
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", r.name, mine, r.ratio(), strings.Join(others, "; "))
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
