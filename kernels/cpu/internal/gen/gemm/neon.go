package main

import (
	"fmt"
	"strings"

	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"fusec/kernels/cpu/internal/gen/arm64"
)

// neonFile is the assembly for Arm: the same functions as for amd64, but that products by an element of a register take the
// place of broadcasts.
func neonFile() *arm64.File {
	file := arm64.NewFile()
	for _, e := range []neonElement{
		{float32s, arm64.S4}, {float64s, arm64.D2},
	} {
		for _, rows := range []int{8, 4} {
			for _, ahead := range []bool{false, true} {
				neonTile{neonElement: e, rows: rows, ahead: ahead}.generate(file)
			}
		}
		for _, vectors := range neonGatherVectors {
			for rows := 2; rows <= neonGatherRows(vectors); rows += 2 {
				neonGather{neonElement: e, rows: rows, vectors: vectors}.generate(file)
			}
		}
		for _, dot := range neonDots {
			for _, vectors := range neonGatherVectors {
				for rows := 2; e.bytes == 4 && rows <= neonGatherRows(vectors); rows += 2 {
					neonGather{neonElement: e, rows: rows, vectors: vectors, dot: dot}.generate(file)
				}
			}
		}
		neonTransposes(file, e)
		neonDot(file, e)
		neonAxpy4(file, e, false)
		neonAxpy4(file, e, true)
	}
	for _, bytes := range []int{16, 32, 48, 64} {
		neonCopyRows(file, bytes)
	}
	neonFewKernels(file)
	return file
}

// A neonElement is a type with its arrangement.
type neonElement struct {
	element
	arrangement arm64.Arrangement
}

func (e neonElement) lanes() int { return arm64.VectorBytes / e.bytes }

// neonVectorsB is the number of registers that a row of a panel of B fills: with eight rows of A there are 24 sums.
const neonVectorsB = 3

// A neonTile is a micro-kernel. With eight rows, of 32 registers 24 are sums, and the others hold two steps of the
// reduction: they are loaded in pairs, five pairs for 48 products.
type neonTile struct {
	neonElement
	rows  int
	ahead bool
	f     *arm64.Func
}

func (k neonTile) name() string {
	name := "tile"
	if k.rows < 8 {
		name += fmt.Sprint(k.rows)
	}
	if k.ahead {
		name += "Ahead"
	}
	return name + "NEON" + k.suffix
}

// neonUnroll is how many steps of the reduction the main loop does.
const neonUnroll = 4

