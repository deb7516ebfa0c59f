package panel

import (
	"unsafe"

	"fusec/graph"
	"fusec/kernels/cpu/pool"
	"fusec/kernels/cpu/vec"
)

// A Packer arranges weights [k, n] in panels; see [graph.PackWeights].
type Packer struct {
	k, n       int
	row, col   int // distances of the weights' rows and columns, in elements
	trans      bool
	from, to   graph.DType
	deep       bool
	size       int // elements of a panel
	beside     int // rows of a column that stand side by side, in panels that are not deep
	pool       *pool.Pool
	transpose  transposer // of 16 bits
	scratch    []uint16   // of each worker, of numbers that become 16 bits
	src, panel []byte
}

// NewPacker is for weights of type from [k, n] that op packs, whose panels have the type to.
func NewPacker(k, n int, op graph.PackWeights, from, to graph.DType, p *pool.Pool) *Packer {
	q := &Packer{k: k, n: n, row: n, col: 1, trans: op.Trans, from: from, to: to, deep: op.Deep, beside: 1, pool: p,
		transpose: kernels[0].transpose}
	q.size = (k + steps - 1) / steps * steps * columns
	switch {
	case op.Deep:
		q.size = graph.DeepShape(to, k, 1).Elems()
	case op.Quads:
		q.beside = 4
	case to == graph.I4:
		q.beside = steps
	}
	if op.Trans {
		q.row, q.col = 1, k
	}
	if q.inBlocks() && from == graph.F32 {
		q.scratch = make([]uint16, p.Workers()*packed*packed)
	}
	return q
}

// packed is the number of rows and of columns that an item of weights of 16 bits has: they are read along cache lines and written
// in runs, whichever way the weights lie.
const packed = 128

// inBlocks reports whether an item is a block of rows and columns, rather than a panel.
func (q *Packer) inBlocks() bool { return !q.deep && q.to.Is16() }

// Pack fills the panels.
func (q *Packer) Pack(src, panels []byte) {
	q.src, q.panel = src, panels
	if q.inBlocks() {
		q.pool.Run((q.k+packed-1)/packed*((q.n+packed-1)/packed), (*blockPacker)(q))
	} else {
		q.pool.Run((q.n+columns-1)/columns, q)
	}
	q.src, q.panel = nil, nil
}

// Do packs a panel; see pool.Task.
func (q *Packer) Do(_, panel int) {
	bytes := int(q.to.Span(int64(q.size)))
	to := q.panel[panel*bytes:][:bytes]
	clear(to)
	first, cols := panel*columns, min(columns, q.n-panel*columns)
	if q.to == graph.I4 {
		for j := range cols {
			at := (first + j) * q.col
			for i := range q.k {
				graph.SetNibble(to, q.at(i, j), graph.Nibble(q.src, at+i*q.row))
			}
		}
		return
	}
	switch {
	case q.from.Size() == 1:
		fill(q, to, q.src, first, cols, func(v uint8) uint8 { return v })
	case q.from != graph.F32:
		fill(q, units[uint16](to), units[uint16](q.src), first, cols, func(v uint16) uint16 { return v })
	case q.to == graph.BF16:
		fill(q, units[uint16](to), units[float32](q.src), first, cols, graph.BF16FromFloat32)
	default:
		fill(q, units[uint16](to), units[float32](q.src), first, cols, graph.F16FromFloat32)
	}
}

// at is where row i of column j of a panel stands.
func (q *Packer) at(i, j int) int {
	if q.deep {
		return graph.DeepIndex(q.to, i, j)
	}
	return (i/q.beside*columns+j)*q.beside + i%q.beside
}

func units[E any](b []byte) []E {
	return unsafe.Slice((*E)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(*new(E))))
}

// fill copies a panel's columns in squares, so that lines stay in the cache whichever way the weights lie.
func fill[E, S any](q *Packer, to []E, src []S, first, cols int, convert func(S) E) {
	for from := 0; from < q.k; from += columns {
		end := min(from+columns, q.k)
		for j := range cols {
			at := (first + j) * q.col
			for i := from; i < end; i++ {
				to[q.at(i, j)] = convert(src[at+i*q.row])
			}
		}
	}
}

// A blockPacker packs blocks of weights of 16 bits.
type blockPacker Packer

// Do packs a block; see pool.Task.
func (b *blockPacker) Do(worker, item int) {
	q := (*Packer)(b)
	across := (q.n + packed - 1) / packed
	row, col := item/across*packed, item%across*packed
	rows, cols := min(packed, q.k-row), min(packed, q.n-col)
	// The block as it lies: lines of so many elements, pitch elements apart.
	at, lines, length, pitch := row*q.row+col*q.col, rows, cols, q.row
	if q.trans {
		lines, length, pitch = cols, rows, q.col
	}
	var src []uint16
	if q.from == graph.F32 {
		from := units[float32](q.src)
		src = q.scratch[worker*packed*packed:][:packed*packed]
		for i := range lines {
			vec.ToHalf(src[i*packed:][:length], from[at+i*pitch:][:length], q.to)
		}
		pitch = packed
	} else {
		src = units[uint16](q.src)[at:]
	}
	whole := (q.k + steps - 1) / steps * steps // rows of a panel
	panels := units[uint16](q.panel)
	end := row + rows // of the rows to be written, with those that fill the last octet up
	if end == q.k {
		end = whole
	}
	for j := 0; j < cols; j += columns {
		to := panels[((col+j)/columns*whole+row)*columns:][:(end-row)*columns]
		if width := min(columns, cols-j); q.trans {
			q.turn(to, src[j*pitch:], pitch, rows, width)
		} else {
			for i := range rows {
				line := to[i*columns:][:columns]
				clear(line[copy(line, src[i*pitch+j:][:width]):])
			}
		}
		clear(to[rows*columns:])
	}
}

// turn packs columns of a panel that lie side by side, pitch elements apart.
func (q *Packer) turn(to, src []uint16, pitch, rows, cols int) {
	octets := rows / steps
	if cols < columns {
		clear(to)
	}
	for j := 0; j < cols; j += steps {
		from, done := src[j*pitch:], 0
		if cols-j >= steps && octets > 0 {
			done = octets * steps
			q.transpose(octets, &from[0], 2*pitch, 2*steps, &to[j], 2*columns, 2*columns*steps)
		}
		for l := range min(steps, cols-j) {
			for i := done; i < rows; i++ {
				to[i*columns+j+l] = from[l*pitch+i]
			}
		}
	}
}
