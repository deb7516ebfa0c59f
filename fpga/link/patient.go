package link

import (
	"errors"
	"os"
	"time"
)

// patience is the number of parts in which a time limit is waited for. A part counts once, however long it takes: while this
// program is stopped, or has no processor, the limit stands still but for one part. A simulator on the same machine is stopped
// then, too.
const patience = 30

// patient reads and writes a file. It gives up, with [os.ErrDeadlineExceeded], when nothing has moved for the limit.
type patient struct {
	f     *os.File
	limit time.Duration
}

// Read implements io.Reader.
func (p patient) Read(b []byte) (n int, err error) {
	for range patience {
		p.f.SetReadDeadline(time.Now().Add(p.limit / patience))
		if n, err = p.f.Read(b); n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
	}
	return n, err
}

// Write implements io.Writer.
func (p patient) Write(b []byte) (n int, err error) {
	for part := 0; part < patience; part++ {
		p.f.SetWriteDeadline(time.Now().Add(p.limit / patience))
		var more int
		more, err = p.f.Write(b[n:])
		if n += more; !errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if more > 0 {
			part = -1
		}
	}
	return n, err
}