func (k neonTile) generate(file *arm64.File) {
	nr := neonVectorsB * k.lanes()
	name := k.name()
	doc := []string{
		fmt.Sprintf("%s computes a column of tiles, each %d×%d: C = A·B, or C += A·B if accumulate.", name, k.rows, nr),
		fmt.Sprintf("a points to tiles panels of A, each [kc][%d], one after another; b to one panel of B, [kc][%d];", k.rows, nr),
		"c to the first tile, whose rows are ldc elements apart. Neither tiles nor kc may be 0.",
	}
	if k.ahead {
		doc = append(doc, "It asks for the panel that follows b in memory.")
	}
	f := file.Func(name, fmt.Sprintf("func(tiles, kc int, a, b, c *%s, ldc int, accumulate bool)", k.goType), doc...)
	k.f = f
	tiles, kc, a, first, c := f.Param("tiles"), f.Param("kc"), f.Param("a"), f.Param("b"), f.Param("c")
	ldc := neonStride(f, "ldc", k.element)
	accumulate := f.Param("accumulate")
	acc := make([][]reg.VecVirtual, k.rows)
	for r := range acc {
		acc[r] = vectors(neonVectorsB)
	}
	b, left, row := arm64.General(), arm64.General(), arm64.General()
	bRow := neonVectorsB * arm64.VectorBytes
	var next reg.GPVirtual
	if k.ahead {
		next = arm64.General()
		f.Constant(next, bRow)
		f.Mul(next, next, kc)
	}

	f.Label("tile")
	f.Copy(row, c)
	for r := range acc {
		f.Ask(1, Mem{Base: row})
		if r < k.rows-1 {
			f.Add(row, row, ldc)
		}
	}
	for r := range acc {
		for _, v := range acc[r] {
			f.Zero(v)
		}
	}
	f.Copy(b, first)
	f.Copy(left, kc)
	f.SubConstant(left, left, neonUnroll)
	f.CompareConstant(left, 0)
	f.JumpIf("LT", "rest")
	f.Label("unrolled")
	for line := 0; k.ahead && line < neonUnroll*bRow; line += 64 {
		f.Ask(2, Mem{Base: b, Index: next, Scale: 1, Disp: line})
	}
	for i := 0; i < neonUnroll; i += 2 {
		k.steps(acc, a, b, i, 2)
	}
	advance := func(steps int) {
		f.AddConstant(a, a, steps*k.rows*k.bytes)
		f.AddConstant(b, b, steps*bRow)
		f.SubConstant(left, left, steps)
	}
	advance(neonUnroll)
	f.CompareConstant(left, 0)
	f.JumpIf("GE", "unrolled")
	f.Label("rest")
	f.AddConstant(left, left, neonUnroll)
	f.JumpIfZero(left, "finish")
	f.Label("single")
	k.steps(acc, a, b, 0, 1)
	advance(1)
	f.JumpUnlessZero(left, "single")

	f.Label("finish")
	f.JumpIfZero(accumulate, "store")
	f.Copy(row, c)
	for r := range acc {
		old := vectors(neonVectorsB)
		neonLoad(f, old, row, 0)
		for j, v := range acc[r] {
			f.Three("fadd", k.arrangement, v, v, old[j])
		}
		f.Add(row, row, ldc)
	}
	f.Label("store")
	for r := range acc {
		neonStore(f, c, 0, acc[r])
		f.Add(c, c, ldc)
	}
	f.SubConstant(tiles, tiles, 1)
	f.JumpUnlessZero(tiles, "tile")
	f.Return()
}

// steps emits one step of the reduction or two, number at and so on from where a and b point.
func (k neonTile) steps(acc [][]reg.VecVirtual, a, b reg.Register, at, n int) {
	perA := k.rows / k.lanes()
	av, bv := vectors(n*perA), vectors(n*neonVectorsB)
	aAt, bAt := at*perA*arm64.VectorBytes, at*neonVectorsB*arm64.VectorBytes
	loadedA, loadedB := 0, 0
	for i := range n {
		// A pair may belong to the next step, too.
		for loadedA < (i+1)*perA {
			loadedA = neonLoadNext(k.f, av, loadedA, a, aAt)
		}
		for loadedB < (i+1)*neonVectorsB {
			loadedB = neonLoadNext(k.f, bv, loadedB, b, bAt)
		}
		for r := range acc {
			for j, sum := range acc[r] {
				k.f.Element("fmla", k.arrangement, sum, bv[i*neonVectorsB+j], av[i*perA+r/k.lanes()], r%k.lanes())
			}
		}
	}
}

// vectors returns n registers.
func vectors(n int) []reg.VecVirtual {
	v := make([]reg.VecVirtual, n)
	for i := range v {
		v[i] = arm64.Vector()
	}
	return v
}

// neonLoadNext loads a pair of registers that follow one another, or the last one, and returns how many are loaded.
func neonLoadNext(f *arm64.Func, v []reg.VecVirtual, i int, base reg.Register, at int) int {
	at += i * arm64.VectorBytes
	if i+1 < len(v) {
		f.LoadPair(v[i], v[i+1], base, at)
		return i + 2
	}
	f.Load(v[i], Mem{Base: base, Disp: at})
	return i + 1
}

// neonLoad loads registers that follow one another.
func neonLoad(f *arm64.Func, v []reg.VecVirtual, base reg.Register, at int) {
	for i := 0; i < len(v); {
		i = neonLoadNext(f, v, i, base, at)
	}
}

