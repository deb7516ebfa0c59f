package main

import (
	"fmt"
	"strings"

	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"fusec/kernels/cpu/internal/gen/arm64"
)

// neonWidth is an element type in registers of NEON: the bodies of kernels are those of AVX2. Its instructions go to the
// function that g writes.
func (g *generator) neonWidth(like *width, a arm64.Arrangement) *width {
	w := *like
	w.neon, w.arrangement, w.lanes, w.register = true, a, arm64.VectorBytes/w.size, arm64.Vector
	three := func(name string) instr {
		return func(ops ...Op) { g.fn.Three(name, a, ops[2], ops[1], ops[0]) }
	}
	shift := func(name string) instr {
		return func(ops ...Op) { g.fn.Shift(name, a, uint64(ops[0].(U8)), ops[2], ops[1]) }
	}
	w.add, w.sub, w.mul, w.div = three("fadd"), three("fsub"), three("fmul"), three("fdiv")
	w.max, w.min = three("fmax"), three("fmin")
	w.and, w.or, w.xor, w.andn = three("and"), three("orr"), three("eor"), nil
	w.fma231, w.fnma231, w.fma213 = three("fmla"), three("fmls"), nil
	w.intAdd, w.intSub, w.intMax, w.intEqual = three("add"), three("sub"), three("smax"), three("cmeq")
	w.shiftLeft, w.shiftRight = shift("shl"), shift("sshr")
	w.sqrt = func(ops ...Op) { g.fn.Two("fsqrt", a, ops[1], ops[0]) }
	w.toFloat = func(ops ...Op) { g.fn.Two("scvtf", a, ops[1], ops[0]) }
	w.broadcast = func(ops ...Op) { g.fn.LoadSplat(a, ops[1], ops[0].(Mem)) }
	w.load = func(ops ...Op) {
		if m, ok := ops[1].(Mem); ok {
			g.fn.Store(m, ops[0])
			return
		}
		g.fn.Load(ops[1], ops[0])
	}
	w.round = func(mode, x, dst Op) {
		names := map[Op]string{Imm(roundEven): "frintn", Imm(roundFloor): "frintm", Imm(roundCeil): "frintp"}
		g.fn.Two(names[mode], a, dst, x)
	}
	w.blend = func(mask, yes, no, dst Op) {
		if dst == no {
			g.fn.Three("bit", a, dst, yes, mask)
			return
		}
		m := arm64.Vector() // BSL overwrites its mask
		g.fn.Move(m, mask)
		g.fn.Three("bsl", a, m, yes, no)
		g.fn.Move(dst, m)
	}
	w.cmp = func(ops ...Op) { g.neonCompare(a, ops[0], ops[2], ops[1], ops[3]) }
	w.maskMove, w.moveMask = nil, nil
	return &w
}

// neonCompare sets the lanes of dst in which x and y compare as a predicate of AVX2 says.
func (g *generator) neonCompare(a arm64.Arrangement, predicate, x, y, dst Op) {
	is := func(name string, x, y Op) { g.fn.Three(name, a, dst, x, y) }
	not := func() { g.fn.Two("mvn", a, dst, dst) }
	switch predicate {
	case Imm(predEQ):
		is("fcmeq", x, y)
	case Imm(predNE):
		is("fcmeq", x, y)
		not()
	case Imm(predGE):
		is("fcmge", x, y)
	case Imm(predGT):
		is("fcmgt", x, y)
	case Imm(predLE):
		is("fcmge", y, x)
	case Imm(predLT):
		is("fcmgt", y, x)
	case Imm(predNGE):
		is("fcmge", x, y)
		not()
	case Imm(predNLE):
		is("fcmge", y, x)
		not()
	case Imm(predUnord), Imm(predOrd):
		is("fcmeq", x, x)
		if x != y {
			other := arm64.Vector()
			g.fn.Three("fcmeq", a, other, y, y)
			g.fn.Three("and", a, dst, dst, other)
		}
		if predicate == Imm(predUnord) {
			not()
		}
	default:
		panic(fmt.Sprintf("vec: no comparison %v in NEON", predicate))
	}
}

