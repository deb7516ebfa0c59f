//go:build gpu

package gpu

// These tests need a GPU, all but the first.

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"gorgonia.org/cu"

	"fusec/graph"
	kernels "fusec/kernels/cuda"
	"fusec/lowering/cuda/driver"
	"fusec/lowering/cuda/driver/nvrtc/nvrtctest"
	"fusec/lowering/cuda/pool"
)

// TestStarts holds that a program with CUDA starts where there is no GPU, and says what is missing.
func TestStarts(t *testing.T) {
	n, err := Count()
	if err != nil && !strings.Contains(err.Error(), "no CUDA driver") && !strings.Contains(err.Error(), "no GPU") {
		t.Errorf("without a GPU: %v", err)
	}
	if _, err := Open(n); err == nil {
		t.Errorf("GPU %d of %d was opened", n, n)
	}
	if _, err := Open(-1); err == nil {
		t.Error("GPU -1 was opened")
	}
}

// must gives a value or ends the test.
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// ok ends the test if there is an error.
func ok(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// open opens the first GPU, with a stream.
func open(t testing.TB) (driver.GPU, driver.Stream) {
	t.Helper()
	g := must(Open(0))(t)
	t.Cleanup(func() { ok(t, g.Close()) })
	return g, must(g.NewStream())(t)
}

// openHopper is open for what chips before Hopper do not have. On those its tests, which are of the driver on the chip, are
// skipped.
func openHopper(t testing.TB) (driver.GPU, driver.Stream) {
	t.Helper()
	g, s := open(t)
	if g.Chip().Arch < 90 {
		t.Skipf("%s has no clusters, and no copy engine for tensors", g.Chip().Name)
	}
	return g, s
}

// bothKinds tests the first GPU with memory that belongs to a context, and with mapped memory. Both give back what is left at the
// end.
func bothKinds(t *testing.T, f func(t *testing.T, g driver.GPU, s driver.Stream)) {
	for name, open := range map[string]func(int) (driver.GPU, error){"of a context": Open, "mapped": OpenMapped} {
		t.Run(name, func(t *testing.T) {
			keep := must(OpenPrimary(0))(t) // the primary context stays
			g := must(open(0))(t)
			s := must(g.NewStream())(t)
			had, _, err := g.Memory()
			ok(t, err)
			f(t, g, s)
			must(g.Alloc(1 << 30))(t)
			ok(t, s.Close(), g.Close())
			has, _, err := keep.Memory()
			if ok(t, err, keep.Close()); has < had-1<<29 {
				t.Errorf("%d of %d bytes are held", had-has, had)
			}
		})
	}
}

// alloc gives memory on the GPU that holds the values, whose copy has been queued.
func alloc[T any](t testing.TB, g driver.GPU, s driver.Stream, values []T) driver.Ptr {
	t.Helper()
	bytes := int64(len(values)) * int64(unsafe.Sizeof(values[0]))
	p := must(g.Alloc(bytes))(t)
	ok(t, s.CopyIn(p, unsafe.Pointer(&values[0]), bytes))
	return p
}

// read waits and gives n values from the GPU.
func read[T any](t testing.TB, s driver.Stream, p driver.Ptr, n int) []T {
	t.Helper()
	values := make([]T, n)
	ok(t, s.CopyOut(unsafe.Pointer(&values[0]), p, int64(n)*int64(unsafe.Sizeof(values[0]))), s.Sync())
	return values
}

// loaded compiles a source for the GPU.
func loaded(t testing.TB, g driver.GPU, source string) driver.Module {
	t.Helper()
	image, _, err := nvrtctest.Open(t).Compile(source, g.Chip())
	ok(t, err)
	return must(g.Load(image))(t)
}

const scale = `struct Params { float *x; float a; int n; };
extern "C" __global__ void scale(const __grid_constant__ Params p) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < p.n) p.x[i] *= p.a;
}
`

// scaleParams packs the parameter of scale.
func scaleParams(x driver.Ptr, a float32, n int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(x))
	b = binary.LittleEndian.AppendUint32(b, math.Float32bits(a))
	return binary.LittleEndian.AppendUint32(b, uint32(n))
}

func random(n int, seed uint64) []float32 {
	r := rand.New(rand.NewPCG(seed, 1))
	v := make([]float32, n)
	for i := range v {
		v[i] = r.Float32() - 0.5
	}
	return v
}

func scaled(v []float32, a float32) []float32 {
	w := make([]float32, len(v))
	for i := range v {
		w[i] = v[i] * a
	}
	return w
}

