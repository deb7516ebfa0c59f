package loader

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/graph/safetensors"
)

// sources are operands of every format over n rows: element k of row i of "x" is 10·i+k, "label" is i, "pixels" is i
// scaled, "in" and "out" are windows whose element k is 3·i+k and one more.
func sources(t testing.TB, n int) []Source {
	x := make([]float32, 0, 5*n)
	for i := range n {
		for k := range 5 {
			x = append(x, float32(10*i+k))
		}
	}
	pixels := make([]byte, n)
	for i := range pixels {
		pixels[i] = byte(i)
	}
	return []Source{
		{Name: "x", Path: writeTensors(t, safetensors.Tensor{Name: "flag", Shape: []int{1}, Data: []bool{true}},
			safetensors.Tensor{Name: "data", Shape: []int{n, 5}, Data: x}), Tensor: "data"},
		{Name: "label", Path: graphtest.NPY(t, count[int64](n), n), Limit: int64(n)},
		{Name: "pixels", Path: graphtest.File(t, "pixels", pixels), Raw: "u8", Row: []int{1, 1},
			DType: graph.F64, Scale: 0.5, Offset: -1},
		{Name: "in", Path: tokens(t, count[uint16](3*n+2)...), Raw: "u16", DType: graph.I64,
			Window: Window{Length: 4, Stride: 3, Targets: "out"}},
	}
}

// wantRow gives what row i of an operand of [sources] holds.
func wantRow(name string, i int64) []float64 {
	f := float64(i)
	switch name {
	case "x":
		return []float64{10 * f, 10*f + 1, 10*f + 2, 10*f + 3, 10*f + 4}
	case "label":
		return []float64{f}
	case "pixels":
		return []float64{f/2 - 1}
	case "in":
		return []float64{3 * f, 3*f + 1, 3*f + 2, 3*f + 3}
	}
	return []float64{3*f + 1, 3*f + 2, 3*f + 3, 3*f + 4}
}

// checkEpoch reads an epoch and checks each number of it, and that each row comes once.
func checkEpoch(t *testing.T, l *Loader, epoch int64) {
	t.Helper()
	seen := map[int64]bool{}
	for range l.Steps() {
		at := l.Position()
		b := next(t, l)
		if b.Step != at || l.Position() != at+1 || b.Epoch != epoch || b.Rows != len(b.Index) {
			t.Fatalf("batch of step %d, epoch %d, %d rows: want step %d, epoch %d, %d rows",
				b.Step, b.Epoch, b.Rows, at, epoch, len(b.Index))
		}
		for name, x := range b.Tensors {
			var want []float64
			for _, i := range b.Index {
				want = append(want, wantRow(name, i)...)
			}
			if err := x.Check(); err != nil || x.Type.Shape.At(0) != b.Rows || !sameFloats(x.Floats(), want) {
				t.Fatalf("%s of rows %v is %v of type %v (%v), want %v", name, b.Index, x.Floats(), x.Type, err, want)
			}
		}
		for _, i := range b.Index {
			if seen[i] {
				t.Fatalf("row %d comes twice", i)
			}
			seen[i] = true
		}
	}
	if want := l.Rows(); !l.opts.DropLast && int64(len(seen)) != want {
		t.Fatalf("%d of %d rows", len(seen), want)
	}
}

func TestBatches(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, rows := range []int{1, 2, 7, 16, 61} {
		src := sources(t, rows)
		for _, access := range []Access{Mapped, Direct, Plain} {
			for _, shuffle := range []bool{false, true} {
				opts := Options{Batch: 1 + r.IntN(rows), Shuffle: shuffle, Seed: r.Uint64(), Epochs: 2, DropLast: r.IntN(2) == 0,
					Prefetch: r.IntN(4), Workers: r.IntN(4), Access: access}
				t.Run(fmt.Sprintf("%d rows %+v", rows, opts), func(t *testing.T) {
					l := opened(t, opts, src...)
					checkEpoch(t, l, 0)
					checkEpoch(t, l, 1)
					if _, err := l.Next(); err != io.EOF {
						t.Errorf("after the last epoch: %v", err)
					}
				})
			}
		}
	}
}

