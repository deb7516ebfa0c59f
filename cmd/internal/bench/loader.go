package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"fusec/cmd/internal/cli"
	"fusec/graph"
	"fusec/graph/loader"
)

// loaderName is the argument that asks for the loader of mini-batches.
const loaderName = "loader"

// defaultSize is that of the file that fusec bench loader makes.
const defaultSize = 512 << 20

const (
	readBlock  = 1 << 20 // bytes of a read of the plain loop
	diskBlock  = 4 << 20 // bytes of a read of the loop past the page cache
	batchBytes = 4 << 20 // roughly, of the loader's batches
	madeRow    = 1024    // elements of a row of a file that is made or has no shape of its own
)

// reading is a way to read the file, a row of the table.
type reading struct {
	name, doc string
	rival     string // that it is compared with, or ""
	open      opener
	bytes     int64 // that the last run read
}

// opener opens a file and makes what reads it once and tells how many bytes that were.
type opener func(ctx context.Context, path string) (run func() (int64, error), stop func() error, err error)

// The rivals' names.
const (
	plainName = "plain read"
	diskName  = "disk"
)

// loaderReport is what fusec bench loader found, and its JSON form.
type loaderReport struct {
	Schema  string         `json:"schema"` // fusec.loader/1
	Machine cli.Machine    `json:"machine"`
	File    string         `json:"file"` // empty if it was made for this
	Bytes   int64          `json:"bytes"`
	Batch   int            `json:"batch"` // rows
	Row     string         `json:"row"`   // its type
	Rounds  int            `json:"rounds"`
	Results []loaderResult `json:"results"`
	Missing []string       `json:"missing,omitempty"` // what was not measured, and why
}

type loaderResult struct {
	Name   string  `json:"name"`
	GBs    float64 `json:"gb_per_s"` // 10⁹ bytes per second, by the median of the rounds
	Spread float64 `json:"spread"`   // (slowest − fastest round) ÷ median
	Peer   string  `json:"peer,omitempty"`
	Ratio  float64 `json:"ratio,omitempty"` // the peer's time over this one's
}

// loader times the loader and prints the report.
func (b *bencher) loader(e *cli.Env, path string) (*outcome, error) {
	rep := &loaderReport{Schema: "fusec.loader/1", Machine: cli.ThisMachine(), File: path, Rounds: b.rounds}
	if path == "" {
		made, err := makeData(e.Ctx, b.size)
		if err != nil {
			return nil, err
		}
		defer os.Remove(made)
		path = made
	} else if b.size != 0 {
		return nil, cli.Usage("--size is for the file that is made when none is given")
	}
	src, err := b.inspect(rep, path)
	if err != nil {
		return nil, err
	}
	rows, field, done, err := openAll(e.Ctx, rep, src)
	defer done()
	if err != nil {
		return nil, err
	}
	show := b.progress(e)
	defer show.Done()
	times, err := Race(e.Ctx, field, b.rounds, b.seconds, func(round int) {
		show.Show("loader: round %d of %d", round+1, b.rounds)
	})
	if err != nil {
		return nil, err
	}
	show.Done()
	at := map[string]Timing{}
	var entries []entry
	for i, t := range times {
		w := rows[i]
		at[w.name] = t
		r := loaderResult{Name: w.name, GBs: float64(w.bytes) / t.median() / 1e9, Spread: t.Spread(), Peer: w.rival}
		if w.rival != "" {
			r.Ratio = Median(Ratios(at[w.rival], t))
			entries = append(entries, newEntry("loader "+w.name, w.rival, b.compile.Threads, t, at[w.rival], 1))
		}
		rep.Results = append(rep.Results, r)
	}
	return &outcome{report: rep, text: rep.text(rows), entries: entries}, nil
}

// inspect finds out what the file holds and fills in the report's head.
func (b *bencher) inspect(rep *loaderReport, path string) (loader.Source, error) {
	src := loader.Source{Name: "x", Path: path}
	if ext := filepath.Ext(path); ext != ".npy" && ext != ".safetensors" {
		src.Raw, src.Window = "f32", loader.Window{Length: madeRow}
	}
	l, err := loader.Open(loader.Options{Batch: 1, Access: loader.Plain}, src)
	if err != nil {
		return src, err
	}
	defer l.Close()
	row := l.Types()["x"]
	rep.Row = graph.TypeOf(row.DType, row.Shape.Slice()[1:]...).String()
	rep.Batch = int(max(1, min(l.Rows(), batchBytes/row.Bytes())))
	info, err := os.Stat(path)
	if err != nil {
		return src, err
	}
	rep.Bytes = info.Size()
	return src, nil
}

// readings lists the ways to read, each behind its rival.
func readings(batch int, src loader.Source) []*reading {
	through := func(o loader.Options) opener {
		o.Batch, o.Epochs = batch, 1
		return openLoader(o, src)
	}
	return []*reading{
		{name: diskName, doc: "a loop of reads past the page cache, 4 MiB each", open: openDisk},
		{name: "direct", rival: diskName, doc: "the loader, in order, with O_DIRECT",
			open: through(loader.Options{Access: loader.Direct})},
		{name: plainName, doc: "a loop of reads, 1 MiB each, from the page cache", open: openPlain},
		{name: "in order", rival: plainName, doc: "the loader, in order", open: through(loader.Options{})},
		{name: "shuffled", rival: plainName, doc: "the loader, rows in random order",
			open: through(loader.Options{Shuffle: true, Seed: 1})},
	}
}