func TestChip(t *testing.T) {
	g, _ := open(t)
	c := g.Chip()
	t.Logf("%+v", c)
	if c.Name == "" || c.Arch < 70 || c.SMs < 1 || c.Shared < 48<<10 || c.L2 < 1<<20 {
		t.Errorf("%+v", c)
	}
	if c.Name == kernels.H200.Name && c != kernels.H200 {
		t.Errorf("%+v, and plans are made for %+v", c, kernels.H200)
	}
}

func TestMemory(t *testing.T) {
	bothKinds(t, func(t *testing.T, g driver.GPU, s driver.Stream) {
		for _, n := range []int{1, 7, 1000, 1 << 20} {
			in := random(n, 1)
			bytes := int64(4 * n)
			a := alloc(t, g, s, in)
			b := must(g.Alloc(bytes))(t)
			if a%256 != 0 || b%256 != 0 || a == 0 || b == 0 {
				t.Errorf("%d bytes at %#x and %#x", bytes, a, b)
			}
			ok(t, s.Copy(b, a, bytes), s.Fill(a, 0x3f, bytes))
			if out := read[float32](t, s, b, n); !slices.Equal(in, out) {
				t.Errorf("%d values came back as others", n)
			}
			for i, v := range read[byte](t, s, a, 4*n) {
				if v != 0x3f {
					t.Fatalf("byte %d of %d is %#x after a fill", i, 4*n, v)
				}
			}
			host := must(g.AllocHost(bytes))(t)
			pinned := unsafe.Slice((*float32)(host), n)
			ok(t, s.CopyOut(host, b, bytes), s.Sync())
			if !slices.Equal(in, pinned) {
				t.Errorf("%d values came back to pinned memory as others", n)
			}
			ok(t, s.CopyIn(a, host, bytes))
			if out := read[float32](t, s, a, n); !slices.Equal(in, out) {
				t.Errorf("%d values from pinned memory came back as others", n)
			}
			ok(t, g.FreeHost(host), g.Free(a), g.Free(b))
		}
		// Nothing is legal.
		p := must(g.Alloc(0))(t)
		ok(t, s.CopyIn(p, nil, 0), s.CopyOut(nil, p, 0), s.Copy(p, p, 0), s.Fill(p, 1, 0), g.Free(p), g.FreeHost(nil))
		if _, err := g.Alloc(-1); err == nil {
			t.Error("-1 bytes were given")
		}
		if _, err := g.AllocHost(0); err == nil {
			t.Error("no bytes of host memory were given")
		}
		free, total, err := g.Memory()
		if err != nil || free <= 0 || free > total {
			t.Errorf("%d of %d bytes, %v", free, total, err)
		}
	})
}

func TestLaunch(t *testing.T) {
	g, s := open(t)
	f := must(loaded(t, g, scale).Function("scale"))(t)
	if r := f.Resources(); r.Registers == 0 || r.Local != 0 || r.Shared != 0 || r.MaxThreads < 128 {
		t.Errorf("%+v", r)
	}
	if n := must(f.Occupancy(128, 0))(t); n < 1 {
		t.Errorf("%d blocks at once", n)
	}
	in := random(1000, 2)
	x := alloc(t, g, s, in)
	ok(t, s.Launch(f, [3]int{8, 1, 1}, 128, 0, scaleParams(x, 3, len(in))))
	if out := read[float32](t, s, x, len(in)); !slices.Equal(out, scaled(in, 3)) {
		t.Error("wrong values")
	}
	for name, err := range map[string]error{
		"too many threads": s.Launch(f, [3]int{1, 1, 1}, 4096, 0, scaleParams(x, 1, 0)),
		"no blocks":        s.Launch(f, [3]int{0, 1, 1}, 128, 0, scaleParams(x, 1, 0)),
		"too much shared":  s.Launch(f, [3]int{1, 1, 1}, 128, 1<<20, scaleParams(x, 1, 0)),
	} {
		if err == nil || !strings.Contains(err.Error(), "scale") || !strings.Contains(err.Error(), "CUDA_ERROR") ||
			errors.Is(err, driver.ErrLost) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if m, err := g.Load([]byte("no image")); err == nil {
		t.Errorf("%v was loaded from no image", m)
	}
	if _, err := g.Load(nil); err == nil {
		t.Error("nothing was loaded")
	}
	if _, err := loaded(t, g, scale).Function("other"); err == nil || !strings.Contains(err.Error(), "other") {
		t.Errorf("a function that is not there: %v", err)
	}
	if out := read[float32](t, s, x, len(in)); !slices.Equal(out, scaled(in, 3)) {
		t.Error("after the refused launches, other values")
	}
}

// TestLargeParams launches with the largest parameter.
func TestLargeParams(t *testing.T) {
	g, s := open(t)
	m := loaded(t, g, `struct Params { int *to; int pad; int v[1021]; };
extern "C" __global__ void sum(const __grid_constant__ Params p) {
  int n = 0;
  for (int i = 0; i < 1021; i++) n += p.v[i];
  *p.to = n + p.pad;
}`)
	f := must(m.Function("sum"))(t)
	to := must(g.Alloc(4))(t)
	params := binary.LittleEndian.AppendUint64(nil, uint64(to))
	want := int32(0)
	for i := range 1022 {
		params = binary.LittleEndian.AppendUint32(params, uint32(i*i))
		want += int32(i * i)
	}
	if len(params) != kernels.MaxParams {
		t.Fatalf("%d bytes", len(params))
	}
	ok(t, s.Launch(f, [3]int{1, 1, 1}, 1, 0, params))
	clear(params) // they were copied
	if got := read[int32](t, s, to, 1)[0]; got != want {
		t.Errorf("got %d, want %d", got, want)
	}
	for _, size := range []int{0, 8, kernels.MaxParams - 4, 2 * kernels.MaxParams} {
		err := s.Launch(f, [3]int{1, 1, 1}, 1, 0, make([]byte, size))
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("sum: %d bytes of parameters, want 4096", size)) {
			t.Errorf("a parameter of %d bytes: %v", size, err)
		}
	}
	ok(t, s.Sync())
}