// neonStore stores them.
func neonStore(f *arm64.Func, base reg.Register, at int, v []reg.VecVirtual) {
	i := 0
	for ; i+1 < len(v); i += 2 {
		f.StorePair(base, at+i*arm64.VectorBytes, v[i], v[i+1])
	}
	if i < len(v) {
		f.Store(Mem{Base: base, Disp: at + i*arm64.VectorBytes}, v[i])
	}
}

// neonStride loads a stride in elements and turns it into bytes.
func neonStride(f *arm64.Func, name string, e element) reg.GPVirtual {
	r := f.Param(name)
	f.ShiftLeft(r, r, int(e.shift))
	return r
}

// A neonGather is a kernel for rows of A that lie anywhere: see [gatherKernel]. A register holds some steps of a row.
type neonGather struct {
	neonElement
	rows, vectors int
	dot           string // the instruction that multiplies quads of integers, or else numbers are multiplied
	f             *arm64.Func
}

// neonDots are the instructions for quads of integers: bytes of A, which have no sign, are those of SUDOT; for SDOT 128 is taken
// from each of them, and 128 times the sums of B's columns is added in the end.
var neonDots = []string{"sdot", "sudot"}

// neonGatherVectors are the widths of panels of B, and neonGatherRows how many rows there are with each: sums, a register
// for each row, and some for B fill the register file.
var neonGatherVectors = []int{3, 2, 1}

func neonGatherRows(vectors int) int { return []int{12, 8, 6}[vectors-1] }

