package cudatest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"fusec/graph"
	kernels "fusec/kernels/cuda"
	"fusec/kernels/ref"
)

// A Check is one operation with operands, to be compared with the reference.
type Check struct {
	Name string
	Op   graph.Op
	Args []*graph.Tensor
	// Layouts of the operands and results in their buffers, row-major if absent. Elements of an operand at the same
	// address have the value that was written last.
	ArgLayouts, ResultLayouts []graph.Layout
	// Config is the configuration for the kernel. Its chip is the device's, or the one that the device should
	// represent.
	Config kernels.Config
	// Compile makes the kernel; [kernels.Compile] if it is nil.
	Compile func(op graph.Op, args, results []kernels.Operand, cfg kernels.Config) (*kernels.Kernel, error)
	// Want are the expected results; if nil, they come from the reference.
	Want []ref.Value
	// Compare compares one result; [ref.Check] if it is nil.
	Compare func(got *graph.Tensor, want ref.Value) error
	// Status is the report that is expected from the kernel. Results are compared only if it is empty.
	Status kernels.StatusCode
}

// prepared is a check that is ready to run.
type prepared struct {
	Check
	kernel        *kernels.Kernel
	args, results []Buffer
}

// at is layout i of a list, or the row-major one.
func at(list []graph.Layout, i int, s graph.Shape) graph.Layout {
	if i < len(list) && list[i].Shape == s {
		return list[i]
	}
	return graph.Contiguous(s)
}

// generate makes a check's kernel, with the buffers of operands and results. It does not read the operands' elements.
func (c Check) generate(chip kernels.Chip) (*prepared, error) {
	p := &prepared{Check: c}
	types := make([]graph.Type, len(c.Args))
	for i, a := range c.Args {
		types[i] = a.Type
		o := kernels.Operand{DType: a.Type.DType, Layout: at(c.ArgLayouts, i, a.Type.Shape)}
		p.args = append(p.args, Buffer{o, a})
	}
	results, err := graph.InfoOf(c.Op).Infer(c.Op, types)
	if err != nil {
		return nil, err
	}
	for i, u := range results {
		o := kernels.Operand{DType: u.DType, Layout: at(c.ResultLayouts, i, u.Shape)}
		p.results = append(p.results, Buffer{Operand: o})
	}
	p.Config.Chip = chip
	compile := c.Compile
	if compile == nil {
		compile = kernels.Compile
	}
	p.kernel, err = compile(c.Op, operands(p.args), operands(p.results), p.Config)
	return p, err
}

// prepare is generate with the expected results.
func (c Check) prepare(chip kernels.Chip) (*prepared, error) {
	p, err := c.generate(chip)
	if err != nil {
		return nil, err
	}
	for i := range p.args {
		p.args[i].Value = seen(p.args[i])
	}
	if p.Want == nil {
		in := make([]ref.Value, len(p.args))
		for i := range p.args {
			in[i] = ref.FromTensor(p.args[i].Value)
		}
		if p.Want, err = ref.OpBound(c.Op, in); err != nil && c.Status == 0 {
			return nil, fmt.Errorf("the reference: %w", err)
		}
	}
	if p.Compare == nil {
		p.Compare = ref.Check
	}
	return p, nil
}

// seen is a buffer's value read through the layout: elements at the same address are equal.
func seen(b Buffer) *graph.Tensor {
	m := b.image()
	r := Buffer{Operand: b.Operand}
	_ = r.read(m, m) // nothing was written
	return r.Value
}

func operands(list []Buffer) []kernels.Operand {
	r := make([]kernels.Operand, len(list))
	for i, b := range list {
		r[i] = b.Operand
	}
	return r
}

// Run makes the kernels of all checks, compiles them together, and runs each twice: both must give the same bits. With
// $FUSEC_MACHINE_CODE it checks the machine code of every fourth instead, with $FUSEC_LONG that of all; see [MachineCode].
func Run(t *testing.T, d Device, checks ...Check) {
	t.Helper()
	if list := os.Getenv(Variable); list != "" {
		var chips []kernels.Chip
		for _, name := range strings.Fields(list) {
			c, err := kernels.ChipNamed(name)
			if err != nil {
				t.Fatalf("%s: %v", Variable, err)
			}
			chips = append(chips, c)
		}
		MachineCode(t, []kernels.Chip{d.MadeFor()}, chips, sample(checks)...)
		return
	}
	list := make([]*prepared, len(checks))
	sources := make([]string, len(checks))
	for i, c := range checks {
		p, err := c.prepare(d.MadeFor())
		if err != nil {
			t.Errorf("%s: %v", c.Name, err)
			continue
		}
		list[i], sources[i] = p, p.kernel.Source
	}
	images, err := d.compile(sources)
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range list {
		if p == nil {
			continue
		}
		t.Run(p.Name, func(t *testing.T) {
			if err := p.check(d, images[i]); err != nil {
				t.Error(err)
			}
		})
	}
}

// sample is every fourth check, the first among them, unless long tests are asked for.
func sample(checks []Check) (some []Check) {
	if os.Getenv("FUSEC_LONG") != "" {
		return checks
	}
	for i := 0; i < len(checks); i += 4 {
		some = append(some, checks[i])
	}
	return some
}

func (p *prepared) check(d Device, image []byte) error {
	var first []*graph.Tensor
	for range 2 {
		status, err := d.run(p.kernel, image, p.args, p.results)
		if err != nil {
			return err
		}
		if status.Code != p.Status {
			return fmt.Errorf("the kernel reports %+v, want code %d", status, p.Status)
		}
		if p.Status != 0 {
			return nil
		}
		for i, r := range p.results {
			if len(first) <= i {
				first = append(first, r.Value)
				if err := p.Compare(r.Value, p.Want[i]); err != nil {
					return fmt.Errorf("result %d: %w", i, err)
				}
			}
			if !r.Value.Equal(first[i]) {
				return fmt.Errorf("result %d differs from run to run", i)
			}
		}
	}
	return nil
}

// Layout draws a layout of a value in a buffer: row-major, after an offset, with gaps between rows or elements, with
// permuted axes, or, if repeats is set, with broadcast elements.
func Layout(r *rand.Rand, s graph.Shape, repeats bool) graph.Layout {
	n := s.Rank()
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	if r.IntN(2) == 0 {
		order = r.Perm(n)
	}
	l := graph.Layout{Shape: s}
	if r.IntN(2) == 0 {
		l.Offset = 1 + r.IntN(20)
	}
	step := 1 + r.IntN(4)/3
	for i := n - 1; i >= 0; i-- {
		axis := order[i]
		l.Stride[axis] = step
		step *= s.At(axis)
		if r.IntN(4) == 0 {
			step += r.IntN(5)
		}
	}
	if repeats && n > 0 && r.IntN(4) == 0 {
		l.Stride[r.IntN(n)] = 0
	}
	return l
}
