package fpga

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"fusec/fpga/isa"
	"fusec/fpga/link"
)

// Machine is an overlay behind a link. One goroutine uses it at a time.
type Machine struct {
	link link.Link
	cfg  isa.Config
}

// Program is descriptors in a machine's memory.
type Program struct {
	// Watchdog is the cycles without progress after which the machine stops; 0 for the value after a reset.
	Watchdog uint32

	at       uint32
	commands []isa.Command
}

// Commands are the program's commands, End the last.
func (p *Program) Commands() []isa.Command { return p.commands }

// At is the address of the first descriptor, Bytes the size of the descriptors.
func (p *Program) At() uint32 { return p.at }

// Bytes is how many bytes the descriptors take.
func (p *Program) Bytes() int { return len(p.commands) * isa.DescBytes }

// A DescriptorError is a descriptor that stopped the machine.
type DescriptorError struct {
	Number int    // in the program, from 0; of a watchdog's the last one fetched
	Text   string // the descriptor in words
	Field  string // the invalid field, if known
	Code   isa.Error
}

// Error implements error.
func (e *DescriptorError) Error() string {
	if e.Code == isa.ErrWatchdog {
		return fmt.Sprintf("the overlay stopped after descriptor %d (%s) was fetched: %v", e.Number, e.Text, e.Code)
	}
	field := ""
	if e.Field != "" {
		field = e.Field + ": "
	}
	return fmt.Sprintf("the overlay stopped at descriptor %d (%s): %s%v", e.Number, e.Text, field, e.Code)
}

// Unwrap gives the isa.Error.
func (e *DescriptorError) Unwrap() error { return e.Code }

// Open takes a link to an overlay: it has to be one of this version, and of a shape that is known. The machine is
// reset.
func Open(l link.Link) (*Machine, error) {
	id, err := l.ReadReg(isa.RegID)
	if err != nil {
		return nil, err
	}
	if id != isa.ID {
		return nil, fmt.Errorf("%s: no overlay of fusec's answers: its ID reads %#08x and not %#08x", l.Name(), id,
			uint32(isa.ID))
	}
	version, err := l.ReadReg(isa.RegVersion)
	if err != nil {
		return nil, err
	}
	if version != isa.Version {
		return nil, fmt.Errorf("%s: the overlay is of version %d, this program knows version %d", l.Name(), version,
			isa.Version)
	}
	var shape [4]uint32
	for i := range shape {
		if shape[i], err = l.ReadReg(isa.RegShape0 + 4*uint32(i)); err != nil {
			return nil, err
		}
	}
	cfg, err := isa.FromShape(shape)
	if err != nil {
		return nil, fmt.Errorf("%s: the overlay's shape registers %#08x make no sense: %w", l.Name(), shape, err)
	}
	cfg.Name = l.Name()
	m := &Machine{link: l, cfg: cfg}
	return m, m.Reset()
}

// Config is the overlay's configuration, read from its registers, with the link's name.
func (m *Machine) Config() isa.Config { return m.cfg }

// Link is the link to the machine.
func (m *Machine) Link() link.Link { return m.link }

// MemoryBytes is the size of external memory.
func (m *Machine) MemoryBytes() int64 { return m.link.MemoryBytes() }

// Close closes the link.
func (m *Machine) Close() error { return m.link.Close() }

// Reset resets the machine, so that it can be started. Memory and scratchpads keep their contents.
func (m *Machine) Reset() error { return m.link.WriteReg(isa.RegControl, isa.ControlReset) }

// inside reports n bytes at an address that are not in memory.
func (m *Machine) inside(at uint32, n int) error {
	if size := m.link.MemoryBytes(); int64(at)+int64(n) > size {
		return fmt.Errorf("%s: %d bytes at %#x: memory has %d", m.link.Name(), n, at, size)
	}
	return nil
}

// Read copies bytes from external memory.
func (m *Machine) Read(at uint32, p []byte) error {
	if err := m.inside(at, len(p)); err != nil {
		return err
	}
	return m.link.Read(at, p)
}

// Write copies bytes to external memory.
func (m *Machine) Write(at uint32, p []byte) error {
	if err := m.inside(at, len(p)); err != nil {
		return err
	}
	return m.link.Write(at, p)
}

