package cuda

import (
	"fmt"
	"math/bits"

	"fusec/graph"
)

// Products of few rows, as in decoding, take as long as their weights take to read: gemm_few reads them once, from memory to
// registers.

// A fewTile is how gemm_few cuts a product; see src/gemm_few.cuh.
type fewTile struct {
	rn, wn, wk, u, s, phase, ahead int
	blocks                         int // on a multiprocessor at once, at least
}

const (
	// fewRows is how many rows a product has at most. More rows are left to the other kernels: at 16 rows this one already takes
	// longer than wgmma takes for 256 (docs/cuda.md).
	fewRows = 16
	// fewBlockRows is how many a block of gemm_few has at most.
	fewBlockRows = 64
	// leastFew is how many elements the weights have at least.
	leastFew = 1 << 17
	// fewStaged bounds the bytes of A that a block has in shared memory.
	fewStaged = 48 << 10
)

// fewForm is how weights lie: a chunk of n columns and k steps of a warp, with what the template calls it.
type fewForm struct {
	name string
	n, k int
}

// few plans a product of few rows; nil if it is not one for gemm_few.
func (m *matmul) few() (*fewForm, fewTile, bool) {
	switch {
	case m.panels != nil:
		f := m.panels.form()
		return f, m.fewTile(f), min(m.m, m.n, m.batch) > 0
	case m.cfg.Chip.Arch < 80 || !m.a.dtype.Is16() || m.a.dtype != m.b.dtype,
		m.m > fewRows || m.m == 0 || m.batch == 0 || m.n*m.k < leastFew,
		m.a.patches != nil || m.b.patches != nil || m.a.taps != nil || m.b.taps != nil || m.convolves,
		m.a.listed != noAxis || m.b.listed != noAxis || m.a.made != "" || m.b.made != "",
		m.rows > 0 || m.body == nil || m.body.SumsColumns(), m.way(m.math()) != "":
		return nil, fewTile{}, false
	}
	inner, vec := m.pieces(m.b, m.n)
	if vec*m.b.dtype.Size() < 16 {
		return nil, fewTile{}, false
	}
	f := &fewForm{"AlongN<Problem>", 64, 16}
	if inner {
		f = &fewForm{"AlongK<Problem>", 16, 32}
	}
	return f, m.fewTile(f), true
}

// fewTile chooses the division of the work: blocks enough for all multiprocessors.
func (m *matmul) fewTile(f *fewForm) fewTile {
	rows := m.fewBlock()
	t := fewTile{rn: 1, wn: 1, wk: 16, u: 4, s: 1, blocks: 2}
	mt := ceilDiv(rows, 8)
	const most = 8 // blocks of a cluster
	switch {
	case mt == 1 && m.panels != nil:
		switch t.wk = 8; m.panels.dtype { // as was fastest on an H200
		case graph.I4:
			if t.wk, t.u, t.blocks = 4, 2, 4; m.cfg.hopper() {
				t.ahead = 4
			}
		case graph.BF16, graph.F16:
			t.u = 2
		case graph.F8E4M3, graph.F8E5M2:
			t.u, t.blocks = 1, 4
		}
	case mt == 1 && f.n == 64:
		t.wn, t.wk = 2, 4
	case mt > 1: // what the warps of a block share of A is read once
		t.wn, t.wk, t.u = 128/f.n, 2, 2
		if t.wn > 4 {
			t.rn, t.wn = 2, 4
		}
		if f.n == 64 {
			t.wk, t.u = 4, 1
		}
		if mt > 2 {
			t.wk, t.blocks = 2, 1
		}
	}
	if m.cfg.hopper() {
		t.s = m.fewClusters(m.batch*ceilDiv(m.m, rows)*ceilDiv(m.n, f.n*t.rn*t.wn), t.blocks, min(most, ceilDiv(m.k, f.k*t.wk)/t.u))
		if mt > 1 { // and a block has little of A
			t.s = max(t.s, 1<<bits.Len(uint(min(most, max(m.k/1024, 1))))>>1)
		}
	}
	each := ceilDiv(ceilDiv(m.k, f.k*t.wk), t.s)
	step := rows * t.wk * f.k * 2
	t.phase = roundUp(min(each, max(fewStaged/step, 1)), t.u)
	return t
}

// fewBlock is how many rows a block has.
func (m *matmul) fewBlock() int { return ceilDiv(m.m, ceilDiv(m.m, fewBlockRows)) }

// fewClusters is how many blocks, at most the given number, share the columns of each of some tiles, where so many run on a
// multiprocessor at once: as few as give seven in ten multiprocessors all that.
func (m *matmul) fewClusters(tiles, at, most int) int {
	s := 1
	for 2*s <= most && 10*tiles*s < 7*at*m.cfg.Chip.SMs {
		s *= 2
	}
	return s
}

// early reports whether the weights are there before the launches of a run, so that reading them need not wait for those.
func (m *matmul) early() bool {
	frozen := func(i int) bool { return i < 0 || m.args[i].Frozen }
	return m.cfg.hopper() && !m.update && frozen(m.b.arg) && (m.norm == nil || frozen(m.norm.Arg)) &&
		(m.panels == nil || frozen(m.panels.scale))
}

// late are the arguments that only the body reads.
func (m *matmul) late() (list []int) {
	if !m.early() {
		return nil
	}
	for i := range m.args {
		if i != m.a.arg && i != m.b.arg && (m.norm == nil || i != m.norm.Arg) && (m.panels == nil || i != m.panels.scale) {
			list = append(list, i)
		}
	}
	return list
}

// fewCut is the cut by gemm_few.
func (m *matmul) fewCut(f *fewForm, t fewTile) cut {
	bn, threads := f.n*t.rn*t.wn, 32*t.wn*t.wk
	rows := m.fewBlock()
	pitch := roundUp(t.phase*t.wk*f.k, 64) + min(f.k, 32)
	c := cut{bm: rows, bn: bn, splits: 1, threads: threads, blocks: t.blocks, cluster: t.s,
		grid: m.batch * ceilDiv(m.m, rows) * ceilDiv(m.n, bn) * t.s, shared: max(rows*pitch*2, t.wk*rows*bn*4),
		work:   fmt.Sprintf("%s, %s, %s", m.rowsOf(), m.pointer(m.b), m.scales()),
		source: []string{"mma", "cluster", "hopper", "gemm_few"}, early: m.early()}
	if t.s > 1 || m.norm != nil { // what the blocks send one another, and a barrier
		c.shared += t.s*ceilDiv(rows*bn, t.s*m.w)*m.w*4 + 8
	}
	if m.norm != nil { // squares of warps, and of blocks
		c.shared += (t.wn*t.wk + t.s) * rows * 4
	}
	if m.panels != nil {
		c.source = append(c.source, "bits", "gemm_packed")
	}
	c.call = fmt.Sprintf("gemm_few<Problem, %%s, %s, FewTile<%d, %d, %d, %d, %d, %d, %d, %v>>(%%s, %%s, %%s)", f.name, t.rn,
		t.wn, t.wk, t.u, t.s, t.phase, t.ahead, c.early)
	return c
}
