package link

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

// Process is a simulator in a separate process, which communicates over its standard input and output. If it crashes,
// only the link is lost.
type Process struct {
	broken
	pacer
	cmd     *exec.Cmd
	in, out *os.File
	stderr  tail
	ended   chan struct{} // closed when the process has ended and been waited for
	exit    error         // the result of Wait, after ended is closed
	timeout time.Duration
	memory  int64
	frame   [16]byte
}

var _ Simulator = (*Process)(nil)

// The operations of the simulator's frames.
const (
	frameHello = iota + 1
	frameReadReg
	frameWriteReg
	frameRead
	frameWrite
	frameRun
	frameSetMemory
	frameCycles
)

// hello is the greeting of a simulator.
const hello = "fusec-overlay 1"

// maxFrame is the most bytes of memory that one frame moves.
const maxFrame = 1 << 20

// StartProcess starts a simulator.
func StartProcess(program string, o Options) (*Process, error) {
	p := &Process{broken: broken{name: "simulator"}, timeout: o.timeout(30 * time.Second), ended: make(chan struct{})}
	args := []string{"-seed", fmt.Sprint(o.Seed)}
	if o.Memory > 0 {
		args = append(args, "-memory", fmt.Sprint(o.Memory))
	}
	p.cmd = exec.Command(program, args...)
	p.cmd.Stderr = &p.stderr
	p.cmd.WaitDelay = time.Second
	theirIn, in, err := os.Pipe()
	if err != nil {
		return nil, p.fail("start", err)
	}
	out, theirOut, err := os.Pipe()
	if err != nil {
		theirIn.Close()
		in.Close()
		return nil, p.fail("start", err)
	}
	p.in, p.out, p.cmd.Stdin, p.cmd.Stdout = in, out, theirIn, theirOut
	err = p.cmd.Start()
	theirIn.Close()
	theirOut.Close()
	if err != nil {
		in.Close()
		out.Close()
		return nil, p.fail("start", err)
	}
	go func() {
		p.exit = p.cmd.Wait()
		close(p.ended)
	}()
	size, text, err := p.ask(frameHello, 0, 0, nil, nil)
	if err == nil && text != hello {
		err = p.fail("hello", fmt.Errorf("%s answers %.40q and not %q", program, text, hello))
	}
	if err != nil {
		p.Close()
		return nil, err
	}
	p.memory = int64(size)
	return p, nil
}

// Name implements Link.
func (p *Process) Name() string { return p.name }

// MemoryBytes implements Link.
func (p *Process) MemoryBytes() int64 { return p.memory }

// refusal is a request that the simulator did not take.
type refusal string

func (r refusal) Error() string { return "refused: " + string(r) }

// ask sends a request and reads its answer: its value, and the bytes that follow, into data if there is any, else as
// text. If the process stops for the link's time limit, it is killed; see [patient].
func (p *Process) ask(op, address uint32, value uint64, payload, data []byte) (answer uint64, text string, err error) {
	if p.err != nil {
		return 0, "", p.err
	}
	in, out := patient{p.in, p.timeout}, patient{p.out, p.timeout}
	binary.LittleEndian.PutUint32(p.frame[:], op)
	binary.LittleEndian.PutUint32(p.frame[4:], address)
	binary.LittleEndian.PutUint64(p.frame[8:], value)
	if _, err = in.Write(p.frame[:]); err == nil && len(payload) > 0 {
		_, err = in.Write(payload)
	}
	if err == nil {
		_, err = io.ReadFull(out, p.frame[:])
	}
	if err != nil {
		return 0, "", p.fail(doing(op, address), p.why(err))
	}
	code, n := binary.LittleEndian.Uint32(p.frame[:]), binary.LittleEndian.Uint32(p.frame[4:])
	answer = binary.LittleEndian.Uint64(p.frame[8:])
	isText := code != 0 || data == nil
	switch {
	case code > 1 || n > maxFrame:
		return 0, "", p.nonsense(op, address, fmt.Errorf("code %d, %d bytes follow", code, n))
	case isText:
		data = make([]byte, n)
	case int(n) != len(data):
		return 0, "", p.nonsense(op, address, fmt.Errorf("%d bytes follow, not %d", n, len(data)))
	}
	if _, err = io.ReadFull(out, data); err != nil {
		return 0, "", p.fail(doing(op, address), p.why(err))
	}
	if code == 1 {
		return 0, "", &Error{p.name, doing(op, address), refusal(data)}
	}
	if isText {
		text = string(data)
	}
	return answer, text, nil
}

