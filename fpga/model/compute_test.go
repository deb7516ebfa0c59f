package model

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"sort"
	"testing"

	"fusec/fpga/isa"
)

// The tests here say once more, in other words, what commands compute: with matrices in place of lanes and words, and
// with real numbers.

// fill writes random bytes to memory.
func fill(t testing.TB, m *Machine, r *rand.Rand, at uint32, n, spread int) []byte {
	t.Helper()
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.IntN(spread) - spread/2)
	}
	if err := m.Write(at, b); err != nil {
		t.Fatal(err)
	}
	return b
}

// read reads memory.
func read(t testing.TB, m *Machine, at uint32, n int) []byte {
	t.Helper()
	b := make([]byte, n)
	if err := m.Read(at, b); err != nil {
		t.Fatal(err)
	}
	return b
}

// records writes scale records to memory: each multiplies by mul/2^shift steps, TFrac bits of fraction included.
func records(t testing.TB, m *Machine, at uint32, r ...isa.Record) {
	t.Helper()
	var b []byte
	for _, x := range r {
		b = x.Append(b)
	}
	if err := m.Write(at, b); err != nil {
		t.Fatal(err)
	}
}

// TestGemm computes Y = X·Wᵀ of 10 × 24 by 12 × 24 with a residual, whole and in chunks of the sum, straight to memory
// and by way of W as the next product's weights.
func TestGemm(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	m := machine(t, small)
	const rows, cols, k = 10, 12, 24
	x, w, y := fill(t, m, r, 0, rows*k, 256), fill(t, m, r, 1024, cols*k, 256), fill(t, m, r, 2048, rows*cols, 256)
	var scales []isa.Record
	for range cols {
		scales = append(scales, isa.Record{Bias: int32(r.IntN(4096) - 2048), Mul: int16(r.IntN(8000) - 4000),
			Shift: 12})
	}
	records(t, m, 3000, scales...)
	load := []isa.Command{
		&isa.Load{Space: isa.SpaceX, Addr: 0, Stride: k, Rows: rows, Words: k / 4, Panel: k / 4},
		&isa.Load{Space: isa.SpaceW, Addr: 1024, Stride: k, Rows: cols, Words: k / 4, Panel: k / 4},
		&isa.Load{Space: isa.SpaceY, Addr: 2048, Stride: cols, Rows: rows, Words: cols / 4, Panel: cols / 4},
		&isa.Load{Space: isa.SpaceParams, Addr: 3000, Rows: 1, Words: cols * 2},
		&isa.Barrier{},
	}
	store := []isa.Command{&isa.Barrier{}, &isa.Store{Addr: 4096, Stride: cols, Rows: rows, Words: cols / 4, Base: 50,
		Panel: cols / 4}}
	out := isa.Out{Residual: true, ReLU: true, Zero: -7, ResMul: 1000, ResPanel: cols / 4, Base: 50, Panel: cols / 4}
	whole := []isa.Command{&isa.Gemm{Out: out, Words: k / 4, XPanel: k / 4, WPanel: k / 4, Panels: 3, Tiles: 3}}
	var parts []isa.Command
	for p := range uint16(3) {
		for n := range uint16(3) {
			for c := range uint16(3) {
				o := out
				o.Base, o.Res, o.Param = 50+p*3+n, p*3+n, n*4
				parts = append(parts, &isa.Gemm{Out: o, More: c > 0, Hold: c < 2, X: p*6 + c*2, W: n*6 + c*2, Words: 2,
					Panels: 1, Tiles: 1})
			}
		}
	}
	for name, gemm := range map[string][]isa.Command{"whole": whole, "in parts": parts} {
		must(t, m, append(append(append([]isa.Command(nil), load...), gemm...), store...)...)
		got := read(t, m, 4096, rows*cols)
		for i := range rows {
			for j := range cols {
				acc := 0
				for e := range k {
					acc += int(int8(x[i*k+e])) * int(int8(w[j*k+e]))
				}
				s := scales[j]
				v := math.Floor(float64(acc)*float64(s.Mul)/4096) + float64(s.Bias) +
					math.Floor(float64(int8(y[i*cols+j]))*1000/16)
				want := max(0, math.Floor(v/256+0.5)) - 7
				want = max(-128, min(127, want))
				if int8(got[i*cols+j]) != int8(want) {
					t.Fatalf("%s: element %d,%d is %d, want %v", name, i, j, int8(got[i*cols+j]), want)
				}
			}
		}
	}
}