func (k neonGather) generate(file *arm64.File) {
	nr := k.vectors * k.lanes()
	name := fmt.Sprintf("gather%dx%dNEON%s", k.rows, nr, k.suffix)
	var more []string
	if k.dot != "" {
		name = fmt.Sprintf("gather%dx%d%sQuads", k.rows, nr, strings.ToUpper(k.dot))
		more = []string{"An element of A is four bytes without a sign, one of B four with a sign; their product is that of four pairs,",
			"whose sums have 32 bits and are rounded at the end. It needs " + map[string]string{"sdot": "FEAT_DotProd.",
				"sudot": "FEAT_I8MM."}[k.dot]}
	}
	f := file.Func(name,
		fmt.Sprintf("func(pieces *int, n int, rows *int, a, b *%[1]s, ahead int, c *%[1]s, ldc, height, cols int, accumulate bool, "+
			"finish *int)", k.goType),
		append([]string{fmt.Sprintf("%s computes the first height rows, at most %d, and cols columns, at most %d,", name, k.rows, nr),
			"of C = A·B, or of C += A·B if accumulate. Row i of A consists of n pieces: piece p has pieces[2p+1]",
			fmt.Sprintf("elements from a[rows[i]+pieces[2p]] on. There are %d rows whatever the height is. b points to a panel", k.rows),
			fmt.Sprintf("of B, [elements of all pieces][%d]; rows of c are ldc elements apart. None of these is 0.", nr),
			fmt.Sprintf("Of each %d bytes of B, %d are asked for that are ahead bytes on.", gatherUnroll*k.vectors*arm64.VectorBytes,
				gatherAhead),
			"If finish is not nil, it is the address of a Finish for the block."}, more...)...)
	k.f = f
	list, a := f.Param("rows"), f.Param("a")
	at := make([]reg.GPVirtual, k.rows)
	for i := range at {
		at[i] = arm64.General()
		f.LoadGeneral(at[i], Mem{Base: list, Disp: 8 * i})
		f.AddShifted(at[i], a, at[i], int(k.shift))
	}
	pieces, n, b, ahead := f.Param("pieces"), f.Param("n"), f.Param("b"), f.Param("ahead")
	acc := make([][]reg.VecVirtual, k.rows)
	for r := range acc {
		acc[r] = vectors(k.vectors)
		for _, v := range acc[r] {
			f.Zero(v)
		}
	}
	var flip, ones reg.VecVirtual // for SDOT: bits of signs, and bytes of 1
	var sums []reg.VecVirtual     // of B's columns
	if k.dot == "sdot" {
		flip, ones, sums = arm64.Vector(), arm64.Vector(), vectors(k.vectors)
		f.Load(flip, file.Constant(0x8080808080808080, 0x8080808080808080))
		f.Load(ones, file.Constant(0x0101010101010101, 0x0101010101010101))
		for _, v := range sums {
			f.Zero(v)
		}
	}
	index, left := arm64.General(), arm64.General()
	place := func(r, step int) Mem {
		return Mem{Base: at[r], Index: index, Scale: uint8(k.bytes), Disp: step * k.bytes}
	}
	bRow := k.vectors * arm64.VectorBytes
	product := func(step, lane int, av []reg.VecVirtual) {
		bv := vectors(k.vectors)
		neonLoad(f, bv, b, step*bRow)
		for r := range acc {
			for j, sum := range acc[r] {
				if k.dot != "" {
					f.Dot(k.dot, sum, bv[j], av[r], lane)
				} else {
					f.Element("fmla", k.arrangement, sum, bv[j], av[r], lane)
				}
			}
		}
		for j, sum := range sums {
			f.Dot(k.dot, sum, bv[j], ones, 0)
		}
	}
	signed := func(v reg.VecVirtual) {
		if k.dot == "sdot" {
			f.Three("eor", arm64.B16, v, v, flip)
		}
	}
	advance := func(steps int) {
		f.AddConstant(index, index, steps)
		f.AddConstant(b, b, steps*bRow)
		f.SubConstant(left, left, steps)
	}

	f.Label("piece")
	f.LoadGeneral(index, Mem{Base: pieces})
	f.LoadGeneral(left, Mem{Base: pieces, Disp: 8})
	f.AddConstant(pieces, pieces, 16)
	f.SubConstant(left, left, gatherUnroll)
	f.CompareConstant(left, 0)
	f.JumpIf("LT", "rest")
	f.Label("unrolled")
	for step := 0; step < gatherUnroll; step += k.lanes() {
		av := vectors(k.rows)
		for r := range av {
			f.Load(av[r], place(r, step))
			signed(av[r])
		}
		for lane := range k.lanes() {
			product(step+lane, lane, av)
		}
	}
	for line := 0; line < gatherAhead; line += 64 {
		f.Ask(2, Mem{Base: b, Index: ahead, Scale: 1, Disp: line})
	}
	advance(gatherUnroll)
	f.CompareConstant(left, 0)
	f.JumpIf("GE", "unrolled")
	f.Label("rest")
	f.AddConstant(left, left, gatherUnroll)
	f.JumpIfZero(left, "next")
	f.Label("single")
	av := vectors(k.rows)
	for r := range av {
		f.LoadPart(k.bytes, av[r], place(r, 0))
		signed(av[r])
	}
	product(0, 0, av)
	advance(1)
	f.JumpUnlessZero(left, "single")
	f.Label("next")
	f.SubConstant(n, n, 1)
	f.JumpUnlessZero(n, "piece")
	for _, v := range sums {
		f.Shift("shl", arm64.S4, 7, v, v)
	}
	for r := range acc {
		for j, v := range acc[r] {
			if sums != nil {
				f.Three("add", arm64.S4, v, v, sums[j])
			}
			if k.dot != "" {
				f.Two("scvtf", arm64.S4, v, v)
			}
		}
	}
	k.finish(acc)
	f.Return()
}