// neonTwo emits d = op a.
func (e *emitter) neonTwo(name string, a arg) vec {
	d := e.new()
	for i := range d {
		e.fn.Two(name, e.w.arrangement, d[i], a.at(i))
	}
	return d
}

// begin starts a function of NEON.
func (g *generator) begin(name, signature string, doc ...string) *arm64.Func {
	g.fn, g.labels = g.file.Func(name, signature, doc...), 0
	return g.fn
}

// label is a label that the function does not have yet.
func (g *generator) label(name string) string {
	g.labels++
	return fmt.Sprintf("%s%d", name, g.labels)
}

// neonSlices loads the places of slices and the least of their lengths.
func (g *generator) neonSlices(names []string) (base map[string]reg.GPVirtual, n reg.GPVirtual) {
	base = map[string]reg.GPVirtual{}
	for i, s := range names {
		base[s] = g.fn.Param(s + ".base")
		length := g.fn.Param(s + ".len")
		if i == 0 {
			n = length
		} else {
			g.fn.Least(n, n, length)
		}
	}
	return base, n
}

// loadPart loads the first elements of a vector, fewer than it has unless whole, and clears the others.
func (g *generator) loadPart(w *width, base, n reg.Register, dst reg.VecVirtual) {
	f := g.fn
	if w.size == 8 {
		f.LoadPart(8, dst, Mem{Base: base})
		return
	}
	one, done := g.label("loadOne"), g.label("loaded")
	f.JumpIfBit(false, 1, n, one)
	f.LoadPart(8, dst, Mem{Base: base})
	f.JumpIfBit(false, 0, n, done)
	third := arm64.General()
	f.AddConstant(third, base, 8)
	f.LoadThird(dst, third)
	f.Jump(done)
	f.Label(one)
	f.LoadPart(4, dst, Mem{Base: base})
	f.Label(done)
}

// storePart stores as many.
func (g *generator) storePart(w *width, base, n reg.Register, src Op) {
	f := g.fn
	if w.size == 8 {
		f.StorePart(8, Mem{Base: base}, src)
		return
	}
	one, done := g.label("storeOne"), g.label("stored")
	f.JumpIfBit(false, 1, n, one)
	f.StorePart(8, Mem{Base: base}, src)
	f.JumpIfBit(false, 0, n, done)
	third := arm64.General()
	f.AddConstant(third, base, 8)
	f.StoreThird(third, src)
	f.Jump(done)
	f.Label(one)
	f.StorePart(4, Mem{Base: base}, src)
	f.Label(done)
}