// attend runs attention of random heads, and gives its results in steps of V, and the real ones.
func attend(t *testing.T, m *Machine, r *rand.Rand, queries, keys, dim, chunk int, causal bool) (got, want []float64) {
	t.Helper()
	c := m.cfg
	q, k := fill(t, m, r, 0, queries*dim, 256), fill(t, m, r, 1<<13, keys*dim, 256)
	v := fill(t, m, r, 1<<15, keys*dim, 256)
	valueRow := (keys + c.WordBytes - 1) &^ (c.WordBytes - 1)
	vt := make([]byte, dim*valueRow)
	for j := range keys {
		for f := range dim {
			vt[f*valueRow+j] = v[j*dim+f]
		}
	}
	if err := m.Write(1<<16, vt); err != nil {
		t.Fatal(err)
	}
	words, panels := uint16(dim/c.WordBytes), (queries-1)/c.Rows+1
	// The scale 1/√d over int8 of a step of 1/32, in units of log2 with 10 fraction bits.
	scale := math.Log2E / math.Sqrt(float64(dim)) / 1024
	mul := uint16(math.Round(scale * (1 << isa.ScoreFrac) * (1 << 14)))
	cs := []isa.Command{&isa.Load{Space: isa.SpaceX, Stride: uint32(dim), Rows: uint16(queries), Words: words,
		Panel: words}}
	for from := 0; from < keys; from += chunk {
		n := min(chunk, keys-from)
		valueWords := uint16((n-1)/c.WordBytes + 1)
		cs = append(cs, &isa.Barrier{},
			&isa.Load{Space: isa.SpaceW, Addr: uint32(1<<13 + from*dim), Stride: uint32(dim), Rows: uint16(n),
				Words: words, Panel: words},
			&isa.Load{Space: isa.SpaceW, Addr: uint32(1<<16 + from), Stride: uint32(valueRow), Rows: uint16(dim),
				Words: valueWords, Base: 128, Panel: valueWords},
			&isa.Barrier{},
			&isa.Attention{First: from == 0, Last: from+n == keys, Wide: true, Causal: causal, QPanel: words, V: 128,
				Dim:     uint8(words),
				QPanels: uint8(panels), Keys: uint16(n), Panel: 2 * words, Diagonal: int32(keys - queries - from),
				ScoreMul: mul, ScoreSh: 14,
				VPanel: valueWords, OutMul: 65535, OutSh: 19})
	}
	cs = append(cs, &isa.Barrier{}, &isa.Store{Addr: 1 << 17, Stride: uint32(2 * dim), Rows: uint16(queries),
		Words: 2 * words, Panel: 2 * words})
	must(t, m, cs...)
	b := read(t, m, 1<<17, 2*queries*dim)
	for i := range queries {
		p := make([]float64, keys)
		sum := 0.0
		for j := range keys {
			if causal && j > i+keys-queries {
				break
			}
			dot := 0.0
			for f := range dim {
				dot += float64(int8(q[i*dim+f])) * float64(int8(k[j*dim+f]))
			}
			p[j] = math.Exp2(dot * float64(mul) / (1 << 24))
			sum += p[j]
		}
		for f := range dim {
			y := 0.0
			for j := range keys {
				y += p[j] / sum * float64(int8(v[j*dim+f]))
			}
			want = append(want, y)
			got = append(got, float64(int16(binary.LittleEndian.Uint16(b[2*(i*dim+f):])))/256)
		}
	}
	return got, want
}

// TestAttention compares with the softmax in float64: within half a step of V, relative root mean square 3e-3.
func TestAttention(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	for _, s := range []struct {
		queries, keys, dim, chunk int
		causal                    bool
	}{{1, 1, 4, 99, false}, {16, 64, 32, 64, false}, {13, 52, 16, 32, true}, {16, 120, 8, 48, true}, {7, 124, 4, 124,
		false}, {5, 200, 32, 48, false}} {
		m := machine(t, small)
		got, want := attend(t, m, r, s.queries, s.keys, s.dim, s.chunk, s.causal)
		worst, squares, all := 0.0, 0.0, 0.0
		for i, w := range want {
			worst = max(worst, math.Abs(got[i]-w))
			squares += (got[i] - w) * (got[i] - w)
			all += w * w
		}
		rms := math.Sqrt(squares / all)
		if worst > 0.5 || rms > 3e-3 {
			t.Errorf("%+v: off by up to %.3f steps, relative RMS %.1e", s, worst, rms)
		}
		t.Logf("%+v: off by up to %.3f steps, relative RMS %.1e", s, worst, rms)
	}
}

