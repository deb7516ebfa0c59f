package ladders

import (
	_ "embed"
	"errors"
	"fmt"
	"strings"

	"fusec/graph"
	"fusec/graph/body"
	"fusec/kernels/cuda"
)

//go:embed cuda.cuh
var cudaTemplates string

// A CUDAVariant is one way to compute what [cuda.Compile] makes kernels for.
type CUDAVariant struct {
	Name string
	Doc  string // the difference from the variant before
	// Compile is [cuda.Compile] in this way. It refuses what the way is not for.
	Compile func(op graph.Op, args, results []cuda.Operand, cfg cuda.Config) (*cuda.Kernel, error)
}

// CUDAMatMul lists variants from the definition of the product to the kernels that programs use. Those below the tensor
// cores take f32; naive and tiled take a product alone.
var CUDAMatMul = []CUDAVariant{
	{"naive", "The definition: a thread for each element, its row and column read from memory.",
		cudaProduct("naive", (*cudaKernel).naiveProduct)},
	{"tiled", "Tiles of both operands in shared memory, each element read once for 32 products.",
		cudaProduct("tiled", (*cudaKernel).tiledProduct)},
	{"vectorised", "Blocks of 8×8 in each thread's registers, 16 bytes at a time, the next tile under way.",
		withoutTensorCores},
	{"tensor core", "Products of 16×8 by each warp's tensor core, asynchronous copies in several stages.", Portably},
	{"fusec", "As every compiled model multiplies: on Hopper tiles by the copy engine, blocks that stay.", cuda.Compile},
}

// Portably is [cuda.Compile] without what only Hopper has.
func Portably(op graph.Op, args, results []cuda.Operand, cfg cuda.Config) (*cuda.Kernel, error) {
	cfg.Portable = true
	return cuda.Compile(op, args, results, cfg)
}

// withoutTensorCores is [cuda.Compile] as for chips that have none.
func withoutTensorCores(op graph.Op, args, results []cuda.Operand, cfg cuda.Config) (*cuda.Kernel, error) {
	cfg.Chip.Arch = 70
	return cuda.Compile(op, args, results, cfg)
}

// A cudaKernel is a kernel of f32 operands in the making.
type cudaKernel struct {
	args, results []cuda.Operand
	text          strings.Builder
	steps         []cuda.Step
	scratch       int64 // bytes
}

func newCUDAKernel(args, results []cuda.Operand) (*cudaKernel, error) {
	for _, list := range [][]cuda.Operand{args, results} {
		for _, o := range list {
			if o.DType != graph.F32 {
				return nil, fmt.Errorf("it takes f32, not %v", o.DType)
			}
		}
	}
	return &cudaKernel{args: args, results: results}, nil
}

// matrix is the C++ expression of a buffer, read through a layout of rank 1 to 3: a row, a matrix, or matrices.
func matrix(typ, at string, l graph.Layout) string {
	rank := l.Shape.Rank()
	stride := func(axis int) int {
		if axis < 0 {
			return 0
		}
		return l.Stride[axis]
	}
	return fmt.Sprintf("Strided<%s>{%s + %d, %d, %d, %d}", typ, at, l.Offset, stride(rank-2), stride(rank-1), stride(rank-3))
}

func (k *cudaKernel) arg(i int, l graph.Layout) string {
	return matrix("const float", fmt.Sprintf("p.a%d", i), l)
}

func (k *cudaKernel) result(i int, l graph.Layout) string {
	return matrix("float", fmt.Sprintf("p.r%d", i), l)
}

// step adds a launch.
func (k *cudaKernel) step(entry string, blocks, threads, shared int, text string) {
	if blocks == 0 {
		return
	}
	fmt.Fprintf(&k.text, "KERNEL(%s, %d, 1) {\n%s}\n", entry, threads, text)
	k.steps = append(k.steps, cuda.Step{Entry: entry, Grid: [3]int{blocks, 1, 1}, Block: threads, Shared: shared})
}

