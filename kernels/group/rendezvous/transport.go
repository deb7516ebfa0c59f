package rendezvous

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"fusec/kernels/group"
)

// A frame is a piece of a message, or news of a participant.
type frame struct {
	kind     kind
	from, to int
	total    int // bytes of the whole message
	bytes    []byte
}

type kind uint8

const (
	piece kind = iota
	abort      // participant From has failed, with the text as its error
	leave      // participant From leaves
	ask        // which run participant To has begun
	tell       // participant From has begun the run of number Total
	kinds
)

const (
	headerSize = 1 + 4 + 4 + 8 + 4
	// pieceSize bounds what a receiver takes memory for before it comes.
	pieceSize = 1 << 20
)

// transport is a participant's connections: participant 0 has one with each other, and the others have one with it.
type transport struct {
	rank, size int
	patience   time.Duration
	conns      []*conn

	mu      sync.Mutex
	changed chan struct{} // closed when something has come
	boxes   [][]frame     // from each participant
	left    []bool
	leftAt  time.Time // when the last one has
	failed  error
	telling int // how many are telling the others what has failed
	closed  bool
	begun   int64
	told    []int64 // by others that have been asked: the run that each has begun; −1 until they answer
}

func newTransport(rank, size int, patience time.Duration) *transport {
	return &transport{rank: rank, size: size, patience: patience, conns: make([]*conn, size), changed: make(chan struct{}),
		boxes: make([][]frame, size), left: make([]bool, size), told: make([]int64, size)}
}

type conn struct {
	net.Conn
	mu sync.Mutex // guards w
	w  *bufio.Writer
}

func newConn(c net.Conn) *conn { return &conn{Conn: c, w: bufio.NewWriterSize(c, 1<<16)} }

func (c *conn) write(f frame) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := make([]byte, 0, headerSize)
	h = append(h, byte(f.kind))
	h = binary.LittleEndian.AppendUint32(h, uint32(f.from))
	h = binary.LittleEndian.AppendUint32(h, uint32(f.to))
	h = binary.LittleEndian.AppendUint64(h, uint64(f.total))
	h = binary.LittleEndian.AppendUint32(h, uint32(len(f.bytes)))
	if _, err := c.w.Write(h); err != nil {
		return err
	}
	if _, err := c.w.Write(f.bytes); err != nil {
		return err
	}
	return c.w.Flush()
}

func (t *transport) readFrame(r io.Reader) (f frame, err error) {
	h := make([]byte, headerSize)
	if _, err := io.ReadFull(r, h); err != nil {
		return f, err
	}
	at := func(i int) int { return int(binary.LittleEndian.Uint32(h[i:])) }
	f = frame{kind: kind(h[0]), from: at(1), to: at(5), total: int(binary.LittleEndian.Uint64(h[9:]))}
	n := at(17)
	if f.kind >= kinds || f.from >= t.size || f.to >= t.size || n > pieceSize || f.total < 0 {
		return f, errors.New("it sends what is no message")
	}
	f.bytes = make([]byte, n)
	_, err = io.ReadFull(r, f.bytes)
	return f, err
}

// read takes what comes over a connection, and participant 0 passes on what is for others.
func (t *transport) read(peer int, c *conn) {
	r := bufio.NewReaderSize(c, 1<<16)
	for {
		f, err := t.readFrame(r)
		if err == nil && t.rank == 0 && f.from != peer {
			err = errors.New("it sends in another's name")
		}
		if err != nil {
			t.lose(peer, fmt.Errorf("its connection has ended: %w", err))
			return
		}
		switch {
		case f.kind == abort:
			t.lose(f.from, errors.New(string(f.bytes)))
		case f.kind == leave:
			t.note(func() { t.left[f.from], t.leftAt = true, time.Now() })
			if t.rank == 0 {
				t.tell(f)
			}
		case f.to != t.rank:
			if to := t.conns[f.to]; t.rank == 0 && to != nil {
				if err := to.write(f); err != nil {
					go t.ended(f.to, err)
				}
			}
		case f.kind == ask:
			t.mu.Lock()
			begun := t.begun
			t.mu.Unlock()
			_ = c.write(frame{kind: tell, from: t.rank, to: f.from, total: int(begun)}) // else the connection has ended
		case f.kind == tell:
			t.note(func() { t.told[f.from] = int64(f.total) })
		default:
			t.note(func() { t.boxes[f.from] = append(t.boxes[f.from], f) })
		}
	}
}

