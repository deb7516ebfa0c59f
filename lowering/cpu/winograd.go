package cpu

import (
	"errors"
	"slices"

	"fusec/graph"
	kernels "fusec/kernels/cpu"
)

// Winograd's algorithm is chosen by estimated times, of one core with AVX-512, in nanoseconds. They were measured with
//
//	go test ./kernels/cpu/winograd ./kernels/cpu/conv -run xxx -bench Layers
const (
	winogradFlop   = 1. / 175 // of a product in the cache
	winogradByte   = 1. / 35  // of filters that are not in the cache
	winogradVector = 16       // channels that are transformed at a time
	winogradCache  = 1 << 20  // bytes of filters that stay in the cache
	winogradBand   = 48       // tiles that are multiplied by the filters at a time
	winogradMost   = 20 << 20 // bytes of transformed filters
	winogradGain   = 0.75     // of the time of the other algorithm, for the choice of this one
	winogradLess   = 0.85     // of the time of F(2×2, 3×3), for the choice of F(4×4, 3×3), which takes more memory and rounds more
	winogradMade   = 1. / 12  // of a byte of filters that are transformed in each run
)

// winogradTransforms are the times of transforming a tile there and back.
var winogradTransforms = map[int]float64{2: 30, 4: 90}

// WinogradTile implements winograd.Chooser.
func (d *Device) WinogradTile(op graph.Conv2D, args []graph.Type, result graph.Type, frozen, turned bool) int {
	one := graph.IntsOf(1, 1)
	o, channels, kh, kw := op.Layout.FilterDims(args[1].Shape)
	if op.Layout != graph.NHWC || op.Stride != one || op.Dilation != one || op.Groups != 1 || kh != 3 || kw != 3 ||
		args[0].DType != graph.F32 || args[1].DType != graph.F32 || result.Shape.Elems() == 0 || channels == 0 {
		return 0
	}
	if frozen && !turned {
		if tile, ok := d.tunedTile(op, args); ok {
			return tile
		}
	}
	images, _, height, width := op.Layout.ImageDims(result.Shape)
	ceil := func(n, by int) float64 { return float64((n + by - 1) / by) }
	filters := func(points float64) float64 { return 4 * points * float64(channels*o) }
	loads := func(points, rows, band float64) float64 {
		if filters(points) <= winogradCache {
			return 0
		}
		return filters(points) * winogradByte * max(1, rows/band)
	}
	pixels := float64(images * height * width)
	direct := 2*9*pixels*float64(channels*o)*winogradFlop + loads(9, pixels, winogradBand*16)
	time := func(tile int) float64 {
		points := float64((tile + 2) * (tile + 2))
		if filters(points) > winogradMost {
			return direct
		}
		tiles := float64(images) * ceil(height, tile) * ceil(width, tile)
		made := 0.0
		if !frozen {
			made = filters(points) * winogradMade
		}
		return made + 2*points*tiles*float64(channels*o)*winogradFlop + loads(points, tiles, winogradBand) +
			tiles*(ceil(channels, winogradVector)+ceil(o, winogradVector))/2*winogradTransforms[tile]
	}
	two, four := time(2), time(4)
	switch {
	case min(two, four) > winogradGain*direct:
		return 0
	case four < winogradLess*two:
		return 4
	}
	return 2
}

// slowerIntegers reports, as an error that carries the reason, that a convolution of integers in NHWC takes longer than one of
// numbers in f32 by Winograd's algorithm. With dot products of integers in one instruction it never does; with AVX2 it takes two
// thirds of the time of a product in f32, and Winograd's algorithm may take less.
func slowerIntegers(op graph.Conv2D, filters graph.Type, dots bool) error {
	one := graph.IntsOf(1, 1)
	o, channels, kh, kw := op.Layout.FilterDims(filters.Shape)
	if dots || op.Stride != one || op.Dilation != one || op.Groups != 1 || kh != 3 || kw != 3 || channels < winogradVector ||
		4*16*channels*o > winogradMost {
		return nil
	}
	return errors.New("products in f32 by Winograd's algorithm are faster on this processor")
}

// tunedTile is the tile that was measured to be fastest, 0 for another algorithm; ok reports whether it was measured.
func (d *Device) tunedTile(op graph.Conv2D, args []graph.Type) (tile int, ok bool) {
	c := kernels.ConvolutionOf(op, args[0], args[1])
	if _, time := d.tuning.Best(c, kernels.Winograd); time == 0 {
		return 0, false
	}
	way, time := d.tuning.Fastest(c, graph.NHWC)
	return way.Tile, time > 0
}

// Ways lists the ways to compute a convolution with frozen filters from which a tuning chooses, first as the kernels do it
// without. Those by Winograd's algorithm are left out if it is forbidden, or its filters take too much memory.
func Ways(c kernels.Convolution, winograd bool) []kernels.Way {
	return slices.DeleteFunc(c.Ways(), func(w kernels.Way) bool {
		return w.Tile > 0 && (!winograd || 4*(w.Tile+2)*(w.Tile+2)*c.Channels*c.Filters > winogradMost)
	})
}
