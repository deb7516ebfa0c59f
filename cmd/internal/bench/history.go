package bench

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"fusec/cmd/internal/cli"
)

// historySchema is that of each line of a history.
const historySchema = "fusec.history/1"

// figure is one number that was measured.
type figure struct {
	Name   string  `json:"name"` // such as "matmul 512x512x512", or that "against gonum"
	Unit   string  `json:"unit"`
	Value  float64 `json:"value"`  // of fast runs, see Timing; of a GPU's figures the median of the runs
	Spread float64 `json:"spread"` // (largest − smallest round) ÷ value
	Rounds int     `json:"rounds"`
}

// The units of figures. Of all but ratios and rates less is better.
const (
	unitTime   = "ms"
	unitCycles = "cycles"
	unitRatio  = "×" // a rival's time over fusec's
)

// moreIsBetter reports whether a larger value in a unit is a better one.
func moreIsBetter(unit string) bool { return unit == unitRatio || strings.HasSuffix(unit, "/s") }

// newFigure makes the figure of rounds.
func newFigure(name, unit string, value float64, rounds []float64) figure {
	return figure{name, unit, round(value), round((slices.Max(rounds) - slices.Min(rounds)) / value), len(rounds)}
}

// timeFigure is fusec's time at something.
func timeFigure(name string, t Timing) figure {
	ms := make([]float64, len(t.fast))
	for i, s := range t.fast {
		ms[i] = 1e3 * s
	}
	return newFigure(name, unitTime, 1e3*t.quiet(), ms)
}

// figures are those of an entry: fusec's time, and the ratio.
func (e entry) figures() []figure {
	rounds := quietRatios(e.rival, e.own)
	for i := range rounds {
		rounds[i] *= e.factor
	}
	return []figure{timeFigure(e.Subject, e.own), newFigure(e.Subject+" against "+e.Peer, unitRatio, e.Ratio, rounds)}
}

// all are the figures of an outcome.
func (o *outcome) all() (list []figure) {
	for _, e := range o.entries {
		list = append(list, e.figures()...)
	}
	return append(list, o.figures...)
}

// site is the kind of machine that a figure is from.
type site struct {
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Kernel string `json:"kernel"` // of matrix multiplication
	GPU    string `json:"gpu,omitempty"`
}

// String names the machine in a line.
func (s site) String() string {
	text := fmt.Sprintf("%s, %s, %s", s.CPU, cli.Plural(s.Cores, "core", "cores"), s.Kernel)
	if s.GPU != "" {
		text += ", " + s.GPU
	}
	return text
}

// record is a line of a history.
type record struct {
	Schema   string    `json:"schema"` // fusec.history/1
	Commit   string    `json:"commit"`
	Modified bool      `json:"modified,omitempty"` // the work tree had changes
	Time     time.Time `json:"time"`               // when the benchmark began
	Machine  site      `json:"machine"`
	Threads  int       `json:"threads"`
	Load     float64   `json:"load"` // processes that ran or waited to, on average over the minute before
	figure
}

func (r *record) check() error {
	good := func(v float64) bool { return v >= 0 && !math.IsInf(v, 0) }
	switch {
	case r.Commit == "" || r.Name == "" || r.Unit == "" || r.Machine.CPU == "" || r.Time.IsZero():
		return errors.New("it lacks its commit, time, machine, name or unit")
	case !(r.Value > 0) || !good(r.Value) || !good(r.Spread) || !good(r.Load):
		return fmt.Errorf("value %v, spread %v, load %v: want a positive value, the others not negative", r.Value, r.Spread, r.Load)
	case r.Rounds < 1 || r.Threads < 1 || r.Machine.Cores < 1:
		return fmt.Errorf("%d rounds, %d threads, %d cores: want at least 1 of each", r.Rounds, r.Threads, r.Machine.Cores)
	}
	return nil
}

// Bounds of a history: of its size, and of a line.
const maxHistory, maxLine = 1 << 28, 1 << 16

// readHistory reads a history. An error names the line.
func readHistory(path string) ([]record, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("reading the history: %w", err)
	}
	defer f.Close()
	list, err := parseHistory(io.LimitReader(f, maxHistory))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return list, nil
}