// finish applies a Finish to the sums, and stores them.
func (k neonGather) finish(acc [][]reg.VecVirtual) {
	f := k.f
	c, ldc := f.Param("c"), neonStride(f, "ldc", k.element)
	f.CompareConstant(f.Param("cols"), k.vectors*k.lanes())
	f.JumpIf("NE", "part")
	add := func(sums []reg.VecVirtual, by []reg.VecVirtual) {
		for j, v := range sums {
			f.Three("fadd", k.arrangement, v, v, by[j])
		}
	}
	// eachRow goes over the rows that there are.
	eachRow := func(done string, row, stride reg.Register, body func(sums []reg.VecVirtual)) {
		height := f.Param("height")
		for r := range acc {
			body(acc[r])
			if r < len(acc)-1 {
				f.Add(row, row, stride)
				f.SubConstant(height, height, 1)
				f.JumpIfZero(height, done)
			}
		}
		f.Label(done)
	}
	addRows := func(done string, row, stride reg.Register) {
		eachRow(done, row, stride, func(sums []reg.VecVirtual) {
			old := vectors(k.vectors)
			neonLoad(f, old, row, 0)
			add(sums, old)
		})
	}
	f.JumpIfZero(f.Param("accumulate"), "added")
	row := arm64.General()
	f.Copy(row, c)
	addRows("added", row, ldc)

	finish := f.Param("finish")
	f.JumpIfZero(finish, "store")
	arg := func(i int) reg.GPVirtual {
		r := arm64.General()
		f.LoadGeneral(r, Mem{Base: finish, Disp: 8 * i})
		return r
	}
	shift := arg(finishShift)
	f.JumpIfZero(shift, "shifted")
	by := vectors(k.vectors)
	neonLoad(f, by, shift, 0)
	for r := range acc {
		add(acc[r], by)
	}
	f.Label("shifted")
	residual := arg(finishResidual)
	f.JumpIfZero(residual, "bound")
	stride := arg(finishStride)
	f.ShiftLeft(stride, stride, int(k.shift))
	addRows("bound", residual, stride)
	f.JumpIfZero(k.slope(finish), "gated")
	var with [4]reg.VecVirtual
	for i := range with {
		with[i] = arm64.Vector()
		f.LoadSplat(k.arrangement, with[i], Mem{Base: finish, Disp: 8*finishElements + (finishSlope+i)*k.bytes})
	}
	for r := range acc {
		for _, v := range acc[r] {
			k.gateOf(v, with)
		}
	}
	f.Label("gated")
	for i, name := range []string{"fmax", "fmin"} { // a NaN stays a NaN
		bound := arm64.Vector()
		f.LoadSplat(k.arrangement, bound, Mem{Base: finish, Disp: 8*finishElements + i*k.bytes})
		for r := range acc {
			for _, v := range acc[r] {
				f.Three(name, k.arrangement, v, bound, v)
			}
		}
	}
	f.Label("store")
	eachRow("done", c, ldc, func(sums []reg.VecVirtual) { neonStore(f, c, 0, sums) })
	f.Return()
	k.finishPart(acc)
}

// slope loads the bits of a gate's slope.
func (k neonGather) slope(finish reg.Register) reg.GPVirtual {
	r, m := arm64.General(), Mem{Base: finish, Disp: 8*finishElements + finishSlope*k.bytes}
	if k.bytes == 4 {
		k.f.LoadWord(r, m)
	} else {
		k.f.LoadGeneral(r, m)
	}
	return r
}

// gateOf applies a gate with these elements.
func (k neonGather) gateOf(v reg.VecVirtual, with [4]reg.VecVirtual) {
	t := arm64.Vector()
	k.f.Three("fmul", k.arrangement, t, v, with[0])
	for i, name := range []string{"fadd", "fmax", "fmin"} {
		k.f.Three(name, k.arrangement, t, t, with[1+i])
	}
	k.f.Three("fmul", k.arrangement, v, v, t)
}

