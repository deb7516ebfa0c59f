//go:build linux

package link

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"fusec/fpga/isa"
)

// XDMA is a card behind the character devices of the XDMA driver: PATH_user has the registers, to be mapped into
// memory, PATH_h2c_0 and PATH_c2h_0 write and read the card's memory at an offset.
type XDMA struct {
	broken
	registers []byte
	to, of    *os.File // the card's memory, for writing and reading
	offset    int64
	memory    int64
	timeout   time.Duration
}

var _ Link = (*XDMA)(nil)

// registerBytes is the size of the mapped registers.
const registerBytes = 4096

// allOnes is the value of reads from a card that was removed.
const allOnes = 1<<32 - 1

// errGone is a card that no longer answers.
var errGone = errors.New("all bits read as one: the card is gone, or was configured again")

// OpenXDMA opens a card by the common part of its devices' names, such as /dev/xdma0.
func OpenXDMA(path string, o Options) (*XDMA, error) {
	x := &XDMA{broken: broken{name: "xdma:" + path}, offset: o.Offset, timeout: o.timeout(5 * time.Second)}
	err := x.open(path)
	var shape uint32
	if err == nil {
		shape, err = x.ReadReg(isa.RegShape1)
	}
	if err != nil {
		x.release()
		return nil, x.fail("open", err)
	}
	x.memory = int64(1) << min(shape>>20&63, 32)
	if o.Memory > 0 {
		x.memory = min(x.memory, o.Memory)
	}
	return x, nil
}

func (x *XDMA) open(path string) error {
	user, err := os.OpenFile(path+"_user", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer user.Close()
	raw, err := user.SyscallConn()
	if err != nil {
		return err
	}
	if e := raw.Control(func(fd uintptr) {
		x.registers, err = unix.Mmap(int(fd), 0, registerBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}); e != nil {
		err = e
	}
	if err != nil {
		return fmt.Errorf("map %s_user: %w", path, err)
	}
	if x.to, err = os.OpenFile(path+"_h2c_0", os.O_WRONLY, 0); err == nil {
		x.of, err = os.OpenFile(path+"_c2h_0", os.O_RDONLY, 0)
	}
	return err
}

// release frees the resources of open.
func (x *XDMA) release() {
	if x.registers != nil {
		unix.Munmap(x.registers)
	}
	for _, f := range []*os.File{x.to, x.of} {
		if f != nil {
			f.Close()
		}
	}
	x.registers, x.to, x.of = nil, nil, nil
}

// register is the mapped register at an address, a multiple of four.
func (x *XDMA) register(address uint32) *uint32 {
	return (*uint32)(unsafe.Pointer(&x.registers[address&^3 : address&^3+4][0]))
}

// Name implements Link.
func (x *XDMA) Name() string { return x.name }

// MemoryBytes implements Link.
func (x *XDMA) MemoryBytes() int64 { return x.memory }

// ReadReg implements Link.
func (x *XDMA) ReadReg(address uint32) (uint32, error) {
	if x.err != nil {
		return 0, x.err
	}
	v := atomic.LoadUint32(x.register(address))
	if v == allOnes && atomic.LoadUint32(x.register(isa.RegID)) == allOnes {
		return 0, x.fail(doing(frameReadReg, address), errGone)
	}
	return v, nil
}

// WriteReg implements Link. RegControl reads as zero when the written value has been accepted. Reading it also ensures
// that no write is still pending.
func (x *XDMA) WriteReg(address, value uint32) error {
	if x.err != nil {
		return x.err
	}
	atomic.StoreUint32(x.register(address), value)
	if address != isa.RegControl {
		return nil
	}
	v, ok, err := x.poll(context.Background(), isa.RegControl, func(v uint32) bool { return v == 0 })
	if err == nil && !ok {
		err = x.fail(doing(frameWriteReg, address), fmt.Errorf("the register reads %#x for %v and not zero", v,
			x.timeout))
	}
	return err
}

// poll reads a register until done is true, with growing sleeps in between, or until the time limit: then ok is false.
func (x *XDMA) poll(ctx context.Context, address uint32, done func(uint32) bool) (v uint32, ok bool, err error) {
	const most = time.Millisecond
	deadline := time.Now().Add(x.timeout)
	for sleep := time.Duration(0); ; sleep = min(2*sleep+time.Microsecond, most) {
		if v, err = x.ReadReg(address); err != nil || done(v) {
			return v, err == nil, err
		}
		if err = ctx.Err(); err != nil || time.Now().After(deadline) {
			return v, false, err
		}
		time.Sleep(sleep)
	}
}

// Read implements Link.
func (x *XDMA) Read(address uint32, p []byte) error {
	if x.err != nil {
		return x.err
	}
	if _, err := x.of.ReadAt(p, x.offset+int64(address)); err != nil {
		return x.fail(doing(frameRead, address), err)
	}
	return nil
}

// Write implements Link.
func (x *XDMA) Write(address uint32, p []byte) error {
	if x.err != nil {
		return x.err
	}
	if _, err := x.to.WriteAt(p, x.offset+int64(address)); err != nil {
		return x.fail(doing(frameWrite, address), err)
	}
	return nil
}

// Wait implements Link. The overlay's watchdog ends a program without progress, but it cannot detect that its clock has
// stopped.
func (x *XDMA) Wait(ctx context.Context) (uint32, error) {
	for {
		before, err := x.ReadReg(isa.RegCounters)
		if err != nil {
			return 0, err
		}
		v, ok, err := x.poll(ctx, isa.RegStatus, func(v uint32) bool { return v&isa.StatusBusy == 0 })
		if ok || err != nil {
			return v, err
		}
		after, err := x.ReadReg(isa.RegCounters)
		if err != nil {
			return 0, err
		}
		if after == before {
			return v, x.fail("wait", errStands(after))
		}
	}
}

// Close implements Link.
func (x *XDMA) Close() error {
	x.release()
	if !errors.Is(x.err, os.ErrClosed) {
		x.err = &Error{x.name, "use", os.ErrClosed}
	}
	return nil
}