func parseHistory(r io.Reader) (list []record, err error) {
	lines := bufio.NewReaderSize(r, maxLine)
	for n := 1; ; n++ {
		line, err := lines.ReadSlice('\n')
		switch {
		case err == io.EOF && len(line) == 0:
			return list, nil
		case err == io.EOF:
			return nil, fmt.Errorf("line %d is cut off", n)
		case err == bufio.ErrBufferFull:
			return nil, fmt.Errorf("line %d is longer than %s: this is no history of fusec bench", n, cli.HumanBytes(maxLine))
		case err != nil:
			return nil, cli.Cause(err)
		}
		var x record
		if err := x.parse(line); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		list = append(list, x)
	}
}

func (r *record) parse(line []byte) error {
	var head struct {
		Schema string `json:"schema"`
	}
	if err := json.Unmarshal(line, &head); err != nil {
		return fmt.Errorf("this is no history of fusec bench: %w", err)
	}
	if head.Schema != historySchema {
		if strings.HasPrefix(head.Schema, "fusec.history/") {
			return fmt.Errorf("it was written as %s, and this version of fusec reads %s", head.Schema, historySchema)
		}
		return fmt.Errorf("this is no history of fusec bench: its schema is %q, not %q", head.Schema, historySchema)
	}
	j := json.NewDecoder(bytes.NewReader(line))
	j.DisallowUnknownFields()
	if err := j.Decode(r); err != nil {
		return err
	}
	return r.check()
}

// historian appends to a history.
type historian struct {
	path string
	head record
}

// openHistory checks that figures can be appended to a history, before they are measured.
func (b *bencher) openHistory() (*historian, error) {
	h := &historian{b.history, record{Schema: historySchema, Commit: b.commit, Time: time.Now().UTC().Truncate(time.Second),
		Threads: b.compile.Threads, Load: load()}}
	m := cli.ThisMachine()
	h.head.Machine = site{CPU: m.CPU, Cores: m.Cores, Kernel: m.GEMM}
	if b.commit == "" {
		h.head.Commit, h.head.Modified = cli.Revision()
	}
	if h.head.Commit == "" {
		return nil, cli.Usage(`--history: this build does not tell its commit; give it, as in --commit "$(git rev-parse HEAD)"`)
	}
	if _, err := readHistory(h.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	f, err := h.open()
	if err != nil {
		return nil, err
	}
	return h, f.Close()
}

func (h *historian) open() (*os.File, error) {
	f, err := os.OpenFile(h.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o666)
	if err != nil {
		return nil, fmt.Errorf("writing %s: %w", h.path, cli.Cause(err))
	}
	return f, nil
}

// add appends figures, all at once.
func (h *historian) add(gpu string, figures []figure) error {
	var b bytes.Buffer
	j := json.NewEncoder(&b)
	j.SetEscapeHTML(false)
	for _, x := range figures {
		r := h.head
		r.figure, r.Machine.GPU = x, gpu
		if err := errors.Join(r.check(), j.Encode(r)); err != nil {
			return fmt.Errorf("%s: %w", x.Name, err)
		}
	}
	f, err := h.open()
	if err != nil {
		return err
	}
	_, err = f.Write(b.Bytes())
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("writing %s: %w", h.path, cli.Cause(err))
	}
	return nil
}

// load is how many processes ran or waited to, on average over the last minute; 0 where the system does not tell.
func load() float64 {
	src, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(src), " ")
	v, _ := strconv.ParseFloat(first, 64)
	return v
}

// series is one figure over time, on one kind of machine.
type series struct {
	Name    string   `json:"name"`
	Unit    string   `json:"unit"`
	Machine site     `json:"machine"`
	Threads int      `json:"threads"`
	Noise   float64  `json:"noise"` // standard error of one run, as a part of the value
	Runs    []run    `json:"runs"`  // in the order of time
	Changes []change `json:"changes"`
}

// run is a figure's value at one time.
type run struct {
	Commit   string    `json:"commit"`
	Modified bool      `json:"modified,omitempty"`
	Time     time.Time `json:"time"`
	Load     float64   `json:"load"`
	Value    float64   `json:"value"`
	Spread   float64   `json:"spread"`
	Rounds   int       `json:"rounds"`
}

// change is a change of a figure beyond noise.
type change struct {
	At        int     `json:"at"`     // the first run after it, from 0
	After     string  `json:"after"`  // commit of the last run before it
	Commit    string  `json:"commit"` // of the first run after it
	Before    float64 `json:"before"` // median of the runs since the change before
	Now       float64 `json:"now"`    // and of those until the next
	Part      float64 `json:"change"` // Now ÷ Before − 1
	Allowance float64 `json:"allowance"`
	Worse     bool    `json:"worse"`
}