func TestTypes(t *testing.T) {
	l := opened(t, Options{Batch: 3}, sources(t, 7)...)
	want := map[string]graph.Type{
		"x": graph.TypeOf(graph.F32, 3, 5), "label": graph.TypeOf(graph.I64, 3), "pixels": graph.TypeOf(graph.F64, 3, 1, 1),
		"in": graph.TypeOf(graph.I64, 3, 4), "out": graph.TypeOf(graph.I64, 3, 4),
	}
	got := l.Types()
	if len(got) != len(want) {
		t.Errorf("types %v", got)
	}
	b := next(t, l)
	for name, typ := range want {
		if got[name] != typ || b.Tensors[name].Type != typ {
			t.Errorf("%s is %v in Types and %v in a batch, want %v", name, got[name], b.Tensors[name].Type, typ)
		}
	}
	if l.Rows() != 7 || l.Steps() != 3 {
		t.Errorf("%d rows, %d steps", l.Rows(), l.Steps())
	}
}

// TestOrders: without shuffling rows come as they are; with it, in another order each epoch and for each seed.
func TestOrders(t *testing.T) {
	src := sources(t, 50)[1]
	all := func(o Options) []int64 {
		o.Batch, o.Epochs = 50, 2
		var rows []int64
		for _, b := range take(t, opened(t, o, src), 2) {
			rows = append(rows, b.index...)
		}
		return rows
	}
	plain := all(Options{Seed: 1})
	if !slices.Equal(plain[:50], count[int64](50)) || !slices.Equal(plain[50:], plain[:50]) {
		t.Errorf("in order: %v", plain)
	}
	one, two := all(Options{Shuffle: true, Seed: 1}), all(Options{Shuffle: true, Seed: 2})
	if slices.Equal(one[:50], one[50:]) || slices.Equal(one[:50], two[:50]) || slices.Equal(one[:50], plain[:50]) {
		t.Error("two orders are the same")
	}
}

// TestSameBatches: batches depend on neither workers nor prefetching nor the way of reading, and a position that is
// sought gives them again, from any step on.
func TestSameBatches(t *testing.T) {
	src := sources(t, 23)
	opts := Options{Batch: 4, Shuffle: true, Seed: 9, Epochs: 3}
	l := opened(t, opts, src...)
	want := take(t, l, 1000)
	if len(want) != 18 {
		t.Fatalf("%d batches", len(want))
	}
	for _, o := range []Options{{Prefetch: 1}, {Prefetch: 9, Workers: 5}, {Access: Direct}, {Access: Plain, Workers: 2}} {
		o.Batch, o.Shuffle, o.Seed, o.Epochs = opts.Batch, opts.Shuffle, opts.Seed, opts.Epochs
		if !same(take(t, opened(t, o, src...), 1000), want) {
			t.Errorf("%+v gives other batches", o)
		}
	}
	r := rand.New(rand.NewPCG(5, 6))
	for range 20 {
		at := r.IntN(len(want) + 1)
		if err := l.SetPosition(int64(at)); err != nil {
			t.Fatal(err)
		}
		n := r.IntN(5)
		if !same(take(t, l, n), want[at:min(at+n, len(want))]) {
			t.Errorf("from step %d on it gives other batches", at)
		}
	}
	for _, bad := range []int64{-1, 19} {
		if err := l.SetPosition(bad); err == nil {
			t.Errorf("there is a step %d", bad)
		}
	}
	// A new loader, as a run that resumes has.
	fresh := opened(t, opts, src...)
	if err := fresh.SetPosition(11); err != nil {
		t.Fatal(err)
	}
	if !same(take(t, fresh, 1000), want[11:]) {
		t.Error("a new loader gives other batches")
	}
}

func TestEndless(t *testing.T) {
	l := opened(t, Options{Batch: 1, Shuffle: true}, sources(t, 3)...)
	const far = 1 << 60 // steps are 64 bits wide
	if err := l.SetPosition(far); err != nil {
		t.Fatal(err)
	}
	if b := next(t, l); b.Step != far || b.Epoch != far/3 {
		t.Errorf("step %d of epoch %d", b.Step, b.Epoch)
	}
}

func TestNoAllocations(t *testing.T) {
	src := sources(t, 61)
	for _, access := range []Access{Mapped, Direct, Plain} {
		l := opened(t, Options{Batch: 8, Shuffle: true, Access: access}, src...)
		for range 20 {
			next(t, l)
		}
		if n := testing.AllocsPerRun(200, func() { next(t, l) }); n != 0 {
			t.Errorf("%v: %v allocations per batch", access, n)
		}
	}
}

