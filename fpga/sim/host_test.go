package sim

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"testing"

	"fusec/fpga/isa"
	"fusec/fpga/testtools"
)

// host talks to a simulator frame by frame, as PROTOCOL.md says.
type host struct {
	t   *testing.T
	in  io.Writer
	out io.Reader
}

// The operations of the protocol.
const (
	opHello = 1 + iota
	opReadReg
	opWriteReg
	opRead
	opWrite
	opRun
	opSetMemory
	opCycles
)

// startHost starts a simulator with a seed.
func startHost(t *testing.T, c isa.Config, o Options, seed int) *host {
	t.Helper()
	testtools.Need(t, "verilator", "g++", "make")
	built, err := Build(context.Background(), c, o)
	if err != nil {
		t.Fatal(err)
	}
	in, out := testtools.Start(t, built.Program, "-seed", fmt.Sprint(seed), "-memory", fmt.Sprint(1<<20))
	return &host{t, in, out}
}

// ask sends a request and returns its answer, which must have the expected code.
func (h *host) ask(code, op, address uint32, value uint64, body []byte) (uint64, []byte) {
	h.t.Helper()
	q := binary.LittleEndian.AppendUint32(nil, op)
	q = binary.LittleEndian.AppendUint32(q, address)
	q = binary.LittleEndian.AppendUint64(q, value)
	if _, err := h.in.Write(append(q, body...)); err != nil {
		h.t.Fatal(err)
	}
	var head [16]byte
	if _, err := io.ReadFull(h.out, head[:]); err != nil {
		h.t.Fatal(err)
	}
	data := make([]byte, binary.LittleEndian.Uint32(head[4:]))
	if _, err := io.ReadFull(h.out, data); err != nil {
		h.t.Fatal(err)
	}
	if got := binary.LittleEndian.Uint32(head[:]); got != code {
		h.t.Fatalf("operation %d: code %d, want %d: %s", op, got, code, data)
	}
	return binary.LittleEndian.Uint64(head[8:]), data
}

func (h *host) reg(at uint32) uint32 {
	h.t.Helper()
	v, _ := h.ask(0, opReadReg, at, 0, nil)
	return uint32(v)
}

func (h *host) setReg(at, v uint32) {
	h.t.Helper()
	h.ask(0, opWriteReg, at, uint64(v), nil)
}

func (h *host) read(at uint32, n int) []byte {
	h.t.Helper()
	_, data := h.ask(0, opRead, at, uint64(n), nil)
	return data
}

func (h *host) write(at uint32, p []byte) {
	h.t.Helper()
	h.ask(0, opWrite, at, uint64(len(p)), p)
}

func (h *host) counter(c isa.Counter) uint64 {
	h.t.Helper()
	low := h.reg(isa.RegCounters + 8*uint32(c))
	return uint64(low) | uint64(h.reg(isa.RegCounters+8*uint32(c)+4))<<32
}

// memoryModel is what external memory costs.
type memoryModel struct{ beats, cycles, latency, extra, stall, seed, shared uint32 }

func (h *host) setMemory(m memoryModel) {
	h.t.Helper()
	var b bytes.Buffer
	for _, v := range []uint32{m.beats, m.cycles, m.latency, m.extra, m.stall, m.seed, m.shared, 0} {
		binary.Write(&b, binary.LittleEndian, v)
	}
	h.ask(0, opSetMemory, 0, 32, b.Bytes())
}

// programAt is where tests put their programs.
const programAt = 0x8000

// run runs commands to their end and gives the status and the cycles that the clock ran.
func (h *host) run(limit uint64, commands ...isa.Command) (status uint32, cycles uint64) {
	h.t.Helper()
	var p []byte
	for _, c := range commands {
		var err error
		if p, err = isa.Encode(p, c); err != nil {
			h.t.Fatal(err)
		}
	}
	h.write(programAt, p)
	h.setReg(isa.RegProgram, programAt)
	before, _ := h.ask(0, opCycles, 0, 0, nil)
	h.setReg(isa.RegControl, isa.ControlStart)
	v, _ := h.ask(0, opRun, 0, limit, nil)
	after, _ := h.ask(0, opCycles, 0, 0, nil)
	return uint32(v), after - before
}

// good runs commands that must end well.
func (h *host) good(commands ...isa.Command) (cycles uint64) {
	h.t.Helper()
	status, cycles := h.run(1e6, commands...)
	if status != isa.StatusDone {
		h.t.Fatalf("status %#x after %d cycles: %v at descriptor %d", status, cycles,
			isa.Error(h.reg(isa.RegError)), h.reg(isa.RegErrorAt))
	}
	return cycles
}
