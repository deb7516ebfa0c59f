package main

import (
	"fmt"
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// The points of F(4×4, 3×3) besides 0 and infinity, each with both signs; those of F(2×2, 3×3) are 1 and −1; see
// WinogradOf in package graph.
const winogradA, winogradB = 5. / 8, 3. / 2

// winogradFamily emits the transforms of package winograd.
func winogradFamily(g *generator) {
	widths := g.widths[:1]
	if g.file == nil {
		widths = []*width{f32, f32x16}
	}
	for _, w := range widths {
		for _, tile := range []int{2, 4} {
			transform{g, w, tile, tile + 2, tile + 2}.emit("input", "B", "patch of an image", "x", "v")
			transform{g, w, tile, tile + 2, tile}.emit("output", "A", "tile of products", "m", "y")
			transform{g, w, tile, 3, tile + 2}.emit("filter", "G", "filter", "w", "u")
		}
	}
}

// A transform computes MᵀdM of tiles d, from in × in elements to out × out. Each lane of a vector is a channel.
type transform struct {
	*generator
	w       *width
	tile    int
	in, out int
}

// emit writes a kernel. One of the sides of a tile has two strides, the other one only.
func (t transform) emit(kind, matrix, what, from, to string) {
	name := fmt.Sprintf("%s%d%s", kind, t.tile, t.w.suffix)
	strides := [2]string{"row, col", "point"}
	if kind == "output" {
		strides = [2]string{"point", "row, col"}
	}
	signature := fmt.Sprintf("func(vectors int, %s *float32, %s int, %s *float32, %s int)", from, strides[0], to, strides[1])
	form := matrix + "ᵀ·d·" + matrix
	if kind == "filter" {
		form = "G·w·Gᵀ"
	}
	doc := []string{fmt.Sprintf("%s sets %s to the %s of F(%d×%[4]d, 3×3), %s, of a %s at %s, for vectors of %d channels.",
		name, to, kind, t.tile, form, what, from, t.w.lanes),
		"Strides are in elements: row and col from pixel to pixel, point from one of the tile's products to the next."}
	if t.w.neon {
		t.begin(name, signature, doc...)
	} else {
		TEXT(name, 0, signature)
		Pragma("noescape")
		Doc(doc...)
	}
	bytes := t.w.lanes * t.w.size
	vectors, src, dst := t.param("vectors"), t.param(from), t.param(to)
	e := &emitter{generator: t.generator, w: t.w, u: 1, hoisted: map[uint64]reg.VecVirtual{}}
	step := map[string]func([]reg.VecVirtual) []reg.VecVirtual{"input": e.input, "output": e.output,
		"filter": func(g []reg.VecVirtual) []reg.VecVirtual { return e.filter(g, t.tile) }}[kind]
	if t.w.neon || t.w.lanes == f32x16.lanes {
		e.hoist(winogradConstants(kind, t.tile))
	}

	// The middle of the computation lies on the stack, with vectors at multiples of their size.
	var mid reg.GPVirtual
	if t.w.neon { // which does not mind where they are
		mid = t.fn.Local(t.in * t.out * bytes)
	} else {
		room := AllocLocal(t.in*t.out*bytes + bytes)
		mid = GP64()
		LEAQ(room, mid)
		ADDQ(U32(bytes-1), mid)
		ANDQ(I32(-bytes), mid)
	}

	stride := func(name string, times int) reg.Register {
		r := t.param(name)
		if times > 1 {
			t.times(times, r)
		}
		t.double(t.w.shift, r)
		return r
	}
	// The first half goes from column to column and reads their elements, the second from row to row and writes them.
	var fromNext, toNext reg.Register
	var fromLines, toLines lines
	if kind != "output" {
		fromNext, fromLines = stride("col", 1), t.newLines(stride("row", 1))
		toNext, toLines = stride("point", t.out), t.newLines(stride("point", 1))
	} else {
		fromNext, fromLines = stride("point", 1), t.newLines(stride("point", t.in))
		toNext, toLines = stride("row", 1), t.newLines(stride("col", 1))
	}

	t.mark("loop")
	at := t.general()
	t.set(src, at)
	for c := range t.in {
		d := make([]reg.VecVirtual, t.in)
		for r := range d {
			d[r] = t.w.register()
			t.w.load(fromLines.at(at, r), d[r])
		}
		for i, v := range step(d) {
			t.w.load(v, Mem{Base: mid, Disp: (i*t.in + c) * bytes})
		}
		if c < t.in-1 {
			t.increase(fromNext, at)
		}
	}
	t.set(dst, at)
	for i := range t.out {
		d := make([]reg.VecVirtual, t.in)
		for c := range d {
			d[c] = t.w.register()
			t.w.load(Mem{Base: mid, Disp: (i*t.in + c) * bytes}, d[c])
		}
		for c, v := range step(d) {
			t.w.load(v, toLines.at(at, c))
		}
		if i < t.out-1 {
			t.increase(toNext, at)
		}
	}
	t.increase(U32(bytes), src)
	t.increase(U32(bytes), dst)
	t.countDown(vectors, "loop")
	t.finish()
}

// lines are up to six places at equal distances.
type lines struct{ one, three, five reg.Register }

func (g *generator) newLines(stride reg.Register) lines {
	l := lines{stride, g.general(), g.general()}
	g.address(Mem{Base: stride, Index: stride, Scale: 2}, l.three)
	g.address(Mem{Base: stride, Index: stride, Scale: 4}, l.five)
	return l
}

// at is place i, counted from a register.
func (l lines) at(base reg.Register, i int) Mem {
	switch i {
	case 0:
		return Mem{Base: base}
	case 3:
		return Mem{Base: base, Index: l.three, Scale: 1}
	case 5:
		return Mem{Base: base, Index: l.five, Scale: 1}
	}
	return Mem{Base: base, Index: l.one, Scale: uint8(i)}
}

// winogradConstants are those of a kind of transform.
func winogradConstants(kind string, tile int) []float64 {
	const a, b = winogradA, winogradB
	switch {
	case kind == "filter":
		list := []float64{1 / winogradZero(tile)}
		for _, p := range winogradPoints(tile) {
			list = append(list, 1/p.scale, p.at/p.scale, math.Abs(p.at*p.at/p.scale))
		}
		return list
	case tile == 2:
		return nil
	case kind == "input":
		return []float64{a, b, a * a, b * b, a*a + b*b, a * a * b * b}
	}
	return []float64{a, b, a * a, b * b, a * a * a, b * b * b}
}

// A winogradPoint is a point, with both signs, and the product of its differences from the others.
type winogradPoint struct{ at, scale float64 }

// winogradPoints are the points of F(tile×tile, 3×3) besides 0 and infinity.
func winogradPoints(tile int) []winogradPoint {
	if tile == 2 {
		return []winogradPoint{{1, 2}}
	}
	const a, b = winogradA, winogradB
	return []winogradPoint{{a, 2 * a * a * (a*a - b*b)}, {b, 2 * b * b * (b*b - a*a)}}
}

func (e *emitter) plus(x, y reg.VecVirtual) reg.VecVirtual {
	r := e.w.register()
	e.w.add(y, x, r)
	return r
}

func (e *emitter) minus(x, y reg.VecVirtual) reg.VecVirtual {
	r := e.w.register()
	e.w.sub(y, x, r)
	return r
}

// plusTimes is x + c·y, in the place of x if it is not needed again.
func (e *emitter) plusTimes(x reg.VecVirtual, c float64, y reg.VecVirtual, keep bool) reg.VecVirtual {
	r := x
	if keep {
		r = e.w.register()
		if e.w.neon {
			e.w.load(x, r)
		} else {
			VMOVAPS(x, r)
		}
	}
	if c < 0 {
		e.w.fnma231(e.c(-c).at(0), y, r)
	} else {
		e.w.fma231(e.c(c).at(0), y, r)
	}
	return r
}

// scaled is c·x.
func (e *emitter) scaled(c float64, x reg.VecVirtual) reg.VecVirtual {
	r := e.w.register()
	e.w.mul(e.c(c).at(0), x, r)
	return r
}

// input is Bᵀ·d.
func (e *emitter) input(d []reg.VecVirtual) []reg.VecVirtual {
	if len(d) == 4 {
		return []reg.VecVirtual{e.minus(d[2], d[0]), e.plus(d[2], d[1]), e.minus(d[2], d[1]), e.minus(d[3], d[1])}
	}
	const a, b = winogradA, winogradB
	r := make([]reg.VecVirtual, 6)
	for i, p := range [][2]float64{{a, b}, {b, a}} { // the point, and the other one
		even := e.plusTimes(d[4], -p[1]*p[1], d[2], true)
		odd := e.plusTimes(d[3], -p[1]*p[1], d[1], true)
		r[2*i+1] = e.plusTimes(even, p[0], odd, true)
		r[2*i+2] = e.plusTimes(even, -p[0], odd, false)
	}
	r[0] = e.plusTimes(e.plusTimes(d[4], -(a*a+b*b), d[2], false), a*a*b*b, d[0], false)
	r[5] = e.plusTimes(e.plusTimes(d[5], -(a*a+b*b), d[3], false), a*a*b*b, d[1], false)
	return r
}

// output is Aᵀ·m.
func (e *emitter) output(m []reg.VecVirtual) []reg.VecVirtual {
	if len(m) == 4 {
		return []reg.VecVirtual{e.plus(m[0], e.plus(m[1], m[2])), e.plus(e.minus(m[1], m[2]), m[3])}
	}
	const a, b = winogradA, winogradB
	s, t := e.plus(m[1], m[2]), e.minus(m[1], m[2])
	u, v := e.plus(m[3], m[4]), e.minus(m[3], m[4])
	return []reg.VecVirtual{
		e.plus(m[0], e.plus(s, u)),
		e.plusTimes(e.scaled(a, t), b, v, false),
		e.plusTimes(e.scaled(a*a, s), b*b, u, false),
		e.plusTimes(e.plusTimes(m[5], a*a*a, t, false), b*b*b, v, false),
	}
}

// winogradZero is the product of the differences of 0 from the other points.
func winogradZero(tile int) float64 {
	product := 1.0
	for _, p := range winogradPoints(tile) {
		product *= -p.at * p.at
	}
	return product
}

// filter is G·g.
func (e *emitter) filter(g []reg.VecVirtual, tile int) []reg.VecVirtual {
	r := []reg.VecVirtual{e.scaled(1/winogradZero(tile), g[0])}
	for _, p := range winogradPoints(tile) {
		even := e.plusTimes(e.scaled(1/p.scale, g[0]), p.at*p.at/p.scale, g[2], false)
		odd := e.scaled(p.at/p.scale, g[1])
		r = append(r, e.plus(even, odd), e.minus(even, odd))
	}
	return append(r, g[2])
}