// product adds a launch that computes products [batch,rows,depth]·[batch,depth,cols] by their definition.
func (k *cudaKernel) product(entry string, batch, rows, cols, depth int, a, b, c string) {
	k.step(entry, ceilDiv(batch*rows*cols, 256), 256, 0,
		fmt.Sprintf("  naive_product<%d, %d, %d, %d>(%s, %s, %s);\n", batch, rows, cols, depth, a, b, c))
}

func ceilDiv(n, d int) int { return (n + d - 1) / d }

// kernel puts the kernel together.
func (k *cudaKernel) kernel() *cuda.Kernel {
	if len(k.steps) == 0 {
		return &cuda.Kernel{}
	}
	var fields strings.Builder
	var params []cuda.Param
	for i := range k.args {
		fmt.Fprintf(&fields, "  const float *a%d;\n", i)
		params = append(params, cuda.Arg(i, 0))
	}
	for i := range k.results {
		fmt.Fprintf(&fields, "  float *r%d;\n", i)
		params = append(params, cuda.Result(i, 0))
	}
	if k.scratch > 0 {
		fields.WriteString("  float *scratch;\n")
		params = append(params, cuda.Scratch(0))
	}
	for i := range k.steps {
		k.steps[i].Params = params
	}
	source := fmt.Sprintf("%s\n%s\nstruct Params {\n%s};\n\n%s", cuda.Prelude(), cudaTemplates, fields.String(), k.text.String())
	return &cuda.Kernel{Source: source, Steps: k.steps, Scratch: k.scratch}
}

// cudaProduct makes the Compile of a variant for a matrix product alone.
func cudaProduct(name string, write func(k *cudaKernel, m, n, depth int, a, b, c string)) func(op graph.Op, args,
	results []cuda.Operand, cfg cuda.Config) (*cuda.Kernel, error) {
	return func(op graph.Op, args, results []cuda.Operand, _ cuda.Config) (*cuda.Kernel, error) {
		k, err := newCUDAKernel(args, results)
		var p *body.Program
		if err == nil {
			p, err = productAlone(op, args, results)
		}
		if err != nil {
			return nil, fmt.Errorf("the variant %s is for a matrix product alone: %w", name, err)
		}
		x, y := p.Operands[0], p.Operands[1]
		a, b := k.arg(x.Arg, x.Layout), k.arg(y.Arg, y.Layout)
		product := p.Anchor.Op.(graph.MatMul)
		depth := x.Layout.Shape.At(1)
		if product.TransA {
			a, depth = a+".transposed()", x.Layout.Shape.At(0)
		}
		if product.TransB {
			b += ".transposed()"
		}
		write(k, p.Space.At(0), p.Space.At(1), depth, a, b, k.result(0, p.Stores[0].Layout))
		return k.kernel(), nil
	}
}

// productAlone lowers a product of two matrices to which nothing is fused.
func productAlone(op graph.Op, args, results []cuda.Operand) (*body.Program, error) {
	f, ok := op.(graph.Fusion)
	if !ok || f.Anchor != graph.AnchorMatMul {
		return nil, errors.New("not for " + op.OpName())
	}
	p, err := body.Lower(f, args, results)
	if err == nil && (len(p.Values) != 1 || len(p.Stores) != 1 || p.Space.Rank() != 2) {
		err = errors.New("not for a product of more axes, or with more in its launch")
	}
	return p, err
}

func (k *cudaKernel) naiveProduct(m, n, depth int, a, b, c string) {
	k.product("matmul", 1, m, n, depth, a, b, c)
}

func (k *cudaKernel) tiledProduct(m, n, depth int, a, b, c string) {
	const side = 32
	k.step("matmul", ceilDiv(m, side)*ceilDiv(n, side), side*side, 2*side*side*4,
		fmt.Sprintf("  tiled_product<%d, %d, %d>(%s, %s, %s);\n", m, n, depth, a, b, c))
}
