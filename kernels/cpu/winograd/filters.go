package winograd

import (
	"errors"
	"fmt"

	"fusec/graph"
	"fusec/kernels/cpu/conv"
	"fusec/kernels/cpu/gemm"
	"fusec/kernels/cpu/pool"
	"fusec/kernels/cpu/tiling"
	"fusec/kernels/cpu/vec"
)

// Filters are a convolution's filters, transformed and packed: [panel][point][C][width]. Any number of plans may read them
// at the same time.
type Filters struct {
	kern     kernel
	micro    gemm.Micro[float32]
	layout   graph.Layout
	tile     int
	channels int
	out      int
	turned   bool
	pool     *pool.Pool
	src      []float32 // during Update
	data     []float32 // nil: a plan has room for them, and transforms them in each run
	blocks   [][]float32
}

// filterChannels is how many channels of a panel a worker transforms at a time.
const filterChannels = 8

// NewFilters makes room for filters w [3, 3, C, O] in the given layout, for F(tile×tile, 3×3). Update transforms them, on the
// workers of p. If turned is set, tap (i, j) of a filter is element (2−i, 2−j).
func NewFilters(tile int, w graph.Layout, turned bool, p *pool.Pool) (*Filters, error) {
	f, err := newFilters(tile, w, turned, p, gemm.MicroOf[float32](), kernels[0])
	if err == nil {
		f.data = gemm.Aligned[float32](f.elements())
	}
	return f, err
}

// NewChanging is NewFilters for filters that are given to [Plan.Run], which transforms them each time.
func NewChanging(tile int, w graph.Layout, turned bool, p *pool.Pool) (*Filters, error) {
	return newFilters(tile, w, turned, p, gemm.MicroOf[float32](), kernels[0])
}

func newFilters(tile int, w graph.Layout, turned bool, p *pool.Pool, micro gemm.Micro[float32], kern kernel) (*Filters, error) {
	if _, err := graph.WinogradOf(tile); err != nil {
		return nil, fmt.Errorf("winograd: %w", err)
	}
	if p == nil {
		return nil, errors.New("winograd: no pool")
	}
	if w.Shape.Rank() != 4 || w.Shape.At(0) != 3 || w.Shape.At(1) != 3 {
		return nil, fmt.Errorf("winograd: filters %v are not [3, 3, C, O]", w.Shape)
	}
	f := &Filters{kern: kern, micro: micro, layout: w, tile: tile, channels: w.Shape.At(2), out: w.Shape.At(3), turned: turned,
		pool: p, blocks: make([][]float32, p.Workers())}
	for i := range f.blocks {
		f.blocks[i] = gemm.Aligned[float32](9 * filterChannels * micro.NR)
	}
	return f, nil
}

// elements is the number of elements of the transformed filters.
func (f *Filters) elements() int { return f.at(f.panels()) }

func (f *Filters) points() int { return (f.tile + 2) * (f.tile + 2) }
func (f *Filters) panels() int { return tiling.CeilDiv(f.out, f.micro.NR) }

// panel returns the number of filters of a panel and its width.
func (f *Filters) panel(i int) (cols, width int) {
	cols = min(f.micro.NR, f.out-i*f.micro.NR)
	return cols, f.micro.PanelOf(cols)
}

// at is where a panel begins.
func (f *Filters) at(panel int) int {
	n := panel * f.micro.NR
	if panel > 0 && panel == f.panels() {
		_, width := f.panel(panel - 1)
		n += width - f.micro.NR
	}
	return n * f.channels * f.points()
}

// Update transforms w, for the first time or after its elements have changed. No plan may read the filters at the same
// time. It allocates nothing.
func (f *Filters) Update(w []float32) error {
	if need := conv.Extent(f.layout); len(w) < need {
		return fmt.Errorf("winograd: filters %v need %d elements, the slice has %d", f.layout.Shape, need, len(w))
	}
	f.src = w
	f.pool.Run(f.panels()*tiling.CeilDiv(f.channels, filterChannels), (*transformFilters)(f))
	f.src = nil
	return nil
}

// Bytes returns the size of the transformed filters and of the workers' room.
func (f *Filters) Bytes() int { return 4 * (len(f.data) + len(f.blocks)*9*filterChannels*f.micro.NR) }

// transformFilters transforms some channels of a panel.
type transformFilters Filters

func (t *transformFilters) Do(worker, item int) {
	f := (*Filters)(t)
	parts := tiling.CeilDiv(f.channels, filterChannels)
	panel, from := item/parts, item%parts*filterChannels
	n := min(filterChannels, f.channels-from)
	cols, width := f.panel(panel)
	block, s := f.blocks[worker], &f.layout.Stride
	tap, start := filterChannels*width, 0
	for i := range 9 {
		src := f.src[f.layout.Offset+i/3*s[0]+i%3*s[1]+from*s[2]+panel*f.micro.NR*s[3]:]
		to := block[i*tap:][:n*width]
		if cols < width {
			clear(to)
		}
		if s[2] == 1 && s[3] != 1 {
			vec.F32().Transpose(to, width, src, s[3], cols, n)
			continue
		}
		for c := range n {
			vec.Gather(to[c*width:][:cols], src[c*s[2]:], s[3])
		}
	}
	row, col := 3*tap, tap
	if f.turned {
		row, col, start = -row, -col, 8*tap
	}
	dst, transform := f.data[f.at(panel)+from*width:], f.kern.filter[f.tile/2-1]
	for c := range n {
		transform(width/f.kern.lanes, &block[start+c*width], row, col, &dst[c*width], f.channels*width)
	}
}
