package link

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"fusec/fpga/isa"
)

// Error is a link that failed. The link is then good for nothing but Close; another can be opened.
type Error struct {
	Link string // its Name
	Op   string // the operation, such as "read register 0x0c"
	Err  error
}

// Error implements error.
func (e *Error) Error() string { return fmt.Sprintf("%s: %s: %v", e.Link, e.Op, e.Err) }

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// Options are the options for opening a link.
type Options struct {
	// Config is the overlay that Open simulates or models; without a name the default one.
	Config isa.Config
	// Log gets a line for each step of building a simulator, which takes some ten seconds the first time.
	Log func(line string)
	// Memory is the bytes of external memory; 0: as much as the link has, or 16 MiB where the host keeps it.
	Memory int64
	// Timeout is how long an answer may take, not counting the time in which this program is stopped. Default: 30 s for
	// simulators, which may be slow, 5 s for boards.
	Timeout time.Duration
	// Seed is where the simulators' random contents of memories begin.
	Seed uint32
	// Offset is where in a card's memory the program's begins.
	Offset int64
}

// timeout is the option's or a default.
func (o Options) timeout(d time.Duration) time.Duration {
	if o.Timeout > 0 {
		return o.Timeout
	}
	return d
}

// hostMemory is how much memory a link has that the host keeps, or that Options bound: no more than addresses reach.
func (o Options) hostMemory(addrBits int) int64 {
	n := o.Memory
	if n == 0 {
		n = 16 << 20
	}
	return min(n, 1<<addrBits)
}

// broken is a link's first failure, which all later calls return.
type broken struct {
	name string
	err  error
}

// fail notes a failure and returns it.
func (b *broken) fail(op string, err error) error {
	if b.err == nil {
		b.err = &Error{b.name, op, err}
	}
	return b.err
}

// errStands is an overlay that is busy and whose cycle counter does not go on.
func errStands(cycles uint32) error {
	return fmt.Errorf("the overlay says that it is busy, but its clock stands still at cycle %d", cycles)
}

// tail keeps the last lines that are written to it.
type tail struct {
	mu   sync.Mutex
	text []byte
}

// tailBytes is how much of a process's standard error an Error shows.
const tailBytes = 2000

// Write implements io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	if n := len(t.text) - tailBytes; n > 0 {
		t.text = append(t.text[:0], t.text[n:]...)
	}
	return len(p), nil
}

// String is the last lines.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.text))
}