// TestAttentionChunks has one chunk and several of whole blocks, which give the same bits, and rows that see no key,
// which give zeros.
func TestAttentionChunks(t *testing.T) {
	var first []float64
	for _, chunk := range []int{96, 48, 16} {
		got, _ := attend(t, machine(t, small), rand.New(rand.NewPCG(3, 3)), 12, 96, 8, chunk, true)
		for i := range first {
			if got[i] != first[i] {
				t.Fatalf("chunks of %d keys: element %d is %v, want %v", chunk, i, got[i], first[i])
			}
		}
		first = got
	}
	got, _ := attend(t, machine(t, small), rand.New(rand.NewPCG(4, 4)), 16, 8, 8, 8, true)
	for i := range got {
		if row := i / 8; row < 8 && got[i] != 0 {
			t.Fatalf("row %d sees no key and gives %v", row, got[i])
		}
	}
}

// TestVector goes through the kinds with real numbers.
func TestVector(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	m := machine(t, small)
	const rows, cols = 9, 20
	x, y := fill(t, m, r, 0, rows*cols, 256), fill(t, m, r, 1024, rows*cols, 256)
	records(t, m, 2048, isa.Record{Mul: 1, Shift: 0})
	load := []isa.Command{
		&isa.Load{Space: isa.SpaceX, Stride: cols, Rows: rows, Words: cols / 4, Panel: cols / 4},
		&isa.Load{Space: isa.SpaceY, Addr: 1024, Stride: cols, Rows: rows, Words: cols / 4, Panel: cols / 4},
		&isa.Load{Space: isa.SpaceParams, Addr: 2048, Rows: 1, Words: 2},
		&isa.Barrier{},
	}
	for kind := range isa.VectorCombine {
		v := &isa.Vector{Out: isa.Out{Wide: true, Base: 100, Panel: 2 * cols / 4, ResPanel: cols / 4}, OneParam: true,
			XPanel: cols / 4, Words: cols / 4, Panels: 3,
			Kind: kind}
		if kind >= isa.VectorLayerNorm {
			v.Count, v.Eps = cols, 400
		}
		must(t, m, append(append([]isa.Command(nil), load...), v, &isa.Barrier{},
			&isa.Store{Addr: 4096, Stride: 2 * cols, Rows: rows, Words: 2 * cols / 4, Base: 100,
				Panel: 2 * cols / 4})...)
		b := read(t, m, 4096, 2*rows*cols)
		for i := range rows {
			mean, squares := 0.0, 0.0
			for k := range cols {
				e := float64(int8(x[i*cols+k]))
				mean += e / cols
				squares += e * e / cols
			}
			if kind == isa.VectorRMSNorm {
				mean = 0
			}
			for k := range cols {
				a := float64(int8(x[i*cols+k]))
				var want float64
				switch kind {
				case isa.VectorAffine:
					want = a
				case isa.VectorMul:
					want = a * float64(int8(y[i*cols+k]))
				default: // Eps is n²·ε over squared steps
					want = (a - mean) / math.Sqrt(squares-mean*mean+1) * 4096
				}
				got := float64(int16(binary.LittleEndian.Uint16(b[2*(i*cols+k):])))
				if math.Abs(got-want/256) > 0.51 {
					t.Fatalf("%v: element %d,%d is %v, want %.2f", kind, i, k, got, want/256)
				}
			}
		}
	}
}

