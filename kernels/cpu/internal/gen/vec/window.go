package main

import (
	"fmt"
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// The kernels of package depthwise work on windows of images whose channels stand side by side: each lane of a vector
// is a channel. They have one argument, a pointer to a structure of 64-bit words, the strides in bytes, and three
// elements at the end.
const (
	argPixels = iota
	argChannels
	argRows
	argCols
	argX
	argXPixel
	argXRow
	argXCol
	argW
	argWRow
	argWCol
	argY
	argYPixel
	argScale
	argShift
	argResidual
	argResidualPixel
	argElements
)

// The elements at the end.
const (
	elementLow = iota
	elementHigh
	elementDivisor
	elementGate // a slope, an offset and bounds
)

var f64x8 = func() *width {
	w := *f64
	w.suffix, w.lanes, w.register = "AVX512F64", 8, ZMM
	return &w
}()

// windowFamily emits the kernels of package depthwise.
func windowFamily(g *generator) {
	widths := g.widths
	if g.file == nil {
		widths = []*width{f32, f64, f32x16, f64x8}
	}
	for _, w := range widths {
		for _, emit := range []func(*windows){(*windows).correlate, (*windows).greatest, (*windows).award, (*windows).filters,
			(*windows).slide, (*windows).planes} {
			emit(&windows{emitter: &emitter{generator: g, w: w, u: 1, hoisted: map[uint64]reg.VecVirtual{}}, bytes: w.lanes * w.size})
		}
	}
}

// windows emits a kernel.
type windows struct {
	*emitter
	bytes  int // of a vector
	args   reg.Register
	labels int

	channel reg.Register   // bytes of channels before the current ones
	mask    reg.Register   // of the lanes that there are, or nil for all; of NEON how many there are
	zeros   reg.VecVirtual // a register that stays cleared, or nil
	// Copies of what an iteration over pixels changes.
	x, y, residual, left Op
}

func (k *windows) wide() bool { return k.bytes == 64 }

// begin starts a kernel.
func (k *windows) begin(name string, doc ...string) {
	name += k.w.suffix
	k.start(name, "func(args *int)", append([]string{name + " " + doc[0]}, doc[1:]...)...)
	k.args = k.param("args")
	k.channel = k.general()
}

// arg is a word of the arguments, element one of the elements behind them.
func (k *windows) arg(i int) Mem { return Mem{Base: k.args, Disp: 8 * i} }
func (k *windows) element(i int) Mem {
	return Mem{Base: k.args, Disp: 8*argElements + i*k.w.size}
}

func (k *windows) load(i int) reg.GPVirtual {
	r := k.general()
	k.set(k.arg(i), r)
	return r
}

// variable is a local variable that starts as an argument.
func (k *windows) variable(i int) Op {
	m, r := k.local(), k.general()
	k.set(k.arg(i), r)
	k.set(r, m)
	return m
}

// advance adds n times an argument to a local variable.
func (k *windows) advance(m Op, n, by int) {
	r := k.load(by)
	if n > 1 {
		k.times(n, r)
	}
	k.increase(r, m)
}

func (k *windows) label(name string) string {
	k.labels++
	return fmt.Sprintf("%s%d", name, k.labels)
}

// get loads a vector; lanes that there are not become 0.
func (k *windows) get(m Mem, dst reg.VecVirtual) {
	switch {
	case k.mask == nil:
		k.w.load(m, dst)
	case k.w.neon:
		k.some(m, func(at reg.Register) { k.loadPart(k.w, at, k.mask, dst) }, func() { k.w.load(m, dst) })
	case !k.wide():
		k.w.maskMove(m, k.mask, dst)
	case k.w.size == 4:
		VMOVUPS_Z(m, k.mask, dst)
	default:
		VMOVUPD_Z(m, k.mask, dst)
	}
}

// put stores a vector.
func (k *windows) put(src reg.VecVirtual, m Mem) {
	switch {
	case k.mask == nil:
		k.w.load(src, m)
	case k.w.neon:
		k.some(m, func(at reg.Register) { k.storePart(k.w, at, k.mask, src) }, func() { k.w.load(src, m) })
	case !k.wide():
		k.w.maskMove(src, k.mask, m)
	case k.w.size == 4:
		VMOVUPS(src, k.mask, m)
	default:
		VMOVUPD(src, k.mask, m)
	}
}

// some emits what happens at the address of a vector with missing lanes, or with all.
func (k *windows) some(m Mem, part func(at reg.Register), whole func()) {
	all, done := k.label("all"), k.label("some")
	k.fn.CompareConstant(k.mask, k.w.lanes)
	k.fn.JumpIf("GE", all)
	at := k.general()
	k.address(m, at)
	part(at)
	k.fn.Jump(done)
	k.fn.Label(all)
	whole()
	k.fn.Label(done)
}

// source is a vector in memory as an operand: in a register, if lanes are missing.
func (k *windows) source(m Mem) Op {
	if k.mask == nil {
		return m
	}
	r := k.w.register()
	k.get(m, r)
	return r
}

// zero clears a register. Where it is a copy, that is so that its last value is not taken to be needed.
func (k *windows) zero(r reg.VecVirtual) {
	switch {
	case k.w.neon:
		k.fn.Zero(r)
	case !k.wide():
		VXORPS(r, r, r)
	case k.zeros == nil:
		VPXORD(r, r, r)
		k.zeros = r
	default:
		VMOVAPS(k.zeros, r)
	}
}

// eachChannels goes over the channels, as many vectors at a time as the list says, and those that are left one vector at
// a time with a mask. The body may jump to labels of its own only.
func (k *windows) eachChannels(vectors []int, body func(vectors int)) {
	k.clear(k.channel)
	for _, n := range vectors {
		top, done := k.label("channels"), k.label("fewer")
		k.mark(top)
		end := k.general()
		k.address(Mem{Base: k.channel, Disp: n * k.bytes}, end)
		k.jumpIfGreater(end, k.arg(argChannels), done)
		body(n)
		k.increase(U32(n*k.bytes), k.channel)
		k.jump(top)
		k.mark(done)
	}
	top, done := k.label("masked"), k.label("done")
	k.mark(top)
	rest := k.load(argChannels)
	k.decreaseJumpIfNone(k.channel, rest, done)
	k.halve(k.w.shift, rest)
	switch {
	case k.w.neon:
		k.mask = rest
	case k.wide():
		bits, mask := GP64(), K()
		MOVQ(I32(-1), bits)
		BZHIQ(rest, bits, bits) // all bits, if there are more than 64 lanes
		KMOVW(bits.As32(), mask)
		k.mask = mask
	default:
		k.mask = k.tailMask(rest)
	}
	body(1)
	k.mask = nil
	k.increase(U32(k.bytes), k.channel)
	k.jump(top)
	k.mark(done)
}

// eachPixels goes over the pixels, some at a time, in the local variables x, y and left, and residual, if it is used.
func (k *windows) eachPixels(counts []int, residual bool, body func(pixels int)) {
	k.x, k.y, k.left = k.variable(argX), k.variable(argY), k.variable(argPixels)
	if residual {
		k.residual = k.variable(argResidual)
	}
	for _, n := range counts {
		top, done := k.label("pixels"), k.label("pixelsDone")
		k.mark(top)
		k.jumpIfLess(k.left, Imm(uint64(n)), done)
		body(n)
		k.advance(k.x, n, argXPixel)
		k.advance(k.y, n, argYPixel)
		if residual {
			k.advance(k.residual, n, argResidualPixel)
		}
		k.decrease(Imm(uint64(n)), k.left)
		k.jump(top)
		k.mark(done)
	}
}

// at is the current channels of a pointer that a variable holds.
func (k *windows) at(m Op) reg.GPVirtual {
	r := k.general()
	k.set(m, r)
	k.increase(k.channel, r)
	return r
}

// eachTap goes over the rows and columns of a window: over pointers into the image, that start at x, and into the
// filters, if they are used.
func (k *windows) eachTap(x reg.GPVirtual, filters bool, body func(x, w reg.Register)) {
	row, tap, done := k.label("row"), k.label("tap"), k.label("taps")
	rows, cols, at := k.load(argRows), k.general(), k.general()
	var w, wAt reg.GPVirtual
	if filters {
		w, wAt = k.at(k.arg(argW)), k.general()
	}
	k.jumpIfZero(rows, done)
	k.mark(row)
	k.set(x, at)
	k.set(k.arg(argCols), cols)
	if filters {
		k.set(w, wAt)
	}
	k.mark(tap)
	body(at, wAt)
	k.increase(k.arg(argXCol), at)
	if filters {
		k.increase(k.arg(argWCol), wAt)
	}
	k.countDown(cols, tap)
	k.increase(k.arg(argXRow), x)
	if filters {
		k.increase(k.arg(argWRow), w)
	}
	k.countDown(rows, row)
	k.mark(done)
}

// multiples holds a stride times what an address cannot scale by.
type multiples [8]reg.GPVirtual

// multiplesOf prepares the offsets of n places, a stride apart.
func (k *windows) multiplesOf(stride, n int) (m multiples) {
	if n > 1 {
		m[1] = k.load(stride)
	}
	for i := 3; i < n; i += 2 {
		m[i] = k.general()
		k.address(Mem{Base: m[i-2], Index: m[1], Scale: 2}, m[i])
	}
	return m
}

// place is vector v of the i-th place from base.
func (k *windows) place(base reg.Register, m multiples, i, v int) Mem {
	p := Mem{Base: base, Disp: v * k.bytes}
	switch i {
	case 0:
	case 1, 2, 4:
		p.Index, p.Scale = m[1], uint8(i)
	case 6:
		p.Index, p.Scale = m[3], 2
	default:
		p.Index, p.Scale = m[i], 1
	}
	return p
}

// sums is accumulators: vectors for each of some pixels.
func (k *windows) sums(pixels, vectors int) [][]reg.VecVirtual {
	acc := make([][]reg.VecVirtual, pixels)
	for i := range acc {
		for range vectors {
			acc[i] = append(acc[i], k.w.register())
		}
	}
	return acc
}

// shape is how many pixels a kernel has in registers at a time, and how many vectors of each.
type shape struct {
	pixels  int
	vectors []int
}

// shapes suit the number of registers; eight sums cover the latency of an addition.
func (k *windows) shapes() []shape {
	if k.wide() || k.w.neon {
		return []shape{{8, []int{2}}, {4, []int{2}}, {2, []int{4}}, {1, []int{8, 4}}}
	}
	return []shape{{4, []int{2}}, {1, []int{4}}}
}

// pixelsOf is the numbers of pixels of shapes.
func pixelsOf(shapes []shape) (n []int, vectors map[int][]int) {
	vectors = map[int][]int{}
	for _, s := range shapes {
		n, vectors[s.pixels] = append(n, s.pixels), s.vectors
	}
	return n, vectors
}

// correlate emits the sums of products of windows with filters, and what follows them.
func (k *windows) correlate() {
	k.begin("correlate", "sets, of each pixel, y to the sum of x·w over a window, followed by scale, shift, division, residual and",
		"bounds: see pass.")
	counts, vectors := pixelsOf(k.shapes())
	steps := k.multiplesOf(argXPixel, counts[0])
	k.zero(k.w.register())
	k.eachPixels(counts, true, func(pixels int) {
		k.eachChannels(vectors[pixels], func(n int) {
			acc := k.sums(pixels, n)
			for i := range acc {
				for _, r := range acc[i] {
					k.zero(r)
				}
			}
			k.eachTap(k.at(k.x), true, func(x, w reg.Register) {
				filter := make([]reg.VecVirtual, n)
				for v := range filter {
					filter[v] = k.w.register()
					k.get(Mem{Base: w, Disp: v * k.bytes}, filter[v])
				}
				for i := range acc {
					for v := range filter {
						k.w.fma231(k.source(k.place(x, steps, i, v)), filter[v], acc[i][v])
					}
				}
			})
			k.perChannel(argScale, acc, k.w.mul)
			k.perChannel(argShift, acc, k.w.add)
			k.divide(acc)
			k.addResidual(acc)
			k.gate(acc)
			k.bound(acc)
			k.store(acc)
		})
	})
	k.finish()
}

// each applies an instruction with one operand to all sums.
func each(acc [][]reg.VecVirtual, op instr, x Op) {
	for i := range acc {
		for _, r := range acc[i] {
			op(x, r, r)
		}
	}
}

// perChannel combines the sums with a vector, if there is one.
func (k *windows) perChannel(arg int, acc [][]reg.VecVirtual, op instr) {
	none, p := k.label("none"), k.load(arg)
	k.jumpIfZero(p, none)
	k.increase(k.channel, p)
	for v := range acc[0] {
		r := k.w.register()
		k.get(Mem{Base: p, Disp: v * k.bytes}, r)
		for i := range acc {
			op(r, acc[i][v], acc[i][v])
		}
	}
	k.mark(none)
}

// jumpIfUnset jumps if an element of the arguments is 0.
func (k *windows) jumpIfUnset(element int, to string) {
	switch {
	case k.w.neon && k.w.size == 4:
		bits := k.general()
		k.fn.LoadWord(bits, k.element(element))
		k.fn.JumpIfZero(bits, to)
	case k.w.size == 4:
		CMPL(k.element(element), Imm(0))
		JE(LabelRef(to))
	default:
		k.jumpIfZero(k.element(element), to)
	}
}

// divide divides the sums by the divisor, unless that is 0.
func (k *windows) divide(acc [][]reg.VecVirtual) {
	none, r := k.label("none"), k.w.register()
	k.jumpIfUnset(elementDivisor, none)
	k.w.broadcast(k.element(elementDivisor), r)
	each(acc, k.w.div, r)
	k.mark(none)
}

// addResidual adds the residual, if there is one.
func (k *windows) addResidual(acc [][]reg.VecVirtual) {
	none := k.label("none")
	k.jumpIfZero(k.arg(argResidual), none)
	p := k.at(k.residual)
	for i := range acc {
		for v, r := range acc[i] {
			k.w.add(k.source(Mem{Base: p, Disp: v * k.bytes}), r, r)
		}
		k.increase(k.arg(argResidualPixel), p)
	}
	k.mark(none)
}

// gate applies a gate to the sums, unless its slope is 0.
func (k *windows) gate(acc [][]reg.VecVirtual) {
	none := k.label("none")
	k.jumpIfUnset(elementGate, none)
	var with [4]reg.VecVirtual
	for i := range with {
		with[i] = k.w.register()
		k.w.broadcast(k.element(elementGate+i), with[i])
	}
	for i := range acc {
		for _, v := range acc[i] {
			t := k.w.register()
			k.w.mul(with[0], v, t)
			for i, op := range []instr{k.w.add, k.w.max, k.w.min} {
				op(with[1+i], t, t)
			}
			k.w.mul(t, v, v)
		}
	}
	k.mark(none)
}

// bound raises the sums to the low bound and lowers them to the high one. A NaN stays a NaN: see [emitter.atLeast].
func (k *windows) bound(acc [][]reg.VecVirtual) {
	for i, op := range []instr{k.w.max, k.w.min} {
		r := k.w.register()
		k.w.broadcast(k.element(elementLow+i), r)
		for i := range acc {
			for _, a := range acc[i] {
				op(a, r, a)
			}
		}
	}
}

// store writes the sums of the current pixels and channels.
func (k *windows) store(acc [][]reg.VecVirtual) {
	p := k.at(k.y)
	for i := range acc {
		for v, r := range acc[i] {
			k.put(r, Mem{Base: p, Disp: v * k.bytes})
		}
		if i+1 < len(acc) {
			k.increase(k.arg(argYPixel), p)
		}
	}
}

// replace changes a to x in the lanes of a mask that [windows.compare] made.
func (k *windows) replace(mask reg.Register, x, a reg.VecVirtual) {
	switch {
	case !k.wide():
		k.w.blend(mask, x, a, a)
	case k.w.size == 4:
		VMOVAPS(x, mask, a)
	default:
		VMOVAPD(x, mask, a)
	}
}

// compare makes a mask.
func (k *windows) compare(predicate uint64, a, b reg.VecVirtual) reg.Register {
	var mask reg.Register
	if k.wide() {
		mask = K()
	} else {
		mask = k.w.register()
	}
	k.w.cmp(Imm(predicate), b, a, mask)
	return mask
}

// greatest emits maxima of windows.
func (k *windows) greatest() {
	k.begin("greatest", "sets, of each pixel, y to the greatest x of a window, NaN if there is one, −Inf of nothing: see pass.")
	counts, vectors := pixelsOf(k.shapes())
	steps := k.multiplesOf(argXPixel, counts[0])
	k.eachPixels(counts, false, func(pixels int) {
		k.eachChannels(vectors[pixels], func(n int) {
			acc := k.sums(pixels, n)
			for i := range acc {
				for _, r := range acc[i] {
					k.w.load(k.constant(k.w, k.w.bits(math.Inf(-1))), r)
				}
			}
			k.eachTap(k.at(k.x), false, func(x, _ reg.Register) {
				for i := range acc {
					for v, a := range acc[i] {
						t := k.w.register()
						k.get(k.place(x, steps, i, v), t)
						if k.w.neon { // FMAX is NaN, if either is
							k.w.max(a, t, a)
							continue
						}
						nan := k.compare(predUnord, t, t)
						k.w.max(a, t, a) // a, if either is NaN
						k.replace(nan, t, a)
					}
				}
			})
			k.store(acc)
		})
	})
	k.finish()
}

// award emits the gradient of maxima.
func (k *windows) award() {
	k.begin("award", "adds, of each pixel, y to that w of a window whose x is the first NaN or, if there is none, the first of the",
		"greatest. w has the strides of x: see pass.")
	add, equal := k.w.intAdd, k.w.intEqual
	one := k.w.register()
	k.w.load(k.constant(k.w, 1), one)
	k.zero(k.w.register())
	apart := k.load(argW) // the distance of w from x
	k.decrease(k.arg(argX), apart)
	vectors := []int{2, 1}
	if k.wide() {
		vectors = []int{4, 1}
	}
	k.eachPixels([]int{1}, false, func(int) {
		k.eachChannels(vectors, func(n int) {
			// The compared elements of some vectors at once hide the latency of a comparison.
			most, best, number := k.sums(1, n)[0], k.sums(1, n)[0], k.w.register()
			for v := range n {
				k.w.load(k.constant(k.w, k.w.bits(math.Inf(-1))), most[v])
				k.zero(best[v])
			}
			k.zero(number)
			k.eachTap(k.at(k.x), false, func(x, _ reg.Register) {
				for v := range n {
					t := k.w.register()
					k.get(Mem{Base: x, Disp: v * k.bytes}, t)
					better := k.better(t, most[v])
					k.replace(better, t, most[v])
					k.replace(better, number, best[v])
				}
				add(one, number, number)
			})
			dy, from := k.sums(1, n)[0], k.at(k.y)
			for v := range n {
				k.get(Mem{Base: from, Disp: v * k.bytes}, dy[v])
			}
			k.zero(number)
			k.eachTap(k.at(k.x), false, func(x, _ reg.Register) {
				for v := range n {
					t, to := k.w.register(), Mem{Base: x, Index: apart, Scale: 1, Disp: v * k.bytes}
					k.get(to, t)
					if k.wide() {
						hit := K()
						equal(number, best[v], hit)
						k.w.add(dy[v], t, hit, t)
					} else {
						hit := k.w.register()
						equal(number, best[v], hit)
						k.w.and(dy[v], hit, hit)
						k.w.add(hit, t, t)
					}
					k.put(t, to)
				}
				add(one, number, number)
			})
		})
	})
	k.finish()
}

// better is a mask of the lanes in which t is greater than the most so far, or the first NaN.
func (k *windows) better(t, most reg.VecVirtual) reg.Register {
	if k.wide() {
		mask := K()
		k.w.cmp(Imm(predNLE), most, t, mask)
		k.w.cmp(Imm(predOrd), most, most, mask, mask)
		return mask
	}
	mask := k.compare(predNLE, t, most)
	sure := k.compare(predOrd, most, most)
	k.w.and(sure.(reg.VecVirtual), mask.(reg.VecVirtual), mask.(reg.VecVirtual))
	return mask
}

// filters emits sums over pixels of products, one for each column of a window.
func (k *windows) filters() {
	k.begin("filters", "adds to w of each column of a window the sum over pixels of x·y: see pass.")
	type block struct {
		taps    int
		vectors []int
	}
	blocks := []block{{3, []int{2}}, {1, []int{4}}}
	if k.wide() {
		blocks = []block{{4, []int{4, 2}}, {3, []int{4, 2}}, {2, []int{4}}, {1, []int{8, 4}}}
	}
	x, w, left := k.variable(argX), k.variable(argW), k.variable(argCols)
	steps := k.multiplesOf(argXCol, blocks[0].taps)
	for _, b := range blocks {
		top, done := k.label("taps"), k.label("tapsDone")
		k.mark(top)
		k.jumpIfLess(left, Imm(uint64(b.taps)), done)
		k.eachChannels(b.vectors, func(n int) {
			acc := k.sums(b.taps, n)
			place := func(visit func(r reg.VecVirtual, m Mem)) {
				p := k.at(w)
				for i := range acc {
					for v, r := range acc[i] {
						visit(r, Mem{Base: p, Disp: v * k.bytes})
					}
					k.increase(k.arg(argWCol), p)
				}
			}
			place(func(r reg.VecVirtual, m Mem) { k.get(m, r) })
			pixel := k.label("pixel")
			x, y, pixels := k.at(x), k.at(k.arg(argY)), k.load(argPixels)
			k.mark(pixel)
			for v := range n {
				dy := k.w.register()
				k.get(Mem{Base: y, Disp: v * k.bytes}, dy)
				for i := range acc {
					k.w.fma231(k.source(k.place(x, steps, i, v)), dy, acc[i][v])
				}
			}
			k.increase(k.arg(argXPixel), x)
			k.increase(k.arg(argYPixel), y)
			k.countDown(pixels, pixel)
			place(k.put)
		})
		k.advance(x, b.taps, argXCol)
		k.advance(w, b.taps, argWCol)
		k.decrease(Imm(uint64(b.taps)), left)
		k.jump(top)
		k.mark(done)
	}
	k.finish()
}