// TestBlocksInRounds: of a function that goes on in rounds there are as many blocks as run at the same time, in whole clusters.
func TestBlocksInRounds(t *testing.T) {
	g, s := openHopper(t)
	f := must(loaded(t, g, `struct Params { int *to; };
extern "C" __global__ void __cluster_dims__(4, 1, 1) __launch_bounds__(512, 2) rounds(const __grid_constant__ Params p) {
  for (int i = blockIdx.x; i < 4000; i += gridDim.x) if (threadIdx.x == 0) atomicAdd(p.to + 1, 1);
  if (blockIdx.x == 0 && threadIdx.x == 0) p.to[0] = gridDim.x;
}`).Function("rounds"))(t)
	f.(driver.RoundsFunction).StartRounds()
	to := must(g.Alloc(8))(t)
	for _, blocks := range []int{4, 4000} {
		ok(t, s.Fill(to, 0, 8))
		params := make([]byte, 8)
		binary.LittleEndian.PutUint64(params, uint64(to))
		ok(t, s.Launch(f, [3]int{blocks, 1, 1}, 512, 60<<10, params))
		got := read[int32](t, s, to, 2)
		if n := int(got[0]); got[1] != 4000 || n%4 != 0 || n > blocks || n > 4*g.Chip().SMs || blocks > 4 && n < g.Chip().SMs {
			t.Errorf("of %d blocks %d did %d of 4000", blocks, n, got[1])
		}
	}
}

// boxes copies each box of a matrix through shared memory with the copy engine of Hopper, and writes it out as it lies
// there.
const boxes = `struct alignas(64) Map { char bytes[128]; };
struct Params { int before; Map map; float *to; int after; };
extern "C" __global__ void boxes(const __grid_constant__ Params p) {
  __shared__ alignas(1024) float tile[8 * 32];
  __shared__ alignas(8) unsigned long long barrier;
  unsigned tileAt = (unsigned)__cvta_generic_to_shared(tile), barrierAt = (unsigned)__cvta_generic_to_shared(&barrier);
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(barrierAt) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrierAt), "r"(8 * 32 * 4) : "memory");
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];" ::"r"(tileAt), "l"(&p.map), 
                 "r"((int)blockIdx.x * 32), "r"((int)blockIdx.y * 8), "r"(barrierAt) : "memory");
  }
  asm volatile("{ .reg .pred done; again: mbarrier.try_wait.parity.shared.b64 done, [%0], 0; @!done bra again; }"
               ::"r"(barrierAt) : "memory");
  float *to = p.to + (blockIdx.y * gridDim.x + blockIdx.x) * 256;
  for (int i = threadIdx.x; i < 256; i += blockDim.x) to[i] = p.before + 1 == p.after ? tile[i] : -1;
}`