// TestMixture routes tokens, multiplies those of each expert by its weights and adds them up by their gates: every
// token has to come out as its experts' products, those of full lists left out.
func TestMixture(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 6))
	m := machine(t, small)
	const tokens, experts, dim, topK = 24, 4, 8, 2
	x := fill(t, m, r, 0, tokens*dim, 64)
	w := fill(t, m, r, 512, experts*dim*dim, 64)
	logits := make([]int16, tokens*experts)
	var b []byte
	for i := range logits {
		logits[i] = int16(r.IntN(4<<isa.ScoreFrac)) &^ 255 // with equal ones among them
		if i%experts == 1 {
			logits[i] += 1 << isa.ScoreFrac // an expert that many want
		}
		b = binary.LittleEndian.AppendUint16(b, uint16(logits[i]))
	}
	if err := m.Write(2048, b); err != nil {
		t.Fatal(err)
	}
	one := isa.Record{Mul: 1, Shift: 0}
	// Products of steps of 2^4, gates of 16 bits.
	product, sum := isa.Record{Mul: 16, Shift: 0}, isa.Record{Mul: 1, Shift: 8}
	all := []isa.Record{one, sum}
	for range dim {
		all = append(all, product)
	}
	records(t, m, 3000, all...)
	cs := []isa.Command{
		&isa.Load{Space: isa.SpaceParams, Addr: 3000, Rows: 1, Words: uint16(2 * len(all))},
		&isa.Load{Space: isa.SpaceX, Addr: 2048, Stride: 2 * experts, Rows: tokens, Words: 2, Panel: 2},
		&isa.Barrier{},
		&isa.Route{First: true, Renormalise: true, XPanel: 2, Rows: tokens, Experts: experts, TopK: topK},
	}
	zero := make([]byte, tokens*topK*dim)
	if err := m.Write(8192, zero); err != nil {
		t.Fatal(err)
	}
	for e := range experts {
		cs = append(cs, &isa.Barrier{},
			&isa.Load{Skip: true, Space: isa.SpaceW, Addr: uint32(512 + e*dim*dim), Stride: dim, Rows: dim, Words: 2,
				Panel: 2, List: uint8(e)},
			&isa.Load{Gather: true, Space: isa.SpaceX, Stride: dim, Rows: 16, Words: 2, Base: 100, Panel: 2,
				List: uint8(e)},
			&isa.Barrier{},
			&isa.Gemm{Listed: true, List: uint8(e), Out: isa.Out{Param: 2, Panel: 2}, X: 100, XPanel: 2, WPanel: 2,
				Words: 2, Panels: 4, Tiles: 2},
			&isa.Barrier{},
			&isa.Store{Scatter: true, Addr: 8192, Stride: dim, Rows: 16, Words: 2, Panel: 2, List: uint8(e),
				TopK: topK})
	}
	cs = append(cs, &isa.Barrier{})
	for rank := range uint16(topK) {
		cs = append(cs, &isa.Load{Space: isa.SpaceX, Addr: uint32(8192 + rank*dim), Stride: topK * dim, Rows: tokens,
			Words: 2, Base: 2 * rank, Panel: 2 * topK})
	}
	cs = append(cs, &isa.Barrier{},
		&isa.Vector{Out: isa.Out{Wide: true, Param: 1, Base: 64, Panel: 4}, OneParam: true, XPanel: 2, Words: 2,
			Panels: tokens / 4, Kind: isa.VectorCombine, TopK: topK},
		&isa.Barrier{}, &isa.Store{Addr: 12288, Stride: 2 * dim, Rows: tokens, Words: 4, Base: 64, Panel: 4})
	must(t, m, cs...)
	got := read(t, m, 12288, 2*tokens*dim)

	length := [experts]int{}
	dropped := 0
	for i := range tokens {
		order := []int{0, 1, 2, 3}
		l := logits[i*experts:][:experts]
		sort.SliceStable(order, func(a, b int) bool { return l[order[a]] > l[order[b]] })
		total := math.Exp2(float64(l[order[0]])/1024) + math.Exp2(float64(l[order[1]])/1024)
		want := make([]float64, dim)
		for _, e := range order[:topK] {
			if length[e]++; length[e] > small.ListLen {
				dropped++
				continue
			}
			for f := range dim {
				acc := 0
				for k := range dim {
					acc += int(int8(x[i*dim+k])) * int(int8(w[e*dim*dim+f*dim+k]))
				}
				want[f] += math.Exp2(float64(l[e])/1024) / total * max(-128, min(127, math.Floor(float64(acc)/16+0.5)))
			}
		}
		for f := range dim {
			if v := float64(int16(binary.LittleEndian.Uint16(got[2*(i*dim+f):]))); math.Abs(v-want[f]) > 0.6 {
				t.Fatalf("token %d, element %d is %v, want %.2f", i, f, v, want[f])
			}
		}
	}
	if n, _ := m.ReadReg(isa.RegDropped); int(n) != dropped || dropped == 0 {
		t.Errorf("%d dropped, want %d", n, dropped)
	}
	for e, n := range length {
		m.WriteReg(isa.RegExpert, uint32(e))
		if got, _ := m.ReadReg(isa.RegCount); int(got) != min(n, small.ListLen) {
			t.Errorf("expert %d has %d tokens, want %d", e, got, n)
		}
	}
}

// BenchmarkGemm is the products of a transformer block of 256 tokens of 256 elements: 12·256³ of them.
func BenchmarkGemm(b *testing.B) {
	c := isa.Config{Name: "bench", Rows: 16, Cols: 16, WordBytes: 8, XWords: 1024, WWords: 1024, YWords: 1024,
		Params: 512, AccBits: 32, AddrBits: 20}
	m := machine(b, c)
	g := &isa.Gemm{XPanel: 32, WPanel: 32, Words: 32, Panels: 16, Tiles: 16, Out: isa.Out{Panel: 32}}
	for b.Loop() {
		for range 12 {
			if _, err := m.Step(g); err != nil {
				b.Fatal(err)
			}
		}
	}
}
