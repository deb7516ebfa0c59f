//go:build linux

package link_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fusec/fpga"
	"fusec/fpga/fpgatest"
	"fusec/fpga/isa"
	"fusec/fpga/link"
	"fusec/fpga/model"
)

// pty opens a pseudo-terminal: its master, and the path of the line.
func pty(t testing.TB) (*os.File, string) {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := master.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var n int
	if err := raw.Control(func(fd uintptr) {
		if err = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0); err == nil {
			n, err = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close() })
	return master, fmt.Sprintf("/dev/pts/%d", n)
}

// board plays a board on a serial line over the model.
type board struct {
	line io.ReadWriter
	m    *model.Machine
	// odd changes a frame that is about to be sent, its CRC behind it.
	odd     func([]byte) []byte
	running bool
	asked   uint32 // how often the host has read a register while the program ran
}

// sum is the line's CRC-8, bit by bit.
func sum(p []byte) (crc byte) {
	for _, b := range p {
		for i := 7; i >= 0; i-- {
			top := crc>>7 ^ b>>i&1
			crc = crc<<1 ^ top*7
		}
	}
	return crc
}

func (b *board) send(frame ...byte) error {
	frame = append(frame, sum(frame))
	if b.odd != nil {
		frame = b.odd(frame)
	}
	_, err := b.line.Write(frame)
	return err
}

// receive reads a frame; beats is how many a D has. Noise before a Z is skipped.
func (b *board) receive(beats int) ([]byte, error) {
	f := make([]byte, 1)
	if _, err := io.ReadFull(b.line, f); err != nil {
		return nil, err
	}
	more, ok := map[byte]int{'Z': 1, 'R': 2, 'W': 6, 'D': beats*overlay.WordBytes + 1}[f[0]]
	if !ok {
		return nil, fmt.Errorf("a host sent %q", f)
	}
	f = append(f, make([]byte, more)...)
	if _, err := io.ReadFull(b.line, f[1:]); err != nil {
		return nil, err
	}
	if sum(f[:len(f)-1]) != f[len(f)-1] {
		return nil, b.send('E', 1)
	}
	return f[:len(f)-1], nil
}

// serve plays until the line is closed.
func (b *board) serve() error {
	for {
		f, err := b.receive(0)
		if err != nil {
			return err
		}
		start, err := b.answer(f)
		if err == nil && start {
			err = b.run()
		}
		if err != nil {
			return err
		}
	}
}

// answer answers a frame of the host and says whether it starts the overlay.
func (b *board) answer(f []byte) (start bool, err error) {
	switch f[0] {
	case 'Z':
		b.m.WriteReg(isa.RegControl, isa.ControlReset)
		return false, b.send('z', 1, byte(overlay.WordBytes))
	case 'R':
		v, err := b.m.ReadReg(uint32(f[1]))
		if err != nil {
			return false, err
		}
		if b.running {
			b.asked++
			switch f[1] {
			case isa.RegStatus:
				v = isa.StatusBusy
			case isa.RegCounters:
				v = b.asked // cycles pass
			}
		}
		return false, b.send(binary.LittleEndian.AppendUint32([]byte{'r'}, v)...)
	}
	v := binary.LittleEndian.Uint32(f[2:])
	if f[1] == isa.RegControl && v&isa.ControlStart != 0 {
		return true, b.send('w')
	}
	if err := b.m.WriteReg(uint32(f[1]), v); err != nil {
		return false, err
	}
	return false, b.send('w')
}

// run fetches all memory from the host, does the program and writes back what changed.
func (b *board) run() error {
	b.running = true
	const beats = 256
	n := beats * overlay.WordBytes
	before := make([]byte, b.m.MemoryBytes())
	for at := 0; at < len(before); at += n {
		if err := b.send(append(binary.LittleEndian.AppendUint32([]byte{'M'}, uint32(at)), beats-1)...); err != nil {
			return err
		}
		for {
			f, err := b.receive(beats)
			if err != nil {
				return err
			}
			if f[0] == 'D' {
				copy(before[at:], f[1:])
				break
			}
			if _, err := b.answer(f); err != nil {
				return err
			}
		}
	}
	b.m.Write(0, before)
	b.m.WriteReg(isa.RegControl, isa.ControlStart)
	after := make([]byte, len(before))
	b.m.Read(0, after)
	for at := 0; at < len(after); at += overlay.WordBytes {
		if beat := after[at:][:overlay.WordBytes]; !bytes.Equal(beat, before[at:][:overlay.WordBytes]) {
			if err := b.send(append(binary.LittleEndian.AppendUint32([]byte{'S'}, uint32(at)),
				beat...)...); err != nil {
				return err
			}
		}
	}
	b.running = false
	return b.send('I')
}