func TestTensorMap(t *testing.T) {
	g, s := openHopper(t)
	f := must(loaded(t, g, boxes).Function("boxes"))(t)
	const rows, cols, pitch = 19, 70, 72
	in := random(rows*pitch, 3)
	x := alloc(t, g, s, in)
	across, down := (cols+31)/32, (rows+7)/8
	to := must(g.Alloc(int64(across * down * 1024)))(t)
	for _, c := range []struct {
		swizzle int
		round   bool
	}{{0, false}, {128, false}, {128, true}} {
		m := &kernels.TensorMap{Base: kernels.Arg(0, 0), DType: graph.F32, Dims: []uint64{cols, rows},
			Strides: []uint64{4 * pitch}, Box: []uint32{32, 8}, Swizzle: c.swizzle, Round: c.round}
		var encoded [128]byte
		ok(t, g.EncodeMap(m, x, &encoded))
		step := kernels.Step{Params: []kernels.Param{{Kind: kernels.Int32}, {Kind: kernels.MapParam, Map: m},
			kernels.Result(0, 0), {Kind: kernels.Int32}}}
		at, size := step.Offsets()
		params := make([]byte, size)
		binary.LittleEndian.PutUint32(params[at[0]:], 7)
		copy(params[at[1]:], encoded[:])
		binary.LittleEndian.PutUint64(params[at[2]:], uint64(to))
		binary.LittleEndian.PutUint32(params[at[3]:], 8)
		ok(t, s.Fill(to, 0xff, int64(across*down*1024)))
		ok(t, s.Launch(f, [3]int{across, down, 1}, 64, 0, params))
		out := read[float32](t, s, to, across*down*256)
		for i, got := range out {
			box, r, k := i/256, i%256/32, i%32
			if c.swizzle == 128 { // the rows of 128 bytes have their 16-byte parts at part ^ row%8
				k = (k/4^r%8)*4 + k%4
			}
			row, col := box/across*8+r, box%across*32+k
			want := float32(0) // beyond the matrix
			if row < rows && col < cols {
				want = in[row*pitch+col]
			}
			if c.round { // tf32 has 13 bits less
				b := math.Float32bits(want)
				want = math.Float32frombits((b + 0xfff + b>>13&1) &^ 0x1fff)
			}
			if got != want {
				t.Fatalf("%+v: row %d, column %d is %g, want %g", c, row, col, got, want)
			}
		}
	}
	base := kernels.TensorMap{DType: graph.F32, Dims: []uint64{cols, rows}, Strides: []uint64{4 * pitch},
		Box: []uint32{32, 8}}
	for name, change := range map[string]func(*kernels.TensorMap){
		"odd stride":  func(m *kernels.TensorMap) { m.Strides = []uint64{4 * 71} },
		"no strides":  func(m *kernels.TensorMap) { m.Strides = nil },
		"no dims":     func(m *kernels.TensorMap) { m.Dims, m.Strides, m.Box = nil, nil, nil },
		"large box":   func(m *kernels.TensorMap) { m.Box = []uint32{512, 8} },
		"element":     func(m *kernels.TensorMap) { m.DType = graph.Invalid },
		"rounding":    func(m *kernels.TensorMap) { m.Round, m.DType = true, graph.I32 },
		"odd swizzle": func(m *kernels.TensorMap) { m.Swizzle = 17 },
		"windows":     func(m *kernels.TensorMap) { m.Windows = &kernels.Windows{} },
	} {
		m := base
		change(&m)
		if err := g.EncodeMap(&m, x, new([128]byte)); err == nil || !strings.Contains(err.Error(), "cuTensorMapEncode") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestShared uses all the shared memory that a block can have.
func TestShared(t *testing.T) {
	g, s := open(t)
	f := must(loaded(t, g, `struct Params { int *to; int n; };
extern __shared__ int words[];
extern "C" __global__ void reverse(const __grid_constant__ Params p) {
  for (int i = threadIdx.x; i < p.n; i += blockDim.x) words[i] = i;
  __syncthreads();
  for (int i = threadIdx.x; i < p.n; i += blockDim.x) p.to[i] = words[p.n - 1 - i];
}`).Function("reverse"))(t)
	to := must(g.Alloc(int64(g.Chip().Shared)))(t)
	for _, shared := range []int{1 << 10, 48 << 10, 48<<10 + 4, g.Chip().Shared, 64 << 10} {
		n := shared / 4
		params := binary.LittleEndian.AppendUint64(nil, uint64(to))
		params = binary.LittleEndian.AppendUint64(params, uint64(n))
		ok(t, s.Fill(to, 0xff, int64(shared)), s.Launch(f, [3]int{1, 1, 1}, 256, shared, params))
		for i, v := range read[int32](t, s, to, n) {
			if int(v) != n-1-i {
				t.Fatalf("%d bytes: word %d is %d", shared, i, v)
			}
		}
		if blocks := must(f.Occupancy(256, shared))(t); blocks < 1 {
			t.Errorf("%d bytes: %d blocks at once", shared, blocks)
		}
	}
	if _, err := f.Occupancy(256, g.Chip().Shared+4); err == nil || !strings.Contains(err.Error(), "reverse") {
		t.Errorf("more shared memory than there is: %v", err)
	}
}

func TestCapture(t *testing.T) {
	g, s := open(t)
	f := must(loaded(t, g, scale).Function("scale"))(t)
	in := random(5000, 4)
	n := len(in)
	x, y := alloc(t, g, s, in), must(g.Alloc(int64(4*n)))(t)
	host := must(g.AllocHost(int64(4 * n)))(t)
	pinned := unsafe.Slice((*float32)(host), n)
	ok(t, s.Sync())

	ok(t, s.BeginCapture())
	ok(t, s.Copy(y, x, int64(4*n)))
	for range 10 {
		ok(t, s.Launch(f, [3]int{40, 1, 1}, 128, 0, scaleParams(y, 2, n)))
	}
	ok(t, s.CopyOut(host, y, int64(4*n)))
	graph := must(s.EndCapture())(t)
	ok(t, s.Fill(y, 0xff, int64(4*n)), s.Sync())
	other := must(g.NewStream())(t)
	for round := range 3 {
		in = random(n, uint64(5+round))
		ok(t, other.CopyIn(x, unsafe.Pointer(&in[0]), int64(4*n)))
		clear(pinned)
		ok(t, other.Sync())
		done := make(chan error)
		go func() { done <- errors.Join(graph.Launch(other), other.Sync()) }()
		ok(t, <-done)
		if !slices.Equal(pinned, scaled(in, 1024)) {
			t.Fatalf("round %d: wrong values", round)
		}
	}
	// Two streams joined by events are one graph.
	a, b := must(g.NewEvent())(t), must(g.NewEvent())(t)
	ok(t, s.BeginCapture(), s.Fill(x, 0, int64(4*n)), s.Record(a), other.Wait(a), other.Fill(y, 0, int64(4*n)),
		other.Record(b), s.Wait(b))
	joined := must(s.EndCapture())(t)
	ok(t, s.Fill(x, 1, int64(4*n)), s.Fill(y, 1, int64(4*n)), joined.Launch(s))
	if slices.Max(read[byte](t, s, x, 4*n)) != 0 || slices.Max(read[byte](t, s, y, 4*n)) != 0 {
		t.Error("the joined graph left something out")
	}
	ok(t, graph.Close(), joined.Close(), a.Close(), b.Close())
	if _, err := s.EndCapture(); err == nil {
		t.Error("a capture that was not begun was ended")
	}
	ok(t, s.Sync(), other.Close())
}

func TestEvents(t *testing.T) {
	g, s := open(t)
	f := must(loaded(t, g, `struct Params { long long ns; };
extern "C" __global__ void wait(const __grid_constant__ Params p) {
  long long begin, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); while (now - begin < p.ns);
}`).Function("wait"))(t)
	ten := binary.LittleEndian.AppendUint64(nil, 10e6)
	a, b, c := must(g.NewEvent())(t), must(g.NewEvent())(t), must(g.NewEvent())(t)
	ok(t, s.Record(a), s.Launch(f, [3]int{1, 1, 1}, 1, 0, ten), s.Record(b), s.Sync())
	if d := must(b.Since(a))(t); d < 9*time.Millisecond || d > 50*time.Millisecond {
		t.Errorf("10 ms took %v", d)
	}
	// A stream that waits for an event of another.
	other := must(g.NewStream())(t)
	ok(t, s.Record(a), s.Launch(f, [3]int{1, 1, 1}, 1, 0, ten), s.Record(b), other.Wait(b), other.Record(c), other.Sync())
	if d := must(c.Since(a))(t); d < 9*time.Millisecond {
		t.Errorf("after 10 ms of another stream, %v have passed", d)
	}
	if _, err := must(g.NewEvent())(t).Since(a); err == nil {
		t.Error("an event that was not recorded has a time")
	}
}

// TestHold: what is queued behind Hold begins when the word is 1.
func TestHold(t *testing.T) {
	g, s := open(t)
	word, err := g.AllocHost(4)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := g.FreeHost(word); err != nil {
			t.Error(err)
		}
	}()
	at := (*uint32)(word)
	*at = 0
	if err := s.(driver.Holder).Hold(word); err != nil {
		t.Fatal(err)
	}
	time.Sleep(10 * time.Millisecond)
	if done, err := s.Done(); err != nil || done {
		t.Errorf("done %v, %v before the word is 1", done, err)
	}
	atomic.StoreUint32(at, 1)
	if err := s.Sync(); err != nil || atomic.LoadUint32(at) != 0 {
		t.Errorf("the word is %d, %v", *at, err)
	}
}

func TestOutOfMemory(t *testing.T) {
	bothKinds(t, func(t *testing.T, g driver.GPU, s driver.Stream) {
		free, total, err := g.Memory()
		ok(t, err)
		_, err = g.Alloc(2 * total)
		if !errors.Is(err, driver.ErrOutOfMemory) || !strings.Contains(err.Error(), fmt.Sprint(2*total)) {
			t.Errorf("%v", err)
		}
		p := must(g.Alloc(free / 2))(t) // there is still as much as before
		ok(t, s.Fill(p, 1, free/2), s.Sync(), g.Free(p))
	})
}

const faults = `struct Params { int *p; int kind; };
extern "C" __global__ void fault(const __grid_constant__ Params p) {
  if (p.kind == 0) *p.p = 1;
  if (p.kind == 1) *(int *)((char *)p.p + 1) = 1;
  if (p.kind == 2) __trap();
}`

// TestLost lets kernels go wrong in processes of their own, which this program is started again for: the driver serves
// such a process no more.
func TestLost(t *testing.T) {
	const variable = "FUSEC_GPU_TEST_FAULT"
	names := []string{"CUDA_ERROR_ILLEGAL_ADDRESS", "CUDA_ERROR_MISALIGNED_ADDRESS", "CUDA_ERROR_LAUNCH_FAILED"}
	if kind := os.Getenv(variable); kind != "" {
		lose(t, slices.Index(names, kind), kind)
		return
	}
	g, s := open(t)
	f := must(loaded(t, g, scale).Function("scale"))(t)
	in := random(100, 9)
	for _, name := range names {
		x := alloc(t, g, s, in)
		cmd := exec.Command(os.Args[0], "-test.run=^TestLost$", "-test.v")
		cmd.Env = append(os.Environ(), variable+"="+name)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
		t.Logf("%s", out)
		ok(t, s.Launch(f, [3]int{1, 1, 1}, 128, 0, scaleParams(x, 2, 100)))
		if out := read[float32](t, s, x, 100); !slices.Equal(out, scaled(in, 2)) {
			t.Errorf("%s in another process changed this one's values", name)
		}
	}
}

// lose makes a kernel go wrong in one of two ways that a GPU has been opened.
func lose(t *testing.T, kind int, name string) {
	g, other := must(Open(0))(t), must(Open(0))(t)
	s := must(g.NewStream())(t)
	f := must(loaded(t, g, faults).Function("fault"))(t)
	p := must(g.Alloc(256))(t)
	params := binary.LittleEndian.AppendUint64(nil, uint64(p))
	if kind == 0 {
		params = binary.LittleEndian.AppendUint64(nil, 16)
	}
	ok(t, s.Launch(f, [3]int{1, 1, 1}, 1, 0, binary.LittleEndian.AppendUint64(params, uint64(kind))))
	for call, err := range map[string]error{
		"Sync":  s.Sync(),
		"Alloc": second(g.Alloc(256)),
		"Fill":  s.Fill(p, 0, 256),
		"other": second(other.Alloc(256)),
	} {
		if !errors.Is(err, driver.ErrLost) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", call, err)
		}
	}
	ok(t, g.Close(), g.Close(), s.Close(), g.Free(p), other.Close())
	if err := s.Sync(); err == nil || !strings.Contains(err.Error(), "closed") {
		t.Errorf("after Close: %v", err)
	}
	_, err := Open(0)
	if !errors.Is(err, driver.ErrLost) || !strings.Contains(err.Error(), "start it again") {
		t.Errorf("opened again: %v", err)
	}
	t.Log(err)
}