// Load puts commands as descriptors into memory, from at on, a multiple of isa.DescBytes. The last has to be an End,
// and only the last. The error names the first command that the overlay would not take.
func (m *Machine) Load(at uint32, commands []isa.Command) (*Program, error) {
	if at%isa.DescBytes != 0 {
		return nil, fmt.Errorf("a program at %#x: want a multiple of %d", at, isa.DescBytes)
	}
	bytes := make([]byte, 0, len(commands)*isa.DescBytes)
	for i, c := range commands {
		if last := i == len(commands)-1; last != (c.Op() == isa.OpEnd) {
			return nil, fmt.Errorf("descriptor %d (%s): a program ends with its only end", i, isa.Text(c))
		}
		if fault := m.cfg.Verify(c, m.link.MemoryBytes()); fault != nil {
			return nil, fmt.Errorf("descriptor %d (%s): %w", i, isa.Text(c), fault)
		}
		var err error
		if bytes, err = isa.Encode(bytes, c); err != nil {
			return nil, fmt.Errorf("descriptor %d: %w", i, err)
		}
	}
	if len(commands) == 0 {
		return nil, fmt.Errorf("a program of no descriptors")
	}
	return &Program{at: at, commands: commands}, m.Write(at, bytes)
}

// Run starts a program and waits for its end. If a descriptor stops the machine the error is a *DescriptorError, and
// the machine is reset, so that the program, or another, can be run again. If ctx ends first, the machine is also
// reset, and the error is that of ctx. Any other error is the link's, which has to be opened again.
func (m *Machine) Run(ctx context.Context, p *Program) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	limit := m.link.MemoryBytes()
	if limit > 1<<32-1 {
		limit = 0 // all that addresses reach
	}
	watchdog := p.Watchdog
	if watchdog == 0 {
		watchdog = 1 << 20
	}
	for _, r := range [...]struct{ at, value uint32 }{
		{isa.RegProgram, p.at}, {isa.RegLimit, uint32(limit)}, {isa.RegWatchdog, watchdog},
		{isa.RegControl, isa.ControlStart},
	} {
		if err := m.link.WriteReg(r.at, r.value); err != nil {
			return err
		}
	}
	status, err := m.link.Wait(ctx)
	switch {
	case err != nil && errors.Is(err, ctx.Err()):
		return errors.Join(err, m.Reset())
	case err != nil:
		return err
	case status&isa.StatusError != 0:
		return m.stopped(p)
	case status&(isa.StatusDone|isa.StatusBusy) != isa.StatusDone:
		return fmt.Errorf("%s: the status register reads %#x after a run: neither done nor error", m.link.Name(),
			status)
	}
	return nil
}

// stopped reads what stopped the machine, and resets it.
func (m *Machine) stopped(p *Program) error {
	code, err := m.link.ReadReg(isa.RegError)
	if err != nil {
		return err
	}
	number, err := m.link.ReadReg(isa.RegErrorAt)
	if err != nil {
		return err
	}
	if err := m.Reset(); err != nil {
		return err
	}
	if code == 0 || int64(number) >= int64(len(p.commands)) {
		return fmt.Errorf("%s: the overlay reports error %d at descriptor %d of %d, which makes no sense",
			m.link.Name(), code, number,
			len(p.commands))
	}
	c := p.commands[number]
	e := &DescriptorError{Number: int(number), Text: isa.Text(c), Code: isa.Error(code)}
	if fault := m.cfg.Verify(c, m.link.MemoryBytes()); fault != nil && fault.Code == e.Code {
		e.Field = fault.Field
	}
	return e
}

// Counters reads the counters of the last run.
func (m *Machine) Counters() (counts [isa.Counters]uint64, err error) {
	for i := range counts {
		at := isa.RegCounters + 8*uint32(i)
		low, err := m.link.ReadReg(at)
		if err != nil {
			return counts, err
		}
		high, err := m.link.ReadReg(at + 4)
		if err != nil {
			return counts, err
		}
		counts[i] = uint64(high)<<32 | uint64(low)
	}
	return counts, nil
}

// Stamp reads the result of a Stamp command at an address: the cycles of the run so far, and those in which the array
// multiplied.
func (m *Machine) Stamp(at uint32) (cycles, multiply uint64, err error) {
	var b [16]byte
	err = m.Read(at, b[:])
	return binary.LittleEndian.Uint64(b[:]), binary.LittleEndian.Uint64(b[8:]), err
}

// Tokens is how many entries the router's list of an expert has, Dropped how many found their list full.
func (m *Machine) Tokens(expert int) (int, error) {
	if err := m.link.WriteReg(isa.RegExpert, uint32(expert)); err != nil {
		return 0, err
	}
	n, err := m.link.ReadReg(isa.RegCount)
	return int(n), err
}

// Dropped is how many entries found their list full since a Route with First.
func (m *Machine) Dropped() (int, error) {
	n, err := m.link.ReadReg(isa.RegDropped)
	return int(n), err
}
