package main

import (
	"fmt"
	"strings"

	"github.com/mmcloughlin/avo/attr"
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// drawFamily emits the generator of random words and what dropout does with them.
func drawFamily(g *generator) {
	if g.file != nil {
		neonDraw(g)
		return
	}
	for _, rounds := range philoxRounds {
		philoxAVX2.emit(g, rounds)
		philoxAVX512.emit(g, rounds)
	}
	for _, w := range g.widths {
		keep(w)
	}
}

// philox describes the generator in one instruction set. A vector has a 64-bit lane for each of some blocks. A block's
// state is in two vectors: a holds words 0 (low) and 1 (high) of it, b holds words 2 and 3, so that one VPMULUDQ
// multiplies what a round multiplies.
type philox struct {
	name     string
	register func() reg.VecVirtual
	bytes    int
	order    []uint64 // the block of each lane, such that unpacking a and b puts the blocks side by side
	unroll   int      // groups, of one block a lane, in one iteration of the main loop

	move    func(from, to Op)
	permute func(from Mem, order, to reg.VecVirtual) // to[i] = from[order[i]]
	xor     func(x, y, sum Op)
	xorTwo  func(x, y, sum reg.VecVirtual) // sum ^= x ^ y
}

var philoxAVX2 = philox{
	name: "AVX2", register: YMM, bytes: 32, order: []uint64{0, 2, 1, 3}, unroll: 4, move: VMOVDQU, xor: VPXOR,
	permute: func(from Mem, _, to reg.VecVirtual) { VPERMQ(Imm(0xd8), from, to) },
	xorTwo: func(x, y, sum reg.VecVirtual) {
		VPXOR(x, sum, sum)
		VPXOR(y, sum, sum)
	},
}

var philoxAVX512 = philox{
	name: "AVX512", register: ZMM, bytes: 64, order: []uint64{0, 4, 1, 5, 2, 6, 3, 7}, unroll: 4,
	move:    func(from, to Op) { VMOVDQU64(from, to) },
	permute: func(from Mem, order, to reg.VecVirtual) { VPERMQ(from, order, to) },
	xor:     func(x, y, sum Op) { VPXORQ(x, y, sum) },
	xorTwo:  func(x, y, sum reg.VecVirtual) { VPTERNLOGQ(Imm(0x96), x, y, sum) },
}

// A philoxState is the state of one group of blocks.
type philoxState struct{ a, b reg.VecVirtual }

// philoxRounds are the rounds of graph.Philox and graph.Philox7.
var philoxRounds = []int{10, 7}

// philoxDoc is the documentation of a generator's kernel for groups of so many blocks.
func philoxDoc(name string, rounds, blocks int) []string {
	definition := "graph.Philox"
	if rounds != 10 {
		definition += fmt.Sprint(rounds)
	}
	return []string{fmt.Sprintf("%s sets dst to the words of groups of %d blocks of %s, %d words each. The first group has the", name,
		blocks, definition, 4*blocks), "blocks of the counters, and step is added to them from group to group."}
}

const philoxSignature = "func(dst *uint32, groups int, seed uint64, counters *[8]uint64, step uint64)"

func (k philox) emit(g *generator, rounds int) {
	name := fmt.Sprintf("philox%d%s", rounds, k.name)
	TEXT(name, attr.NOSPLIT, philoxSignature)
	Pragma("noescape")
	Doc(philoxDoc(name, rounds, len(k.order))...)
	dst := Load(Param("dst"), GP64())
	groups := Load(Param("groups"), GP64())
	seed := Load(Param("seed"), GP64())
	counter, order := k.register(), k.register()
	k.move(k.table(g, "order", func(i int) uint64 { return k.order[i] }), order)
	k.permute(Mem{Base: Load(Param("counters"), GP64())}, order, counter)
	step := k.splat(Load(Param("step"), GP64()))
	constant := func(name string, v uint64) Mem { return k.table(g, name, func(int) uint64 { return v }) }
	m0, m1 := constant("m0", 0xD2511F53), constant("m1", 0xCD9E8D57) // with 16 registers there is no room for them
	w0, w1 := constant("w0", 0x9E3779B9), constant("w1", 0xBB67AE85)
	low := GP64()
	MOVL(seed.(reg.GP).As32(), low.As32())
	key0 := k.splat(low)
	SHRQ(Imm(32), seed)
	key1 := k.splat(seed)

	draw := func(n int) {
		states := make([]philoxState, n)
		for j := range states {
			s := philoxState{k.register(), k.register()}
			k.move(counter, s.a)
			VPADDQ(step, counter, counter)
			states[j] = s
		}
		k0, k1 := k.register(), k.register()
		k.move(key0, k0)
		k.move(key1, k1)
		for round := range rounds {
			if round > 0 {
				VPADDD(w0, k0, k0)
				VPADDD(w1, k1, k1)
			}
			for j := range states {
				k.round(round, &states[j], m0, m1, k0, k1)
			}
		}
		for j, s := range states {
			first, second := k.register(), k.register()
			VPUNPCKLQDQ(s.b, s.a, first)
			VPUNPCKHQDQ(s.b, s.a, second)
			k.move(first, Mem{Base: dst, Disp: 2 * j * k.bytes})
			k.move(second, Mem{Base: dst, Disp: (2*j + 1) * k.bytes})
		}
		ADDQ(U32(2*n*k.bytes), dst)
	}
	SUBQ(Imm(uint64(k.unroll)), groups)
	JLT(LabelRef("rest"))
	Label("loop")
	draw(k.unroll)
	SUBQ(Imm(uint64(k.unroll)), groups)
	JGE(LabelRef("loop"))
	Label("rest")
	ADDQ(Imm(uint64(k.unroll)), groups)
	JE(LabelRef("done"))
	Label("group")
	draw(1)
	DECQ(groups)
	JNE(LabelRef("group"))
	Label("done")
	VZEROUPPER()
	RET()
}

// round is one round of a group: (w0, w1, w2, w3) becomes (high(m1·w2) ^ w1 ^ k0, low(m1·w2), high(m0·w0) ^ w3 ^ k1,
// low(m0·w0)). Before the first one b is 0 and not set; after it the high half of a is 0.
func (k philox) round(number int, s *philoxState, m0, m1 Mem, k0, k1 reg.VecVirtual) {
	product := func(m Mem, x reg.VecVirtual) reg.VecVirtual { // halves exchanged
		p := k.register()
		VPMULUDQ(m, x, p)
		VPSHUFD(Imm(0xb1), p, p)
		return p
	}
	p0 := product(m0, s.a)
	switch number {
	case 0:
		VPSRLQ(Imm(32), s.a, s.a)
		k.xor(k0, s.a, s.a)
		k.xor(k1, p0, p0)
		s.b = p0
		return
	case 1:
		p1 := product(m1, s.b)
		k.xor(k0, p1, p1)
		s.a = p1
	default:
		p1 := product(m1, s.b)
		VPSRLQ(Imm(32), s.a, s.a)
		k.xorTwo(k0, p1, s.a)
	}
	VPSRLQ(Imm(32), s.b, s.b)
	k.xorTwo(k1, p0, s.b)
}

// table is read-only data with a 64-bit number for each lane.
func (k philox) table(g *generator, name string, at func(i int) uint64) Mem {
	name = "philox" + k.name + "_" + name
	m, ok := g.pool[name]
	if !ok {
		m = GLOBL(name, attr.RODATA|attr.NOPTR)
		for i := range k.order {
			DATA(8*i, U64(at(i)))
		}
		g.pool[name] = m
	}
	return m
}

// splat is a 64-bit number in all lanes.
func (k philox) splat(r reg.Register) reg.VecVirtual {
	x, v := XMM(), k.register()
	VMOVQ(r, x)
	VPBROADCASTQ(x, v)
	return v
}

// dropoutBit is graph.DropoutBit.
func dropoutBit(i int) int { return i/2%4*8 + i/8%4*2 + i%2 }

// keep emits dropout: the elements of a word at a time, then a vector at a time, the last in part.
func keep(w *width) {
	name := "keep" + w.suffix
	TEXT(name, attr.NOSPLIT, strings.ReplaceAll("func(dst, x []T, kept []uint32, scale T)", "T", w.goType))
	Pragma("noescape")
	Doc(name + " sets dst[i] = x[i]·scale where bit graph.DropoutBit(i) of kept[i/32] is 1, else 0.")
	n := GP64()
	dst, x, kept := Load(Param("dst").Base(), GP64()), Load(Param("x").Base(), GP64()), Load(Param("kept").Base(), GP64())
	for i, s := range []string{"dst", "x"} {
		shortest(i == 0, s, n)
	}
	scale := loadScalars(w, []string{"scale"})[0]
	number := func(v int) Constant {
		if w.size == 8 {
			return U64(v)
		}
		return U32(v)
	}
	masks := GLOBL(name+"_masks", attr.RODATA|attr.NOPTR)
	for i := range 32 {
		DATA(i*w.size, number(1<<dropoutBit(i)))
	}
	lanes := GLOBL(name+"_lanes", attr.RODATA|attr.NOPTR)
	for i := range w.lanes {
		DATA(i*w.size, number(i))
	}
	and, equal, greater, load, store := VPAND, VPCMPEQD, VPCMPGTD, VMASKMOVPS, VMASKMOVPS
	if w.size == 8 {
		equal, greater, load, store = VPCMPEQQ, VPCMPGTQ, VMASKMOVPD, VMASKMOVPD
	}
	word, m, y := YMM(), YMM(), YMM()
	test := func(mask Mem) {
		and(mask, word, m)
		equal(mask, m, m)
	}
	next := func(bytes int) {
		ADDQ(U32(bytes), x)
		ADDQ(U32(bytes), dst)
	}
	SUBQ(U32(32), n)
	JLT(LabelRef("rest"))
	Label("loop")
	VPBROADCASTD(Mem{Base: kept}, word)
	for at := 0; at < 32*w.size; at += 32 {
		m, y = YMM(), YMM()
		test(masks.Offset(at))
		w.mul(Mem{Base: x, Disp: at}, scale.op, y)
		w.and(m, y, y)
		w.load(y, Mem{Base: dst, Disp: at})
	}
	ADDQ(Imm(4), kept)
	next(32 * w.size)
	SUBQ(U32(32), n)
	JGE(LabelRef("loop"))
	Label("rest")
	ADDQ(U32(32), n)
	JE(LabelRef("done"))
	VPBROADCASTD(Mem{Base: kept}, word)
	mask := GP64()
	LEAQ(masks, mask)
	SUBQ(U32(w.lanes), n)
	JLT(LabelRef("part"))
	Label("vector")
	test(Mem{Base: mask})
	w.mul(Mem{Base: x}, scale.op, y)
	w.and(m, y, y)
	w.load(y, Mem{Base: dst})
	ADDQ(Imm(32), mask)
	next(32)
	SUBQ(U32(w.lanes), n)
	JGE(LabelRef("vector"))
	Label("part")
	ADDQ(U32(w.lanes), n)
	JE(LabelRef("done"))
	there := YMM()
	VMOVQ(n, there.AsX())
	if w.size == 8 {
		VPBROADCASTQ(there.AsX(), there)
	} else {
		VPBROADCASTD(there.AsX(), there)
	}
	greater(lanes, there, there)
	test(Mem{Base: mask})
	load(Mem{Base: x}, there, y)
	w.mul(scale.op, y, y)
	w.and(m, y, y)
	store(y, there, Mem{Base: dst})
	Label("done")
	VZEROUPPER()
	RET()
}