// neon writes the kernel for NEON: some vectors at a time, then one, then what is left of one, by the same instructions, so
// that an element's result does not depend on its place.
func (k mapKernel) neon(g *generator, w *width, name, signature string, slices []string) {
	f := g.begin(name, signature, name+" "+k.doc)
	base, n := g.neonSlices(slices)
	e := &emitter{generator: g, w: w, hoisted: map[uint64]reg.VecVirtual{}}
	e.hoist(k.hoist)
	var scalars []splat
	for _, s := range k.scalars {
		scalars = append(scalars, splat{f.ParamSplat(w.arrangement, s)})
	}
	var total reg.GPVirtual
	if k.unfit != nil {
		total = arm64.General()
		f.Copy(total, n)
	}
	compute := func(vectors int, part bool) {
		e.u = vectors
		e.again = func(source int) vec {
			v, at := e.new(), base[k.srcs[source]]
			for u := range v {
				if part {
					g.loadPart(w, at, n, v[u])
				} else {
					f.Load(v[u], Mem{Base: at, Disp: u * arm64.VectorBytes})
				}
			}
			return v
		}
		in := make([]vec, len(k.srcs))
		for j := range in {
			in[j] = e.again(j)
		}
		if k.unfit != nil {
			g.neonLeaveIf(k.unfit(e, in), "done")
		}
		for u, v := range k.body(e, in, scalars) {
			if part {
				g.storePart(w, base["dst"], n, v)
			} else {
				f.Store(Mem{Base: base["dst"], Disp: u * arm64.VectorBytes}, v)
			}
		}
		if part {
			f.Constant(n, 0)
			return
		}
		for _, s := range slices {
			f.AddConstant(base[s], base[s], vectors*arm64.VectorBytes)
		}
		f.SubConstant(n, n, vectors*w.lanes)
	}
	for _, vectors := range neonUnroll(k.unroll) {
		loop, next := g.label("loop"), g.label("next")
		f.CompareConstant(n, vectors*w.lanes)
		f.JumpIf("LT", next)
		f.Label(loop)
		compute(vectors, false)
		f.CompareConstant(n, vectors*w.lanes)
		f.JumpIf("GE", loop)
		f.Label(next)
	}
	f.JumpIfZero(n, "done")
	compute(1, true)
	f.Label("done")
	if k.unfit != nil {
		f.Sub(total, total, n)
		f.SetResult(total)
	}
	f.Return()
}

// neonUnroll is how many vectors loops work on. NEON's vectors are half as long as AVX2's, and there are twice as many.
func neonUnroll(n int) []int {
	if n == 1 {
		return []int{1}
	}
	return []int{n, 1}
}

// neonLeaveIf jumps if any lane of the masks is set.
func (g *generator) neonLeaveIf(masks vec, label string) {
	any := masks[0]
	for _, m := range masks[1:] {
		g.fn.Three("orr", arm64.S4, any, any, m)
	}
	most, r := arm64.Vector(), arm64.General()
	g.fn.Greatest(most, any)
	g.fn.Lowest(4, r, most)
	g.fn.JumpUnlessZero(r, label)
}

// neonMask returns a mask of the first n lanes, for n less than lanes.
func (e *emitter) neonMask(n reg.Register) reg.VecVirtual {
	ones := ^uint64(0)
	at, mask := arm64.General(), arm64.Vector()
	e.fn.ShiftLeft(at, n, int(e.w.shift))
	e.fn.Address(at, e.file.Constant(ones, ones, 0, 0), at)
	e.fn.Load(mask, Mem{Base: at})
	return mask
}

