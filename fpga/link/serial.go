//go:build linux

package link

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"fusec/fpga/isa"
)

// Serial is a board on a serial line. The board has no memory: the host keeps it and serves the overlay's reads and
// writes, which come over the same line.
type Serial struct {
	broken
	line      *os.File
	timeout   time.Duration
	wordBytes int
	memory    []byte
	interrupt bool // the board has said that it is done or stopped
	late      int  // greetings that the board was asked for and that have not come

	in       [4096]byte // received and not yet taken: in[from:to]
	from, to int
	send     []byte
}

var _ Link = (*Serial)(nil)

// serialVersion is the version of the line's protocol.
const serialVersion = 1

// crc8 continues a CRC of polynomial x⁸+x²+x+1, the most significant bit first.
func crc8(crc byte, p []byte) byte {
	for _, b := range p {
		crc = crcTable[crc^b]
	}
	return crc
}

var crcTable = func() (t [256]byte) {
	for i := range t {
		c := byte(i)
		for range 8 {
			c = c<<1 ^ c>>7*0x07
		}
		t[i] = c
	}
	return
}()

// Frames that only the board sends, and how many bytes follow their letter, the CRC not among them. A beat has
// WordBytes more.
var serialFrames = map[byte]int{'z': 2, 'r': 4, 'w': 0, 'M': 5, 'S': 4, 'I': 0, 'E': 1}

// A lineError is an error of the line that a board reports.
type lineError byte

func (e lineError) Error() string {
	texts := [...]string{1: "a frame's check sum was wrong", 2: "a byte came where none belongs",
		3: "a frame stopped in its middle",
		4: "a beat of memory came too early"}
	if int(e) < len(texts) && texts[e] != "" {
		return "the board reports: " + texts[e]
	}
	return fmt.Sprintf("the board reports error %d of the line", byte(e))
}

// errSum is a frame whose check sum is wrong.
var errSum = errors.New("a frame of the board has a wrong check sum")

// OpenSerial opens a board on a serial line, such as /dev/ttyUSB1, of so many bit/s.
func OpenSerial(path string, speed int, o Options) (*Serial, error) {
	s := &Serial{broken: broken{name: "serial:" + path}, timeout: o.timeout(5 * time.Second)}
	var err error
	if s.line, err = openTTY(path, speed); err != nil {
		return nil, s.fail("open", err)
	}
	if err := s.begin(); err != nil {
		s.line.Close()
		return nil, err
	}
	shape, err := s.ReadReg(isa.RegShape1)
	if err == nil {
		// The width of addresses, as Shape packs it.
		bits := int(shape >> 20 & 63)
		if bits < 16 || bits > 32 {
			err = s.fail("open", fmt.Errorf("the overlay has addresses of %d bits, want 16 to 32", bits))
		}
		s.memory = make([]byte, o.hostMemory(min(bits, 32)))
	}
	if err != nil {
		s.line.Close()
		return nil, err
	}
	return s, nil
}

// begin resets the board and its line. A board in the middle of a frame takes no notice at first, so that it is tried
// again.
func (s *Serial) begin() error {
	const tries = 5
	for range tries {
		s.from, s.to = 0, 0
		if err := s.write('Z'); err != nil {
			return s.fail("begin", err)
		}
		s.late++
		f, err := s.greeting(time.Now().Add(s.timeout / tries))
		if errors.Is(err, os.ErrDeadlineExceeded) {
			continue
		}
		if err != nil {
			return s.fail("begin", err)
		}
		s.wordBytes = int(f[2])
		if f[1] != serialVersion || s.wordBytes < 2 || s.wordBytes > 16 || s.wordBytes&(s.wordBytes-1) != 0 {
			return s.fail("begin",
				fmt.Errorf("a board of version %d with words of %d bytes: want version %d and 2, 4, 8 or 16",
					f[1], f[2], serialVersion))
		}
		return nil
	}
	return s.fail("begin", fmt.Errorf("no board answers within %v", s.timeout))
}

// greeting reads the board's greeting and discards bytes before it.
func (s *Serial) greeting(deadline time.Time) ([]byte, error) {
	for {
		f, err := s.receive(deadline)
		switch {
		case err == nil && f[0] == 'z':
			s.late--
			return f, nil
		case errors.Is(err, errSum) || errors.As(err, new(unknownFrame)):
			s.from++ // the frame began elsewhere
		case err != nil:
			return nil, err
		}
	}
}

// unknownFrame is a letter that begins no frame.
type unknownFrame byte

func (u unknownFrame) Error() string {
	return fmt.Sprintf("byte %#02x begins no frame of a board", byte(u))
}

// write sends a frame.
func (s *Serial) write(letter byte, parts ...[]byte) error {
	s.send = append(s.send[:0], letter)
	for _, p := range parts {
		s.send = append(s.send, p...)
	}
	s.send = append(s.send, crc8(0, s.send))
	s.line.SetWriteDeadline(time.Now().Add(s.timeout + time.Duration(len(s.send))*time.Millisecond))
	_, err := s.line.Write(s.send)
	return err
}

// receive takes the next frame, whose bytes stay until the next call. Of a frame that is wrong nothing is taken.
func (s *Serial) receive(deadline time.Time) ([]byte, error) {
	n := 1
	for {
		if have := s.to - s.from; have >= n {
			if n == 1 {
				more, ok := serialFrames[s.in[s.from]]
				if !ok {
					return nil, unknownFrame(s.in[s.from])
				}
				if n += more + 1; s.in[s.from] == 'S' {
					n += s.wordBytes
				}
				continue
			}
			f := s.in[s.from:][:n]
			if crc8(0, f[:n-1]) != f[n-1] {
				return nil, errSum
			}
			s.from += n
			return f[:n-1], nil
		}
		s.to = copy(s.in[:], s.in[s.from:s.to])
		s.from = 0
		s.line.SetReadDeadline(deadline)
		got, err := s.line.Read(s.in[s.to:])
		if err != nil {
			return nil, err
		}
		s.to += got
	}
}

