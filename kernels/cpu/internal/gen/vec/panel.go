package main

import (
	"fmt"
	"math"
	"strings"

	"github.com/mmcloughlin/avo/attr"
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"fusec/kernels/cpu/internal/gen/arm64"
)

// strip is the width of a panel's strip in vectors: that of a block of the matrix kernel.
func (w *width) strip() int {
	if w.neon {
		return 3
	}
	return 2
}

// columns is an operand whose vectors stand in memory, one for each of the strip's columns in turn.
type columns struct {
	base  reg.Register
	width *width
}

func (c columns) at(i int) Op {
	return Mem{Base: c.base, Disp: c.width.lanes * c.width.size * (i % c.width.strip())}
}

// strip describes a kernel that goes down a strip of a panel: rows of some vectors, stride elements apart. step
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
	name, signature := k.name+w.suffix, "func(rows, stride int, x *float32, "+k.params+")"
	doc := strings.Split(fmt.Sprintf(name+" "+k.doc, w.strip()*w.lanes), "\n")
	if w.neon {
		k.neon(g, w, name, signature, doc)
		return
	}
	TEXT(name, attr.NOSPLIT, signature)
	Pragma("noescape")
	Doc(doc...)
	rows := Load(Param("rows"), GP64())
	stride := Load(Param("stride"), GP64())
	x := Load(Param("x"), GP64())
	SHLQ(Imm(w.shift), stride)
	e := &emitter{generator: g, w: w, hoisted: map[uint64]reg.VecVirtual{}}
	k.setup(e)
	step := func(n int) {
		e.u = n * w.strip()
		in, place := e.new(), make([]Mem, e.u)
		at := x
		for i := range in {
			if i > 0 && i%w.strip() == 0 {
				next := GP64()
				LEAQ(Mem{Base: at, Index: stride, Scale: 1}, next)
				at = next
			}
			place[i] = columns{at, w}.at(i).(Mem)
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

// param is a parameter in a general register.
func (g *generator) param(name string) reg.Register {
	if g.file != nil {
		return g.fn.Param(name)
	}
	return Load(Param(name), GP64())
}

// neon writes the kernel for NEON.
func (k strip) neon(g *generator, w *width, name, signature string, doc []string) {
	f := g.begin(name, signature, doc...)
	rows, stride, x := f.Param("rows"), f.Param("stride"), f.Param("x")
	f.ShiftLeft(stride, stride, int(w.shift))
	e := &emitter{generator: g, w: w, hoisted: map[uint64]reg.VecVirtual{}}
	k.setup(e)
	step := func(n int) {
		e.u = n * w.strip()
		in, place := e.new(), make([]Mem, e.u)
		at := reg.Register(x)
		for i := range in {
			if i > 0 && i%w.strip() == 0 {
				next := arm64.General()
				f.Add(next, at, stride)
				at = next
			}
			place[i] = columns{at, w}.at(i).(Mem)
			w.load(place[i], in[i])
		}
		for i, v := range k.step(e, in) {
			w.load(v, place[i])
		}
		f.Add(x, at, stride)
		f.SubConstant(rows, rows, n)
	}
	for _, n := range []int{2, 1} {
		loop, next := g.label("loop"), g.label("next")
		f.CompareConstant(rows, n)
		f.JumpIf("LT", next)
		f.Label(loop)
		step(n)
		f.CompareConstant(rows, n)
		f.JumpIf("GE", loop)
		f.Label(next)
	}
	k.finish(e)
	f.Return()
}

// panelFamily emits the passes of a softmax down the columns of a panel.
func panelFamily(g *generator) {
	panelStrips(g, g.f32())
	if g.file == nil {
		panelStrips(g, f32x16)
	}
}

func panelStrips(g *generator, w *width) {
	var acc vec
	var out reg.Register
	load := func(name string) func(*emitter) {
		return func(*emitter) {
			out = g.param(name)
			acc = vec{}
			for i := range w.strip() {
				acc = append(acc, w.register())
				w.load(columns{out, w}.at(i), acc[i])
			}
		}
	}
	store := func(*emitter) {
		for i, a := range acc {
			w.load(a, columns{out, w}.at(i))
		}
	}
	// VMAXPS returns its second source, the accumulator, if either is NaN.
	strip{
		name: "maxColumns", unroll: 4, params: "top *float32",
		doc:   "raises top[j] to the greatest x[i·stride + j] for j < %d. NaN is passed over.",
		setup: load("top"), finish: store,
		step: func(_ *emitter, in vec) vec {
			for i, v := range in {
				a := acc[i%w.strip()]
				if w.neon {
					g.fn.Three("fmaxnm", w.arrangement, a, a, v)
				} else {
					w.max(a, v, a)
				}
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
			c = columns{g.param("c"), w}
		},
		finish: store,
		step: func(e *emitter, in vec) vec {
			x := e.atLeast(e.sub(in, c), e.c(expNormalMin))
			y := expNormal(e, x)
			for i, v := range y {
				w.add(v, acc[i%w.strip()], acc[i%w.strip()])
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
				w.mul(v, acc[i%w.strip()], y[i])
			}
			return y
		},
	}.emit(g, w)
}