// neon writes the reduction for NEON.
func (k reduction) neon(g *generator, w *width, name, signature string) {
	f := g.begin(name, signature, name+" "+k.doc)
	base, n := g.neonSlices(k.srcs)
	e := &emitter{generator: g, w: w, hoisted: map[uint64]reg.VecVirtual{}}
	var scalars []splat
	for _, s := range k.scalars {
		scalars = append(scalars, splat{f.ParamSplat(w.arrangement, s)})
	}
	clear := func(v reg.VecVirtual) {
		if k.neutral == 0 {
			f.Zero(v)
		} else {
			f.Load(v, e.c(k.neutral).op)
		}
	}
	total := vec{w.register()}
	if k.wide(w) {
		total = append(total, w.register())
	}
	for _, t := range total {
		clear(t)
	}
	acc := make(vec, k.unroll)
	for j := range acc {
		acc[j] = w.register()
	}
	left := arm64.General()
	step := func(vectors int, part bool) {
		e.u = vectors
		var in []vec
		for j, s := range k.srcs {
			if k.stores && j == 0 {
				continue
			}
			v := e.new()
			for u := range v {
				if part {
					g.loadPart(w, base[s], left, v[u])
				} else {
					f.Load(v[u], Mem{Base: base[s], Disp: u * arm64.VectorBytes})
				}
			}
			in = append(in, v)
		}
		fill := func(v vec) vec { return v }
		if part {
			fill = func(v vec) vec { return e.choose(vec{e.neonMask(left)}, v, e.c(k.neutral)) }
		}
		k.step(e, acc[:vectors], in, scalars, fill)
		for u := 0; k.stores && u < vectors; u++ {
			if part {
				g.storePart(w, base[k.srcs[0]], left, in[0][u])
			} else {
				f.Store(Mem{Base: base[k.srcs[0]], Disp: u * arm64.VectorBytes}, in[0][u])
			}
		}
		if part {
			return
		}
		for _, s := range k.srcs {
			f.AddConstant(base[s], base[s], vectors*arm64.VectorBytes)
		}
		f.SubConstant(left, left, vectors*w.lanes)
	}

	f.Label("block")
	for _, a := range acc {
		clear(a)
	}
	f.Constant(left, blockVectors*w.lanes)
	f.Least(left, left, n)
	f.Sub(n, n, left)
	for _, vectors := range neonUnroll(k.unroll) {
		loop, next := g.label("loop"), g.label("next")
		f.CompareConstant(left, vectors*w.lanes)
		f.JumpIf("LT", next)
		f.Label(loop)
		step(vectors, false)
		f.CompareConstant(left, vectors*w.lanes)
		f.JumpIf("GE", loop)
		f.Label(next)
	}
	f.JumpIfZero(left, "combine")
	step(1, true)
	f.Label("combine")
	e.u = 1
	sum := acc
	for len(sum) > 1 {
		half := len(sum) / 2
		next := make(vec, half)
		for j := range half {
			next[j] = k.combine(e, vec{sum[j]}, vec{sum[half+j]})[0]
		}
		sum = next
	}
	if k.wide(w) {
		low, high := w.register(), w.register()
		f.Change("fcvtl", arm64.D2, low, sum[0])
		f.Change("fcvtl2", arm64.D2, high, sum[0])
		f.Three("fadd", arm64.D2, total[0], total[0], low)
		f.Three("fadd", arm64.D2, total[1], total[1], high)
	} else {
		f.Move(total[0], k.combine(e, vec{total[0]}, sum)[0])
	}
	f.JumpUnlessZero(n, "block")

	v := total[0]
	if k.wide(w) {
		e = &emitter{generator: g, w: g.f64(), u: 1}
		v = e.add(vec{total[0]}, vec{total[1]})[0]
	}
	for bytes := arm64.VectorBytes / 2; bytes >= e.w.size; bytes /= 2 {
		turned := w.register()
		f.Extract(turned, v, v, bytes)
		v = k.combine(e, vec{v}, vec{turned})[0]
	}
	if k.wide(w) {
		narrow := w.register()
		f.Change("fcvtn", arm64.S2, narrow, v)
		v = narrow
	}
	f.SetResult(v)
	f.Return()
}

