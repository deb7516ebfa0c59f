package nn_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"fusec"
	"fusec/graph"
	fgorgonia "fusec/graph/gorgonia"
	"fusec/graph/nn"
	"fusec/lowering"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

const (
	cacheMax   = 9
	cacheWidth = 8 // of 4 heads, of which pairs share keys and values
)

// attending makes a layer with rotary positions and values that are the same for each net.
func attending(t testing.TB, g *gorgonia.ExprGraph, d tensor.Dtype) *nn.MultiHeadAttention {
	t.Helper()
	m, err := nn.NewMultiHeadAttention(g, d, "layer", cacheWidth, 4, 2)
	if err != nil {
		t.Fatal(err)
	}
	b := newNet(d)
	for _, w := range m.Params() {
		gorgonia.WithValue(b.in("", w.Shape()...).Value())(w)
	}
	m.Rotary = &nn.RoPEOptions{}
	m.Options.Causal = true
	return m
}

// A decoding is a graph that decodes n tokens of each sequence with every run, and a machine for it.
type decoding struct {
	c    *nn.KVCache
	x, y *gorgonia.Node // [batch..., n, cacheWidth]
	vm   gorgonia.VM
}

// decode makes a decoding with an empty cache, or the one of another.
func decode(t testing.TB, machine string, d tensor.Dtype, of *decoding, n int, batch ...int) *decoding {
	t.Helper()
	return decodeBy(t, nn.NewKVCache, machine, d, of, n, batch...)
}

