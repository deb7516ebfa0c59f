package cuda_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"fusec/graph"
	"fusec/kernels/group"
	"fusec/lowering"
	"fusec/lowering/cuda"
	"fusec/lowering/cuda/driver"
)

// tapped is a GPU that notes how many exchanges are made together.
type tapped struct {
	driver.GPU
	lists *[]int
}

type tappedComm struct {
	driver.Comm
	lists *[]int
}

func (g tapped) Join(t *group.Team, most int) (driver.Comm, error) {
	c, err := g.GPU.Join(t, most)
	return tappedComm{c, g.lists}, err
}

func (c tappedComm) Queue(s driver.Stream, list []driver.Exchange) error {
	*c.lists = append(*c.lists, len(list))
	return c.Comm.Queue(s, list)
}

// TestBuckets: a bucket ends when it has enough bytes, before a launch that leaves room for it, or when it has as many bytes as are
// still to come; the last exchange waits for nothing.
func TestBuckets(t *testing.T) {
	mesh := graph.Mesh{{Name: "a", Size: 2}}
	const words = 3 << 19 // 6 MiB
	for _, c := range []struct {
		sizes  []int
		bucket int64
		long   int // the exchange before which is a launch that is long, and no product; 0 for none
		want   []int
	}{
		{[]int{words, words, words, words}, cuda.DefaultBucket, 0, []int{2, 1, 1}},
		{[]int{words, words, words, words}, 1, 0, []int{1, 1, 1, 1}},
		{[]int{5 << 18, 1 << 17, 1 << 17}, cuda.DefaultBucket, 0, []int{1, 2}},
		{[]int{5 << 18, 1 << 17, 1 << 17}, cuda.DefaultBucket, 2, []int{2, 1}},
		{[]int{30, 40, 50}, cuda.DefaultBucket, 0, []int{3}},
		{[]int{30, 40, 50}, 280, 0, []int{2, 1}},
	} {
		b := graph.NewBuilder("")
		for i, n := range c.sizes {
			if c.long > 0 && i == c.long {
				b.Output("long", b.Unary(graph.Neg, b.Input("long in", graph.TypeOf(graph.F32, 1<<22))))
			}
			x := b.Input(fmt.Sprint("x", i), graph.TypeOf(graph.F32, n))
			b.Output(fmt.Sprint("y", i), b.Add(graph.AllReduce{Fn: graph.Sum, Group: graph.Group{Over: mesh.Names(1)}}, x))
		}
		g, err := b.Graph()
		if err != nil {
			t.Fatal(err)
		}
		g.Mesh = mesh
		lists := exchangesOf(t, g, c.bucket)
		if !slices.Equal(lists, c.want) {
			t.Errorf("%v with buckets of %d bytes: exchanges of %v, want %v", c.sizes, c.bucket, lists, c.want)
		}
	}
}

// exchangesOf runs a program on the participants of its mesh, and gives how many exchanges one of them has made together.
func exchangesOf(t *testing.T, g *graph.Graph, bucket int64) (lists []int) {
	t.Helper()
	var once sync.Once
	together(t, g.Mesh.Size(), 0, func(of *group.Group) error {
		gpu, compiler := openOf(t, of.Rank(), g.Mesh.Size())
		own := new([]int)
		d := cuda.New(cuda.On(tapped{gpu, own}, compiler), cuda.In(of), cuda.Bucket(bucket))
		p, err := lowering.Lower(g, d.Name(), d.Lowering()...)
		if err != nil {
			return err
		}
		e, err := d.Compile(p)
		if err != nil {
			return err
		}
		for i, b := range p.Buffers {
			if b.Role == lowering.Input || b.Role == lowering.Param {
				if err := e.Bind(i, graph.NewTensor(b.Type)); err != nil {
					return err
				}
			}
		}
		if err := e.Run(); err != nil {
			return err
		}
		once.Do(func() { lists = *own })
		return e.Close()
	})
	return lists
}

// TestGathersTogether: parameters that are gathered ahead are exchanged by buckets, each of which begins at once.
func TestGathersTogether(t *testing.T) {
	mesh := graph.Mesh{{Name: "a", Size: 2}}
	b := graph.NewBuilder("")
	half, whole := graph.TypeOf(graph.F32, 75<<10), graph.TypeOf(graph.F32, 150<<10) // 600 KiB
	y := b.Input("x", whole)
	for i := range 6 {
		w := b.Add(graph.AllGather{Group: graph.Group{Over: mesh.Names(1), Parts: 2}}, b.Param(fmt.Sprint("w", i), half))
		y = b.Binary(graph.Add, y, w)
	}
	b.Output("y", y)
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	g.Mesh = mesh
	if lists := exchangesOf(t, g, cuda.DefaultBucket); !slices.Equal(lists, []int{1, 3, 2}) {
		t.Errorf("exchanges of %v, want buckets of up to 1, 2 and 4 MiB", lists)
	}
}

// closed is a GPU that notes in which order its communicators are closed.
type closed struct {
	driver.GPU
	joined *int
	order  *[]int
}

type closedComm struct {
	driver.Comm
	number int
	order  *[]int
}

func (g closed) Join(t *group.Team, most int) (driver.Comm, error) {
	c, err := g.GPU.Join(t, most)
	*g.joined++
	return closedComm{c, *g.joined, g.order}, err
}

func (c closedComm) Close() error {
	*c.order = append(*c.order, c.number)
	return c.Comm.Close()
}

// TestClosingOrder: all participants leave their communicators in the same order, because NCCL has those of one wait for one
// another.
// One is for the exchanges that launches hide, with a limit to its blocks of threads, and one for the others.
func TestClosingOrder(t *testing.T) {
	mesh := graph.Mesh{{Name: "a", Size: 2}}
	sum := graph.AllReduce{Fn: graph.Sum, Group: graph.Group{Over: mesh.Names(1)}}
	b := graph.NewBuilder("")
	x := b.Input("x", graph.TypeOf(graph.F32, 8, 8))
	hidden := b.Add(sum, x)
	b.Output("beside", b.Unary(graph.Tanh, x))
	b.Output("hidden", hidden)
	b.Output("next", b.Unary(graph.Tanh, b.Add(sum, b.Input("y", x.Type))))
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	g.Mesh = mesh
	for range 8 {
		orders := make([][]int, mesh.Size())
		together(t, mesh.Size(), 0, func(of *group.Group) error {
			gpu, compiler := openOf(t, of.Rank(), mesh.Size())
			d := cuda.New(cuda.On(closed{gpu, new(int), &orders[of.Rank()]}, compiler), cuda.In(of), cuda.ExchangeBlocks(2))
			p, err := lowering.Lower(g, d.Name(), d.Lowering()...)
			if err != nil {
				return err
			}
			e, err := d.Compile(p)
			if err != nil {
				return err
			}
			for i, b := range p.Buffers {
				if b.Role == lowering.Input {
					if err := e.Bind(i, graph.NewTensor(b.Type)); err != nil {
						return err
					}
				}
			}
			if err := e.Run(); err != nil {
				return err
			}
			return e.Close()
		})
		if len(orders[0]) != 2 || !slices.Equal(orders[0], orders[1]) {
			t.Fatalf("the participants close the communicators %v", orders)
		}
	}
}
