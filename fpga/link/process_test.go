package link_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"fusec/fpga/fpgatest"
	"fusec/fpga/isa"
	"fusec/fpga/link"
	"fusec/fpga/model"
)

// The tests of this package need no hardware and no simulator of it: the other end of each link is played by Go over
// the model. With simulatorMode in its environment the test itself is a simulator's program, good or bad.
const simulatorMode = "FUSEC_TEST_SIMULATOR"

func TestMain(m *testing.M) {
	if mode := os.Getenv(simulatorMode); mode != "" {
		if err := simulate(mode, bufio.NewReader(os.Stdin), os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// overlay is what the played links lead to.
var overlay = isa.Config{Name: "played", Rows: 4, Cols: 4, WordBytes: 4, XWords: 64, WWords: 64, YWords: 64,
	Params: 32, Tables: 1, AccBits: 32,
	KeyBlock: 16, HeadDim: 16, QPanels: 2, Norms: true, Experts: 4, ListLen: 16, Tokens: 32, TopK: 2, AddrBits: 16}

// newModel is a machine of 64 KiB.
func newModel(c isa.Config) *model.Machine {
	m, err := model.New(c, model.Options{Memory: 1 << 16})
	if err != nil {
		panic(err)
	}
	return m
}

// simulate speaks the simulator's frames, and goes wrong in the way that mode says.
func simulate(mode string, in io.Reader, out io.Writer) error {
	m := newModel(overlay)
	var frame [16]byte
	for {
		if _, err := io.ReadFull(in, frame[:]); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		op, address := binary.LittleEndian.Uint32(frame[:]), binary.LittleEndian.Uint32(frame[4:])
		value := binary.LittleEndian.Uint64(frame[8:])
		var code uint32
		var answer uint64
		var data []byte
		var err error
		switch op {
		case 1:
			answer, data = 1<<16, []byte("fusec-overlay 1")
			if mode == "stranger" {
				data = []byte("hello, world")
			}
		case 2:
			var v uint32
			v, err = m.ReadReg(address)
			answer = uint64(v)
		case 3:
			err = m.WriteReg(address, uint32(value))
		case 4:
			data = make([]byte, value)
			err = m.Read(address, data)
		case 5, 7:
			p := make([]byte, value)
			if _, err := io.ReadFull(in, p); err != nil {
				return err
			}
			if op == 5 {
				err = m.Write(address, p)
			} else if binary.LittleEndian.Uint32(p) > binary.LittleEndian.Uint32(p[4:]) {
				err = errors.New("more than a beat a cycle")
			}
		case 6:
			var v uint32
			v, err = m.ReadReg(isa.RegStatus)
			answer = uint64(v)
			switch mode {
			case "crash":
				fmt.Fprintln(os.Stderr, "first words")
				fmt.Fprintln(os.Stderr, "Error: array index out of range")
				os.Exit(3)
			case "signal":
				if self, err := os.FindProcess(os.Getpid()); err == nil {
					self.Kill()
				}
			case "hang":
				fmt.Fprintln(os.Stderr, "thinking")
				select {}
			case "nonsense":
				code = 77
			case "short":
				out.Write(frame[:7])
				return nil
			case "silent":
				os.Stdout.Close()
				select {}
			case "busy":
				answer = isa.StatusBusy
			}
		case 8:
			answer = 12345
		default:
			return fmt.Errorf("operation %d", op)
		}
		if err != nil {
			code, data = 1, []byte(err.Error())
		}
		b := binary.LittleEndian.AppendUint32(nil, code)
		b = binary.LittleEndian.AppendUint32(b, uint32(len(data)))
		b = binary.LittleEndian.AppendUint64(b, answer)
		if _, err := out.Write(append(b, data...)); err != nil {
			return err
		}
	}
}

// start starts a played simulator.
func start(t testing.TB, mode string, o link.Options) (*link.Process, error) {
	t.Setenv(simulatorMode, mode)
	return link.StartProcess(os.Args[0], o)
}

func TestProcess(t *testing.T) {
	fpgatest.Suite{Config: overlay, Programs: 5, Open: func(t testing.TB) link.Link {
		p, err := start(t, "good", link.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}}.Run(t)
}

// TestProcessFails has simulators that fail in the middle of a run: the error says how and what they said last, and
// neither it nor closing takes long; a refusal is no failure.
func TestProcessFails(t *testing.T) {
	for mode, want := range map[string]string{
		"crash":    "the process ended: exit status 3; it said last:\nfirst words\nError: array index out of range",
		"signal":   "the process ended: signal: killed",
		"hang":     "no answer within 200ms; it said last:\nthinking",
		"nonsense": "an answer that makes no sense: code 77",
		"short":    "the process ended in the middle of the conversation",
	} {
		t.Run(mode, func(t *testing.T) {
			o := link.Options{}
			if mode == "hang" {
				o.Timeout = 200 * time.Millisecond
			}
			p, err := start(t, mode, o)
			if err != nil {
				t.Fatal(err)
			}
			_, err = p.Wait(context.Background())
			var failed *link.Error
			if !errors.As(err, &failed) || failed.Op != "run" || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want %q", err, want)
			}
			if _, again := p.ReadReg(isa.RegID); again != err {
				t.Errorf("after the failure: %v", again)
			}
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("silent", func(t *testing.T) {
		p, err := start(t, "silent", link.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Wait(context.Background()); err == nil || !strings.Contains(err.Error(),
			"it closed its output but goes on") {
			t.Error(err)
		}
		p.Close()
	})
	t.Run("busy", func(t *testing.T) {
		p, err := start(t, "busy", link.Options{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		defer cancel()
		if _, err := p.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if id, err := p.ReadReg(isa.RegID); id != isa.ID || err != nil {
			t.Errorf("after that the ID reads %#x, %v", id, err)
		}
		p.Close()
	})
	for name, open := range map[string]func() (*link.Process, error){
		`answers "hello, world" and not "fusec-overlay 1"`: func() (*link.Process, error) {
			return start(t, "stranger",
				link.Options{})
		},
		"no such file": func() (*link.Process, error) {
			return link.StartProcess("/no/such/simulator",
				link.Options{})
		},
		"the process ended": func() (*link.Process, error) { return link.StartProcess("/bin/false", link.Options{}) },
	} {
		if _, err := open(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("error %v, want %q", err, name)
		}
	}
	p, err := start(t, "good", link.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.SetMemory(link.MemoryModel{Num: 2, Den: 1}); err == nil || !strings.Contains(err.Error(),
		"set the memory model: refused: more than a beat") {
		t.Errorf("a refusal: %v", err)
	}
	if err := p.Write(1<<16-2, make([]byte, 3)); err == nil || !strings.Contains(err.Error(),
		"write memory at 0xfffe: refused") {
		t.Errorf("a refusal: %v", err)
	}
	if n, err := p.Cycles(); n != 12345 || err != nil {
		t.Errorf("after refusals: %d cycles, %v", n, err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}