func TestNoGoroutineStays(t *testing.T) {
	src := sources(t, 61)
	before := runtime.NumGoroutine()
	l := opened(t, Options{Batch: 2}, src...)
	next(t, l)
	if runtime.NumGoroutine() == before {
		t.Error("nothing is read ahead")
	}
	if err := l.SetPosition(3); err != nil {
		t.Fatal(err)
	}
	noLeak(t, before)
	next(t, l)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	noLeak(t, before)
	if _, err := l.Next(); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("Next after Close: %v", err)
	}
	if err := l.SetPosition(1); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("SetPosition after Close: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Errorf("a second Close: %v", err)
	}

	l = opened(t, Options{Batch: 2}, src...)
	for b, err := range l.Batches(context.Background()) {
		if err != nil {
			t.Fatal(err)
		}
		if b.Step == 5 {
			break
		}
	}
	noLeak(t, before)
	// The next loop continues after it, and ends when it is cancelled, whether the consumer asks for more or not.
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	enough := errors.New("enough")
	steps := int64(6)
	for b, err := range l.Batches(ctx) {
		if err != nil {
			if err != enough {
				t.Errorf("cancelled: %v", err)
			}
			break
		}
		if b.Step != steps {
			t.Fatalf("step %d, want %d", b.Step, steps)
		}
		if steps++; steps == 9 {
			cancel(enough)
			noLeak(t, before)
		}
	}
	if steps != 9 || l.Position() != 9 {
		t.Errorf("ended at step %d, position %d", steps, l.Position())
	}
	for b, err := range l.Batches(ctx) { // cancelled before it begins
		if b != nil || err != enough {
			t.Errorf("batch %v, error %v", b, err)
		}
	}
	noLeak(t, before)
}

// TestBatchesEnds: the loop ends after the last epoch without an error.
func TestBatchesEnds(t *testing.T) {
	l := opened(t, Options{Batch: 10, Epochs: 2}, sources(t, 61)...)
	n := 0
	for b, err := range l.Batches(context.Background()) {
		if err != nil {
			t.Fatal(err)
		}
		n += b.Rows
	}
	if n != 2*61 {
		t.Errorf("%d rows", n)
	}
}