func second[T any](_ T, err error) error { return err }

// TestOtherContexts holds that a context is nobody else's problem while nothing goes wrong.
func TestOtherContexts(t *testing.T) {
	g, s := open(t)
	f := must(loaded(t, g, scale).Function("scale"))(t)
	in := random(100, 10)
	x := alloc(t, g, s, in)
	ok(t, s.Sync())

	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	dev := must(cu.GetDevice(0))(t)
	theirs := must(dev.RetainPrimaryCtx())(t)
	ok(t, cu.SetCurrentContext(theirs))
	ok(t, s.Launch(f, [3]int{1, 1, 1}, 128, 0, scaleParams(x, 2, 100)), s.Sync())
	another := must(Open(0))(t)
	on := must(another.NewStream())(t)
	if err := on.Launch(f, [3]int{1, 1, 1}, 1, 0, scaleParams(x, 2, 100)); err == nil {
		t.Error("a function of another context was launched")
	}
	ok(t, another.Close())
	if now := must(cu.CurrentContext())(t); now != theirs {
		t.Errorf("the thread's context was %v and is %v", theirs, now)
	}
	ok(t, cu.SetCurrentContext(cu.CUContext{}), dev.ReleasePrimaryCtx())
	if out := read[float32](t, s, x, 100); !slices.Equal(out, scaled(in, 2)) {
		t.Error("the values changed when another context was closed")
	}
}

