//go:build gpu

package gpu

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"
	"unsafe"

	"fusec/graph"
	kernels "fusec/kernels/cuda"
	"fusec/kernels/group"
	"fusec/lowering/cuda/driver"
)

// TestSums has all GPUs add up whole numbers, large and small together: into their operands or beside them, of all elements or of a
// part, with room for the terms of few at a time.
func TestSums(t *testing.T) {
	n, err := Count()
	ok(t, err)
	if n = min(n, mostPeers); n < 2 {
		t.Skipf("a sum needs two GPUs, and there are %d", n)
	}
	defer func(n int) { mostStaged = n }(mostStaged)
	mostStaged = 1 << 20
	var all sync.WaitGroup
	for rank, transport := range group.Local(n, time.Minute) {
		all.Go(func() {
			if err := sums(group.New(transport).All(), rank, n); err != nil {
				t.Errorf("GPU %d of %d: %v", rank, n, err)
			}
		})
	}
	all.Wait()
}

// sums are those of one GPU.
func sums(team *group.Team, rank, n int) error {
	g, err := OpenMapped(rank)
	if err != nil {
		return err
	}
	s, err := g.NewUrgentStream()
	if err != nil {
		return err
	}
	c, err := g.Join(team, 0)
	if err != nil {
		return err
	}
	type value struct {
		t       *graph.Tensor // of rank 0; that of rank r is r more
		at, to  driver.Ptr
		scatter bool
	}
	var list []driver.Exchange
	var values []value
	for i, elems := range []int{n * 1_000_003, 5, n * 700_001, n * 1001, n * 262_144, 1} {
		v := value{t: graph.NewTensor(graph.TypeOf([]graph.DType{graph.F32, graph.BF16}[i%2], elems)), scatter: i > 1 && i < 4}
		own := graph.NewTensor(v.t.Type)
		for k := range elems {
			v.t.SetFloat(k, float64((k+i)%13))
			own.SetFloat(k, float64((k+i)%13+rank))
		}
		bytes := int64(len(own.Bytes()))
		if v.at, err = g.Alloc(bytes); err != nil {
			return err
		}
		if err := s.CopyIn(v.at, unsafe.Pointer(&own.Bytes()[0]), bytes); err != nil {
			return err
		}
		var op graph.Collective = graph.AllReduce{Fn: graph.Sum}
		if v.to = v.at; v.scatter {
			op = graph.ReduceScatter{Fn: graph.Sum}
		}
		if i%2 == 0 || v.scatter {
			if v.to, err = g.Alloc(bytes); err != nil {
				return err
			}
		}
		list = append(list, driver.Exchange{Exchange: &kernels.Exchange{Op: op, DType: v.t.Type.DType, Elems: elems}, X: v.at, Y: v.to})
		values = append(values, v)
	}
	p := c.(*comm).p
	if p == nil {
		return errors.New("the GPUs do not reach each other's memory")
	}
	if err := errors.Join(c.Queue(s, list), s.Sync()); err != nil {
		return err
	}
	for i, v := range values {
		first, elems := 0, list[i].Elems
		if v.scatter {
			elems /= n
			first = rank * elems
		}
		got := graph.NewTensor(graph.TypeOf(v.t.Type.DType, elems))
		if err := errors.Join(s.CopyOut(unsafe.Pointer(&got.Bytes()[0]), v.to, int64(len(got.Bytes()))), s.Sync()); err != nil {
			return err
		}
		for k := range elems {
			if want := float64(n)*v.t.Float(first+k) + float64(n*(n-1)/2); got.Float(k) != want {
				return fmt.Errorf("sum %d: element %d is %g, not %g", i, k, got.Float(k), want)
			}
		}
		if v.to != v.at {
			err = errors.Join(err, g.Free(v.to))
		}
		err = errors.Join(err, g.Free(v.at))
	}
	return errors.Join(err, c.Close(), s.Close(), g.Close())
}
