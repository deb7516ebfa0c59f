package fpgatest

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"fusec/fpga"
	"fusec/fpga/isa"
	"fusec/fpga/link"
	"fusec/fpga/model"
)

// Program is a program with the memory that it begins with.
type Program struct {
	Config isa.Config
	Seed   uint64
	// Commands are the prologue, which fills every scratchpad, the body, and the epilogue, which stores everything that
	// can be stored, and End.
	Commands []isa.Command
	At       uint32
	Memory   []byte
	Watchdog uint32 // as fpga.Program's

	body, end int    // where in Commands the body and the epilogue begin
	stamps    span   // results of Stamps are not compared
	dump      uint32 // where the epilogue stores
}

// span is a part of memory.
type span struct{ at, end int }

// String lists the program, one descriptor a line.
func (p *Program) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d, %+v\n", p.Seed, p.Config)
	for i, c := range p.Commands {
		fmt.Fprintf(&b, "%4d %s\n", i, isa.Text(c))
	}
	return b.String()
}

// Body is the number of commands between prologue and epilogue.
func (p *Program) Body() int { return p.end - p.body }

// Prefix is the program with the first n commands of its body alone.
func (p *Program) Prefix(n int) *Program {
	q := *p
	q.end = p.body + n
	q.Commands = append(append([]isa.Command(nil), p.Commands[:q.end]...), p.epilogue()...)
	return &q
}

// epilogue stores X and Y when all is done.
func (p *Program) epilogue() []isa.Command {
	cs := []isa.Command{&isa.Barrier{}}
	at := p.dump
	for _, s := range []isa.Space{isa.SpaceY, isa.SpaceX} {
		words := min(p.Config.Words(s), 1<<16-1)
		row := uint32(words * p.Config.WordBytes)
		rows := p.Config.Lanes(s)
		cs = append(cs, &isa.Store{Space: s, Addr: at, Stride: row, Rows: uint16(rows), Words: uint16(words)})
		at += row * uint32(rows)
	}
	return append(cs, &isa.End{})
}

// Result is the result of a run.
type Result struct {
	Memory   []byte
	Tokens   []int // of each expert's list
	Dropped  int
	Counters [isa.Counters]uint64
}

// Run runs the program on a link.
func (p *Program) Run(ctx context.Context, l link.Link) (*Result, error) {
	m, err := fpga.Open(l)
	if err != nil {
		return nil, err
	}
	want, got := p.Config, m.Config()
	if want.Name, got.Name = "", ""; want != got {
		return nil, fmt.Errorf("%s is an overlay %+v, want %+v", l.Name(), got, want)
	}
	if err := m.Write(0, p.Memory); err != nil {
		return nil, err
	}
	loaded, err := m.Load(p.At, p.Commands)
	if err != nil {
		return nil, err
	}
	loaded.Watchdog = p.Watchdog
	if err := m.Run(ctx, loaded); err != nil {
		return nil, err
	}
	r := &Result{Memory: make([]byte, len(p.Memory))}
	if err := m.Read(0, r.Memory); err != nil {
		return nil, err
	}
	clear(r.Memory[p.stamps.at:p.stamps.end])
	for e := range p.Config.Experts {
		n, err := m.Tokens(e)
		if err != nil {
			return nil, err
		}
		r.Tokens = append(r.Tokens, n)
	}
	if r.Dropped, err = m.Dropped(); err != nil {
		return nil, err
	}
	r.Counters, err = m.Counters()
	return r, err
}

// Model runs the program on the model, which also looks for races.
func (p *Program) Model() (*Result, error) {
	m, err := model.New(p.Config, model.Options{Memory: int64(len(p.Memory)), Races: true})
	if err != nil {
		return nil, err
	}
	return p.Run(context.Background(), m)
}

// Difference is where a link's memory is not the model's.
type Difference struct {
	Program   *Program
	Address   int
	Got, Want byte
	Bytes     int // how many differ
	Text      string
}

// Error implements error.
func (d *Difference) Error() string { return d.Text }

// Compare runs the program on the model and on a link and compares all memory, the lists and the counters that are
// defined. The error is a *Difference where they differ.
func (p *Program) Compare(ctx context.Context, l link.Link) error {
	want, err := p.Model()
	if err != nil {
		return fmt.Errorf("the model: %w\n%v", err, p)
	}
	got, err := p.Run(ctx, l)
	if err != nil {
		return err
	}
	return p.difference(l.Name(), got, want)
}

func (p *Program) difference(name string, got, want *Result) error {
	d := &Difference{Program: p, Address: -1}
	if !bytes.Equal(got.Memory, want.Memory) {
		for i, w := range want.Memory {
			if got.Memory[i] != w {
				if d.Bytes++; d.Address < 0 {
					d.Address, d.Got, d.Want = i, got.Memory[i], w
				}
			}
		}
		d.Text = fmt.Sprintf("%s: seed %d: byte %#x (%s) is %#02x, want %#02x; %d bytes differ", name, p.Seed,
			d.Address, p.place(d.Address),
			d.Got, d.Want, d.Bytes)
		return d
	}
	if fmt.Sprint(got.Tokens, got.Dropped) != fmt.Sprint(want.Tokens, want.Dropped) {
		d.Text = fmt.Sprintf("%s: seed %d: lists of %v, dropped %d, want %v, %d", name, p.Seed, got.Tokens,
			got.Dropped, want.Tokens, want.Dropped)
		return d
	}
	for _, c := range []isa.Counter{isa.CountDescriptors, isa.CountWriteBeats} {
		if got.Counters[c] != want.Counters[c] {
			d.Text = fmt.Sprintf("%s: seed %d: counter %q is %d, want %d", name, p.Seed, c, got.Counters[c],
				want.Counters[c])
			return d
		}
	}
	return nil
}

// place describes what is stored at an address.
func (p *Program) place(address int) string {
	at := address - int(p.dump)
	for _, s := range []isa.Space{isa.SpaceY, isa.SpaceX} {
		row := min(p.Config.Words(s), 1<<16-1) * p.Config.WordBytes
		if n := row * p.Config.Lanes(s); at >= n {
			at -= n
		} else if at >= 0 {
			return fmt.Sprintf("%v, lane %d, word %d, byte %d", s, at/row, at%row/p.Config.WordBytes,
				at%p.Config.WordBytes)
		}
	}
	return "stored by the body"
}

// Shrink finds a short beginning of the program's body that still differs, running it with run.
func (p *Program) Shrink(run func(*Program) error) *Program {
	low, high := 0, p.Body() // a prefix of high differs
	for low < high {
		if n := (low + high) / 2; run(p.Prefix(n)) != nil {
			high = n
		} else {
			low = n + 1
		}
	}
	return p.Prefix(high)
}
