package conv

import (
	"fmt"

	"fusec/kernels/cpu/tiling"
)

// An axis is the height or the width of the images. Position i of the result, counted from the beginning of a band,
// reads with tap t slot i·outStep + t·tapStep of the band's copy. Slots are those of the image and its border under the
// band, one after another, unless strides or dilation leave so much out that a slot for each position and tap is less.
type axis struct {
	in, out, taps         int
	stride, dilation, pad int

	band             int // positions of the result in a band
	outStep, tapStep int
	slots            int // of a band
}

// fit computes the positions of the result, given the border behind the image.
func (a *axis) fit(behind int) error {
	if a.stride < 1 || a.dilation < 1 || a.taps < 1 {
		return fmt.Errorf("conv: stride %d, dilation %d, filters of %d", a.stride, a.dilation, a.taps)
	}
	whole := a.in + a.pad + behind - (a.taps-1)*a.dilation - 1
	if whole < 0 {
		return fmt.Errorf("conv: filters of %d, dilation %d, on an image of %d with borders", a.taps, a.dilation, a.in)
	}
	a.out = whole/a.stride + 1
	return nil
}

// cut sets the size of a band.
func (a *axis) cut(band int) {
	a.band = band
	a.outStep, a.tapStep = a.stride, a.dilation
	if a.span(band) > band*a.taps {
		a.outStep, a.tapStep = a.taps, 1
	}
	a.slots = a.span(band)
}

// span is the number of slots that n positions have.
func (a *axis) span(n int) int { return (n-1)*a.outStep + (a.taps-1)*a.tapStep + 1 }

// dense reports whether each position and tap has a slot.
func (a *axis) dense() bool { return a.outStep != a.stride || a.tapStep != a.dilation }

// source is the place in the image of a slot of the band that begins with position from. It may be outside.
func (a *axis) source(from, slot int) int {
	at := from*a.stride - a.pad
	if a.dense() {
		return at + slot/a.taps*a.stride + slot%a.taps*a.dilation
	}
	return at + slot
}

// inside reports whether no position reads outside of the image.
func (a *axis) inside() bool {
	return a.pad <= 0 && (a.out-1)*a.stride-a.pad+(a.taps-1)*a.dilation < a.in
}

// bands is the number of bands.
func (a *axis) bands() int { return tiling.CeilDiv(a.out, a.band) }

// at returns the first position of a band and how many it has.
func (a *axis) at(band int) (from, n int) {
	from = band * a.band
	return from, min(a.band, a.out-from)
}

// apart is the distance of pixels of so many elements in a copy: not one of which multiples are far apart.
func apart(elements, size int) int {
	if elements > 0 && elements*size%farBytes == 0 {
		return elements + 64/size
	}
	return elements
}

// evenly returns the size of the parts when n is cut into parts that are as equal as possible, and not above limit.
func evenly(n, limit int) int { return tiling.CeilDiv(n, max(tiling.CeilDiv(n, max(limit, 1)), 1)) }