// neonMemory emits what moves and converts values.
func neonMemory(g *generator) {
	g.neonTranspose()
	move := func(from, to int) func(src, dst reg.Register) {
		return func(src, dst reg.Register) {
			v, low, high := arm64.Vector(), arm64.Vector(), arm64.Vector()
			if from == 4 {
				g.fn.Load(v, Mem{Base: src})
				g.fn.Change("fcvtl", arm64.D2, low, v)
				g.fn.Change("fcvtl2", arm64.D2, high, v)
				g.fn.StorePair(dst, 0, low, high)
				return
			}
			g.fn.LoadPair(low, high, src, 0)
			g.fn.Change("fcvtn", arm64.S2, v, low)
			g.fn.Change("fcvtn2", arm64.S4, v, high)
			g.fn.Store(Mem{Base: dst}, v)
		}
	}
	g.neonConversion("widenBlocks", "func(dst []float64, src []float32) (done int)", 4, 4, 8, move(4, 8))
	g.neonConversion("narrowBlocks", "func(dst []float32, src []float64) (done int)", 4, 8, 4, move(8, 4))
	neonBytes(g)
	one := func() reg.VecVirtual {
		v := arm64.Vector()
		g.fn.Load(v, g.file.Constant(0x0101010101010101, 0x0101010101010101))
		return v
	}
	g.neonConversion("maskToF32Blocks", "func(dst []float32, src []bool) (done int)", 8, 1, 4, func(src, dst reg.Register) {
		b, low, high := arm64.Vector(), arm64.Vector(), arm64.Vector()
		g.fn.LoadPart(8, b, Mem{Base: src})
		g.fn.Three("umin", arm64.B16, b, b, one())
		g.fn.Change("uxtl", arm64.H8, b, b)
		g.fn.Change("uxtl", arm64.S4, low, b)
		g.fn.Change("uxtl2", arm64.S4, high, b)
		g.fn.Two("ucvtf", arm64.S4, low, low)
		g.fn.Two("ucvtf", arm64.S4, high, high)
		g.fn.StorePair(dst, 0, low, high)
	})
	g.neonConversion("maskToF64Blocks", "func(dst []float64, src []bool) (done int)", 4, 1, 8, func(src, dst reg.Register) {
		b, low, high := arm64.Vector(), arm64.Vector(), arm64.Vector()
		g.fn.LoadPart(4, b, Mem{Base: src})
		g.fn.Three("umin", arm64.B16, b, b, one())
		g.fn.Change("uxtl", arm64.H8, b, b)
		g.fn.Change("uxtl", arm64.S4, b, b)
		g.fn.Change("uxtl", arm64.D2, low, b)
		g.fn.Change("uxtl2", arm64.D2, high, b)
		g.fn.Two("ucvtf", arm64.D2, low, low)
		g.fn.Two("ucvtf", arm64.D2, high, high)
		g.fn.StorePair(dst, 0, low, high)
	})
	equals := func(w *width, src reg.Register, at int) reg.VecVirtual { // a mask of the elements that are 0
		v, zero := arm64.Vector(), arm64.Vector()
		g.fn.Load(v, Mem{Base: src, Disp: at})
		g.fn.Zero(zero)
		g.fn.Three("fcmeq", w.arrangement, v, v, zero)
		return v
	}
	g.neonConversion("maskOfF32Blocks", "func(dst []bool, src []float32) (done int)", 8, 4, 1, func(src, dst reg.Register) {
		low, high := equals(g.f32(), src, 0), equals(g.f32(), src, arm64.VectorBytes)
		g.fn.Change("xtn", arm64.H4, low, low)
		g.fn.Change("xtn2", arm64.H8, low, high)
		g.fn.Change("xtn", arm64.B8, low, low)
		g.fn.Three("bic", arm64.B16, low, one(), low)
		g.fn.StorePart(8, Mem{Base: dst}, low)
	})
	g.neonConversion("maskOfF64Blocks", "func(dst []bool, src []float64) (done int)", 4, 8, 1, func(src, dst reg.Register) {
		low, high := equals(g.f64(), src, 0), equals(g.f64(), src, arm64.VectorBytes)
		g.fn.Three("uzp1", arm64.S4, low, low, high)
		g.fn.Change("xtn", arm64.H4, low, low)
		g.fn.Three("uzp1", arm64.B16, low, low, low)
		g.fn.Three("bic", arm64.B16, low, one(), low)
		g.fn.StorePart(4, Mem{Base: dst}, low)
	})
	neonHalves(g)
}

