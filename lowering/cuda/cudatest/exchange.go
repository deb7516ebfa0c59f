package cudatest

import (
	"errors"
	"unsafe"

	"fusec/graph"
	"fusec/kernels/group"
	"fusec/kernels/group/grouptest"

	kernels "fusec/kernels/cuda"
	"fusec/lowering/cuda/driver"
)

// Exchanges makes exchanges of all kinds between the GPUs of a team's participants, at once and recorded beside other work, and
// compares them with what they are by definition. All participants call it, each with its GPU.
func Exchanges(g driver.GPU, t *group.Team) (err error) {
	c, err := g.Join(t, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	x := exchanger{GPU: g, comm: c}
	for _, s := range []*driver.Stream{&x.main, &x.side} {
		if *s, err = g.NewStream(); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, (*s).Close()) }()
	}
	for _, e := range []*driver.Event{&x.begun, &x.ended} {
		if *e, err = g.NewEvent(); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, (*e).Close()) }()
	}
	if err := grouptest.Collectives(t.Size(), t.Place(), x.do); err != nil {
		return err
	}
	x.recorded = true
	return grouptest.Collectives(t.Size(), t.Place(), x.do)
}

// exchanger makes exchanges of values on the host.
type exchanger struct {
	driver.GPU
	comm         driver.Comm
	main, side   driver.Stream
	begun, ended driver.Event
	recorded     bool
}

func (x *exchanger) do(op graph.Collective, d graph.DType, from, to []byte) (err error) {
	var at [2]driver.Ptr
	for i, b := range [][]byte{from, to} {
		if at[i], err = x.Alloc(int64(len(b))); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, x.Free(at[i])) }()
	}
	if err := x.main.CopyIn(at[0], unsafe.Pointer(unsafe.SliceData(from)), int64(len(from))); err != nil {
		return err
	}
	if err := x.main.Sync(); err != nil {
		return err
	}
	list := []driver.Exchange{{Exchange: &kernels.Exchange{Op: op, DType: d, Elems: len(from) / d.Size()}, X: at[0], Y: at[1]}}
	if x.recorded {
		err = x.replay(list)
	} else {
		err = x.comm.Queue(x.main, list)
	}
	if err != nil {
		return err
	}
	if err := x.main.CopyOut(unsafe.Pointer(unsafe.SliceData(to)), at[1], int64(len(to))); err != nil {
		return err
	}
	if err := x.main.Sync(); err != nil {
		return err
	}
	return x.comm.Failed()
}

// replay records the exchanges on another stream, twice, and replays them.
func (x *exchanger) replay(list []driver.Exchange) (err error) {
	if err := x.main.BeginCapture(); err != nil {
		return err
	}
	for range 2 {
		for _, f := range []func() error{
			func() error { return x.main.Record(x.begun) }, func() error { return x.side.Wait(x.begun) },
			func() error { return x.comm.Queue(x.side, list) },
			func() error { return x.side.Record(x.ended) }, func() error { return x.main.Wait(x.ended) },
		} {
			if err == nil {
				err = f()
			}
		}
	}
	g, end := x.main.EndCapture()
	if err = errors.Join(err, end); err != nil {
		return err
	}
	if err = g.Launch(x.main); err == nil {
		err = x.main.Sync()
	}
	return errors.Join(err, g.Close())
}