// TestRounds holds that nothing stays behind, as the driver counts memory.
func TestRounds(t *testing.T) {
	watch, _ := open(t)
	image, _, err := nvrtctest.Open(t).Compile(scale, watch.Chip())
	ok(t, err)
	round := func(g driver.GPU) {
		m := must(g.Load(image))(t)
		f := must(m.Function("scale"))(t)
		s, e := must(g.NewStream())(t), must(g.NewEvent())(t)
		host := must(g.AllocHost(4000))(t)
		x := must(g.Alloc(4000))(t)
		ok(t, s.CopyIn(x, host, 4000), s.BeginCapture(), s.Launch(f, [3]int{8, 1, 1}, 128, 0, scaleParams(x, 2, 1000)))
		graph := must(s.EndCapture())(t)
		ok(t, graph.Launch(s), s.Record(e), s.CopyOut(host, x, 4000), s.Sync())
		ok(t, graph.Close(), g.Free(x), g.FreeHost(host), e.Close(), s.Close(), m.Unload())
	}
	growth := func(name string, rounds int, do func()) {
		begin := time.Now()
		for range 3 { // what the driver keeps once
			do()
		}
		before, _, err := watch.Memory()
		ok(t, err)
		for range rounds {
			do()
		}
		after, _, err := watch.Memory()
		ok(t, err)
		t.Logf("%s: %d rounds, %v each", name, rounds, (time.Since(begin) / time.Duration(rounds+3)).Round(time.Microsecond))
		if after != before {
			t.Errorf("%s: %d bytes were free, and %d rounds later %d", name, before, rounds, after)
		}
	}
	growth("load, launch, unload", 1000, func() { round(watch) })
	growth("open, load, launch, close", 20, func() {
		g := must(Open(0))(t)
		round(g)
		m := must(g.Load(image))(t) // what is not freed goes with the context
		must(g.Alloc(1 << 20))(t)
		must(g.AllocHost(1 << 20))(t)
		must(g.NewStream())(t)
		must(m.Function("scale"))(t)
		ok(t, g.Close())
	})
}