// note changes something, and wakes those who wait for it.
func (t *transport) note(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f()
	close(t.changed)
	t.changed = make(chan struct{})
}

// lose records that a participant is lost, unless it has left, or one was lost before; participant 0 tells the others.
func (t *transport) lose(rank int, err error) {
	first := false
	t.note(func() {
		if first = t.failed == nil && !t.left[rank] && (!t.closed || t.rank == 0); first {
			t.failed = &group.LostError{Rank: rank, Err: err}
			t.telling++
		}
	})
	if !first {
		return
	}
	if t.rank == 0 {
		t.tell(news(abort, rank, err.Error()))
	}
	t.note(func() { t.telling-- })
}

// ended loses a participant that nothing can be sent to, unless what it has sent before says why: whoever reads from it comes to
// the end, too.
func (t *transport) ended(rank int, err error) {
	late := time.NewTimer(answering)
	defer late.Stop()
	for {
		t.mu.Lock()
		known, changed := t.failed != nil || t.left[rank] || t.closed, t.changed
		t.mu.Unlock()
		if known {
			return
		}
		select {
		case <-changed:
		case <-late.C:
			t.lose(rank, fmt.Errorf("its connection has ended: %w", err))
			return
		}
	}
}

// news is a frame about a participant.
func news(k kind, rank int, text string) frame {
	return frame{kind: k, from: rank, bytes: []byte(text[:min(len(text), pieceSize)])}
}

// tell sends news to all, through participant 0. Whom it does not reach notices that the connection has ended.
func (t *transport) tell(f frame) {
	for peer, c := range t.conns {
		if c != nil && peer != f.from {
			_ = c.write(f)
		}
	}
}

// Rank implements [group.Transport].
func (t *transport) Rank() int { return t.rank }

// Size implements [group.Transport].
func (t *transport) Size() int { return t.size }

// Begin implements [group.Watcher].
func (t *transport) Begin(run int64) {
	t.mu.Lock()
	t.begun = run
	t.mu.Unlock()
}

// answering is how long a participant that works may take to say which run it has begun.
const answering = 2 * time.Second

// Late implements [group.Watcher]: it asks all others which run they have begun.
func (t *transport) Late(run int64, waited time.Duration) error {
	if waited < t.patience || t.size == 1 {
		return nil
	}
	t.note(func() {
		for r := range t.told {
			t.told[r] = -1
		}
	})
	for r := range t.size {
		through := t.conns[0]
		if t.rank == 0 {
			through = t.conns[r]
		}
		if r != t.rank {
			_ = through.write(frame{kind: ask, from: t.rank, to: r}) // one that it does not reach does not answer
		}
	}
	late := time.NewTimer(answering)
	defer late.Stop()
	for {
		t.mu.Lock()
		silent, behind, changed, err := -1, -1, t.changed, t.failed
		for r, at := range t.told {
			switch {
			case r == t.rank:
			case at < 0:
				silent = r
			case at < run:
				behind = r
			}
		}
		t.mu.Unlock()
		switch {
		case err != nil:
			return err
		case behind >= 0:
			err := fmt.Errorf("it has not come to a run that others began %v ago", waited.Round(time.Second))
			return &group.LostError{Rank: behind, Err: err}
		case silent < 0:
			return nil
		}
		select {
		case <-changed:
		case <-late.C:
			return &group.LostError{Rank: silent, Err: fmt.Errorf("it does not answer for %v", answering)}
		}
	}
}

// leaving is how long the others may work on after a participant has left: what they do may not need it any more.
const leaving = 5 * time.Second

// Failed is the error of a participant that is lost, or has left some time ago.
func (t *transport) Failed() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.failed != nil || t.closed {
		return t.failed
	}
	for r, left := range t.left {
		if left && time.Since(t.leftAt) > leaving {
			return &group.LostError{Rank: r, Err: errLeft}
		}
	}
	return nil
}