// openAll opens all ways to read that this system has; done closes them.
func openAll(ctx context.Context, rep *loaderReport, src loader.Source) (
	rows []*reading, field []Contestant, done func(), err error,
) {
	var closers []func() error
	done = func() {
		for _, c := range closers {
			c()
		}
	}
	for _, w := range readings(rep.Batch, src) {
		run, stop, err := w.open(ctx, src.Path)
		if err == nil && w.rival == diskName && len(rows) == 0 {
			err = &cannot{errors.New("there is nothing to compare it with")}
		}
		if stop != nil {
			closers = append(closers, stop)
		}
		if no := (*cannot)(nil); errors.As(err, &no) {
			rep.Missing = append(rep.Missing, fmt.Sprintf("%s: %v", w.name, err))
			continue
		}
		if err != nil {
			return nil, nil, done, err
		}
		rows = append(rows, w)
		field = append(field, Contestant{w.name, func() (err error) { w.bytes, err = run(); return err }})
	}
	return rows, field, done, nil
}

// cannot is the error of a way to read that this system lacks.
type cannot struct{ error }

// openLoader makes runs of one epoch of the loader.
func openLoader(o loader.Options, src loader.Source) opener {
	return func(ctx context.Context, _ string) (run func() (int64, error), stop func() error, err error) {
		l, err := loader.Open(o, src)
		if err != nil {
			return nil, nil, err
		}
		if f := l.Stats().Files[0]; o.Access == loader.Direct && f.Access != loader.Direct {
			return nil, l.Close, &cannot{errors.New(f.Reason)}
		}
		return func() (int64, error) {
			before := l.Stats().Bytes
			if err := l.SetPosition(0); err != nil {
				return 0, err
			}
			for _, err := range l.Batches(ctx) {
				if err != nil {
					return 0, err
				}
			}
			return l.Stats().Bytes - before, nil
		}, l.Close, nil
	}
}

// openPlain makes a run of a loop of ordinary reads.
func openPlain(ctx context.Context, path string) (run func() (int64, error), stop func() error, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	buf := make([]byte, readBlock)
	return func() (int64, error) { return readAll(ctx, f, buf) }, f.Close, nil
}

// readAll reads a file from its beginning to its end, which past the page cache must not be read beyond.
func readAll(ctx context.Context, f *os.File, buf []byte) (n int64, err error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return 0, err
	}
	for n < info.Size() && ctx.Err() == nil {
		m, err := f.Read(buf)
		if err != nil {
			return n, err
		}
		n += int64(m)
	}
	return n, ctx.Err()
}

// makeData makes a file of about size bytes, of rows of random elements, in the folder for temporary files.
func makeData(ctx context.Context, size int64) (path string, err error) {
	if size == 0 {
		size = defaultSize
	}
	const row = 4 * madeRow
	size = max(1, size/row) * row
	dir := os.TempDir()
	if free, err := freeSpace(dir); err == nil && size > free/10*9 {
		return "", fmt.Errorf("a file of %s does not fit into %s, where %s are free: ask for less with --size, or set TMPDIR",
			cli.HumanBytes(size), dir, cli.HumanBytes(free))
	}
	f, err := os.CreateTemp(dir, "fusec-bench-*.f32")
	if err != nil {
		return "", err
	}
	defer func() {
		if e := f.Close(); err == nil {
			err = e
		}
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	var block []byte
	for i, v := range uniform(diskBlock/4, 1) {
		block = append(block, byte(int(v*256)), byte(i), byte(i>>8), byte(i>>16))
	}
	for left := size; left > 0 && ctx.Err() == nil; left -= int64(len(block)) {
		block = block[:min(left, int64(len(block)))]
		if _, err := f.Write(block); err != nil {
			return "", fmt.Errorf("writing %s: %w", f.Name(), cli.Cause(err))
		}
	}
	return f.Name(), errors.Join(ctx.Err(), f.Sync())
}

// text prints the report for people.
func (rep *loaderReport) text(rows []*reading) string {
	t := cli.NewTable("", ">GB/s", ">", ">times", "as fast as", "what it does")
	for i, r := range rep.Results {
		ratio := ""
		if r.Peer != "" {
			ratio = cli.Digits(r.Ratio)
		}
		t.Row(r.Name, cli.Digits(r.GBs), fmt.Sprintf("±%.0f%%", 50*r.Spread), ratio, r.Peer, rows[i].doc)
	}
	file := rep.File
	if file == "" {
		file = "a file made for this"
	}
	s := fmt.Sprintf("%s of %s, batches of %d rows of %s, on %s; median of %s\n\n%s", cli.HumanBytes(rep.Bytes), file,
		rep.Batch, rep.Row, rep.Machine, cli.Plural(rep.Rounds, "round", "rounds"), t)
	if len(rep.Missing) > 0 {
		s += "\nnot measured: " + strings.Join(rep.Missing, "; ") + "\n"
	}
	return s
}