// nonsense is an answer that is none.
func (p *Process) nonsense(op, address uint32, err error) error {
	p.kill()
	return p.fail(doing(op, address), fmt.Errorf("an answer that makes no sense: %w", err))
}

// doing describes the purpose of a frame.
func doing(op, address uint32) string {
	switch op {
	case frameHello:
		return "hello"
	case frameReadReg:
		return fmt.Sprintf("read register %#02x", address)
	case frameWriteReg:
		return fmt.Sprintf("write register %#02x", address)
	case frameRead:
		return fmt.Sprintf("read memory at %#x", address)
	case frameWrite:
		return fmt.Sprintf("write memory at %#x", address)
	case frameRun:
		return "run"
	case frameSetMemory:
		return "set the memory model"
	}
	return "read the cycles"
}

// why is the reason of a failure to write or read: the process hangs and is killed now, or it has ended, and how.
func (p *Process) why(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		p.kill()
		return p.withTail(fmt.Sprintf("no answer within %v", p.timeout))
	}
	p.in.Close()
	select {
	case <-p.ended:
	case <-time.After(2 * time.Second):
		p.kill()
		return p.withTail("it closed its output but goes on")
	}
	if p.exit == nil {
		return p.withTail("the process ended in the middle of the conversation")
	}
	return p.withTail(fmt.Sprintf("the process ended: %v", p.exit))
}

// withTail adds the process's last output.
func (p *Process) withTail(text string) error {
	if last := p.stderr.String(); last != "" {
		text += "; it said last:\n" + last
	}
	return errors.New(text)
}

// kill ends the process and waits for it.
func (p *Process) kill() {
	p.cmd.Process.Kill()
	<-p.ended
}

// ReadReg implements Link.
func (p *Process) ReadReg(address uint32) (uint32, error) {
	v, _, err := p.ask(frameReadReg, address, 0, nil, nil)
	return uint32(v), err
}

// WriteReg implements Link.
func (p *Process) WriteReg(address, value uint32) error {
	_, _, err := p.ask(frameWriteReg, address, uint64(value), nil, nil)
	return err
}

// Read implements Link.
func (p *Process) Read(address uint32, b []byte) error {
	for len(b) > 0 {
		n := min(len(b), maxFrame)
		if _, _, err := p.ask(frameRead, address, uint64(n), nil, b[:n]); err != nil {
			return err
		}
		address, b = address+uint32(n), b[n:]
	}
	return nil
}

// Write implements Link.
func (p *Process) Write(address uint32, b []byte) error {
	for len(b) > 0 {
		n := min(len(b), maxFrame)
		if _, _, err := p.ask(frameWrite, address, uint64(n), b[:n], nil); err != nil {
			return err
		}
		address, b = address+uint32(n), b[n:]
	}
	return nil
}

// Wait implements Link.
func (p *Process) Wait(ctx context.Context) (uint32, error) {
	return p.pacer.run(ctx, func(cycles uint64) (uint32, error) {
		status, _, err := p.ask(frameRun, 0, cycles, nil, nil)
		return uint32(status), err
	})
}

// SetMemory implements Simulator.
func (p *Process) SetMemory(m MemoryModel) error {
	var b []byte
	for _, w := range m.words() {
		b = binary.LittleEndian.AppendUint32(b, w)
	}
	_, _, err := p.ask(frameSetMemory, 0, uint64(len(b)), b, nil)
	return err
}

// Cycles implements Simulator.
func (p *Process) Cycles() (uint64, error) {
	n, _, err := p.ask(frameCycles, 0, 0, nil, nil)
	return n, err
}

// Close implements Link. A simulator that does not end by itself is killed.
func (p *Process) Close() error {
	p.in.Close()
	select {
	case <-p.ended:
	case <-time.After(2 * time.Second):
		p.kill()
	}
	p.out.Close()
	if p.err != nil {
		return nil
	}
	p.err = &Error{p.name, "use", os.ErrClosed}
	if p.exit != nil {
		return &Error{p.name, "close", p.withTail(p.exit.Error())}
	}
	return nil
}
