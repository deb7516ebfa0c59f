package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// The kernels for images of NCHW compute a strip of one channel's plane: a vector of pixels of each of some lines. They slide a
// window of three columns whose lines move by one. Their argument is a pointer to a structure of 64-bit words, the distances in
// bytes, and three elements at the end.
const (
	planeCount   = iota // blocks of lines
	planeTaps           // lines of the window
	planeX              // the start of the image's memory
	planeFrom           // and how far the first element that the first line's window meets, of lane 0, is from there
	planeRow            // from line to line of the image
	planeFilters        // three for each line of the window
	planeY
	planeYRow
	planeMasks    // the lanes that there are in x, for each of the three columns, and in y
	planeElements = planeMasks + 4
)

// The elements at the end.
const (
	planeShift = iota
	planeLow
	planeHigh
)

// columnsOfWindow is the columns of a window.
const columnsOfWindow = 3

// planes emits the kernels for strips: of several lines at a time, whose windows have three lines, and of one, whose window may
// have fewer.
func (k *windows) planes() {
	if !k.wide() {
		return
	}
	for _, lines := range []int{4, 1} {
		(&windows{emitter: &emitter{generator: k.generator, w: k.w, u: 1}, bytes: k.bytes}).plane(lines)
	}
}

func (k *windows) plane(lines int) {
	window := "of three lines"
	if lines == 1 {
		window = "of up to three lines"
	}
	k.begin(fmt.Sprintf("plane%d", lines),
		fmt.Sprintf("computes blocks of %d lines of a strip, by a window %s: see strip.", lines, window))
	element := func(i int) Mem { return Mem{Base: k.args, Disp: 8*planeElements + i*k.w.size} }
	var masks [columnsOfWindow + 1]reg.Register
	for i := range masks {
		bits, mask := GP32(), K()
		MOVL(k.arg(planeMasks+i), bits)
		KMOVW(bits, mask)
		masks[i] = mask
	}
	broadcast := func(m Mem) reg.VecVirtual {
		r := k.w.register()
		k.w.broadcast(m, r)
		return r
	}
	filters := k.load(planeFilters)
	filter := func(line, column int) Mem {
		return Mem{Base: filters, Disp: (line*columnsOfWindow + column) * k.w.size}
	}
	shift, low, high := broadcast(element(planeShift)), broadcast(element(planeLow)), broadcast(element(planeHigh))
	x, y, row, count := k.load(planeX), k.load(planeY), k.load(planeRow), k.load(planeCount)
	k.increase(k.arg(planeFrom), x)
	at, acc := k.general(), k.sums(lines, 1)
	get := func() (columns [columnsOfWindow]reg.VecVirtual) {
		for i := range columns {
			columns[i] = k.w.register()
			if m := (Mem{Base: at, Disp: i * k.w.size}); k.w.size == 4 {
				VMOVUPS_Z(m, masks[i], columns[i])
			} else {
				VMOVUPD_Z(m, masks[i], columns[i])
			}
		}
		return columns
	}
	var hoisted [columnsOfWindow][columnsOfWindow]reg.VecVirtual
	if lines > 1 {
		for i := range hoisted {
			for j := range hoisted[i] {
				hoisted[i][j] = broadcast(filter(i, j))
			}
		}
	}
	block := k.label("block")
	k.mark(block)
	k.set(x, at)
	for _, a := range acc {
		VMOVAPS(shift, a[0])
	}
	if lines > 1 {
		for i := range lines + columnsOfWindow - 1 {
			columns := get()
			for j, column := range columns {
				for line := max(0, i-columnsOfWindow+1); line <= min(i, lines-1); line++ {
					k.w.fma231(column, hoisted[i-line][j], acc[line][0])
				}
			}
			k.increase(row, at)
		}
	} else {
		tap, taps, start := k.label("tap"), k.load(planeTaps), k.general()
		k.set(filters, start)
		k.mark(tap)
		for j, column := range get() {
			k.w.fma231(column, broadcast(filter(0, j)), acc[0][0])
		}
		k.increase(U32(columnsOfWindow*k.w.size), filters)
		k.increase(row, at)
		k.countDown(taps, tap)
		k.set(start, filters)
	}
	for _, a := range acc { // a NaN stays one: see bound
		k.w.max(a[0], low, a[0])
		k.w.min(a[0], high, a[0])
		if k.w.size == 4 {
			VMOVUPS(a[0], masks[columnsOfWindow], Mem{Base: y})
		} else {
			VMOVUPD(a[0], masks[columnsOfWindow], Mem{Base: y})
		}
		k.increase(row, x)
		k.increase(k.arg(planeYRow), y)
	}
	k.countDown(count, block)
	k.finish()
}