// finishPart does the same where columns are missing: the sums go to the stack, and from there one by one.
func (k neonGather) finishPart(acc [][]reg.VecVirtual) {
	f, nr := k.f, k.vectors*k.lanes()
	f.Label("part")
	from := f.Local(k.rows * nr * k.bytes)
	for r := range acc {
		neonStore(f, from, r*nr*k.bytes, acc[r])
	}
	c, ldc, height := f.Param("c"), neonStride(f, "ldc", k.element), f.Param("height")
	cols, accumulate, finish := f.Param("cols"), f.Param("accumulate"), f.Param("finish")
	shift, residual, stride := arm64.General(), arm64.General(), arm64.General()
	low, high, gate := arm64.Vector(), arm64.Vector(), arm64.General()
	var with [4]reg.VecVirtual
	for i := range with {
		with[i] = arm64.Vector()
		f.Zero(with[i])
	}
	for _, r := range []reg.Register{shift, residual, stride, gate} {
		f.Constant(r, 0)
	}
	f.Zero(low)
	f.Zero(high)
	f.JumpIfZero(finish, "partRow")
	f.LoadGeneral(shift, Mem{Base: finish, Disp: 8 * finishShift})
	f.LoadGeneral(residual, Mem{Base: finish, Disp: 8 * finishResidual})
	f.JumpIfZero(residual, "partBounds")
	f.LoadGeneral(stride, Mem{Base: finish, Disp: 8 * finishStride})
	f.ShiftLeft(stride, stride, int(k.shift))
	f.Label("partBounds")
	f.LoadPart(k.bytes, low, Mem{Base: finish, Disp: 8 * finishElements})
	f.LoadPart(k.bytes, high, Mem{Base: finish, Disp: 8*finishElements + k.bytes})
	f.Copy(gate, k.slope(finish))
	for i := range with {
		f.LoadPart(k.bytes, with[i], Mem{Base: finish, Disp: 8*finishElements + (finishSlope+i)*k.bytes})
	}
	f.Label("partRow")
	col := arm64.General()
	f.Constant(col, 0)
	f.Label("partColumn")
	element := func(base reg.Register) Mem { return Mem{Base: base, Index: col, Scale: uint8(k.bytes)} }
	sum := arm64.Vector()
	f.LoadPart(k.bytes, sum, element(from))
	addIf := func(there, base reg.Register, label string) {
		f.JumpIfZero(there, label)
		v := arm64.Vector()
		f.LoadPart(k.bytes, v, element(base))
		f.Three("fadd", k.arrangement, sum, sum, v)
		f.Label(label)
	}
	addIf(accumulate, c, "partAdded")
	addIf(shift, shift, "partShifted")
	addIf(residual, residual, "partResidual")
	f.JumpIfZero(finish, "partStore")
	f.JumpIfZero(gate, "partGated")
	k.gateOf(sum, with)
	f.Label("partGated")
	f.Three("fmax", k.arrangement, sum, low, sum)
	f.Three("fmin", k.arrangement, sum, high, sum)
	f.Label("partStore")
	f.StorePart(k.bytes, element(c), sum)
	f.AddConstant(col, col, 1)
	f.Compare(col, cols)
	f.JumpIf("LT", "partColumn")
	f.AddConstant(from, from, nr*k.bytes)
	f.Add(c, c, ldc)
	f.Add(residual, residual, stride) // where there is none, both are 0
	f.SubConstant(height, height, 1)
	f.JumpUnlessZero(height, "partRow")
}

// neonCopyRows is copyRows.
func neonCopyRows(file *arm64.File, bytes int) {
	name := fmt.Sprintf("copyRows%d", bytes)
	f := file.Func(name, "func(rows, panels int, src *byte, srcStride int, dst *byte, panelStride int)",
		fmt.Sprintf("%s cuts rows of panels·%d bytes, srcStride bytes apart, into pieces of %d bytes;", name, bytes, bytes),
		fmt.Sprintf("piece j of row i goes to dst + j·panelStride + i·%d. Neither rows nor panels may be 0.", bytes))
	rows, panels := f.Param("rows"), f.Param("panels")
	src, srcStride := f.Param("src"), f.Param("srcStride")
	dst, panelStride := f.Param("dst"), f.Param("panelStride")
	from, to, left := arm64.General(), arm64.General(), arm64.General()
	f.Label("row")
	f.Copy(from, src)
	f.Copy(to, dst)
	f.Copy(left, panels)
	f.Label("piece")
	v := vectors(bytes / arm64.VectorBytes)
	neonLoad(f, v, from, 0)
	neonStore(f, to, 0, v)
	f.AddConstant(from, from, bytes)
	f.Add(to, to, panelStride)
	f.SubConstant(left, left, 1)
	f.JumpUnlessZero(left, "piece")
	f.Add(src, src, srcStride)
	f.AddConstant(dst, dst, bytes)
	f.SubConstant(rows, rows, 1)
	f.JumpUnlessZero(rows, "row")
	f.Return()
}

