package main

import (
	"strings"

	"github.com/mmcloughlin/avo/attr"
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// panelVectors is the width of a panel's strip in vectors.
const panelVectors = 2

// columns is an operand whose vectors stand in memory, one for each of the strip's columns in turn.
type columns struct{ base reg.Register }

func (c columns) at(i int) Op { return Mem{Base: c.base, Disp: 32 * (i % panelVectors)} }

// strip describes a kernel that goes down a strip of a panel: rows of panelVectors vectors, stride elements apart. step
// handles some vectors of whole rows and returns what is written back, nil if nothing is.
type strip struct {
	name, doc, params string
	unroll            int // rows in one iteration of the main loop
	setup             func(e *emitter)
	step              func(e *emitter, in vec) vec
	finish            func(e *emitter)
}

// emit writes the kernel.
func (k strip) emit(g *generator) {
	TEXT(k.name+"F32", attr.NOSPLIT, "func(rows, stride int, x *float32, "+k.params+")")
	Pragma("noescape")
	Doc(strings.Split(k.name+"F32 "+k.doc, "\n")...)
	rows := Load(Param("rows"), GP64())
	stride := Load(Param("stride"), GP64())
	x := Load(Param("x"), GP64())
	SHLQ(Imm(f32.shift), stride)
	e := &emitter{generator: g, w: f32, hoisted: map[uint64]reg.VecVirtual{}}
	k.setup(e)
	step := func(n int) {
		e.u = n * panelVectors
		in, place := e.new(), make([]Mem, e.u)
		at := x
		for i := range in {
			if i > 0 && i%panelVectors == 0 {
				next := GP64()
				LEAQ(Mem{Base: at, Index: stride, Scale: 1}, next)
				at = next
			}
			place[i] = Mem{Base: at, Disp: 32 * (i % panelVectors)}
			f32.load(place[i], in[i])
		}
		for i, v := range k.step(e, in) {
			f32.load(v, place[i])
		}
		LEAQ(Mem{Base: at, Index: stride, Scale: 1}, x)
	}
	SUBQ(U32(k.unroll), rows)
	JLT(LabelRef("rest"))
	Label("loop")
	step(k.unroll)
	SUBQ(U32(k.unroll), rows)
	JGE(LabelRef("loop"))
	Label("rest")
	ADDQ(U32(k.unroll), rows)
	JE(LabelRef("done"))
	Label("row")
	step(1)
	DECQ(rows)
	JNE(LabelRef("row"))
	Label("done")
	k.finish(e)
	VZEROUPPER()
	RET()
}

// panelFamily emits the passes of a softmax down the columns of a panel.
func panelFamily(g *generator) {
	var acc vec
	var out reg.Register
	load := func(name string) func(*emitter) {
		return func(*emitter) {
			out = Load(Param(name), GP64())
			acc = vec{}
			for i := range panelVectors {
				acc = append(acc, YMM())
				f32.load(columns{out}.at(i), acc[i])
			}
		}
	}
	store := func(*emitter) {
		for i, a := range acc {
			f32.load(a, columns{out}.at(i))
		}
	}
	// VMAXPS returns its second source, the accumulator, if either is NaN.
	strip{
		name: "maxColumns", unroll: 4, params: "top *float32",
		doc:   "raises top[j] to the greatest x[i·stride + j] for j < 16. NaN is passed over.",
		setup: load("top"), finish: store,
		step: func(_ *emitter, in vec) vec {
			for i, v := range in {
				f32.max(acc[i%panelVectors], v, acc[i%panelVectors])
			}
			return nil
		},
	}.emit(g)
	var c columns
	strip{
		name: "expColumns", unroll: 2, params: "c, sum *float32",
		doc: "sets x[i·stride + j] to e^(x[i·stride + j] − c[j]), which may not be above 1, for j < 16, and adds\n" +
			"the results to sum[j].",
		setup: func(e *emitter) {
			load("sum")(e)
			c = columns{Load(Param("c"), GP64())}
		},
		finish: store,
		step: func(e *emitter, in vec) vec {
			x := e.atLeast(e.sub(in, c), e.c(expNormalMin))
			y := expNormal(e, x)
			for i, v := range y {
				f32.add(v, acc[i%panelVectors], acc[i%panelVectors])
			}
			return y
		},
	}.emit(g)
	strip{
		name: "scaleColumns", unroll: 4, params: "by *float32",
		doc:   "multiplies x[i·stride + j] by by[j] for j < 16.",
		setup: load("by"), finish: func(*emitter) {},
		step: func(e *emitter, in vec) vec {
			y := e.new()
			for i, v := range in {
				f32.mul(v, acc[i%panelVectors], y[i])
			}
			return y
		},
	}.emit(g)
}
