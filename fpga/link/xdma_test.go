//go:build linux

package link_test

import (
	"context"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"fusec/fpga"
	"fusec/fpga/fpgatest"
	"fusec/fpga/isa"
	"fusec/fpga/link"
	"fusec/fpga/model"
)

// cardOverlay has no router: a file cannot answer the choice of an expert's list.
var cardOverlay = isa.Config{Name: "card", Rows: 4, Cols: 4, WordBytes: 4, XWords: 64, WWords: 64, YWords: 64,
	Params: 32, Tables: 1, AccBits: 32,
	KeyBlock: 16, HeadDim: 16, QPanels: 2, Norms: true, AddrBits: 16}

// card plays a card behind the files of the XDMA driver: the registers are a file that both map, memory is one that
// they read and write.
type card struct {
	path      string
	registers []byte
	memory    *os.File
	m         *model.Machine
	offset    int64
	stop      chan struct{}
	stopped   chan struct{}
}

// insert makes the files and plays the card until the test ends.
func insert(t testing.TB, offset int64) *card {
	c := &card{path: filepath.Join(t.TempDir(), "xdma0"), m: newModel(cardOverlay), offset: offset,
		stop:    make(chan struct{}),
		stopped: make(chan struct{})}
	user, err := os.OpenFile(c.path+"_user", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer user.Close()
	if err := user.Truncate(4096); err != nil {
		t.Fatal(err)
	}
	if c.registers, err = unix.Mmap(int(user.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED); err != nil {
		t.Fatal(err)
	}
	if c.memory, err = os.OpenFile(c.path+"_h2c_0", os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c.memory.Truncate(offset + c.m.MemoryBytes()); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(c.path+"_h2c_0", c.path+"_c2h_0"); err != nil {
		t.Fatal(err)
	}
	c.show()
	go func() {
		defer close(c.stopped)
		for {
			select {
			case <-c.stop:
				return
			case <-time.After(20 * time.Microsecond):
			}
			if v := atomic.LoadUint32(c.at(isa.RegControl)); v != 0 {
				c.control(v)
			}
		}
	}()
	t.Cleanup(func() {
		c.pull()
		unix.Munmap(c.registers)
		c.memory.Close()
	})
	return c
}

// pull ends the play.
func (c *card) pull() {
	select {
	case <-c.stop:
	default:
		close(c.stop)
	}
	<-c.stopped
}

func (c *card) at(register uint32) *uint32 { return (*uint32)(unsafe.Pointer(&c.registers[register])) }

// show copies the model's registers to where the host reads them, and last the one that tells it that the others are there.
func (c *card) show() {
	show := func(r uint32) {
		v, err := c.m.ReadReg(r)
		if err != nil {
			panic(err)
		}
		atomic.StoreUint32(c.at(r), v)
	}
	for r := uint32(0); r < isa.RegCounters+8*uint32(isa.Counters); r += 4 {
		if r != isa.RegControl {
			show(r)
		}
	}
	show(isa.RegControl)
}

// control does what was written to RegControl, which then reads as zero.
func (c *card) control(v uint32) {
	for _, r := range []uint32{isa.RegProgram, isa.RegLimit, isa.RegWatchdog} {
		c.m.WriteReg(r, atomic.LoadUint32(c.at(r)))
	}
	p := make([]byte, c.m.MemoryBytes())
	if _, err := c.memory.ReadAt(p, c.offset); err != nil {
		panic(err)
	}
	c.m.Write(0, p)
	c.m.WriteReg(isa.RegControl, v)
	c.m.Read(0, p)
	if _, err := c.memory.WriteAt(p, c.offset); err != nil {
		panic(err)
	}
	c.show()
}

func TestXDMA(t *testing.T) {
	fpgatest.Suite{Config: cardOverlay, Programs: 5, Open: func(t testing.TB) link.Link {
		x, err := link.OpenXDMA(insert(t, 1<<20).path, link.Options{Offset: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		return x
	}}.Run(t)
}

func TestXDMAFails(t *testing.T) {
	o := link.Options{Timeout: 100 * time.Millisecond}
	open := func(c *card) (*fpga.Machine, *fpga.Program) {
		t.Helper()
		x, err := link.OpenXDMA(c.path, o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { x.Close() })
		m, err := fpga.Open(x)
		if err != nil {
			t.Fatal(err)
		}
		p, err := m.Load(0, []isa.Command{&isa.End{}})
		if err != nil {
			t.Fatal(err)
		}
		return m, p
	}
	want := func(err error, text string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("error %v, want %q", err, text)
		}
	}
	c := insert(t, 0)
	m, p := open(c)
	if err := m.Run(context.Background(), p); err != nil {
		t.Fatal(err)
	}
	c.pull()
	want(m.Run(context.Background(), p), "write register 0x08: the register reads 0x1 for 100ms and not zero")

	c = insert(t, 0)
	m, _ = open(c)
	c.pull()
	for i := range c.registers {
		c.registers[i] = 0xff
	}
	_, err := m.Counters()
	want(err, "all bits read as one: the card is gone")
	_, err = link.OpenXDMA(c.path, o)
	want(err, "all bits read as one")
	binary.LittleEndian.PutUint32(c.registers, 0xdeadbeef)
	for i := range c.registers[4:] {
		c.registers[4+i] = 0
	}
	x, err := link.OpenXDMA(c.path, o)
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	_, err = fpga.Open(x)
	want(err, "no overlay of fusec's answers: its ID reads 0xdeadbeef")

	binary.LittleEndian.PutUint32(c.registers[isa.RegStatus:], isa.StatusBusy)
	_, err = x.Wait(context.Background())
	want(err, "wait: the overlay says that it is busy, but its clock stands still")
	_, err = link.OpenXDMA(filepath.Join(t.TempDir(), "xdma9"), o)
	want(err, "xdma9_user: no such file")
	if err := os.Remove(c.path + "_c2h_0"); err != nil {
		t.Fatal(err)
	}
	_, err = link.OpenXDMA(c.path, o)
	want(err, "_c2h_0: no such file")
}