// next takes frames until one of a letter comes, and serves memory meanwhile. The board may be busy with memory for
// long; it is silent for no longer than the time limit.
func (s *Serial) next(letter byte) ([]byte, error) {
	for silent := 0; ; silent = 0 {
		f, err := s.receive(time.Now().Add(s.timeout / patience))
		for errors.Is(err, os.ErrDeadlineExceeded) {
			if silent++; silent == patience {
				return nil, fmt.Errorf("no answer within %v", s.timeout)
			}
			f, err = s.receive(time.Now().Add(s.timeout / patience))
		}
		if err != nil {
			return nil, err
		}
		switch {
		case f[0] == 'I':
			s.interrupt = true
		case f[0] == 'M' || f[0] == 'S':
			if err := s.serve(f); err != nil {
				return nil, err
			}
		case f[0] == 'E':
			return nil, lineError(f[1])
		case f[0] == 'z' && s.late > 0: // the board was slow, and was asked again
			s.late--
		case f[0] != letter:
			return nil, fmt.Errorf("a frame %q where %q was due", f[0], letter)
		}
		if f[0] == letter {
			return f, nil
		}
	}
}

// serve reads or writes memory for the board.
func (s *Serial) serve(f []byte) error {
	at := int64(binary.LittleEndian.Uint32(f[1:]))
	n := s.wordBytes
	if f[0] == 'M' {
		n *= int(f[5]) + 1
	}
	if at+int64(n) > int64(len(s.memory)) {
		return fmt.Errorf("the board asks for %d bytes of memory at %#x, which has %d", n, at, len(s.memory))
	}
	if f[0] == 'M' {
		return s.write('D', s.memory[at:][:n])
	}
	copy(s.memory[at:], f[5:])
	return nil
}

// Name implements Link.
func (s *Serial) Name() string { return s.name }

// MemoryBytes implements Link.
func (s *Serial) MemoryBytes() int64 { return int64(len(s.memory)) }

// ask sends a request and takes its answer.
func (s *Serial) ask(op string, letter, answer byte, parts ...[]byte) ([]byte, error) {
	if s.err != nil {
		return nil, s.err
	}
	err := s.write(letter, parts...)
	if err == nil {
		var f []byte
		if f, err = s.next(answer); err == nil {
			return f[1:], nil
		}
	}
	return nil, s.fail(op, err)
}

// ReadReg implements Link.
func (s *Serial) ReadReg(address uint32) (uint32, error) {
	f, err := s.ask(doing(frameReadReg, address), 'R', 'r', []byte{byte(address)})
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint32(f), nil
}

// WriteReg implements Link.
func (s *Serial) WriteReg(address, value uint32) error {
	if address == isa.RegControl {
		s.interrupt = false
	}
	var b [5]byte
	b[0] = byte(address)
	binary.LittleEndian.PutUint32(b[1:], value)
	_, err := s.ask(doing(frameWriteReg, address), 'W', 'w', b[:])
	return err
}

// Read implements Link.
func (s *Serial) Read(address uint32, p []byte) error { return s.copy(frameRead, address, p) }

// Write implements Link.
func (s *Serial) Write(address uint32, p []byte) error { return s.copy(frameWrite, address, p) }

func (s *Serial) copy(op, address uint32, p []byte) error {
	switch {
	case s.err != nil:
		return s.err
	case int64(address)+int64(len(p)) > int64(len(s.memory)):
		return &Error{s.name, doing(op, address), fmt.Errorf("%d bytes: memory has %d", len(p), len(s.memory))}
	case op == frameRead:
		copy(p, s.memory[address:])
	default:
		copy(s.memory[address:], p)
	}
	return nil
}

// Wait implements Link. A board sends nothing while it computes, but answers when its status is read.
func (s *Serial) Wait(ctx context.Context) (uint32, error) {
	if s.err != nil {
		return 0, s.err
	}
	const pause = 200 * time.Millisecond
	last, since := uint32(0), time.Now() // the cycle counter, and when it was read
	for {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		f, err := s.receive(time.Now().Add(pause))
		silent := errors.Is(err, os.ErrDeadlineExceeded)
		switch {
		case silent:
		case err != nil:
		case f[0] == 'M' || f[0] == 'S':
			err = s.serve(f)
		case f[0] == 'I':
			s.interrupt = true
		case f[0] == 'E':
			err = lineError(f[1])
		default:
			err = fmt.Errorf("a frame %q that nothing asked for", f[0])
		}
		if err != nil && !silent {
			return 0, s.fail("wait", err)
		}
		if !silent && !s.interrupt {
			continue
		}
		status, err := s.ReadReg(isa.RegStatus)
		if err != nil || status&isa.StatusBusy == 0 {
			return status, err
		}
		s.interrupt = false
		if time.Since(since) < s.timeout {
			continue
		}
		cycles, err := s.ReadReg(isa.RegCounters)
		if err != nil {
			return 0, err
		}
		if cycles == last {
			return status, s.fail("wait", errStands(cycles))
		}
		last, since = cycles, time.Now()
	}
}

// Close implements Link.
func (s *Serial) Close() error {
	if errors.Is(s.err, os.ErrClosed) {
		return nil
	}
	s.err = &Error{s.name, "use", os.ErrClosed}
	return s.line.Close()
}