// neonBytes is byteConversions.
func neonBytes(g *generator) {
	for _, t := range []struct{ name, goType, widen, convert, narrow string }{
		{"u8", "uint8", "uxtl", "ucvtf", "sqxtun"}, {"i8", "int8", "sxtl", "scvtf", "sqxtn"},
	} {
		g.neonConversion(t.name+"ToF32Blocks", fmt.Sprintf("func(dst []float32, src []%s) (done int)", t.goType), 8, 1, 4,
			func(src, dst reg.Register) {
				b, low, high := arm64.Vector(), arm64.Vector(), arm64.Vector()
				g.fn.LoadPart(8, b, Mem{Base: src})
				g.fn.Change(t.widen, arm64.H8, b, b)
				g.fn.Change(t.widen, arm64.S4, low, b)
				g.fn.Change(t.widen+"2", arm64.S4, high, b)
				g.fn.Two(t.convert, arm64.S4, low, low)
				g.fn.Two(t.convert, arm64.S4, high, high)
				g.fn.StorePair(dst, 0, low, high)
			})
		g.neonConversion("f32To"+strings.ToUpper(t.name)+"Blocks",
			fmt.Sprintf("func(dst []%s, src []float32) (done int)", t.goType), 8, 4, 1, func(src, dst reg.Register) {
				low, high := arm64.Vector(), arm64.Vector()
				g.fn.LoadPair(low, high, src, 0)
				g.fn.Two("fcvtzs", arm64.S4, low, low) // towards 0; NaN becomes 0
				g.fn.Two("fcvtzs", arm64.S4, high, high)
				g.fn.Change("sqxtn", arm64.H4, low, low)
				g.fn.Change("sqxtn2", arm64.H8, low, high)
				g.fn.Change(t.narrow, arm64.B8, low, low)
				g.fn.StorePart(8, Mem{Base: dst}, low)
			})
	}
}

// neonConversion is conversion, with elements of from and to bytes.
func (g *generator) neonConversion(name, signature string, group, from, to int, convert func(src, dst reg.Register)) {
	f := g.begin(name, signature, fmt.Sprintf("%s converts the elements in whole groups of %d and returns their number.", name, group))
	base, n := g.neonSlices([]string{"dst", "src"})
	done := arm64.General()
	f.Constant(done, 0)
	f.SubConstant(n, n, group)
	f.CompareConstant(n, 0)
	f.JumpIf("LT", "done")
	f.Label("loop")
	convert(base["src"], base["dst"])
	f.AddConstant(base["src"], base["src"], group*from)
	f.AddConstant(base["dst"], base["dst"], group*to)
	f.AddConstant(done, done, group)
	f.Compare(done, n)
	f.JumpIf("LE", "loop")
	f.Label("done")
	f.SetResult(done)
	f.Return()
}

// neonTranspose emits the transposition of a matrix in blocks of 8 rows and 4 columns: two blocks of 4 × 4 side by side.
func (g *generator) neonTranspose() {
	f := g.begin("transposeBlocksF32", "func(dst *float32, ldDst int, src *float32, ldSrc, rows, cols int)",
		"transposeBlocksF32 sets dst[j·ldDst + i] = src[i·ldSrc + j] for i < rows, j < cols,", "both positive multiples of 8.")
	dst, ldDst, src, ldSrc := f.Param("dst"), f.Param("ldDst"), f.Param("src"), f.Param("ldSrc")
	rows, cols := f.Param("rows"), f.Param("cols")
	f.ShiftLeft(ldDst, ldDst, 2)
	f.ShiftLeft(ldSrc, ldSrc, 2)
	from, to, row, left := arm64.General(), arm64.General(), arm64.General(), arm64.General()
	f.Label("rows")
	f.Copy(from, src)
	f.Copy(to, dst)
	f.Copy(left, cols)
	f.Label("cols")
	f.Copy(row, from)
	var in [8]reg.VecVirtual
	for i := range in {
		in[i] = arm64.Vector()
		f.Load(in[i], Mem{Base: row})
		if i < len(in)-1 {
			f.Add(row, row, ldSrc)
		}
	}
	top, bottom := f.Transposed(in[:4]), f.Transposed(in[4:])
	for j := range top {
		f.StorePair(to, 0, top[j], bottom[j])
		f.Add(to, to, ldDst)
	}
	f.AddConstant(from, from, 16)
	f.SubConstant(left, left, 4)
	f.JumpUnlessZero(left, "cols")
	f.AddShifted(src, src, ldSrc, 3)
	f.AddConstant(dst, dst, 32)
	f.SubConstant(rows, rows, 8)
	f.JumpUnlessZero(rows, "rows")
	f.Return()
}

