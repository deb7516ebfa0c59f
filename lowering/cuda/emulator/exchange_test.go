package emulator_test

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"fusec/graph"
	kernels "fusec/kernels/cuda"
	"fusec/kernels/group"
	"fusec/lowering/cuda/cudatest"
	"fusec/lowering/cuda/driver"
	"fusec/lowering/cuda/emulator"
)

// TestExchanges is the conformance suite of communicators.
func TestExchanges(t *testing.T) {
	var all sync.WaitGroup
	for _, transport := range group.Local(3, 0) {
		r := newRig(t, emulator.Options{})
		all.Go(func() {
			g := group.New(transport)
			if err := cudatest.Exchanges(r.gpu, g.All()); err != nil {
				t.Error(err)
				g.Abort(err)
			}
		})
	}
	all.Wait()
}

// TestExchangeRefused finds exchanges of memory that was never written or does not exist, by a communicator that is closed, and
// with a participant that is lost.
func TestExchangeRefused(t *testing.T) {
	r := newRig(t, emulator.Options{})
	alone := group.New(group.Local(1, 0)[0]).All()
	c, err := r.gpu.Join(alone, 0)
	r.must(err)
	known, unknown := upload(r, make([]float32, 4)), r.alloc(16)
	sum := graph.AllReduce{Fn: graph.Sum}
	try := func(c driver.Comm, x, y driver.Ptr) error {
		return errors.Join(c.Queue(r.stream, []driver.Exchange{
			{Exchange: &kernels.Exchange{Op: sum, DType: graph.F32, Elems: 4}, X: x, Y: y}}), r.stream.Sync())
	}
	wants := func(err error, text string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("error %v, want one about %q", err, text)
		}
	}
	wants(try(c, unknown, known), "all_reduce: its operand: byte 0 of 16 was never written")
	wants(try(c, known, 1), "all_reduce: its result: ")
	if err := try(c, known, unknown); err != nil {
		t.Error(err)
	}
	r.must(c.Abort())
	wants(try(c, known, unknown), "the communicator is closed")

	stop := errors.New("participant 1 has failed")
	transports := group.Local(2, 0)
	first, second := group.New(transports[0]), group.New(transports[1])
	c, err = r.gpu.Join(first.All(), 0)
	r.must(err)
	second.Abort(stop)
	if err := try(c, known, unknown); !errors.Is(err, stop) {
		t.Errorf("error %v", err)
	}
	r.must(c.Close())
}
