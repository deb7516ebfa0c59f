package group

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"time"
)

// Patience is how long a participant waits for another by default before it takes it for lost.
const Patience = 30 * time.Second

// Forever is the patience of participants of one process, of which none is lost without an error.
const Forever time.Duration = math.MaxInt64

// Local makes a transport for each of n participants in one process, each with goroutines of its own. A participant that
// does not come to a collective operation within the given time is lost; 0 stands for [Patience].
func Local(n int, patience time.Duration) []Transport {
	if patience == 0 {
		patience = Patience
	}
	h := &hub{boxes: make([]chan []byte, n*n), failed: make(chan struct{}), patience: patience}
	for i := range h.boxes {
		h.boxes[i] = make(chan []byte, 1)
	}
	list := make([]Transport, n)
	for r := range list {
		list[r] = &local{hub: h, rank: r, size: n}
	}
	return list
}

// A hub is what the participants of one process share.
type hub struct {
	boxes    []chan []byte // of the messages from i to j: box i·n+j
	patience time.Duration
	failed   chan struct{} // closed when a participant has failed
	once     sync.Once
	who      int
	why      error
}

type local struct {
	hub        *hub
	rank, size int
	closed     bool
}

// Renew makes transports that [Local] has made together usable again after one of them has failed. Nobody uses them meanwhile.
func Renew(list []Transport) {
	h := list[0].(*local).hub
	for _, box := range h.boxes {
		select {
		case <-box:
		default:
		}
	}
	h.failed, h.once = make(chan struct{}), sync.Once{}
}

// Rank implements [Transport].
func (l *local) Rank() int { return l.rank }

// Size implements [Transport].
func (l *local) Size() int { return l.size }

var errClosed = errors.New("the group is closed")

// Exchange implements [Transport]. What a participant has sent before it fails arrives all the same.
func (l *local) Exchange(send, receive []Message) error {
	if l.closed {
		return errClosed
	}
	late := time.NewTimer(l.hub.patience)
	defer late.Stop()
	lost := func(peer int) error {
		return &LostError{peer, fmt.Errorf("it has not come to a collective operation within %v", l.hub.patience)}
	}
	failed := func() error { return &LostError{l.hub.who, l.hub.why} }
	for _, m := range send {
		box, b := l.hub.boxes[l.rank*l.size+m.Peer], append([]byte(nil), m.Bytes...)
		select {
		case box <- b:
		case <-l.hub.failed:
			select {
			case box <- b:
			default:
				return failed()
			}
		case <-late.C:
			return lost(m.Peer)
		}
	}
	for _, m := range receive {
		box := l.hub.boxes[m.Peer*l.size+l.rank]
		var b []byte
		select {
		case b = <-box:
		case <-l.hub.failed:
			select {
			case b = <-box:
			default:
				return failed()
			}
		case <-late.C:
			return lost(m.Peer)
		}
		if len(b) != len(m.Bytes) {
			return fmt.Errorf("participant %d sent %d bytes, not %d: it runs another program", m.Peer, len(b), len(m.Bytes))
		}
		copy(m.Bytes, b)
	}
	return nil
}

// Threads is for [Group.Threads].
func (l *local) Threads() bool { return true }

// Failed is the error of a participant that has failed.
func (l *local) Failed() error {
	select {
	case <-l.hub.failed:
		return &LostError{l.hub.who, l.hub.why}
	default:
		return nil
	}
}

// Abort implements [Transport].
func (l *local) Abort(err error) {
	l.hub.once.Do(func() {
		l.hub.who, l.hub.why = l.rank, err
		close(l.hub.failed)
	})
}

// Close implements [Transport].
func (l *local) Close() error {
	l.closed = true
	return nil
}
