package raise

import (
	"fusec/graph"
	"fusec/graph/trace"
	pat "fusec/passes/pattern"
)

// convPatterns find the convolution that was written as a matrix product of patches:
//
//	x ─ im2col ─ reshape[n·h·w, c·kh·kw] ─┐
//	                                    matmul(transB) ─ reshape[n,h,w,o] ─ transpose[0,3,1,2] ─►      x ─ conv2d ─►
//	f ─ reshape[o, c·kh·kw] ──────────────┘                                                        f ─┘
//
// The Transpose is absent where there is one filter or one position only.
var convPatterns = []raising{
	{"conv2d", "patches of an image times filters", trace.Reassociated, pat.Or(
		pat.Is("a transpose from n,h,w,c to n,c,h,w", func(op graph.Transpose) bool { return op.Perm == graph.IntsOf(0, 3, 1, 2) },
			pat.Op("reshape", patchProduct)),
		pat.Op("reshape", patchProduct)),
		"conv2d", makeConv},
}

var patchProduct = pat.Is("a product with transposed filters", func(op graph.MatMul) bool { return !op.TransA && op.TransB },
	pat.Op("reshape", pat.Key(pat.Capture("patches", pat.Op("im2col", pat.Same("x"))))), pat.Capture("filters", pat.Any()))

func makeConv(b *graph.Builder, m *pat.Match) *graph.Node {
	x, patches, f := m.Get("x"), m.Get("patches"), m.Get("filters")
	col := patches.Op.(graph.Im2Col)
	p, fs, out := patches.Type.Shape, f.Type.Shape, m.Root.Type.Shape
	if fs.Rank() != 2 || fs.At(1) != p.At(3) || out != graph.ShapeOf(p.At(0), fs.At(0), p.At(1), p.At(2)) {
		return nil
	}
	if _, ok := m.Root.Op.(graph.Reshape); ok && fs.At(0) != 1 && p.At(1)*p.At(2) != 1 {
		return nil // the same shape, but other elements
	}
	if _, ok := f.Op.(graph.Reshape); ok {
		f = f.Args[0] // most often the filters as they were
	}
	w := b.Reshape(f, fs.At(0), x.Type.Shape.At(1), col.Kernel.At(0), col.Kernel.At(1))
	return b.Add(graph.Conv2D{Stride: col.Stride, Dilation: col.Dilation, Pad: col.Pad, Groups: 1}, x, w)
}