// TestPool holds that a pool's peak is what the driver says.
func TestPool(t *testing.T) {
	g, s := open(t)
	p := pool.New(g)
	before, _, err := g.Memory()
	ok(t, err)
	least := before
	r := rand.New(rand.NewPCG(11, 1))
	var blocks []driver.Ptr
	for range 300 {
		if len(blocks) < 20 && r.IntN(3) > 0 {
			bytes := 1<<20 + r.Int64N(64<<20)
			at := must(p.Alloc(bytes))(t)
			ok(t, s.Fill(at, 1, bytes))
			blocks = append(blocks, at)
		} else if len(blocks) > 0 {
			ok(t, p.Free(blocks[0]))
			blocks = blocks[1:]
		}
		free, _, err := g.Memory()
		ok(t, err)
		least = min(least, free)
	}
	ok(t, s.Sync())
	use := p.Device()
	t.Logf("%+v; the driver says %d", use, before-least)
	if use.PeakHeld != before-least {
		t.Errorf("the pool held %d bytes at most, and the driver gave %d", use.PeakHeld, before-least)
	}
	for _, at := range blocks {
		ok(t, p.Free(at))
	}
	ok(t, p.Trim())
	if after, _, err := g.Memory(); err != nil || after != before {
		t.Errorf("%d bytes were free, and are %d after Trim: %v", before, after, err)
	}
}