var errLeft = errors.New("it has left the group")

// Exchange implements [group.Transport].
func (t *transport) Exchange(send, receive []group.Message) error {
	for _, m := range send {
		if err := t.send(m); err != nil {
			return err
		}
	}
	late := time.NewTimer(t.patience)
	defer late.Stop()
	for _, m := range receive {
		if err := t.receive(m, late.C); err != nil {
			return err
		}
	}
	return nil
}

func (t *transport) send(m group.Message) error {
	through := t.conns[0]
	if t.rank == 0 {
		through = t.conns[m.Peer]
	}
	for first := 0; first < len(m.Bytes); first += pieceSize {
		t.mu.Lock()
		err := t.failed
		if t.closed {
			err = errClosed
		}
		t.mu.Unlock()
		if err != nil {
			return err
		}
		f := frame{kind: piece, from: t.rank, to: m.Peer, total: len(m.Bytes), bytes: m.Bytes[first:min(first+pieceSize, len(m.Bytes))]}
		if err := through.write(f); err != nil {
			to := m.Peer
			if t.rank != 0 {
				to = 0
			}
			t.ended(to, err)
		}
	}
	return t.Failed()
}

var errClosed = errors.New("the group is closed")

func (t *transport) receive(m group.Message, late <-chan time.Time) error {
	for at := 0; at < len(m.Bytes); {
		t.mu.Lock()
		box, changed, err := t.boxes[m.Peer], t.changed, t.failed
		if len(box) > 0 {
			t.boxes[m.Peer] = box[1:]
		}
		if len(box) == 0 && t.left[m.Peer] && err == nil {
			err = &group.LostError{Rank: m.Peer, Err: errLeft}
		}
		if t.closed {
			err = errClosed
		}
		t.mu.Unlock()
		switch {
		case len(box) > 0 && (box[0].total != len(m.Bytes) || at+len(box[0].bytes) > len(m.Bytes)):
			return fmt.Errorf("participant %d sent %d bytes, not %d: it runs another program", m.Peer, box[0].total, len(m.Bytes))
		case len(box) > 0:
			at += copy(m.Bytes[at:], box[0].bytes)
			continue
		case err != nil:
			return err
		}
		select {
		case <-changed:
		case <-late:
			return &group.LostError{Rank: m.Peer, Err: fmt.Errorf("it has not come to a collective operation within %v", t.patience)}
		}
	}
	return nil
}

// Abort implements [group.Transport].
func (t *transport) Abort(err error) {
	first := false
	t.note(func() {
		if first = t.failed == nil && !t.closed; first {
			t.failed = &group.LostError{Rank: t.rank, Err: err}
			t.telling++
		}
	})
	if first {
		t.tell(news(abort, t.rank, err.Error()))
		t.note(func() { t.telling-- })
	}
}

// Close implements [group.Transport]. Participant 0, through which the others speak, waits for them to leave. After a failure
// all wait until the others have been told of it, so that nobody takes the end of a connection for its cause.
func (t *transport) Close() error {
	was := false
	t.note(func() { was, t.closed = t.closed, true })
	if was {
		return nil
	}
	if t.Failed() == nil {
		t.tell(news(leave, t.rank, ""))
	}
	t.others()
	return t.closeAll()
}

// others waits until nobody needs the connections: participant 0 until all others have left or one is lost, everybody until
// news of a failure are told. The wait ends with the patience.
func (t *transport) others() {
	late := time.NewTimer(t.patience)
	defer late.Stop()
	for {
		t.mu.Lock()
		here, changed := 0, t.changed
		for r, c := range t.conns {
			if c != nil && !t.left[r] {
				here++
			}
		}
		done := t.telling == 0 && (t.rank != 0 || here == 0 || t.failed != nil)
		t.mu.Unlock()
		if done {
			return
		}
		select {
		case <-changed:
		case <-late.C:
			return
		}
	}
}

func (t *transport) closeAll() error {
	var errs []error
	for _, c := range t.conns {
		if c != nil {
			errs = append(errs, c.Close())
		}
	}
	return errors.Join(errs...)
}
