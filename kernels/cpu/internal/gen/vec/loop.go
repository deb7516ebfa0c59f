package main

import (
	"fmt"
	"strings"

	"github.com/mmcloughlin/avo/attr"
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// mapKernel describes dst[i] = body(srcs[0][i], srcs[1][i], …, scalars…).
type mapKernel struct {
	name    string // without the width's suffix
	doc     string // what follows the name in the Go doc comment
	srcs    []string
	scalars []string
	unroll  int       // vectors in one iteration of the main loop
	hoist   []float64 // constants kept in registers
	wide    bool      // there is one for ZMM registers, too
	body    func(e *emitter, in []vec, s []splat) vec

	// unfit, if set, returns a mask of the lanes that body cannot compute. The
	// kernel then stops before the first iteration that has one and returns how
	// many elements it has done.
	unfit func(e *emitter, in []vec) vec
}

// emit writes the kernel for elements of width w.
func (k mapKernel) emit(g *generator, w *width) {
	name := k.name + w.suffix
	slices := append([]string{"dst"}, k.srcs...)
	signature := fmt.Sprintf("func(%s []%s", strings.Join(slices, ", "), w.goType)
	if len(k.scalars) > 0 {
		signature += fmt.Sprintf(", %s %s", strings.Join(k.scalars, ", "), w.goType)
	}
	signature += ")"
	if k.unfit != nil {
		signature += " (done int)"
	}
	if w.neon {
		k.neon(g, w, name, signature, slices)
		return
	}
	TEXT(name, attr.NOSPLIT, signature)
	Pragma("noescape")
	Doc(name + " " + k.doc)

	base := map[string]reg.Register{}
	n := GP64()
	for i, s := range slices {
		base[s] = Load(Param(s).Base(), GP64())
		shortest(i == 0, s, n)
	}
	e := &emitter{generator: g, w: w, hoisted: map[uint64]reg.VecVirtual{}}
	e.hoist(k.hoist)
	scalars := loadScalars(w, k.scalars)

	i := GP64()
	XORQ(i, i)
	step := k.unroll * w.lanes
	compute := func(mask vec) {
		e.again = func(source int) vec {
			v := e.new()
			for u := range v {
				e.loadAt(base[k.srcs[source]], i, u, mask, v[u])
			}
			return v
		}
		in := make([]vec, len(k.srcs))
		for j := range in {
			in[j] = e.again(j)
		}
		if k.unfit != nil {
			stopIf(e, k.unfit(e, in), mask)
		}
		out := k.body(e, in, scalars)
		for u := range out {
			e.storeAt(out[u], mask, base["dst"], i, u)
		}
	}
	SUBQ(U32(step), n)
	JLT(LabelRef("tail"))
	Label("loop")
	e.u = k.unroll
	compute(nil)
	ADDQ(U32(step*w.size), i)
	SUBQ(U32(step), n)
	JGE(LabelRef("loop"))
	Label("tail")
	ADDQ(U32(step), n)
	JE(LabelRef("done"))
	Label("masked")
	e.u = 1
	compute(vec{e.tailMask(n)})
	ADDQ(U32(w.bytes()), i)
	SUBQ(U32(w.lanes), n)
	JG(LabelRef("masked"))
	if k.unfit != nil {
		// The last masked step counted past the end.
		LEAQ(Mem{Base: i, Index: n, Scale: uint8(w.size)}, i)
	}
	Label("done")
	if k.unfit != nil {
		SHRQ(Imm(w.shift), i)
		Store(i, ReturnIndex(0))
	}
	VZEROUPPER()
	RET()
}

// shortest keeps in n the least of the lengths seen so far.
func shortest(first bool, slice string, n reg.GPVirtual) {
	if first {
		Load(Param(slice).Len(), n)
		return
	}
	length := Load(Param(slice).Len(), GP64())
	CMPQ(length, n)
	CMOVQLT(length, n)
}

// loadScalars broadcasts the named arguments into registers.
func loadScalars(w *width, names []string) []splat {
	scalars := make([]splat, len(names))
	for j, s := range names {
		addr, err := Param(s).Resolve()
		if err != nil {
			panic(err)
		}
		r := YMM()
		w.broadcast(addr.Addr, r)
		scalars[j] = splat{r}
	}
	return scalars
}

// tailMask returns a mask of the first min(n, lanes) lanes, for n > 0. With ZMM
// registers it sets e.opmask instead.
func (e *emitter) tailMask(n reg.Register) reg.VecVirtual {
	if e.w.bytes() == 64 {
		e.opmask = K()
		bits := GP64()
		MOVQ(I32(-1), bits)
		BZHIQ(n, bits, bits)
		KMOVW(bits.As32(), e.opmask)
		return nil
	}
	table, offset, zero := GP64(), GP64(), GP64()
	LEAQ(e.tailMasks(), table)
	MOVQ(U32(e.w.lanes), offset)
	XORQ(zero, zero)
	SUBQ(n, offset)
	CMOVQLT(zero, offset)
	mask := YMM()
	VMOVUPS(Mem{Base: table, Index: offset, Scale: uint8(e.w.size)}, mask)
	return mask
}

// loadAt loads the u-th vector at byte offset i; lanes outside mask become 0.
func (e *emitter) loadAt(base, i reg.Register, u int, mask vec, dst reg.VecVirtual) {
	m := Mem{Base: base, Index: i, Scale: 1, Disp: e.w.bytes() * u}
	switch {
	case mask == nil:
		e.w.load(m, dst)
	case e.opmask != nil:
		VMOVUPS_Z(m, e.opmask, dst)
	default:
		e.w.maskMove(m, mask[0], dst)
	}
}

// storeAt stores the u-th vector at byte offset i, only the lanes in mask.
func (e *emitter) storeAt(src reg.VecVirtual, mask vec, base, i reg.Register, u int) {
	m := Mem{Base: base, Index: i, Scale: 1, Disp: e.w.bytes() * u}
	switch {
	case mask == nil:
		e.w.load(src, m)
	case e.opmask != nil:
		VMOVUPS(src, e.opmask, m)
	default:
		e.w.maskMove(src, mask[0], m)
	}
}

// stopIf leaves the loop if any lane of unfit that counts is set.
func stopIf(e *emitter, unfit, mask vec) {
	any := unfit[0]
	for _, v := range unfit[1:] {
		e.w.or(v, any, any)
	}
	if mask != nil {
		e.w.and(mask[0], any, any)
	}
	r := GP32()
	e.w.moveMask(any, r)
	TESTL(r, r)
	JNE(LabelRef("done"))
}
