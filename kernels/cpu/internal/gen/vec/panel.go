package main

import (
	"fmt"
	"math"
	"strings"

	"github.com/mmcloughlin/avo/attr"
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// panelVectors is the width of a panel's strip in vectors.
const panelVectors = 2

// columns is an operand whose vectors stand in memory, one for each of the strip's columns in turn.
type columns struct {
	base  reg.Register
	bytes int // of a vector
}

func (c columns) at(i int) Op { return Mem{Base: c.base, Disp: c.bytes * (i % panelVectors)} }

// strip describes a kernel that goes down a strip of a panel: rows of panelVectors vectors, stride elements apart. step
// handles some vectors of whole rows and returns what is written back, nil if nothing is.
type strip struct {
	name, doc, params string // doc with %d for the number of columns
	unroll            int    // rows in one iteration of the main loop
	setup             func(e *emitter)
	step              func(e *emitter, in vec) vec
	finish            func(e *emitter)
}

// emit writes the kernel for registers of a width.
func (k strip) emit(g *generator, w *width) {
	TEXT(k.name+w.suffix, attr.NOSPLIT, "func(rows, stride int, x *float32, "+k.params+")")
	Pragma("noescape")
	Doc(strings.Split(fmt.Sprintf(k.name+w.suffix+" "+k.doc, panelVectors*w.lanes), "\n")...)
	rows := Load(Param("rows"), GP64())
	stride := Load(Param("stride"), GP64())
	x := Load(Param("x"), GP64())
	SHLQ(Imm(w.shift), stride)
	e := &emitter{generator: g, w: w, hoisted: map[uint64]reg.VecVirtual{}}
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
			place[i] = columns{at, w.lanes * w.size}.at(i).(Mem)
			w.load(place[i], in[i])
		}
		for i, v := range k.step(e, in) {
			w.load(v, place[i])
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
	for _, w := range []*width{f32, f32x16} {
		panelStrips(g, w)
	}
}

func panelStrips(g *generator, w *width) {
	var acc vec
	var out reg.Register
	load := func(name string) func(*emitter) {
		return func(*emitter) {
			out = Load(Param(name), GP64())
			acc = vec{}
			for i := range panelVectors {
				acc = append(acc, w.register())
				w.load(columns{out, w.lanes * w.size}.at(i), acc[i])
			}
		}
	}
	store := func(*emitter) {
		for i, a := range acc {
			w.load(a, columns{out, w.lanes * w.size}.at(i))
		}
	}
	// VMAXPS returns its second source, the accumulator, if either is NaN.
	strip{
		name: "maxColumns", unroll: 4, params: "top *float32",
		doc:   "raises top[j] to the greatest x[i·stride + j] for j < %d. NaN is passed over.",
		setup: load("top"), finish: store,
		step: func(_ *emitter, in vec) vec {
			for i, v := range in {
				w.max(acc[i%panelVectors], v, acc[i%panelVectors])
			}
			return nil
		},
	}.emit(g, w)
	var c columns
	strip{
		name: "expColumns", unroll: 2, params: "c, sum *float32",
		doc: "sets x[i·stride + j] to e^(x[i·stride + j] − c[j]), which may not be above 1, for j < %d, and adds\n" +
			"the results to sum[j].",
		setup: func(e *emitter) {
			load("sum")(e)
			if w.lanes == f32x16.lanes { // with 32 registers there is room for all constants
				e.hoist(append([]float64{expNormalMin, math.Log2E, biasedMagic, ln2High, ln2Low}, expCoefficients...))
			}
			c = columns{Load(Param("c"), GP64()), w.lanes * w.size}
		},
		finish: store,
		step: func(e *emitter, in vec) vec {
			x := e.atLeast(e.sub(in, c), e.c(expNormalMin))
			y := expNormal(e, x)
			for i, v := range y {
				w.add(v, acc[i%panelVectors], acc[i%panelVectors])
			}
			return y
		},
	}.emit(g, w)
	strip{
		name: "scaleColumns", unroll: 4, params: "by *float32",
		doc:   "multiplies x[i·stride + j] by by[j] for j < %d.",
		setup: load("by"), finish: func(*emitter) {},
		step: func(e *emitter, in vec) vec {
			y := e.new()
			for i, v := range in {
				w.mul(v, acc[i%panelVectors], y[i])
			}
			return y
		},
	}.emit(g, w)
}
