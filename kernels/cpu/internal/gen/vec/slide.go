package main

import (
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// slide emits what correlate does, for windows of 3×3 that move by one column: a column of the image is loaded once, and added
// to the sums of the three windows that it is in.
func (k *windows) slide() {
	if !k.wide() {
		return
	}
	k.begin("slide", "is correlate for windows of 3×3 that move by one column, followed by shift and bounds: see pass.")
	const side = columnsOfWindow
	shift := k.local()
	k.set(k.load(argShift), shift)
	k.eachChannels([]int{2}, func(n int) {
		var filters [side][side][]reg.VecVirtual // by column and row
		w := k.at(k.arg(argW))
		for row := range side {
			at := k.general()
			k.set(w, at)
			for column := range side {
				filters[column][row] = k.sums(1, n)[0]
				for v, r := range filters[column][row] {
					k.get(Mem{Base: at, Disp: v * k.bytes}, r)
				}
				k.increase(k.arg(argWCol), at)
			}
			k.increase(k.arg(argWRow), w)
		}
		low, high := k.w.register(), k.w.register()
		k.w.broadcast(k.element(elementLow), low)
		k.w.broadcast(k.element(elementHigh), high)
		first, step := k.at(shift), k.load(argXRow)
		x, y, left := k.at(k.arg(argX)), k.at(k.arg(argY)), k.load(argPixels)
		acc := [side][]reg.VecVirtual{k.sums(1, n)[0], k.sums(1, n)[0], k.sums(1, n)[0]}
		// column adds the next column of the image: as column j of the window to sums of index to[j]. Those for column 0 begin.
		column := func(to []int) {
			for v, r := range acc[to[0]] {
				k.get(Mem{Base: first, Disp: v * k.bytes}, r)
			}
			for row := range side {
				for v := range n {
					m, r := Mem{Base: x, Disp: v * k.bytes}, k.w.register()
					if row > 0 {
						m.Index, m.Scale = step, uint8(row)
					}
					k.get(m, r)
					for j, i := range to {
						k.w.fma231(r, filters[j][row][v], acc[i][v])
					}
				}
			}
			k.increase(k.arg(argXCol), x)
		}
		column([]int{0})
		column([]int{1, 0})
		loop, done := k.label("slide"), k.label("slid")
		k.mark(loop)
		for i := range side {
			column([]int{(i + 2) % side, (i + 1) % side, i})
			k.gate(acc[i : i+1])
			for v, r := range acc[i] {
				k.w.max(r, low, r) // a NaN stays one: see bound
				k.w.min(r, high, r)
				k.put(r, Mem{Base: y, Disp: v * k.bytes})
			}
			k.increase(k.arg(argYPixel), y)
			k.decreaseJumpIfNone(U32(1), left, done)
		}
		k.jump(loop)
		k.mark(done)
	})
	k.finish()
}