// maxRuns bounds the runs of a figure that are looked at: the last ones.
const maxRuns = 1000

// byFigure sorts lines into series, in the order of the file, and finds what has changed.
func byFigure(list []record) []*series {
	var all []*series
	type key struct {
		name, unit string
		machine    site
		threads    int
	}
	at := map[key]*series{}
	for _, r := range list {
		k := key{r.Name, r.Unit, r.Machine, r.Threads}
		s := at[k]
		if s == nil {
			s = &series{Name: r.Name, Unit: r.Unit, Machine: r.Machine, Threads: r.Threads, Changes: []change{}}
			at[k] = s
			all = append(all, s)
		}
		s.Runs = append(s.Runs, run{r.Commit, r.Modified, r.Time, r.Load, r.Value, r.Spread, r.Rounds})
	}
	for _, s := range all {
		slices.SortStableFunc(s.Runs, func(a, b run) int { return a.Time.Compare(b.Time) })
		s.Runs = s.Runs[max(0, len(s.Runs)-maxRuns):]
		s.Noise = s.noise()
		s.find(0, len(s.Runs))
		slices.SortFunc(s.Changes, func(a, b change) int { return cmp.Compare(a.At, b.At) })
		ends := []int{0}
		for _, c := range s.Changes {
			ends = append(ends, c.At)
		}
		ends = append(ends, len(s.Runs))
		for i := range s.Changes {
			c := &s.Changes[i]
			c.Before, c.Now = s.median(ends[i], c.At), s.median(c.At, ends[i+2])
			c.Part = c.Now/c.Before - 1
			c.Worse = (c.Part < 0) == moreIsBetter(s.Unit)
		}
	}
	return all
}

// The rule by which a history's changes are found. Runs are split in two where they lie nearest to the medians of both parts.
// There is a change if those medians differ by more than an allowance; then each part is split in the same way. The allowance is
// changeFactor times the standard error of the difference, and at least a part that two builds of the same code may differ
// by: a ratio to a rival in the same rounds by less than a time, since a machine that is slow for a while slows both down.
const (
	changeFactor    = 4
	leastRatioMoved = 0.05
	leastTimeMoved  = 0.10
)

// noise is the standard error of one run as a part of the value: what its rounds show, or, of four runs on, what
// successive runs differ by if that is more. Neither counts a change that lasts.
func (s *series) noise() float64 {
	const (
		fromSpread = 1.25   // the median of n rounds has an error of about 1.25 spreads ÷ n
		fromSteps  = 1.0483 // 1.4826 ÷ √2: makes the median step the standard deviation of a normal distribution
	)
	var own, steps, values []float64
	for i, r := range s.Runs {
		own, values = append(own, fromSpread*r.Spread/float64(r.Rounds)), append(values, r.Value)
		if i > 0 {
			steps = append(steps, math.Abs(r.Value-s.Runs[i-1].Value))
		}
	}
	noise := Median(own)
	if len(s.Runs) >= 4 {
		noise = max(noise, fromSteps*Median(steps)/Median(values))
	}
	return noise
}

// find adds the changes within runs from to to.
func (s *series) find(from, to int) {
	least := leastTimeMoved
	if s.Unit == unitRatio {
		least = leastRatioMoved
	}
	at, far := 0, math.Inf(1)
	for i := from + 1; i < to; i++ {
		if f := s.scatter(from, i) + s.scatter(i, to); f < far {
			at, far = i, f
		}
	}
	if at == 0 {
		return
	}
	before, now := s.median(from, at), s.median(at, to)
	allowed := max(least, changeFactor*s.Noise*math.Sqrt(1/float64(at-from)+1/float64(to-at)))
	if math.Abs(math.Log(now/before)) <= math.Log1p(allowed) { // halving is as much as doubling
		return
	}
	s.Changes = append(s.Changes, change{At: at, After: s.Runs[at-1].Commit, Commit: s.Runs[at].Commit, Allowance: allowed})
	s.find(from, at)
	s.find(at, to)
}

// scatter is the sum of the distances of runs from their median.
func (s *series) scatter(from, to int) (sum float64) {
	m := s.median(from, to)
	for _, r := range s.Runs[from:to] {
		sum += math.Abs(r.Value - m)
	}
	return sum
}

// median is the median of runs.
func (s *series) median(from, to int) float64 {
	var values []float64
	for _, r := range s.Runs[from:to] {
		values = append(values, r.Value)
	}
	return Median(values)
}