// play starts a board on a pseudo-terminal and gives the line's path.
func play(t testing.TB, odd func([]byte) []byte) string {
	master, path := pty(t)
	b := &board{line: master, m: newModel(overlay), odd: odd}
	go b.serve()
	return path
}

func TestSerial(t *testing.T) {
	fpgatest.Suite{Config: overlay, Programs: 2, Errors: 10, Open: func(t testing.TB) link.Link {
		s, err := link.OpenSerial(play(t, nil), 115200, link.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}}.Run(t)
}

// TestSerialFails has boards that go wrong: silent, mad, of another version, on a bad line, asking for memory that is
// not there.
func TestSerialFails(t *testing.T) {
	replace := func(letter byte, by ...byte) func([]byte) []byte {
		return func(f []byte) []byte {
			if f[0] != letter {
				return f
			}
			if by != nil {
				return append(by, sum(by))
			}
			return nil
		}
	}
	program := []isa.Command{&isa.Load{Space: isa.SpaceX, Rows: 1, Words: 1}, &isa.Store{Space: isa.SpaceX, Addr: 4096,
		Rows: 1, Words: 1}, &isa.End{}}
	o := link.Options{Timeout: 500 * time.Millisecond}
	for _, c := range []struct {
		want string
		odd  func([]byte) []byte
	}{
		{"begin: no board answers within 500ms", replace('z')},
		{"begin: a board of version 2 with words of 4 bytes", replace('z', 'z', 2, 4)},
		{"begin: a board of version 1 with words of 3 bytes", replace('z', 'z', 1, 3)},
		{"read register 0x34: no answer within 500ms", replace('r')},
		{`read register 0x34: a frame 'w' where 'r' was due`, replace('r', 'w')},
		{"addresses of 63 bits", replace('r', 'r', 255, 255, 255, 255)},
		{"read register 0x34: byte 0x3f begins no frame", replace('r', '?')},
		{"read register 0x34: a frame of the board has a wrong check sum", func(f []byte) []byte {
			if f[0] == 'r' {
				f[2] ^= 4
			}
			return f
		}},
		{"write register 0x08: the board reports: a frame's check sum was wrong", replace('w', 'E', 1)},
		{"write register 0x08: the board reports error 9 of the line", replace('w', 'E', 9)},
		{"wait: the board asks for 1024 bytes of memory at 0xff800000", replace('M', 'M', 0, 0, 0x80, 0xff, 255)},
		{"wait: a frame 'w' that nothing asked for", replace('M', 'w')},
		{"wait: the board reports: a beat of memory came too early", replace('M', 'E', 4)},
	} {
		err := func() error {
			s, err := link.OpenSerial(play(t, c.odd), 115200, o)
			if err != nil {
				return err
			}
			defer s.Close()
			m, err := fpga.Open(s)
			if err != nil {
				return err
			}
			p, err := m.Load(0, program)
			if err != nil {
				return err
			}
			return m.Run(context.Background(), p)
		}()
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want %q", err, c.want)
		}
	}
	if _, err := link.OpenSerial("/dev/null", 115200, o); err == nil || !strings.Contains(err.Error(),
		"/dev/null: no serial line") {
		t.Error(err)
	}
	if _, err := link.OpenSerial(play(t, nil), 12345, o); err == nil || !strings.Contains(err.Error(),
		"12345 bit/s: want one of [9600") {
		t.Error(err)
	}
}

// TestSerialSlow opens a board whose first greeting comes when the host has asked for another one.
func TestSerialSlow(t *testing.T) {
	greetings := 0
	s, err := link.OpenSerial(play(t, func(f []byte) []byte {
		if f[0] != 'z' {
			return f
		}
		if greetings++; greetings == 1 {
			return nil
		}
		return append(bytes.Clone(f), f...)
	}), 115200, link.Options{Timeout: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
}

// TestSerialNoise opens a board that is in the middle of something, and one whose cable is pulled.
func TestSerialNoise(t *testing.T) {
	first := true
	s, err := link.OpenSerial(play(t, func(f []byte) []byte {
		if first {
			first = false
			return append([]byte{0, 'r', 1, 2, 'M', 'z', 9, 'z'}, f...)
		}
		return f
	}), 115200, link.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if id, err := s.ReadReg(isa.RegID); id != isa.ID || err != nil {
		t.Errorf("the ID reads %#x, %v", id, err)
	}
	master, path := pty(t)
	b := &board{line: master, m: newModel(overlay)}
	go b.serve()
	pulled, err := link.OpenSerial(path, 115200, link.Options{Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	master.Close()
	if _, err := pulled.ReadReg(isa.RegID); err == nil {
		t.Error("a line whose other end is closed still answers")
	}
	if err := pulled.Close(); err != nil {
		t.Error(err)
	}
}