// neonDraw emits the generator of random words and what dropout does with them. A group is four blocks, whose words with
// the same number are side by side in a register, until they are written.
func neonDraw(g *generator) {
	for _, rounds := range philoxRounds {
		g.neonPhilox(rounds)
	}
	for _, w := range g.widths {
		g.neonKeep(w)
	}
}

func (g *generator) neonPhilox(rounds int) {
	name := fmt.Sprintf("philox%dNEON", rounds)
	f := g.begin(name, philoxSignature, philoxDoc(name, rounds, 4)...)
	dst, groups := f.Param("dst"), f.Param("groups")
	splat := func(r reg.Register, a arm64.Arrangement) reg.VecVirtual {
		v := arm64.Vector()
		f.DupGeneral(a, v, r)
		return v
	}
	constant := func(low, high uint64) reg.VecVirtual {
		v := arm64.Vector()
		f.Load(v, g.file.Constant(low, high))
		return v
	}
	same := func(v uint64) reg.VecVirtual { return constant(v<<32|v, v<<32|v) }
	m0, m1, w0, w1 := same(0xD2511F53), same(0xCD9E8D57), same(0x9E3779B9), same(0xBB67AE85)
	seed := f.Param("seed")
	key0 := splat(seed, arm64.S4)
	f.ShiftRight(seed, seed, 32)
	key1 := splat(seed, arm64.S4)
	from, counters := f.Param("counters"), []reg.VecVirtual{arm64.Vector(), arm64.Vector()}
	f.LoadPair(counters[0], counters[1], from, 0)
	step := splat(f.Param("step"), arm64.D2)

	type group struct{ w [4]reg.VecVirtual }
	draw := func(n int) {
		all := make([]group, n)
		for j := range all {
			for i := range 2 {
				all[j].w[i] = arm64.Vector()
			}
			f.Three("uzp1", arm64.S4, all[j].w[0], counters[0], counters[1])
			f.Three("uzp2", arm64.S4, all[j].w[1], counters[0], counters[1])
			for _, c := range counters {
				f.Three("add", arm64.D2, c, c, step)
			}
		}
		k0, k1 := key0, key1
		for round := range rounds {
			if round > 0 {
				next0, next1 := arm64.Vector(), arm64.Vector()
				f.Three("add", arm64.S4, next0, k0, w0)
				f.Three("add", arm64.S4, next1, k1, w1)
				k0, k1 = next0, next1
			}
			product := func(x, by reg.VecVirtual) (low, high reg.VecVirtual) {
				a, b := arm64.Vector(), arm64.Vector()
				f.Change("umull", arm64.D2, a, x, by)
				f.Change("umull2", arm64.D2, b, x, by)
				low, high = arm64.Vector(), arm64.Vector()
				f.Three("uzp1", arm64.S4, low, a, b)
				f.Three("uzp2", arm64.S4, high, a, b)
				return low, high
			}
			for j := range all {
				s := all[j].w
				low0, high0 := product(s[0], m0)
				first, second := arm64.Vector(), k0
				if round > 0 { // before it, words 2 and 3 are 0
					low1, high1 := product(s[2], m1)
					f.Three("eor", arm64.B16, high1, high1, k0)
					f.Three("eor", arm64.B16, high0, high0, s[3])
					second = high1
					all[j].w[1] = low1
				} else {
					all[j].w[1] = arm64.Vector()
					f.Zero(all[j].w[1])
				}
				f.Three("eor", arm64.B16, first, s[1], second)
				f.Three("eor", arm64.B16, high0, high0, k1)
				all[j].w[0], all[j].w[2], all[j].w[3] = first, high0, low0
			}
		}
		for _, s := range all {
			blocks := f.Transposed(s.w[:])
			f.StorePair(dst, 0, blocks[0], blocks[1])
			f.StorePair(dst, 32, blocks[2], blocks[3])
			f.AddConstant(dst, dst, 64)
		}
	}
	const unroll = 2
	f.CompareConstant(groups, unroll)
	f.JumpIf("LT", "rest")
	f.Label("loop")
	draw(unroll)
	f.SubConstant(groups, groups, unroll)
	f.CompareConstant(groups, unroll)
	f.JumpIf("GE", "loop")
	f.Label("rest")
	f.JumpIfZero(groups, "done")
	draw(1)
	f.Label("done")
	f.Return()
}