func TestGoroutines(t *testing.T) {
	g1, _ := open(t)
	g2, _ := open(t)
	var all sync.WaitGroup
	for i := range 16 {
		g := []driver.GPU{g1, g2}[i%2]
		f := must(loaded(t, g, scale).Function("scale"))(t)
		all.Go(func() {
			s, err := g.NewStream()
			if err != nil {
				t.Error(err)
				return
			}
			for round := range 20 {
				in := random(3000, uint64(100*i+round))
				x, err := g.Alloc(12000)
				if err != nil {
					t.Error(err)
					return
				}
				out := make([]float32, 3000)
				err = errors.Join(s.CopyIn(x, unsafe.Pointer(&in[0]), 12000),
					s.Launch(f, [3]int{24, 1, 1}, 128, 0, scaleParams(x, float32(i+1), 3000)),
					s.CopyOut(unsafe.Pointer(&out[0]), x, 12000), s.Sync(), g.Free(x))
				if err != nil || !slices.Equal(out, scaled(in, float32(i+1))) {
					t.Errorf("goroutine %d, round %d: %v or wrong values", i, round, err)
					return
				}
			}
		})
	}
	all.Wait()
}

// TestAllocatesNothing holds that launching leaves no work for the garbage collector.
func TestAllocatesNothing(t *testing.T) {
	g, s := open(t)
	f := must(loaded(t, g, scale).Function("scale"))(t)
	x := must(g.Alloc(4000))(t)
	params := scaleParams(x, 1, 1000)
	e := must(g.NewEvent())(t)
	ok(t, s.BeginCapture(), s.Launch(f, [3]int{8, 1, 1}, 128, 0, params))
	graph := must(s.EndCapture())(t)
	host := must(g.AllocHost(4000))(t)
	for name, call := range map[string]func() error{
		"Launch":       func() error { return s.Launch(f, [3]int{8, 1, 1}, 128, 0, params) },
		"Graph.Launch": func() error { return graph.Launch(s) },
		"Record":       func() error { return s.Record(e) },
		"CopyIn":       func() error { return s.CopyIn(x, host, 4000) },
		"CopyOut":      func() error { return s.CopyOut(host, x, 4000) },
		"Fill":         func() error { return s.Fill(x, 0, 4000) },
		"Sync":         func() error { return s.Sync() },
	} {
		if n := testing.AllocsPerRun(100, func() { ok(t, call()) }); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}

// BenchmarkLaunch measures what a launch costs the processor: the GPU's queue, which holds about a thousand, is never
// full.
func BenchmarkLaunch(b *testing.B) {
	g, s := open(b)
	f := must(loaded(b, g, scale).Function("scale"))(b)
	params := scaleParams(must(g.Alloc(4000))(b), 1, 1000)
	for i := 0; b.Loop(); i++ {
		if i%500 == 0 {
			b.StopTimer()
			ok(b, s.Sync())
			b.StartTimer()
		}
		if err := s.Launch(f, [3]int{8, 1, 1}, 128, 0, params); err != nil {
			b.Fatal(err)
		}
	}
	ok(b, s.Sync())
}

// BenchmarkGraph launches graphs of 100 kernels; the time is of one kernel.
func BenchmarkGraph(b *testing.B) {
	g, s := open(b)
	f := must(loaded(b, g, scale).Function("scale"))(b)
	params := scaleParams(must(g.Alloc(4000))(b), 1, 1000)
	ok(b, s.BeginCapture())
	for range 100 {
		ok(b, s.Launch(f, [3]int{8, 1, 1}, 128, 0, params))
	}
	graph := must(s.EndCapture())(b)
	ok(b, graph.Launch(s), s.Sync())
	b.ResetTimer()
	for range (b.N + 99) / 100 {
		ok(b, graph.Launch(s))
	}
	ok(b, s.Sync())
}

func BenchmarkRecord(b *testing.B) {
	g, s := open(b)
	e := must(g.NewEvent())(b)
	for b.Loop() {
		ok(b, s.Record(e))
	}
	ok(b, s.Sync())
}

func BenchmarkAllocFree(b *testing.B) {
	g, _ := open(b)
	for b.Loop() {
		ok(b, g.Free(must(g.Alloc(64<<20))(b)))
	}
}

func BenchmarkCopyIn(b *testing.B) {
	g, s := open(b)
	const bytes = 64 << 20
	x := must(g.Alloc(bytes))(b)
	pageable := make([]byte, bytes)
	for name, from := range map[string]unsafe.Pointer{
		"pinned": must(g.AllocHost(bytes))(b), "pageable": unsafe.Pointer(&pageable[0]),
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(bytes)
			for b.Loop() {
				ok(b, s.CopyIn(x, from, bytes), s.Sync())
			}
		})
	}
}
