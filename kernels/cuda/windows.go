package cuda

import (
	"fmt"

	"fusec/graph"
)

// window writes the constants of how a kernel slides over images [images, channels, height, width]. It has
// [outHeight, outWidth] positions.
func (u *unit) window(kernel, stride, dilation, pad graph.Ints, image graph.Shape, outHeight, outWidth int) {
	u.printf("struct Problem {\n  static constexpr int KH = %d, KW = %d, SY = %d, SX = %d, DY = %d, DX = %d;\n",
		kernel.At(0), kernel.At(1), stride.At(0), stride.At(1), dilation.At(0), dilation.At(1))
	u.printf("  static constexpr int TOP = %d, LEFT = %d, C = %d, H = %d, WIDTH = %d, OH = %d, OW = %d;\n};\n\n",
		pad.At(0), pad.At(1), image.At(1), image.At(2), image.At(3), outHeight, outWidth)
}

// compileWindows makes a kernel that computes each of n elements by a function of windows.cuh.
func compileWindows(u *unit, entry string, n int, call string) *Kernel {
	if n == 0 {
		return &Kernel{}
	}
	u.elements(entry, indexType(n), n, "", fmt.Sprintf("%s[%d + e] = %s;", u.result(0), u.results[0].Layout.Offset, call))
	return u.kernel(0, []Step{u.elementStep(entry, n)}, "windows")
}

var _ = answers.Add(plain(compileIm2Col)).Add(plain(compileCol2Im)).Add(plain(compilePool)).
	Add(plain(compilePoolGrad))

// compileIm2Col turns images into patches.
func compileIm2Col(op graph.Im2Col, args, results []Operand) *Kernel {
	u := newUnit(args, results)
	t := results[0].Layout.Shape
	u.window(op.Kernel, op.Stride, op.Dilation, op.Pad, args[0].Layout.Shape, t.At(1), t.At(2))
	return compileWindows(u, "im2col", t.Elems(), fmt.Sprintf("im2col<Problem>(%s, e)", u.at(0)))
}

// compileCol2Im sums patches into images.
func compileCol2Im(op graph.Col2Im, args, results []Operand) *Kernel {
	u := newUnit(args, results)
	s, t := args[0].Layout.Shape, results[0].Layout.Shape
	u.window(op.Kernel, op.Stride, op.Dilation, op.Pad, t, s.At(1), s.At(2))
	d := args[0].DType
	call := fmt.Sprintf("convert<%s>(col2im<Problem, %s>(%s, e))", ctype(d), lane(d), u.at(0))
	return compileWindows(u, "col2im", t.Elems(), call)
}

// noLayout is the reason why an operation on images of another layout than NHWC is refused.
func noLayout(op graph.ImageOp) error {
	return fmt.Errorf("CUDA computes %s of NHWC, not of %v", op.OpName(), op.ImageLayout())
}

// compilePool takes the maximum or mean of each window.
func compilePool(op graph.Pool, args, results []Operand) *Kernel {
	return pools(op, newUnit(args, results), "pool", args[0].Layout.Shape, results[0].Layout.Shape)
}

// mostBlock is how many elements of an image a thread of the gradient of a maximum has at most.
const mostBlock = 4

// pools makes the kernel of a pool, or its gradient, of images x with results y, for vectors of channels where these are the
// last axis.
func pools(op graph.Pool, u *unit, entry string, x, y graph.Shape) *Kernel {
	_, _, oh, ow := op.Layout.ImageDims(y)
	u.window(op.Kernel, op.Stride, graph.IntsOf(1, 1), op.Pad, graph.NCHW.Image(op.Layout.ImageDims(x)), oh, ow)
	to := u.results[0]
	n, w := to.Layout.Shape.Elems(), 1
	operands := fmt.Sprintf("%s, ", u.at(0))
	if len(u.args) > 1 {
		operands += fmt.Sprintf("%s, ", u.at(1))
	}
	if op.Layout == graph.NHWC {
		steps := to.Layout.Offset | x.At(3)
		for _, a := range u.args {
			steps |= a.Layout.Offset
		}
		for 2*w*to.DType.Size() <= 16 && steps%(2*w) == 0 {
			w *= 2
		}
	}
	call := fmt.Sprintf("%s_%s<Problem, %s, %d, %v%s>(%se)", op.Fn, entry, lane(to.DType), w, op.Layout == graph.NHWC, countPad(op),
		operands)
	if n == 0 {
		return &Kernel{}
	}
	sy, sx := op.Stride.At(0), op.Stride.At(1)
	if len(u.args) > 1 && op.Fn == graph.MaxPool && op.Layout == graph.NHWC && sy*sx <= mostBlock {
		n = x.At(0) * ceilDiv(x.At(1), sy) * ceilDiv(x.At(2), sx) * x.At(3)
		u.elements(entry, indexType(n), n/w, "", fmt.Sprintf("max_pool_grad_block<Problem, %d>(%s, %se);", w, u.to(0), operands))
		return u.kernel(0, []Step{u.elementStep(entry, n/w)}, "windows")
	}
	u.elements(entry, indexType(n), n/w, "", fmt.Sprintf("store<1, %d>(%s + i64(e) * %d, %s);", w*to.DType.Size(), u.to(0), w, call))
	return u.kernel(0, []Step{u.elementStep(entry, n/w)}, "windows")
}

func countPad(op graph.Pool) string {
	if op.Fn.Info().Reduce.Info().Averages {
		return fmt.Sprintf(", %v", op.CountPad)
	}
	return ""
}

// compilePoolGrad gives each element what the windows that it lies in hand to it.
func compilePoolGrad(op graph.PoolGrad, args, results []Operand) *Kernel {
	return pools(graph.Pool(op), newUnit(args, results), "pool_grad", args[0].Layout.Shape, args[1].Layout.Shape)
}