// neonKeep emits dropout: the elements of a word at a time, then a vector at a time, the last in part. Bits move to where those of
// the word's first elements are.
func (g *generator) neonKeep(w *width) {
	name := "keep" + w.suffix
	f := g.begin(name, strings.ReplaceAll("func(dst, x []T, kept []uint32, scale T)", "T", w.goType),
		name+" sets dst[i] = x[i]·scale where bit graph.DropoutBit(i) of kept[i/32] is 1, else 0.")
	base, n := g.neonSlices([]string{"dst", "x"})
	kept, scale := f.Param("kept.base"), f.ParamSplat(w.arrangement, "scale")
	first := make([]reg.VecVirtual, 8/w.lanes) // the bits of the first eight elements
	for i := range first {
		var halves [2]uint64
		for lane := range w.lanes {
			at := lane * w.size
			halves[at/8] |= 1 << (dropoutBit(i*w.lanes+lane) + at%8*8)
		}
		first[i] = arm64.Vector()
		f.Load(first[i], g.file.Constant(halves[0], halves[1]))
	}
	word := arm64.Vector()
	read := func() {
		bits := arm64.General()
		f.LoadWord(bits, Mem{Base: kept})
		f.DupGeneral(w.arrangement, word, bits)
	}
	test := func(i int) reg.VecVirtual {
		m := arm64.Vector()
		f.Three("cmtst", w.arrangement, m, word, first[i%len(first)])
		if i%len(first) == len(first)-1 {
			f.Shift("ushr", w.arrangement, 2, word, word)
		}
		return m
	}
	compute := func(m reg.VecVirtual) {
		v := arm64.Vector()
		f.Load(v, Mem{Base: base["x"]})
		w.mul(v, scale, v)
		w.and(v, m, v)
		f.Store(Mem{Base: base["dst"]}, v)
		f.AddConstant(base["dst"], base["dst"], arm64.VectorBytes)
		f.AddConstant(base["x"], base["x"], arm64.VectorBytes)
	}
	f.CompareConstant(n, 32)
	f.JumpIf("LT", "rest")
	f.Label("loop")
	read()
	for i := range 32 / w.lanes {
		compute(test(i))
	}
	f.AddConstant(kept, kept, 4)
	f.SubConstant(n, n, 32)
	f.CompareConstant(n, 32)
	f.JumpIf("GE", "loop")
	f.Label("rest")
	f.JumpIfZero(n, "done")
	read()
	m := arm64.Vector()
	for i := range 32 / w.lanes {
		f.Move(m, test(i))
		f.CompareConstant(n, w.lanes)
		f.JumpIf("LT", "part")
		compute(m)
		f.SubConstant(n, n, w.lanes)
	}
	f.Label("part")
	f.JumpIfZero(n, "done")
	v := arm64.Vector()
	g.loadPart(w, base["x"], n, v)
	w.mul(v, scale, v)
	w.and(v, m, v)
	g.storePart(w, base["dst"], n, v)
	f.Label("done")
	f.Return()
}
