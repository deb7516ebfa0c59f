package cudatest

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	kernels "fusec/kernels/cuda"
	"fusec/kernels/ref"
)

// TestFound runs kernels that compute what they should and do something else as well.
func TestFound(t *testing.T) {
	x := graphtest.Tensor(rand.New(rand.NewPCG(1, 1)), graph.TypeOf(graph.F32, 6))
	wide := graph.Layout{Shape: x.Type.Shape, Offset: 1}
	wide.Stride[0] = 2
	for _, tt := range []struct{ name, body, want string }{
		{"right", "", ""},
		{"beside", "if (i == 0) p.y[4] = 0;", "result 0: element 4 of the buffer was written"},
		{"argument", "if (i == 3) p.x[i] = 1;", "argument 0 was written"},
		{"scratch", "p.y[2 * i + 1] = p.scratch[i];", "which was never written"},
		{"status", "if (i == 2) fail(p.status, STATUS_INDEX, 2, 9, 5);", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := Emulator(t)
			k := &kernels.Kernel{Scratch: 24, Source: kernels.Prelude() + `
struct Params { float *x, *y, *scratch; Status *status; int n; };
KERNEL(k, 32, 1) {
  const int i = threadIdx.x;
  if (i < p.n) p.y[2 * i + 1] = 2 * p.x[i];
  ` + tt.body + `
}
`}
			params := []kernels.Param{kernels.Arg(0, 0), kernels.Result(0, 0), kernels.Scratch(0),
				{Kind: kernels.StatusPtr}, {Kind: kernels.Int32, Bits: 6}}
			k.Steps = []kernels.Step{
				{Params: []kernels.Param{kernels.Scratch(4)}, Bytes: 4, Value: 1},
				{Entry: "k", Grid: [3]int{1, 1, 1}, Block: 6, Params: params},
			}
			args := []Buffer{{kernels.Operand{DType: graph.F32, Layout: graph.Contiguous(x.Type.Shape)}, x}}
			results := []Buffer{{Operand: kernels.Operand{DType: graph.F32, Layout: wide}}}
			status, err := d.Run(k, args, results)
			if tt.want != "" {
				if err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("error %v, want one about %q", err, tt.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			want := kernels.Status{}
			if tt.name == "status" {
				want.Code, want.Where, want.Value, want.Limit = kernels.StatusIndex, 2, 9, 5
			}
			if status != want {
				t.Errorf("status %+v, want %+v", status, want)
			}
			for i := range 6 {
				if got := results[0].Value.Float(i); got != 2*x.Float(i) {
					t.Errorf("element %d is %v, want %v", i, got, 2*x.Float(i))
				}
			}
		})
	}
}

// TestLayout draws layouts whose elements do not overlap, unless they may.
func TestLayout(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 1))
	contiguous, repeated := 0, 0
	for range 500 {
		s := graph.ShapeOf(1+r.IntN(3), 1+r.IntN(4), 1+r.IntN(5))
		repeats := r.IntN(2) == 0
		l := Layout(r, s, repeats)
		seen := map[int]bool{}
		each(l, func(_, at int) {
			if at < 0 || at >= extent(l) {
				t.Fatalf("%+v: place %d of %d", l, at, extent(l))
			}
			seen[at] = true
		})
		if l.IsContiguous() {
			contiguous++
		}
		if len(seen) < s.Elems() {
			repeated++
			if !repeats {
				t.Fatalf("%+v: elements share places", l)
			}
		}
	}
	if contiguous == 0 || repeated == 0 {
		t.Errorf("%d layouts are row-major, %d have elements that share places", contiguous, repeated)
	}
}

// TestRun checks an operation that is right, and sees where a check fails.
func TestRun(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 1))
	body := graph.New("")
	b := graph.Extend(body)
	s := graph.ShapeOf(3, 8)
	x := b.Add(graph.Input{Type: graph.Type{DType: graph.F32, Shape: s}})
	y := b.Add(graph.Input{Type: graph.Type{DType: graph.F32, Shape: s}})
	b.Output("z", b.Binary(graph.Add, b.Unary(graph.Tanh, x), y))
	if err := b.Err(); err != nil {
		t.Fatal(err)
	}
	d := Open(t)
	c := Check{Name: "right", Op: graph.Fusion{Body: body}}
	for range 2 {
		c.Args = append(c.Args, graphtest.Tensor(r, x.Type))
		c.ArgLayouts = append(c.ArgLayouts, Layout(r, s, true))
	}
	c.ResultLayouts = []graph.Layout{Layout(r, s, false)}
	Run(t, d, c)
	for want, change := range map[string]func(c *Check){
		"result 0: 24 of 24 elements are off": func(c *Check) {
			c.Want[0].F = make([]float64, 24)
			for i := range c.Want[0].F {
				c.Want[0].F[i] = 1e6
			}
		},
		"result 0: no": func(c *Check) { c.Compare = func(*graph.Tensor, ref.Value) error { return errors.New("no") } },
		"want code 1":  func(c *Check) { c.Status = kernels.StatusIndex },
	} {
		p, err := c.prepare(d.MadeFor())
		if err != nil {
			t.Fatal(err)
		}
		change(&p.Check)
		images, err := d.compile([]string{"", p.kernel.Source})
		if err != nil || images[0] != nil {
			t.Fatal(images, err)
		}
		if err := p.check(d, images[1]); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one about %q", err, want)
		}
	}
	c.Args = c.Args[:1]
	if _, err := c.prepare(d.MadeFor()); err == nil {
		t.Error("an operand is missing, and nobody says so")
	}
}