// neonTransposes emits the transpositions of four rows and of two, a vector of each at a time.
func neonTransposes(file *arm64.File, e neonElement) {
	for _, rows := range []int{4, 2} {
		name := fmt.Sprintf("transpose%d%s", rows, e.suffix)
		f := file.Func(name, fmt.Sprintf("func(blocks int, src *%s, srcStride int, dst *%[1]s, dstStride int)", e.goType),
			fmt.Sprintf("%s transposes %d rows of %d·blocks elements, srcStride elements apart,", name, rows, e.lanes()),
			fmt.Sprintf("into %d·blocks rows of %d elements, dstStride elements apart. blocks may not be 0.", e.lanes(), rows))
		blocks, src, srcStride := f.Param("blocks"), f.Param("src"), neonStride(f, "srcStride", e.element)
		dst, dstStride := f.Param("dst"), neonStride(f, "dstStride", e.element)
		row := arm64.General()
		f.Label("block")
		f.Copy(row, src)
		in := vectors(rows)
		for i := range in {
			f.Load(in[i], Mem{Base: row})
			if i < rows-1 {
				f.Add(row, row, srcStride)
			}
		}
		f.AddConstant(src, src, arm64.VectorBytes)
		step := func(name string, n, m reg.VecVirtual) reg.VecVirtual {
			d := arm64.Vector()
			f.Three(name, e.arrangement, d, n, m)
			return d
		}
		switch {
		case rows == 4 && e.bytes == 4:
			for _, v := range f.Transposed(in) {
				f.Store(Mem{Base: dst}, v)
				f.Add(dst, dst, dstStride)
			}
		case rows == 4:
			for _, name := range []string{"trn1", "trn2"} {
				f.StorePair(dst, 0, step(name, in[0], in[1]), step(name, in[2], in[3]))
				f.Add(dst, dst, dstStride)
			}
		case e.bytes == 4:
			for _, name := range []string{"zip1", "zip2"} {
				v := step(name, in[0], in[1])
				f.StorePart(8, Mem{Base: dst}, v)
				f.Add(dst, dst, dstStride)
				f.StoreUpper(dst, v)
				f.Add(dst, dst, dstStride)
			}
		default:
			for _, name := range []string{"trn1", "trn2"} {
				f.Store(Mem{Base: dst}, step(name, in[0], in[1]))
				f.Add(dst, dst, dstStride)
			}
		}
		f.SubConstant(blocks, blocks, 1)
		f.JumpUnlessZero(blocks, "block")
		f.Return()
	}
}

// neonChunks emits loops over n elements, some vectors at a time and then one, and then one element at a time.
func neonChunks(f *arm64.Func, e neonElement, n reg.Register, vectors int, body func(vectors int), between, element func()) {
	for _, c := range []int{vectors, 1} {
		loop, next := fmt.Sprintf("vectors%d", c), fmt.Sprintf("fewer%d", c)
		f.CompareConstant(n, c*e.lanes())
		f.JumpIf("LT", next)
		f.Label(loop)
		body(c)
		f.SubConstant(n, n, c*e.lanes())
		f.CompareConstant(n, c*e.lanes())
		f.JumpIf("GE", loop)
		f.Label(next)
	}
	between()
	f.JumpIfZero(n, "done")
	f.Label("element")
	element()
	f.SubConstant(n, n, 1)
	f.JumpUnlessZero(n, "element")
	f.Label("done")
}

