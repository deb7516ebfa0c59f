// Package rendezvous joins processes over TCP, as torchrun starts them: the variables MASTER_ADDR and MASTER_PORT name where
// participant 0 listens, and nowhere else. It carries what is small: the identity of a communicator of GPUs, the comparison of
// programs, the parts of a value that is saved. All goes through participant 0.
//
// Participants prove to one another that they know the token of the variable FUSEC_TOKEN, which is not sent itself (H. Krawczyk
// et al., "HMAC: Keyed-Hashing for Message Authentication", RFC 2104). What they send after that is not encrypted.
package rendezvous

import (
	"cmp"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"syscall"
	"time"

	"fusec/kernels/group"
)

// The variables by which participants find one another. Listener is the number of a file of participant 0, if the launcher has
// bound a socket to the port: so no other program can take it meanwhile.
const (
	Address  = "MASTER_ADDR"
	Port     = "MASTER_PORT"
	Token    = "FUSEC_TOKEN"
	Listener = "FUSEC_LISTENER"
)

// Join joins the processes that a launcher has started together. A participant that does not come to an operation within the
// given time is lost; 0 stands for [group.Patience].
func Join(patience time.Duration) (*group.Group, group.Place, error) {
	place, ok, err := group.Launched(os.Getenv)
	if err == nil && !ok {
		err = errors.New("no launcher has started this process: start it with fusec launch, torchrun, mpirun or srun")
	}
	if err != nil {
		return nil, place, err
	}
	host, port, token := os.Getenv(Address), os.Getenv(Port), os.Getenv(Token)
	if host == "" || port == "" {
		return nil, place, fmt.Errorf("%s has started this process without saying where participant 0 listens: set %s and %s",
			place.Launcher, Address, Port)
	}
	t, err := Open(net.JoinHostPort(host, port), token, place.Rank, place.Size, cmp.Or(patience, group.Patience))
	if err != nil {
		return nil, place, err
	}
	return group.New(t), place, nil
}

// Open connects a participant with the others: participant 0 listens at the address, and the others call there. Without a token
// the address has to be one of this host alone.
func Open(address, token string, rank, size int, patience time.Duration) (group.Transport, error) {
	if size < 1 || rank < 0 || rank >= size {
		return nil, fmt.Errorf("participant %d of %d", rank, size)
	}
	t := newTransport(rank, size, patience)
	if size == 1 {
		return t, nil
	}
	if token == "" && !local(address) {
		return nil, fmt.Errorf("participants at %s would take any caller for one of theirs: set %s to the same secret for all", address,
			Token)
	}
	deadline := time.Now().Add(patience)
	var err error
	if rank == 0 {
		err = t.listen(address, token, deadline)
	} else {
		err = t.call(address, token, deadline)
	}
	if err != nil {
		t.closeAll()
		return nil, err
	}
	for peer, c := range t.conns {
		if c != nil {
			go t.read(peer, c)
		}
	}
	return t, nil
}

// local reports whether an address is one that only this host can reach.
func local(address string) bool {
	a, err := net.ResolveTCPAddr("tcp", address)
	return err == nil && a.IP.IsLoopback()
}

// listen takes the calls of all others.
func (t *transport) listen(address, token string, deadline time.Time) error {
	l, err := inherited(address)
	if l == nil && err == nil {
		l, err = net.Listen("tcp", address)
	}
	if err != nil {
		if errors.Is(err, syscall.EADDRINUSE) && os.Getenv("TORCHELASTIC_USE_AGENT_STORE") == "True" {
			err = fmt.Errorf("%w: torchrun itself listens there, unless TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 is set", err)
		}
		return fmt.Errorf("participant 0: %w", err)
	}
	defer l.Close()
	if err := l.(*net.TCPListener).SetDeadline(deadline); err != nil {
		return err
	}
	for missing := t.size - 1; missing > 0; {
		c, err := l.Accept()
		if err != nil {
			for r := 1; r < t.size; r++ {
				if t.conns[r] == nil {
					return &group.LostError{Rank: r, Err: fmt.Errorf("it has not come to %s within %v", address, t.patience)}
				}
			}
			return err
		}
		// A caller that is no participant, or says nothing, does not keep the others waiting for long.
		rank, err := answer(c, token, t.size, earlier(deadline, handshake))
		if err != nil || t.conns[rank] != nil {
			c.Close()
			continue
		}
		t.conns[rank] = newConn(c)
		missing--
	}
	return nil
}

