package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// An operandA walks through A, a tile at a time.
type operandA interface {
	start()                    // a tile begins
	element(step, row int) Mem // of the step that many steps on
	advance(steps int)         // steps are done
	next()                     // the tile's steps are done
}

// operandA returns the walk from the element that a points to.
func (k microKernel) operandA(a GPVirtual) operandA {
	switch k.from {
	case rows:
		w := &rowsOfA{k: k, lda: strideParam("lda", k.element), a: a}
		for range k.mr / rowsPerPointer {
			w.at = append(w.at, GP64())
		}
		return w
	case columns:
		lda := strideParam("lda", k.element)
		lda3 := GP64()
		LEAQ(Mem{Base: lda, Index: lda, Scale: 2}, lda3)
		return &columnsOfA{k: k, a: a, at: GP64(), lda: lda, lda3: lda3}
	}
	return panelsOfA{k, a}
}

// panelsOfA are packed: the walk goes straight on.
type panelsOfA struct {
	k microKernel
	a GPVirtual
}

func (w panelsOfA) start() {}
func (w panelsOfA) next()  {}
func (w panelsOfA) element(step, row int) Mem {
	return Mem{Base: w.a, Disp: step*w.k.aRow() + row*w.k.element.bytes}
}
func (w panelsOfA) advance(steps int) { ADDQ(U32(steps*w.k.aRow()), w.a) }

// rowsPerPointer is how many rows an address can reach from one pointer: 0, 1 and 2 times their distance.
const rowsPerPointer = 3

// rowsOfA has a pointer for every three rows.
type rowsOfA struct {
	k      microKernel
	a, lda GPVirtual
	at     []GPVirtual
}

func (w *rowsOfA) start() {
	MOVQ(w.a, w.at[0])
	for i, p := range w.at[1:] {
		LEAQ(Mem{Base: w.at[i], Index: w.lda, Scale: 2}, p)
		ADDQ(w.lda, p)
	}
}

func (w *rowsOfA) element(step, row int) Mem {
	m := Mem{Base: w.at[row/rowsPerPointer], Disp: step * w.k.element.bytes}
	if r := row % rowsPerPointer; r > 0 {
		m.Index, m.Scale = w.lda, uint8(r)
	}
	return m
}

func (w *rowsOfA) advance(steps int) {
	for _, p := range w.at {
		ADDQ(U32(steps*w.k.element.bytes), p)
	}
}

// next moves to the rows of the next tile.
func (w *rowsOfA) next() {
	for range w.at {
		LEAQ(Mem{Base: w.a, Index: w.lda, Scale: 2}, w.a)
		ADDQ(w.lda, w.a)
	}
}

// columnsOfA reads rows of A as long as a tile is high. No more than four steps are unrolled: an address reaches 0, 1,
// 2 and, by a register of its own, 3 times the distance of the rows.
type columnsOfA struct {
	k                microKernel
	a, at, lda, lda3 GPVirtual
}

func (w *columnsOfA) start() { MOVQ(w.a, w.at) }

func (w *columnsOfA) element(step, row int) Mem {
	m := Mem{Base: w.at, Disp: row * w.k.element.bytes}
	switch step {
	case 1, 2:
		m.Index, m.Scale = w.lda, uint8(step)
	case 3:
		m.Index, m.Scale = w.lda3, 1
	}
	return m
}

func (w *columnsOfA) advance(steps int) {
	if steps == 1 {
		ADDQ(w.lda, w.at)
		return
	}
	LEAQ(Mem{Base: w.at, Index: w.lda, Scale: 4}, w.at)
}

// next moves to the columns of the next tile.
func (w *columnsOfA) next() { ADDQ(U32(w.k.aRow()), w.a) }