// neonDot is dot.
func neonDot(file *arm64.File, e neonElement) {
	name := "dot" + e.suffix
	f := file.Func(name, fmt.Sprintf("func(n int, x, y *%s) %[1]s", e.goType), name+" returns the dot product of n elements.")
	n, x, y := f.Param("n"), f.Param("x"), f.Param("y")
	acc := vectors(dotChains)
	for _, v := range acc {
		f.Zero(v)
	}
	advance := func(bytes int) {
		f.AddConstant(x, x, bytes)
		f.AddConstant(y, y, bytes)
	}
	neonChunks(f, e, n, dotChains, func(chains int) {
		xs, ys := vectors(chains), vectors(chains)
		neonLoad(f, xs, x, 0)
		neonLoad(f, ys, y, 0)
		for i := range chains {
			f.Three("fmla", e.arrangement, acc[i], xs[i], ys[i])
		}
		advance(chains * arm64.VectorBytes)
	}, func() {
		f.Three("fadd", e.arrangement, acc[0], acc[0], acc[1])
		f.Three("fadd", e.arrangement, acc[2], acc[2], acc[3])
		f.Three("fadd", e.arrangement, acc[0], acc[0], acc[2])
		for lanes := e.lanes(); lanes > 1; lanes /= 2 {
			f.Three("faddp", e.arrangement, acc[0], acc[0], acc[0])
		}
	}, func() {
		p, q := arm64.Vector(), arm64.Vector()
		f.LoadPart(e.bytes, p, Mem{Base: x})
		f.LoadPart(e.bytes, q, Mem{Base: y})
		f.Three("fmla", e.arrangement, acc[0], p, q)
		advance(e.bytes)
	})
	f.SetResult(acc[0])
	f.Return()
}

// neonAxpy4 is axpy4.
func neonAxpy4(file *arm64.File, e neonElement, ahead bool) {
	name, doc := "axpy4"+e.suffix, "row xᵢ starts i·stride elements after x."
	if ahead {
		name, doc = "axpy4Ahead"+e.suffix, "row xᵢ starts i·stride elements after x. It asks for x₄ to x₇."
	}
	f := file.Func(name, fmt.Sprintf("func(n int, alpha, x *%s, stride int, y *%[1]s)", e.goType),
		fmt.Sprintf("%s adds alpha[0]·x₀ + … + alpha[%d]·x₃ to y, n elements each;", name, axpyRows-1), doc)
	n, alpha := f.Param("n"), f.Param("alpha")
	rows := []reg.GPVirtual{f.Param("x")}
	stride, y := neonStride(f, "stride", e.element), f.Param("y")
	for i := 1; i < axpyRows; i++ {
		rows = append(rows, arm64.General())
		f.Add(rows[i], rows[i-1], stride)
	}
	next := arm64.General() // from each row to the one that is asked for
	if ahead {
		f.ShiftLeft(next, stride, 2)
	}
	scale := vectors(axpyRows / e.lanes())
	neonLoad(f, scale, alpha, 0)
	advance := func(bytes int) {
		for _, r := range append(rows, y) {
			f.AddConstant(r, r, bytes)
		}
	}
	addRow := func(acc, x []reg.VecVirtual, i int) {
		for v := range acc {
			f.Element("fmla", e.arrangement, acc[v], x[v], scale[i/e.lanes()], i%e.lanes())
		}
	}
	neonChunks(f, e, n, 4, func(n int) {
		acc := vectors(n)
		neonLoad(f, acc, y, 0)
		for i, r := range rows {
			if ahead {
				f.Ask(2, Mem{Base: r, Index: next, Scale: 1})
			}
			x := vectors(n)
			neonLoad(f, x, r, 0)
			addRow(acc, x, i)
		}
		neonStore(f, y, 0, acc)
		advance(n * arm64.VectorBytes)
	}, func() {}, func() {
		acc := vectors(1)
		f.LoadPart(e.bytes, acc[0], Mem{Base: y})
		for i, r := range rows {
			x := vectors(1)
			f.LoadPart(e.bytes, x[0], Mem{Base: r})
			addRow(acc, x, i)
		}
		f.StorePart(e.bytes, Mem{Base: y}, acc[0])
		advance(e.bytes)
	})
	f.Return()
}
