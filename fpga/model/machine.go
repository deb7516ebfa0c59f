package model

import (
	"context"
	"fmt"
	"os"

	"fusec/fpga/isa"
)

// Options are the options of a Machine.
type Options struct {
	// Memory is the size of external memory in bytes. Default: 16 MiB, or as much as addresses reach.
	Memory int64
	// Races makes Wait return an error of type [Race] after a program whose result hangs on the engines' speed.
	Races bool
	// Latency is the cycles from a request to memory to its first beat, for the counters. Default: 40.
	Latency int
}

// Machine is an overlay with its external memory, and a link.Link to it.
type Machine struct {
	cfg     isa.Config
	options Options
	memory  []byte
	spaces  [isa.SpaceParams]pad // X, W and Y
	params  []byte
	tables  [][256]int8
	router  router
	heads   []head // attention's state, panel by panel
	held    []int32

	status, program, limit, watchdog, expert uint32
	fault                                    isa.Error
	faultAt                                  uint32
	counters                                 [isa.Counters]uint64
	high                                     [isa.Counters]uint32 // high halves, kept when the low halves were read

	closed bool
	run    run
	steps  struct{ holding, open bool } // state of Step from earlier steps
	race   error
}

// pad is a scratchpad: its lanes' bytes.
type pad [][]byte

// row is n bytes of a lane from a word on.
func (m *Machine) row(s isa.Space, lane, word, n int) []byte {
	return m.spaces[s][lane][word*m.cfg.WordBytes:][:n]
}

// New makes a machine that was just reset; memory and scratchpads hold zeros.
func New(cfg isa.Config, o Options) (*Machine, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	reach := int64(1) << cfg.AddrBits
	if o.Memory == 0 {
		o.Memory = min(16<<20, reach)
	}
	if o.Memory < 0 || o.Memory > reach {
		return nil, fmt.Errorf("overlay %q: %d bytes of memory: addresses of %d bits reach %d", cfg.Name, o.Memory,
			cfg.AddrBits, reach)
	}
	if o.Latency == 0 {
		o.Latency = 40
	}
	m := &Machine{cfg: cfg, options: o, memory: make([]byte, o.Memory), params: make([]byte,
		cfg.Params*isa.RecordBytes),
		tables: make([][256]int8, cfg.Tables)}
	for s := range m.spaces {
		m.spaces[s] = make(pad, cfg.Lanes(isa.Space(s)))
		for l := range m.spaces[s] {
			m.spaces[s][l] = make([]byte, cfg.Words(isa.Space(s))*cfg.WordBytes)
		}
	}
	m.held = make([]int32, cfg.Rows*cfg.Cols)
	m.heads = make([]head, cfg.QPanels*cfg.Rows)
	for i := range m.heads {
		m.heads[i].acc = make([]int64, cfg.HeadDim)
	}
	m.router = newRouter(cfg)
	m.reset()
	return m, nil
}

// reset is ControlReset: all but memory and the contents of scratchpads.
func (m *Machine) reset() {
	m.status, m.program, m.limit, m.expert, m.fault, m.faultAt = 0, 0, 0, 0, 0, 0
	m.watchdog = 1 << 20
	m.counters, m.high = [isa.Counters]uint64{}, [isa.Counters]uint32{}
	for i := range m.heads {
		m.heads[i].begin()
	}
	m.router.empty()
	m.run.reset()
	m.race = nil
}

// Config is the machine's configuration.
func (m *Machine) Config() isa.Config { return m.cfg }

// Name implements link.Link.
func (m *Machine) Name() string { return "model" }

// MemoryBytes implements link.Link.
func (m *Machine) MemoryBytes() int64 { return m.options.Memory }

// Close implements link.Link.
func (m *Machine) Close() error {
	m.closed = true
	return nil
}

// errClosed is a machine that was closed.
var errClosed = fmt.Errorf("model: %w", os.ErrClosed)

// place is n bytes of memory.
func (m *Machine) place(address uint32, n int) ([]byte, error) {
	if m.closed {
		return nil, errClosed
	}
	if int64(address)+int64(n) > m.options.Memory {
		return nil, fmt.Errorf("model: %d bytes at %#x: memory has %d", n, address, m.options.Memory)
	}
	return m.memory[address:][:n], nil
}

// Read implements link.Link.
func (m *Machine) Read(address uint32, p []byte) error {
	at, err := m.place(address, len(p))
	copy(p, at)
	return err
}

// Write implements link.Link.
func (m *Machine) Write(address uint32, p []byte) error {
	at, err := m.place(address, len(p))
	copy(at, p)
	return err
}

// ReadReg implements link.Link.
func (m *Machine) ReadReg(address uint32) (uint32, error) {
	if m.closed {
		return 0, errClosed
	}
	shape := m.cfg.Shape()
	switch address {
	case isa.RegID:
		return isa.ID, nil
	case isa.RegVersion:
		return isa.Version, nil
	case isa.RegStatus:
		return m.status, nil
	case isa.RegError:
		return uint32(m.fault), nil
	case isa.RegErrorAt:
		return m.faultAt, nil
	case isa.RegProgram:
		return m.program, nil
	case isa.RegLimit:
		return m.limit, nil
	case isa.RegWatchdog:
		return m.watchdog, nil
	case isa.RegExpert:
		return m.expert, nil
	case isa.RegCount:
		if int(m.expert) < m.cfg.Experts {
			return uint32(len(m.router.lists[m.expert])), nil
		}
	case isa.RegDropped:
		return m.router.dropped, nil
	case isa.RegShape0, isa.RegShape1, isa.RegShape2, isa.RegShape3:
		return shape[(address-isa.RegShape0)/4], nil
	default:
		if c := (address - isa.RegCounters) / 8; address >= isa.RegCounters && c < uint32(isa.Counters) &&
			address%4 == 0 {
			if address%8 == 4 {
				return m.high[c], nil
			}
			m.high[c] = uint32(m.counters[c] >> 32)
			return uint32(m.counters[c]), nil
		}
	}
	return 0, nil
}

// WriteReg implements link.Link. A start executes the whole program.
func (m *Machine) WriteReg(address, value uint32) error {
	if m.closed {
		return errClosed
	}
	switch address {
	case isa.RegControl:
		if value&isa.ControlReset != 0 {
			m.reset()
		}
		if value&isa.ControlStart != 0 && m.status&isa.StatusError == 0 {
			m.start()
		}
	case isa.RegStatus:
		m.status &^= value & isa.StatusDone
	case isa.RegProgram:
		m.program = m.cfg.Kept(value)
	case isa.RegLimit:
		m.limit = m.cfg.Kept(value)
	case isa.RegWatchdog:
		m.watchdog = value
	case isa.RegExpert:
		m.expert = value
	}
	return nil
}

// Wait implements link.Link. A started program has already been executed. For a program that is stuck with its watchdog
// off, it waits for the end of ctx. With Options.Races the error may be a *Race or a *Misuse.
func (m *Machine) Wait(ctx context.Context) (uint32, error) {
	if m.status&isa.StatusBusy != 0 {
		<-ctx.Done()
		return m.status, ctx.Err()
	}
	err := m.race
	m.race = nil
	return m.status, err
}