// inherited listens with the socket that the launcher has bound for this process, once. It is nil if there is none.
func inherited(address string) (net.Listener, error) {
	text := os.Getenv(Listener)
	if text == "" {
		return nil, nil
	}
	if err := os.Unsetenv(Listener); err != nil {
		return nil, err
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("%s is %q: want the number of a file", Listener, text)
	}
	f := os.NewFile(uintptr(n), Listener)
	defer f.Close()
	var l net.Listener
	err = listenAt(f)
	if err == nil {
		l, err = net.FileListener(f)
	}
	if err != nil {
		return nil, fmt.Errorf("%s is %s, with which nothing can listen: %w", Listener, text, err)
	}
	if _, tcp := l.(*net.TCPListener); !tcp || l.Addr().String() != address {
		return nil, errors.Join(fmt.Errorf("%s listens at %s, and not at %s", Listener, l.Addr(), address), l.Close())
	}
	return l, nil
}

// handshake is how long a caller may take to prove that it is a participant.
const handshake = 2 * time.Second

func earlier(deadline time.Time, d time.Duration) time.Time {
	if t := time.Now().Add(d); t.Before(deadline) {
		return t
	}
	return deadline
}

// call calls participant 0 until it answers.
func (t *transport) call(address, token string, deadline time.Time) error {
	var last error
	for time.Now().Before(deadline) {
		c, err := net.DialTimeout("tcp", address, time.Until(deadline))
		if err == nil {
			if err = greet(c, token, t.rank, t.size, deadline); err == nil {
				t.conns[0] = newConn(c)
				return nil
			}
			c.Close()
			if errors.Is(err, errToken) {
				return fmt.Errorf("participant 0 at %s: %w", address, err)
			}
		}
		last = err
		time.Sleep(50 * time.Millisecond)
	}
	return &group.LostError{Rank: 0, Err: fmt.Errorf("it has not answered at %s within %v: %w", address, t.patience, last)}
}

// A greeting has a challenge from participant 0; the answer with the caller's place, its challenge and its proof; and the proof
// of participant 0.
const (
	magic     = "fusec group 1\n"
	nonceSize = 16
)

var errToken = fmt.Errorf("it does not know the token of %s", Token)

// proof shows that a side knows the token.
func proof(token, side string, parts ...[]byte) []byte {
	h := hmac.New(sha256.New, []byte(token))
	h.Write([]byte(side))
	for _, p := range parts {
		h.Write(p)
	}
	return h.Sum(nil)
}

// answer is participant 0's side of the greeting.
func answer(c net.Conn, token string, size int, deadline time.Time) (rank int, err error) {
	if err := c.SetDeadline(deadline); err != nil {
		return 0, err
	}
	mine := make([]byte, nonceSize)
	if _, err := rand.Read(mine); err != nil {
		return 0, err
	}
	if _, err := c.Write(append([]byte(magic), mine...)); err != nil {
		return 0, err
	}
	said := make([]byte, 8+nonceSize+sha256.Size)
	if _, err := io.ReadFull(c, said); err != nil {
		return 0, err
	}
	place, theirs, proven := said[:8], said[8:8+nonceSize], said[8+nonceSize:]
	if !hmac.Equal(proven, proof(token, "caller", mine, place, theirs)) {
		return 0, errToken
	}
	r, n := binary.LittleEndian.Uint32(place), binary.LittleEndian.Uint32(place[4:])
	if r == 0 || int64(r) >= int64(size) || int64(n) != int64(size) {
		return 0, fmt.Errorf("participant %d of %d in a group of %d", r, n, size)
	}
	if _, err := c.Write(proof(token, "participant 0", theirs, mine)); err != nil {
		return 0, err
	}
	return int(r), c.SetDeadline(time.Time{})
}

// greet is the side of the others.
func greet(c net.Conn, token string, rank, size int, deadline time.Time) error {
	if err := c.SetDeadline(deadline); err != nil {
		return err
	}
	said := make([]byte, len(magic)+nonceSize)
	if _, err := io.ReadFull(c, said); err != nil {
		return err
	}
	if string(said[:len(magic)]) != magic {
		return errors.New("something else listens there")
	}
	theirs, mine := said[len(magic):], make([]byte, nonceSize)
	if _, err := rand.Read(mine); err != nil {
		return err
	}
	place := binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, uint32(rank)), uint32(size))
	text := append(append(append([]byte(nil), place...), mine...), proof(token, "caller", theirs, place, mine)...)
	if _, err := c.Write(text); err != nil {
		return err
	}
	proven := make([]byte, sha256.Size)
	if _, err := io.ReadFull(c, proven); err != nil {
		return fmt.Errorf("%w, or counts participants in another way: %w", errToken, err)
	}
	if !hmac.Equal(proven, proof(token, "participant 0", mine, theirs)) {
		return errToken
	}
	return c.SetDeadline(time.Time{})
}
