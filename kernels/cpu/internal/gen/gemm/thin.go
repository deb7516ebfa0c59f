package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// dotChains is the number of independent sums of a dot product: enough to
// cover the latency of a multiply-add at two loads per cycle.
const dotChains = 4

// dot generates the dot product of two contiguous vectors.
func dot(e element) {
	name := "dot" + e.suffix
	begin(name, fmt.Sprintf("func(n int, x, y *%s) %[1]s", e.goType),
		fmt.Sprintf("%s returns the dot product of n elements.", name))
	n, x, y := param("n"), param("x"), param("y")
	var acc [dotChains]VecVirtual
	for i := range acc {
		acc[i] = YMM()
	}
	avx2.zeros(e, acc[:]...)
	tmp := YMM()
	lanes := avx2.bytes / e.bytes
	chunk := func(label string, chains int) {
		Label(label)
		CMPQ(n, U32(chains*lanes))
		JLT(LabelRef(label + "Done"))
		for i := range chains {
			at := i * avx2.bytes
			e.load(Mem{Base: x, Disp: at}, tmp)
			e.fma(Mem{Base: y, Disp: at}, tmp, acc[i])
		}
		ADDQ(U32(chains*avx2.bytes), x)
		ADDQ(U32(chains*avx2.bytes), y)
		SUBQ(U32(chains*lanes), n)
		JMP(LabelRef(label))
		Label(label + "Done")
	}
	chunk("chains", dotChains)
	chunk("vectors", 1)

	e.add(acc[1], acc[0], acc[0])
	e.add(acc[3], acc[2], acc[2])
	e.add(acc[2], acc[0], acc[0])
	sum := XMM()
	e.add(upper(acc[0]).AsX(), acc[0].AsX(), sum)
	for half := 8; half >= e.bytes; half /= 2 {
		moved := XMM()
		VPSRLDQ(U8(uint64(half)), sum, moved)
		e.add(moved, sum, sum)
	}
	one := XMM()
	Label("rest")
	TESTQ(n, n)
	JE(LabelRef("done"))
	e.loadOne(Mem{Base: x}, one)
	e.fmaOne(Mem{Base: y}, one, sum)
	ADDQ(U32(e.bytes), x)
	ADDQ(U32(e.bytes), y)
	DECQ(n)
	JMP(LabelRef("rest"))
	Label("done")
	Store(sum, ReturnIndex(0))
	VZEROUPPER()
	RET()
}

// axpyRows is how many rows one pass over y adds: it divides the traffic of y.
const axpyRows = 4

// axpy4 generates the sum of four scaled contiguous rows. With ahead it asks for the four rows that follow.
func axpy4(e element, ahead bool) {
	name := "axpy4" + e.suffix
	doc := "row xᵢ starts i·stride elements after x."
	if ahead {
		name = "axpy4Ahead" + e.suffix
		doc = "row xᵢ starts i·stride elements after x. It asks for x₄ to x₇."
	}
	begin(name, fmt.Sprintf("func(n int, alpha, x *%s, stride int, y *%[1]s)", e.goType),
		fmt.Sprintf("%s adds alpha[0]·x₀ + … + alpha[%d]·x₃ to y, n elements each;", name, axpyRows-1),
		doc)
	n, alpha := param("n"), param("alpha")
	x0 := param("x")
	stride := strideParam("stride", e)
	y := param("y")
	rows := [axpyRows]GPVirtual{x0}
	var scale [axpyRows]VecVirtual
	for i := range rows {
		if i > 0 {
			rows[i] = GP64()
			LEAQ(Mem{Base: rows[i-1], Index: stride, Scale: 1}, rows[i])
		}
		scale[i] = YMM()
		e.splat(Mem{Base: alpha, Disp: i * e.bytes}, scale[i])
	}
	var next GPVirtual // from each row to the one that is asked for
	if ahead {
		next = GP64()
		LEAQ(Mem{Base: stride, Index: stride, Scale: 1}, next)
		ADDQ(next, next)
	}
	lanes := avx2.bytes / e.bytes
	advance := func(bytes int) {
		for _, r := range rows {
			ADDQ(U32(bytes), r)
		}
		ADDQ(U32(bytes), y)
	}
	chunk := func(label string, vectors int) {
		Label(label)
		CMPQ(n, U32(vectors*lanes))
		JLT(LabelRef(label + "Done"))
		acc := make([]VecVirtual, vectors)
		for v := range acc {
			acc[v] = YMM()
			e.load(Mem{Base: y, Disp: v * avx2.bytes}, acc[v])
		}
		for i, r := range rows {
			for line := 0; ahead && line < vectors*avx2.bytes; line += 64 {
				PREFETCHT1(Mem{Base: r, Index: next, Scale: 1, Disp: line})
			}
			for v := range acc {
				e.fma(Mem{Base: r, Disp: v * avx2.bytes}, scale[i], acc[v])
			}
		}
		for v := range acc {
			e.load(acc[v], Mem{Base: y, Disp: v * avx2.bytes})
		}
		advance(vectors * avx2.bytes)
		SUBQ(U32(vectors*lanes), n)
		JMP(LabelRef(label))
		Label(label + "Done")
	}
	chunk("wide", 4)
	chunk("vectors", 1)
	Label("rest")
	TESTQ(n, n)
	JE(LabelRef("done"))
	one := XMM()
	e.loadOne(Mem{Base: y}, one)
	for i, r := range rows {
		e.fmaOne(Mem{Base: r}, scale[i].AsX(), one)
	}
	e.loadOne(one, Mem{Base: y})
	advance(e.bytes)
	DECQ(n)
	JMP(LabelRef("rest"))
	Label("done")
	VZEROUPPER()
	RET()
}
