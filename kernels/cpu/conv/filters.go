package conv

import (
	"errors"
	"fmt"
	"unsafe"

	"fusec/graph"
	"fusec/kernels/cpu/gemm"
	"fusec/kernels/cpu/pool"
	"fusec/kernels/cpu/tiling"
)

// Filters is a convolution's filters in packed form, for weights that stay the same over many runs. Any number of plans
// may read them at the same time.
type Filters[T gemm.Float] struct {
	shape  packing[T]
	layout graph.Layout
	pool   *pool.Pool
	src    []T // during Update
	data   []T
}

// A packing is how filters are packed: [group][panel][K][width], where a panel is some filters of a group and K is
// KH·KW·C/G. Panels have the width of the matrix kernels' panels of B, the last one of a group perhaps less.
type packing[T gemm.Float] struct {
	micro                 gemm.Micro[T]
	groups, taps, ch, out int // ch channels and out filters for each group
	panels                int // of a group
	group                 int // elements of a packed group
}

func newPacking[T gemm.Float](micro gemm.Micro[T], groups int, w graph.Shape) packing[T] {
	s := packing[T]{micro: micro, groups: groups, taps: w.At(0) * w.At(1), ch: w.At(2), out: w.At(3) / max(groups, 1)}
	s.panels = tiling.CeilDiv(s.out, micro.NR)
	if s.panels > 0 {
		last := s.panels - 1
		s.group = (last*micro.NR + micro.PanelOf(s.out-last*micro.NR)) * s.steps()
	}
	return s
}

// steps is the length of the reduction.
func (s *packing[T]) steps() int { return s.taps * s.ch }

// elements is the number of elements of the packed filters.
func (s *packing[T]) elements() int { return s.groups * s.group }

// panel returns the first element of a panel, its first filter within the group, the number of filters and its width.
func (s *packing[T]) panel(group, i int) (at, col, cols, width int) {
	col = i * s.micro.NR
	cols = min(s.micro.NR, s.out-col)
	return group*s.group + col*s.steps(), col, cols, s.micro.PanelOf(cols)
}

// pack fills the panel of a group.
func (s *packing[T]) pack(dst, src []T, l *graph.Layout, group, i int) {
	at, col, cols, width := s.panel(group, i)
	src = src[l.Offset+(group*s.out+col)*l.Stride[3]:]
	n, k := s.taps, s.ch // parts of k steps that are at equal distances
	kw := l.Shape.At(1)
	switch rows := l.Stride[2] * s.ch; {
	case rows == l.Stride[1] && rows*kw == l.Stride[0]:
		n, k = 1, s.steps()
	case s.ch == 1 && l.Stride[1]*kw == l.Stride[0]:
		gemm.Pack(dst[at:], width, s.taps, cols, src, l.Stride[1], l.Stride[3])
		return
	}
	for tap := range n {
		gemm.Pack(dst[at+tap*k*width:], width, k, cols, src[tap/kw*l.Stride[0]+tap%kw*l.Stride[1]:], l.Stride[2], l.Stride[3])
	}
}

// NewFilters makes room for filters w [KH, KW, C/G, O] of a number of groups, in the given layout. Update packs them, on
// the workers of p.
func NewFilters[T gemm.Float](groups int, layout graph.Layout, p *pool.Pool) (*Filters[T], error) {
	return newFilters(groups, layout, p, gemm.MicroOf[T]())
}

func newFilters[T gemm.Float](groups int, layout graph.Layout, p *pool.Pool, micro gemm.Micro[T]) (*Filters[T], error) {
	if p == nil {
		return nil, errors.New("conv: no pool")
	}
	if err := checkFilters(groups, layout); err != nil {
		return nil, err
	}
	f := &Filters[T]{shape: newPacking(micro, groups, layout.Shape), layout: layout, pool: p}
	f.data = gemm.Aligned[T](f.shape.elements())
	return f, nil
}

// checkFilters reports filters that are not of rank 4 or do not fall into groups.
func checkFilters(groups int, l graph.Layout) error {
	if l.Shape.Rank() != 4 {
		return fmt.Errorf("conv: filters %v are not [KH, KW, C, O]", l.Shape)
	}
	if groups < 1 || l.Shape.At(3)%groups != 0 {
		return fmt.Errorf("conv: %d filters in %d groups", l.Shape.At(3), groups)
	}
	return nil
}

// Extent is how many elements a layout reaches over.
func Extent(l graph.Layout) int {
	last := l.Offset
	for i := range l.Shape.Rank() {
		if l.Shape.At(i) == 0 {
			return 0
		}
		last += (l.Shape.At(i) - 1) * l.Stride[i]
	}
	return last + 1
}

// Update packs w, for the first time or after its elements have changed. No plan may read the filters at the same time.
// It allocates nothing.
func (f *Filters[T]) Update(w []T) error {
	if need := Extent(f.layout); len(w) < need {
		return fmt.Errorf("conv: filters %v need %d elements, the slice has %d", f.layout.Shape, need, len(w))
	}
	f.src = w
	f.pool.Run(f.shape.groups*f.shape.panels, (*packFilters[T])(f))
	f.src = nil
	return nil
}

// Bytes returns the size of the packed filters.
func (f *Filters[T]) Bytes() int { return len(f.data) * int(unsafe.Sizeof(*new(T))) }

// packFilters packs a panel.
type packFilters[T gemm.Float] Filters[T]

func (f *packFilters[T]) Do(_, item int) {
	if f.shape.steps() > 0 {
		f.shape.pack(f.data, f.src, &f.layout, item/f.shape.panels, item%f.shape.panels)
	}
}