// TestReady: a batch that is ready is given without waiting, and asking changes no batch; an error is ready, too.
func TestReady(t *testing.T) {
	opts := Options{Batch: 7, Shuffle: true, Seed: 3, Epochs: 1}
	asked, other := opened(t, opts, sources(t, 40)...), opened(t, opts, sources(t, 40)...)
	for i := range asked.Steps() {
		for deadline := time.Now().Add(30 * time.Second); !asked.Ready(); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("batch %d is not ready after 30 s", i)
			}
		}
		if asked.Position() != i {
			t.Fatalf("position %d before batch %d", asked.Position(), i)
		}
		if b, want := next(t, asked), next(t, other); !slices.Equal(b.Index, want.Index) {
			t.Errorf("batch %d has rows %v, want %v", i, b.Index, want.Index)
		}
	}
	if waited := asked.Stats().Waited; waited > 100*time.Millisecond {
		t.Errorf("batches that were ready were waited for %v", waited)
	}
	if _, err := asked.Next(); !asked.Ready() || err != io.EOF {
		t.Errorf("after the last batch: %v", err)
	}
	if err := asked.SetPosition(2); err != nil {
		t.Fatal(err)
	}
	asked.Ready()
	if err := asked.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := asked.Next(); !asked.Ready() || !errors.Is(err, fs.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// TestCloseWhileWaiting: a Close from another goroutine ends a loop at any moment.
func TestCloseWhileWaiting(t *testing.T) {
	src := sources(t, 61)
	before := runtime.NumGoroutine()
	for i := range 50 {
		l := opened(t, Options{Batch: 61, Prefetch: 1, Shuffle: true}, src...)
		closed := make(chan error)
		go func() {
			time.Sleep(time.Duration(i) * 10 * time.Microsecond)
			closed <- l.Close()
		}()
		for {
			if _, err := l.Next(); err != nil {
				if !errors.Is(err, fs.ErrClosed) {
					t.Errorf("error %v", err)
				}
				break
			}
		}
		if err := <-closed; err != nil {
			t.Error(err)
		}
	}
	noLeak(t, before)
}

// TestCutWhileInUse: a file that loses its end while it is read is an error that comes out in its batch's place, mapped
// or not; when the file is complete again the loader continues.
func TestCutWhileInUse(t *testing.T) {
	const rows, width = 64, 4096
	for _, access := range []Access{Mapped, Direct, Plain} {
		path := graphtest.NPY(t, make([]float32, rows*width), rows, width)
		whole, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(path, int64(len(whole))); err != nil {
			t.Fatal(err)
		}
		l := opened(t, Options{Batch: 1, Prefetch: 2, Access: access}, Source{Name: "x", Path: path})
		next(t, l)
		if err := os.Truncate(path, 20*4*width); err != nil {
			t.Fatal(err)
		}
		var failed error
		for failed == nil {
			_, failed = l.Next()
		}
		if at := l.Position(); at < 19 || at > 21 {
			t.Errorf("%v: failed at step %d: %v", access, at, failed)
		}
		wantError(t, failed, path, "truncated while it was in use")
		if err := os.WriteFile(path, whole, 0o666); err != nil {
			t.Fatal(err)
		}
		next(t, l)
	}
}

func TestStats(t *testing.T) {
	src := sources(t, 61)
	l := opened(t, Options{Batch: 10, Access: Plain}, src...)
	for range 7 {
		next(t, l)
	}
	s := l.Stats()
	if s.Batches != 7 || s.Rows != 61 || s.Bytes <= 61*(20+8+1) || s.Waited <= 0 || len(s.Files) != 4 {
		t.Errorf("%+v", s)
	}
	for i, f := range s.Files {
		if f.Path != src[i].Path || f.Access != Plain || f.Reason != "" || f.Size <= 0 {
			t.Errorf("%+v", f)
		}
	}
}

// TestLocate compares the rows of located operands with those that the loader reads.
func TestLocate(t *testing.T) {
	x := make([]float32, 0, 20*5)
	for i := range 20 * 5 {
		x = append(x, float32(i))
	}
	var words []byte
	for i := range 62 {
		words = binary.LittleEndian.AppendUint32(words, uint32(i*i))
	}
	raw := graphtest.File(t, "tokens", words)
	list := []Source{
		{Name: "x", Path: writeTensors(t, safetensors.Tensor{Name: "flag", Shape: []int{1}, Data: []bool{true}},
			safetensors.Tensor{Name: "data", Shape: []int{20, 5}, Data: x}), Tensor: "data"},
		{Name: "in", Path: raw, Raw: "i32", Window: Window{Length: 4, Stride: 3, Targets: "out"}},
		{Name: "label", Path: graphtest.NPY(t, count[int64](20), 20)},
	}
	for _, shuffle := range []bool{false, true} {
		opts := Options{Batch: 6, Shuffle: shuffle, Epochs: 2}
		read := opened(t, opts, list...)
		located := slices.Clone(list)
		located[0].Locate, located[1].Locate = true, true
		for l := opened(t, opts, located...); ; {
			b, err := l.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			want := next(t, read)
			if len(b.Tensors) != 1 || !b.Tensors["label"].Equal(want.Tensors["label"]) || len(b.Located) != 3 {
				t.Fatalf("step %d: %d values and %d places", b.Step, len(b.Tensors), len(b.Located))
			}
			for name, parts := range b.Located {
				var got []byte
				for _, p := range parts {
					file, err := os.ReadFile(p.Path)
					if err != nil {
						t.Fatal(err)
					}
					got = append(got, file[p.Offset:][:p.Bytes]...)
				}
				if !bytes.Equal(got, want.Tensors[name].Bytes()) {
					t.Errorf("step %d: the bytes of %q differ", b.Step, name)
				}
				if name == "x" && !shuffle && len(parts) != 1 {
					t.Errorf("step %d: rows that follow one another are %d parts", b.Step, len(parts))
				}
			}
		}
	}
	for _, c := range []struct {
		src  Source
		want string
	}{
		{Source{Name: "x", Path: raw, Raw: "i32", DType: graph.F32, Locate: true}, "elements of i32 are not located"},
		{Source{Name: "x", Path: raw, Raw: "i32", Limit: 4000, Locate: true}, "elements of i32 are not located"},
		{Source{Name: "x", Path: raw, Raw: "f32", Scale: 2, Locate: true}, "elements of f32 are not located"},
	} {
		_, err := Open(Options{Batch: 2}, c.src)
		wantError(t, err, raw, c.want)
	}
}