// decodeBy is decode with a new cache of another kind.
func decodeBy(t testing.TB, make func(g *gorgonia.ExprGraph, most, tokens int) (*nn.KVCache, error), machine string, d tensor.Dtype,
	of *decoding, n int, batch ...int) *decoding {
	t.Helper()
	b := newNet(d)
	m := attending(t, b.g, d)
	x := b.in("x", append(slices.Clone(batch), n, cacheWidth)...)
	var c *nn.KVCache
	var err error
	if of == nil {
		c, err = make(b.g, cacheMax, n)
	} else {
		c, err = of.c.Share(b.g, n)
	}
	if err != nil {
		t.Fatal(err)
	}
	y := must(m.Decode(x, c, "layer"))
	r := &decoding{c, x, y, machines[machine](b.g)}
	t.Cleanup(func() {
		if err := r.vm.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// tokens are the rows from up to to of each sequence of [sequences, cacheMax, cacheWidth].
func tokens(all []float64, from, to int) (some []float64) {
	for sequence := range slices.Chunk(all, cacheMax*cacheWidth) {
		some = append(some, sequence[from*cacheWidth:to*cacheWidth]...)
	}
	return some
}

// feed gives the next tokens, without running.
func (d *decoding) feed(t testing.TB, v []float64) {
	t.Helper()
	x, err := fgorgonia.ToTensor(d.x.Value())
	if err != nil {
		t.Fatal(err)
	}
	for i := range v {
		x.SetFloat(i, v[i])
	}
	if err := fgorgonia.Store(d.x.Value(), x); err != nil {
		t.Fatal(err)
	}
	d.vm.Reset()
}

// step decodes the next tokens.
func (d *decoding) step(t testing.TB, v []float64) []float64 {
	t.Helper()
	d.feed(t, v)
	run(t, d.vm)
	return values(t, d.y.Value())
}

// whole is the same without a cache: the causal attention of whole sequences, [batch..., cacheMax, cacheWidth].
func whole(t testing.TB, d tensor.Dtype, batch ...int) (x, y []float64) {
	t.Helper()
	b := newNet(d)
	in := b.in("x", append(slices.Clone(batch), cacheMax, cacheWidth)...)
	out := must(attending(t, b.g, d).Forward(in))
	m := fusec.NewMachine(b.g)
	defer m.Close()
	run(t, m)
	return values(t, in.Value()), values(t, out.Value())
}

// TestDecode compares decoding, by one token or several, with the attention of whole sequences; twice, with a reset in
// between.
func TestDecode(t *testing.T) {
	for name := range machines {
		for d, tol := range tolerances {
			for _, batch := range [][]int{nil, {3}, {2, 1}} {
				x, y := whole(t, d, batch...)
				for _, n := range []int{1, 3} {
					c := decode(t, name, d, nil, n, batch...)
					for sequence := range 2 {
						for at := 0; at+n <= cacheMax; at += n {
							what := fmt.Sprintf("%s, %v, batch %v, sequence %d, token %d", name, d, batch, sequence, at)
							agree(t, what, c.step(t, tokens(x, at, at+n)), tokens(y, at, at+n), tol)
							if c.c.Len() != at+n {
								t.Errorf("%s: %d tokens are kept", what, c.c.Len())
							}
						}
						c.c.Reset()
					}
				}
			}
		}
	}
}

// TestDecode8 decodes with keys and values in 8 bits, a prompt at once and then token by token. On fusec's machine attention reads
// the integers, which are written in place.
func TestDecode8(t *testing.T) {
	const off = 0.15 // of results up to 20
	first := map[string][]float64{}
	for name := range machines {
		for d := range tolerances {
			x, y := whole(t, d, 2)
			near := func(c *decoding, from, to int) {
				got := c.step(t, tokens(x, from, to))
				agree(t, fmt.Sprint(name, ", ", d, ": tokens from ", from), got, tokens(y, from, to), off)
				if d == tensor.Float64 {
					agreeFirst(t, first, fmt.Sprint(from), got)
				}
			}
			prompt := decodeBy(t, nn.NewKVCache8, name, d, nil, 4, 2)
			near(prompt, 0, 4)
			one := decode(t, name, d, prompt, 1, 2)
			for at := 4; at < cacheMax; at++ {
				near(one, at, at+1)
			}
			m, ok := one.vm.(*fusec.Machine)
			if !ok {
				continue
			}
			p, inPlace, stored := m.Program().Lowered(), 0, 0
			for _, l := range p.Launches {
				role := func(v lowering.View) lowering.Role { return p.Buffers[v.Buffer].Role }
				switch _, update := l.Op.(graph.UpdateSlice); {
				case update && role(l.Results[0]) == lowering.State:
					inPlace++
				case l.Kind() == "attention":
					for _, i := range []int{1, 2} {
						if p.Buffers[l.Args[i].Buffer].Type.DType == graph.I8 && role(l.Args[i]) == lowering.State {
							stored++
						}
					}
				}
			}
			if inPlace != 4 || stored != 2 {
				t.Errorf("%d caches are written in place, and attention reads %d as they are stored:\n%v", inPlace, stored, p)
			}
		}
	}
}

// TestDecodeShared takes in a prompt at once and goes on token by token, in another graph with the same cache; takes
// some tokens back; and hands the cache back for others.
func TestDecodeShared(t *testing.T) {
	for name := range machines {
		x, y := whole(t, tensor.Float64, 2)
		prompt := decode(t, name, tensor.Float64, nil, 4, 2)
		one := decode(t, name, tensor.Float64, prompt, 1, 2)
		agree(t, name+": prompt", prompt.step(t, tokens(x, 0, 4)), tokens(y, 0, 4), 1e-10)
		// Removed tokens have no effect on later results.
		for range 2 {
			one.step(t, slices.Repeat([]float64{math.NaN()}, 2*cacheWidth))
		}
		if err := one.c.Truncate(4); err != nil {
			t.Fatal(err)
		}
		agree(t, name+": token 4", one.step(t, tokens(x, 4, 5)), tokens(y, 4, 5), 1e-10)
		agree(t, name+": tokens from 5 on", prompt.step(t, tokens(x, 5, 9)), tokens(y, 5, 9), 1e-10)
		if n := one.c.Len(); n != 9 || n != one.c.Max() {
			t.Errorf("%s: %d tokens are kept of %d", name, n, one.c.Max())
		}
	}
}

// TestDecodeInPlace requires a step to write its tokens into the cache in place, in launches whose bytes do not grow
// with it, and to allocate nothing.
func TestDecodeInPlace(t *testing.T) {
	c := decode(t, "fusec", tensor.Float32, nil, 1)
	m := c.vm.(*fusec.Machine)
	c.step(t, make([]float64, cacheWidth))
	want := []string{"linear", "elementwise", "rope", "linear", "rope", "linear", "update_slice", "update_slice",
		"attention", "linear"}
	if k := kinds(m); !slices.Equal(k, want) {
		t.Errorf("launches %v, want %v", k, want)
	}
	p := m.Program().Lowered()
	for _, l := range p.Launches {
		if _, ok := l.Op.(graph.UpdateSlice); !ok {
			continue
		}
		if l.Results[0].Buffer != l.Args[0].Buffer || p.Buffers[l.Args[0].Buffer].Role != lowering.State {
			t.Errorf("%v is not written in place:\n%v", l.Node, p)
		}
		// A token's keys or values, read and written, and where they go.
		if want := int64(2*4*cacheWidth/2 + 8); l.Bytes != want {
			t.Errorf("%v moves %d bytes, want %d", l.Node, l.Bytes, want)
		}
	}
	for _, u := range p.Updates {
		if p.Buffers[u.Target].Type.Shape.Rank() > 0 && u.Value != u.Target {
			t.Errorf("the cache %q is copied:\n%v", p.Buffers[u.Target].Name, p)
		}
	}
	n := testing.AllocsPerRun(5, func() {
		m.Reset()
		if err := m.RunAll(); err != nil {
			t.Error(err)
		}
	})
	if n > 0 {
		t.Errorf("%v allocations per step", n)
	}
}

// TestDecodeFull requires an error if the cache is full, which leaves the cache unchanged.
func TestDecodeFull(t *testing.T) {
	for name := range machines {
		x, y := whole(t, tensor.Float64)
		c := decode(t, name, tensor.Float64, nil, 2)
		for at := 0; at+2 <= cacheMax; at += 2 {
			c.step(t, tokens(x, at, at+2))
		}
		c.feed(t, tokens(y, 0, 2))
		if err := c.vm.RunAll(); err == nil || !strings.Contains(err.Error(), "8") ||
			!strings.Contains(err.Error(), "2 elements") {
			t.Errorf("%s: a run without room gives the error %v", name, err)
		}
		if name == "fusec" && c.c.Len() != 8 {
			t.Errorf("a run that failed left %d tokens", c.c.Len())
		}
		if err := c.c.Truncate(6); err != nil { // which Gorgonia's machine needs, too
			t.Fatal(err)
		}
		agree(t, name, c.step(t, tokens(x, 6, 8)), tokens(y, 6, 8), 1e-10)
	}
}

// failing is a user-defined operation that fails on demand.
type failing struct {
	gorgonia.Op // negation
	now         bool
}

func (f *failing) Do(v ...gorgonia.Value) (gorgonia.Value, error) {
	if f.now {
		return nil, errors.New("as it was told")
	}
	return f.Op.Do(v...)
}

// TestDecodeFails requires that a run changes nothing if it fails after the tokens were written, or if its values are
// refused.
func TestDecodeFails(t *testing.T) {
	b := newNet(tensor.Float64)
	m := attending(t, b.g, b.d)
	x := b.in("x", 1, cacheWidth)
	cache, err := nn.NewKVCache(b.g, cacheMax, 1)
	if err != nil {
		t.Fatal(err)
	}
	y := must(m.Decode(x, cache, "layer"))
	f := &failing{Op: must(gorgonia.Neg(newNet(b.d).in("x", 1, cacheWidth))).Op()}
	must(gorgonia.ApplyOp(f, y))
	for _, opts := range [][]gorgonia.VMOpt{nil, {gorgonia.WithNaNWatch()}} {
		vm := fusec.NewMachine(b.g, opts...)
		refuse := func(bad bool) {
			f.now = bad && opts == nil
			if v := x.Value().Data().([]float64); bad && opts != nil {
				v[0] = math.NaN()
			} else {
				v[0] = 1
			}
		}
		cache.Reset()
		for _, bad := range []bool{false, true, false} {
			refuse(bad)
			before, err := vm.State()
			if err != nil {
				t.Fatal(err)
			}
			if err := vm.RunAll(); (err != nil) != bad {
				t.Fatalf("error %v where that it fails is %v", err, bad)
			}
			vm.Reset()
			after, err := vm.State()
			if err != nil {
				t.Fatal(err)
			}
			for name := range before {
				if bad && !before[name].Equal(after[name]) {
					t.Errorf("a run that failed changed %q", name)
				}
			}
		}
		if cache.Len() != 2 {
			t.Errorf("%d tokens are kept, want 2", cache.Len())
		}
		if err := vm.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestDecodeRead has the cache's content, position and length as outputs.
func TestDecodeRead(t *testing.T) {
	for name, machine := range machines {
		b := newNet(tensor.Float32)
		c, err := nn.NewKVCache(b.g, 3, 1)
		if err != nil {
			t.Fatal(err)
		}
		x := b.in("x", 2, 1, 1, 2)
		k := must(c.Append("keys", x))
		var kept, at, valid gorgonia.Value
		gorgonia.Read(k, &kept)
		gorgonia.Read(c.Position(), &at)
		gorgonia.Read(must(c.Lengths(k)), &valid)
		vm := machine(b.g)
		want := make([]float64, 2*3*2)
		for i := range 3 {
			run(t, vm)
			for j, v := range values(t, x.Value()) {
				want[j/2*6+i*2+j%2] = v
			}
			agree(t, name+": kept", values(t, kept), want, 0)
			agree(t, name+": position", values(t, at), []float64{float64(i)}, 0)
			agree(t, name+": valid", values(t, valid), []float64{float64(i + 1), float64(i + 1)}, 0)
			for j, v := range x.Value().Data().([]float32) {
				x.Value().Data().([]float32)[j] = v + 1
			}
			vm.Reset()
		}
		if err := vm.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestDecodeState puts the machine's state back, and the cache with it.
func TestDecodeState(t *testing.T) {
	x, y := whole(t, tensor.Float64)
	c := decode(t, "fusec", tensor.Float64, nil, 1)
	m := c.vm.(*fusec.Machine)
	c.step(t, tokens(x, 0, 1))
	c.step(t, tokens(x, 1, 2))
	state, err := m.State()
	if err != nil {
		t.Fatal(err)
	}
	if len(state) != 3 {
		t.Errorf("%d states, want 3", len(state))
	}
	c.step(t, tokens(x, 7, 8))
	c.c.Reset()
	c.step(t, tokens(x, 8, 9))
	if err := m.SetState(state); err != nil {
		t.Fatal(err)
	}
	if c.c.Len() != 2 {
		t.Errorf("%d tokens are kept, want 2", c.c.Len())
	}
	agree(t, "token 2", c.step(t, tokens(x, 2, 3)), tokens(y, 2, 3), 1e-10)
}

// TestKVCacheErrors requires errors to name what does not fit.
func TestKVCacheErrors(t *testing.T) {
	b := newNet(tensor.Float32)
	x, wide, i := b.in("x", 2, 1, 4), b.in("wide", 2, 1, 6), b.ints("i", 1)
	c, err := nn.NewKVCache(b.g, 8, 1)
	if err != nil {
		t.Fatal(err)
	}
	must(c.Append("keys", x))
	other := newNet(tensor.Float32)
	shared, err := c.Share(other.g, 1)
	if err != nil {
		t.Fatal(err)
	}
	eight, err := nn.NewKVCache8(other.g, 8, 1)
	if err != nil {
		t.Fatal(err)
	}
	must(eight.Append("keys", other.in("more", 2, 1, 6)))
	small, err := eight.Share(b.g, 1)
	if err != nil {
		t.Fatal(err)
	}
	lengthy := attending(t, b.g, b.d)
	lengthy.Options.Lengths = i
	for _, e := range []struct {
		err  error
		want []string
	}{
		{second(nn.NewKVCache(nil, 8, 1)), []string{"KVCache", "graph is nil"}},
		{second(nn.NewKVCache(b.g, 8, 0)), []string{"appends 0 tokens", "cache holds 8"}},
		{second(nn.NewKVCache(b.g, 0, 1)), []string{"appends 1 tokens", "cache holds 0"}},
		{second(c.Share(b.g, 1)), []string{"has this cache already"}},
		{second(c.Append("values", nil)), []string{`"values"`, "x is nil"}},
		{second(c.Append("keys", x)), []string{`"keys"`, "under that name already"}},
		{second(c.Append("values", i)), []string{"i64[1]", "want floats [..., 1, d]"}},
		{second(c.Append("values", b.in("two", 2, 2, 4))), []string{"f32[2,2,4]", "want floats [..., 1, d]"}},
		{second(shared.Append("keys", other.in("wide", 2, 1, 6))), []string{"has f32[2,8,4] under that name", "not f32[2,8,6]"}},
		{second(shared.Append("values", wide)), []string{"Append(values)", "same graph"}},
		{second(small.Append("keys", x)), []string{"has i8[2,8,6] under that name", "not i8[2,8,4]"}},
		{second(c.Lengths(nil)), []string{"keys is nil"}},
		{second(lengthy.Decode(b.in("z", 1, cacheWidth), c, "layer")),
			[]string{"layer", "Lengths cannot be set with a cache"}},
		{c.Truncate(1), []string{"1 tokens of 0"}},
		{c.Truncate(-1), []string{"-1 tokens of 0"}},
	} {
		for _, w := range e.want {
			if !strings.Contains(fmt.Sprint(e.err), w) {
				t.Errorf("error %q does not say %q", fmt.Sprint(e.err), w)
			}
		}
	}
}
