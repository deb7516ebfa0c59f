package sim

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"testing"
	"time"

	"fusec/fpga/isa"
	"fusec/fpga/testtools"
)

// line is the host's end of a board's serial line, with the external memory that it serves.
type line struct {
	t      *testing.T
	f      *os.File
	word   int
	memory []byte
	served int  // reads of memory that were answered
	deaf   bool // reads of memory are not answered
}

// openBoard starts a simulated board and opens its line.
func openBoard(t *testing.T, c isa.Config) *line {
	t.Helper()
	testtools.Need(t, "verilator", "g++", "make")
	program, err := BuildBoard(context.Background(), c, around(t, false))
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(testtools.Board(t, program), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	l := &line{t: t, f: f, word: c.WordBytes, memory: make([]byte, 1<<16)}
	l.begin()
	return l
}

// crc8 is the CRC of a frame.
func crc8(p []byte) (crc byte) {
	for _, b := range p {
		crc ^= b
		for range 8 {
			crc = crc<<1 ^ 7*(crc>>7)
		}
	}
	return crc
}

func (l *line) send(frame ...byte) { l.raw(append(frame, crc8(frame))...) }

func (l *line) raw(p ...byte) {
	l.t.Helper()
	if _, err := l.f.Write(p); err != nil {
		l.t.Fatal(err)
	}
}

// Read waits for bytes of the board for 30 seconds, not counting the time in which the test is stopped.
func (l *line) Read(b []byte) (n int, err error) {
	for range 30 {
		if err := l.f.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
			return 0, err
		}
		if n, err = l.f.Read(b); n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
	}
	return n, err
}

// receive gives the board's next frame without its CRC, and fails when none comes for some seconds.
func (l *line) receive() []byte {
	l.t.Helper()
	frame := make([]byte, 1)
	if _, err := io.ReadFull(l, frame); err != nil {
		l.t.Fatal(err)
	}
	n, known := map[byte]int{'z': 2, 'r': 4, 'w': 0, 'M': 5, 'S': 4 + l.word, 'I': 0, 'E': 1}[frame[0]]
	if !known {
		l.t.Fatalf("a frame %q", frame)
	}
	frame = append(frame, make([]byte, n+1)...)
	if _, err := io.ReadFull(l, frame[1:]); err != nil {
		l.t.Fatal(err)
	}
	if crc8(frame) != 0 {
		l.t.Fatalf("a frame with a wrong CRC: % x", frame)
	}
	return frame[:n+1]
}

// until serves memory until a frame of a kind comes, and gives it.
func (l *line) until(kind byte) []byte {
	l.t.Helper()
	for {
		f := l.receive()
		switch {
		case f[0] == kind:
			return f
		case f[0] == 'M':
			at, n := binary.LittleEndian.Uint32(f[1:]), (int(f[5])+1)*l.word
			if !l.deaf {
				l.send(append([]byte{'D'}, l.memory[at:int(at)+n]...)...)
				l.served++
			}
		case f[0] == 'S':
			copy(l.memory[binary.LittleEndian.Uint32(f[1:]):], f[5:])
		case f[0] == 'I':
		default:
			l.t.Fatalf("a frame %q while waiting for %q", f, kind)
		}
	}
}

func (l *line) begin() {
	l.t.Helper()
	l.send('Z')
	if f := l.until('z'); f[1] != 1 || int(f[2]) != l.word {
		l.t.Fatalf("version %d, %d bytes a word", f[1], f[2])
	}
}

func (l *line) reg(at byte) uint32 {
	l.t.Helper()
	l.send('R', at)
	return binary.LittleEndian.Uint32(l.until('r')[1:])
}

func (l *line) setReg(at byte, v uint32) {
	l.t.Helper()
	l.send('W', at, byte(v), byte(v>>8), byte(v>>16), byte(v>>24))
	l.until('w')
}

// start puts a program into memory and starts it.
func (l *line) start(commands ...isa.Command) {
	l.t.Helper()
	var p []byte
	for _, c := range commands {
		var err error
		if p, err = isa.Encode(p, c); err != nil {
			l.t.Fatal(err)
		}
	}
	copy(l.memory[programAt:], p)
	l.setReg(isa.RegWatchdog, 1<<24)
	l.setReg(isa.RegProgram, programAt)
	l.setReg(isa.RegControl, isa.ControlStart)
}

// copies runs a program that copies 8 rows of 4 words, and looks at them.
func (l *line) copies() {
	l.t.Helper()
	for i := range 0x1000 {
		l.memory[i] = byte(i*5 + i>>6)
	}
	ld, st := load(), store()
	ld.Post, st.Wait = 1, 1
	l.start(ld, st, &isa.End{})
	l.until('I')
	if s := l.reg(isa.RegStatus); s != isa.StatusDone {
		l.t.Fatalf("status %#x, error %d", s, l.reg(isa.RegError))
	}
	for i := range 8 {
		if from, to := l.memory[0x40+16*i:][:4*l.word], l.memory[0x4000+16*i:][:4*l.word]; !bytes.Equal(from, to) {
			l.t.Fatalf("row %d: % x, want % x", i, to, from)
		}
	}
}

// TestBoard runs a program on a board whose memory is the host's, breaks the line in every way, and begins again.
func TestBoard(t *testing.T) {
	for _, c := range configs[:2] {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			l := openBoard(t, c)
			if id := l.reg(isa.RegID); id != isa.ID {
				t.Fatalf("ID %#x", id)
			}
			l.copies()
			breaks := []struct {
				name string
				code byte
				sent []byte
			}{
				{"a wrong CRC", 1, []byte{'R', isa.RegID, crc8([]byte{'R', isa.RegID}) ^ 1}},
				{"a register written with a wrong CRC", 1, []byte{'W', isa.RegControl, 1, 0, 0, 0, 0}},
				{"no frame", 2, []byte{'Q'}},
				{"beats that were not asked for", 2, []byte{'D', 0, 0}},
				{"half a frame", 3, []byte{'W', isa.RegControl, 1}},
			}
			for _, b := range breaks {
				l.raw(b.sent...)
				if f := l.until('E'); f[1] != b.code {
					t.Errorf("%s: code %d, want %d", b.name, f[1], b.code)
				}
				l.raw('R', isa.RegID) // nobody listens
				l.begin()
				if s := l.reg(isa.RegStatus); s != 0 {
					t.Errorf("%s: status %#x when begun again", b.name, s)
				}
			}
			l.copies()

			// Beats with a wrong CRC: the program is lost, the board is not.
			l.start(load(), &isa.End{})
			m := l.receive()
			if m[0] != 'M' {
				t.Fatalf("a frame %q", m)
			}
			beats := append([]byte{'D'}, make([]byte, (int(m[5])+1)*c.WordBytes)...)
			l.raw(append(beats, crc8(beats)^0x80)...)
			if f := l.until('E'); f[1] != 1 {
				t.Errorf("beats with a wrong CRC: code %d", f[1])
			}
			l.begin()
			l.copies()

			// A host that answers no reads: the watchdog stops the program, and registers can be read all the time.
			l.deaf = true
			l.start(load(), &isa.End{})
			if s := l.reg(isa.RegStatus); s != isa.StatusBusy {
				t.Errorf("status %#x while the board waits for memory", s)
			}
			l.setReg(isa.RegWatchdog, 3000)
			l.until('I')
			if s, e := l.reg(isa.RegStatus), isa.Error(l.reg(isa.RegError)); s != isa.StatusError ||
				e != isa.ErrWatchdog {
				t.Errorf("status %#x, %v", s, e)
			}
			l.deaf = false
			l.begin()
			l.copies()
		})
	}
}
