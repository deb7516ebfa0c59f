package panel

import (
	"errors"
	"math"
	"unsafe"

	"fusec/graph"
)

// rounded is rows of integers of 8 bits, in blocks of rows, each [octets][rows][8]. Of each block of octets, scales has [2][rows]:
// the rows' scales, and the integers that their sums begin with.
type rounded struct {
	x      []byte
	scales []float32
}

// integerKernel is the routines of an instruction set for products of integers.
type integerKernel struct {
	tiles  map[graph.DType][]integerTile   // for blocks of 1, 2, 4, … rows
	halves map[graph.DType]integerHalfTile // for one row and scales of binary16
	offset map[graph.DType]int             // what the tiles add to the weights, so that they are not negative
	bytes  []byteTile                      // for blocks of 1, 2, 4, … rows of bytes; nil where there are none
	round  func(octets, block int, x *float32, q *byte, stride int, scales *float32, gap int, offset int, order *byte)
}

// An integerTile is a tile of products of integers; see the generated functions.
type integerTile = func(octets, block int, x *byte, xs *float32, q *byte, scale *float32, lds int, y *float32)

// An integerHalfTile is an integerTile with scales of binary16.
type integerHalfTile = func(octets, block int, x *byte, xs *float32, q *byte, scale *uint16, lds int, y *float32)

// A byteTile is a tile of products of rows of U8, which stores the sums; see the generated functions.
type byteTile = func(octets int, x *byte, ldx int, q *byte, y *float32, ldy int)

// orders are those in which tiles read the 8 numbers of an octet: weights of four bits are the even ones, and then the odd ones,
// of a word.
var orders = map[graph.DType]*[16]byte{graph.I8: {0, 1, 2, 3, 4, 5, 6, 7}, graph.I4: {0, 2, 4, 6, 1, 3, 5, 7}}

// Integers reports, as an error that carries the reason, that this processor is not faster with products of integers.
func Integers() error {
	if kernels[0].integers == nil {
		return errors.New("there are no kernels for products of integers on this processor")
	}
	return nil
}

// Bytes reports, as an error that carries the reason, that this processor is not faster with rows of U8 that are multiplied as they
// are.
func Bytes() error {
	if by := kernels[0].integers; by == nil || by.bytes == nil {
		return errors.New("there are no kernels for products of unsigned and signed bytes on this processor")
	}
	return nil
}

// padBytes copies rows of bytes, whose last octet is filled up.
func (p *Plan) padBytes(row, rows int) {
	for r := row; r < row+rows; r++ {
		to := p.rounded.x[r*p.octets*steps:][:p.octets*steps]
		clear(to[copy(to, p.run.u8[r*p.cfg.LDX:][:p.cfg.K]):])
	}
}

// round rounds some rows, which are a block.
func (p *Plan) round(worker, row, rows int) {
	kern, d := p.by, p.cfg.Type
	each := p.private[worker*p.each():][8*columns:]
	for r := range rows {
		x := p.run.x[(row+r)*p.cfg.LDX:][:p.cfg.K]
		if p.cfg.K%steps != 0 {
			n := copy(each, x)
			clear(each[n : p.octets*steps])
			x = each
		}
		scales := p.rounded.scales[2*row*p.blocks:][:2*rows*p.blocks]
		kern.round(p.octets, p.cfg.Block/steps, &x[0], &p.rounded.x[row*p.octets*steps+r*steps], rows*steps, &scales[r], 4*rows,
			kern.offset[d], &orders[d][0])
		for b := range p.blocks {
			if s := &scales[2*b*rows+r]; !(*s <= math.MaxFloat32) { // an infinity times 0 is NaN
				*s = float32(math.NaN())
			}
		}
	}
}

// portableIntegers computes one row at a time.
var portableIntegers = integerKernel{tiles: map[graph.DType][]integerTile{
	graph.I4: {portableIntegerTile(func(q []byte, i, j int) int32 {
		return int32(graph.Nibble(q, j*steps+int(orders[graph.I4][i])))
	}, columns*steps/2)},
	graph.I8: {portableIntegerTile(func(q []byte, i, j int) int32 { return int32(int8(q[(i/4*columns+j)*4+i%4])) }, columns*steps)},
}, round: roundRow, bytes: []byteTile{portableByteTile}}

// portableByteTile computes one row.
func portableByteTile(octets int, x *byte, _ int, q *byte, y *float32, _ int) {
	numbers, weights, ys := unsafe.Slice(x, octets*steps), unsafe.Slice(q, octets*steps*columns), unsafe.Slice(y, columns)
	var sums [columns]int32
	for i, v := range numbers {
		for j := range sums {
			sums[j] += int32(v) * int32(int8(weights[(i/4*columns+j)*4+i%4]))
		}
	}
	for j, v := range sums {
		ys[j] = float32(v)
	}
}

// portableIntegerTile is a tile of one row, given what number i of an octet of x, of so many bytes, is multiplied by in column j.
func portableIntegerTile(weight func(q []byte, i, j int) int32, bytes int) integerTile {
	return func(octets, block int, x *byte, xs *float32, q *byte, scale *float32, lds int, y *float32) {
		numbers, qs, ys := unsafe.Slice((*int8)(unsafe.Pointer(x)), octets*steps), unsafe.Slice(q, octets*bytes), unsafe.Slice(y, columns)
		for b := 0; b*block < octets; b++ {
			s := unsafe.Slice((*float32)(unsafe.Add(unsafe.Pointer(scale), 4*b*lds)), columns)
			of := unsafe.Slice((*float32)(unsafe.Add(unsafe.Pointer(xs), 8*b)), 1)
			var sums [columns]int32
			for o := b * block; o < min((b+1)*block, octets); o++ {
				octet := qs[o*bytes:][:bytes]
				for i, v := range numbers[o*steps:][:steps] {
					for j := range sums {
						sums[j] += int32(v) * weight(octet, i, j)
					}
				}
			}
			for j, v := range sums {
				ys[j] += float32(v) * (s[j] * of[0])
			}
		}
	}
}

// roundRow does in Go what roundRowAVX2 does.
func roundRow(octets, block int, x *float32, q *byte, stride int, scales *float32, gap int, offset int, order *byte) {
	from, places := unsafe.Slice(x, octets*steps), unsafe.Slice(order, steps)
	for b := 0; b*block < octets; b++ {
		part := from[b*block*steps : min((b+1)*block, octets)*steps]
		largest := float32(0)
		for _, v := range part {
			largest = max(largest, max(v, -v))
		}
		scale, sum := largest/127, int32(0)
		for i := range part {
			v := int8(graph.I8.Quantised(float64(part[i/steps*steps+int(places[i%steps])]/scale), 0))
			sum += int32(v)
			*(*int8)(unsafe.Add(unsafe.Pointer(q), (b*block+i/steps)*stride+i%steps)) = v
		}
		at := unsafe.Add(unsafe.Pointer(scales), 2*b*gap)
		*(*float32)(at) = scale
		*(*int32)(unsafe.Add(at, gap)) = int32(-offset) * sum
	}
}
