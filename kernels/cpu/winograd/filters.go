package winograd

import (
	"errors"
	"fmt"

	"fusec/graph"
	"fusec/kernels/cpu/conv"
	"fusec/kernels/cpu/gemm"
	"fusec/kernels/cpu/pool"
	"fusec/kernels/cpu/tiling"
)

// Filters are a convolution's filters, transformed and packed: [panel][point][C][width]. Any number of plans may read them
// at the same time.
type Filters struct {
	micro    gemm.Micro[float32]
	layout   graph.Layout
	tile     int
	channels int
	out      int
	g        [][]float64 // the matrix G
	pool     *pool.Pool
	src      []float32 // during Update
	data     []float32
}

// filterChannels is how many channels of a panel a worker transforms at a time.
const filterChannels = 16

// NewFilters makes room for filters w [3, 3, C, O] in the given layout, for F(tile×tile, 3×3). Update transforms them, on the
// workers of p.
func NewFilters(tile int, w graph.Layout, p *pool.Pool) (*Filters, error) {
	return newFilters(tile, w, p, gemm.MicroOf[float32]())
}

func newFilters(tile int, w graph.Layout, p *pool.Pool, micro gemm.Micro[float32]) (*Filters, error) {
	algorithm, err := graph.WinogradOf(tile)
	if err != nil {
		return nil, fmt.Errorf("winograd: %w", err)
	}
	if p == nil {
		return nil, errors.New("winograd: no pool")
	}
	if w.Shape.Rank() != 4 || w.Shape.At(0) != 3 || w.Shape.At(1) != 3 {
		return nil, fmt.Errorf("winograd: filters %v are not [3, 3, C, O]", w.Shape)
	}
	f := &Filters{micro: micro, layout: w, tile: tile, channels: w.Shape.At(2), out: w.Shape.At(3), g: algorithm.G, pool: p}
	f.data = gemm.Aligned[float32](f.at(f.panels()))
	return f, nil
}

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

// Bytes returns the size of the transformed filters.
func (f *Filters) Bytes() int { return 4 * len(f.data) }

// transformFilters transforms some channels of a panel.
type transformFilters Filters

func (t *transformFilters) Do(_, item int) {
	f := (*Filters)(t)
	parts := tiling.CeilDiv(f.channels, filterChannels)
	panel, from := item/parts, item%parts*filterChannels
	cols, width := f.panel(panel)
	dst, s := f.data[f.at(panel):], &f.layout.Stride
	for c := from; c < min(from+filterChannels, f.channels); c++ {
		for j := range cols {
			f.transform(dst[c*width+j:], f.channels*width, f.src[f.layout.Offset+c*s[2]+(panel*f.micro.NR+j)*s[3]:])
		}
		for p := range f.points() {
			clear(dst[(p*f.channels+c)*width:][cols:width])
		}
	}
}

// transform writes G·g·Gᵀ of the filter that begins with g, a point elements apart.
func (f *Filters) transform(dst []float32, point int, g []float32) {
	var mid [maxPoints][3]float64
	row, col := f.layout.Stride[0], f.layout.Stride[1]
	for j := range 3 {
		g0, g1, g2 := float64(g[j*col]), float64(g[row+j*col]), float64(g[2*row+j*col])
		for i, r := range f.g {
			mid[i][j] = r[0]*g0 + r[1]*g1 + r[2]*g2
		}
	}
	at := 0
	for i := range f.g {
		m := &mid[i]
		for _, r := range f.g {
			dst[at] = float32(r[0]*m[0] + r[1]*m[1] + r[2]*m[2])
			at += point
		}
	}
}
