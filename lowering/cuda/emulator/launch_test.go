package emulator_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"unsafe"

	kernels "fusec/kernels/cuda"
	"fusec/lowering/cuda/driver"
	"fusec/lowering/cuda/emulator"
)

// A rig is a device with a stream.
type rig struct {
	testing.TB
	gpu      driver.GPU
	compiler driver.Compiler
	stream   driver.Stream
}

func newRig(t testing.TB, o emulator.Options) *rig {
	t.Helper()
	r := &rig{TB: t}
	var err error
	r.gpu, r.compiler, err = emulator.Open(o)
	r.must(err)
	t.Cleanup(func() { r.must(r.gpu.Close()) })
	r.stream, err = r.gpu.NewStream()
	r.must(err)
	return r
}

func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// alloc gives memory for n bytes.
func (r *rig) alloc(n int) driver.Ptr {
	r.Helper()
	p, err := r.gpu.Alloc(int64(n))
	r.must(err)
	return p
}

// upload copies numbers to the device; download copies n from it.
func upload[T any](r *rig, x []T) driver.Ptr {
	r.Helper()
	n := len(x) * int(unsafe.Sizeof(x[0]))
	p := r.alloc(n)
	r.must(r.stream.CopyIn(p, unsafe.Pointer(&x[0]), int64(n)))
	return p
}

func download[T any](r *rig, p driver.Ptr, n int) []T {
	r.Helper()
	x := make([]T, n)
	r.must(r.stream.CopyOut(unsafe.Pointer(&x[0]), p, int64(n*int(unsafe.Sizeof(x[0])))))
	r.must(r.stream.Sync())
	return x
}

// launch compiles a kernel named k, whose Params are pointers, and runs it.
func (r *rig) launch(fields, body string, grid, block, shared int, pointers ...driver.Ptr) error {
	r.Helper()
	f := r.function(fields, body)
	var params []byte
	for _, p := range pointers {
		params = binary.LittleEndian.AppendUint64(params, uint64(p))
	}
	return r.stream.Launch(f, [3]int{grid, 1, 1}, block, shared, params)
}

// source is the text of a kernel named k.
func source(fields, body string) string {
	return fmt.Sprintf("%s\nstruct Params { %s };\nKERNEL(k, 1024, 1) {\n%s\n}\n", kernels.Prelude(), fields, body)
}

// compile makes kernels together that are going to be launched.
func (r *rig) compile(sources []string) {
	r.Helper()
	_, err := r.compiler.(*emulator.Compiler).CompileAll(sources, r.gpu.Chip())
	r.must(err)
}

func (r *rig) function(fields, body string) driver.Function {
	r.Helper()
	image, _, err := r.compiler.Compile(source(fields, body), r.gpu.Chip())
	r.must(err)
	m, err := r.gpu.Load(image)
	r.must(err)
	f, err := m.Function("k")
	r.must(err)
	return f
}

// TestFound runs kernels that must not work, and looks for what is said of them.
func TestFound(t *testing.T) {
	const fields = "const float *x; float *y; float *x2;"
	tests := []struct {
		name, body string
		block      int
		want       string
	}{
		{"read behind", "p.y[0] = p.x[64];", 1,
			"block (0, 0, 0), thread 0: reads 4 bytes, 0 bytes behind the end of the memory of 256 bytes at byte 0 of Params"},
		{"read before", "p.y[0] = p.x[-1];", 1,
			"reads 4 bytes, 4 bytes before the beginning of the memory of 256 bytes at byte 0"},
		{"read across", "p.y[0] = *(const i64 *)(p.x + 63) + 1;", 1, "reads 4 bytes, 0 bytes behind the end"},
		{"write behind", "p.y[64 + threadIdx.x] = 1;", 1,
			"writes 4 bytes, 0 bytes behind the end of the memory of 256 bytes at byte 8"},
		{"a thread", "if (threadIdx.x == 37) p.y[70] = 1;", 64, "thread 37: writes 4 bytes, 24 bytes behind"},
		{"far away", "*(float *)12345 = 1;", 1, "accesses the address 0x3039, where no memory is"},
		{"never written", "p.x2[1] = p.y[3];", 1,
			"reads byte 12 of the memory of 256 bytes at byte 8 of Params, which was never written"},
		{"shared, never written", "SHARED; shared[4] = 1; p.y[0] = *(u32 *)(shared + 4);", 1,
			"reads byte 5 of shared memory of 1024 bytes, which was never written"},
		{"shared, behind", "SHARED; shared[1024] = 1;", 1, "writes 1 bytes, 0 bytes behind the end of shared memory"},
		{"barrier", "if (threadIdx.x < 40) __syncthreads();", 64,
			"the threads wait for each other; 0–39 at barrier 0 (40 of 64 came); 40–63 have returned"},
		{"warp", "if (threadIdx.x < 5) p.y[threadIdx.x] = __shfl_sync(~0u, threadIdx.x, 0);", 32,
			"0–4 in a collective of the lanes ffffffff of their warp; 5–31 have returned"},
		{"waits", "if (threadIdx.x == 3) __syncthreads(); else __syncwarp();", 32,
			"0–2, 4–31 in a collective of the lanes ffffffff of their warp; 3 at barrier 0 (1 of 32 came)"},
		{"mask", "if (threadIdx.x < 4) __syncwarp(1);", 32, "of which lane 1 is no part"},
		{"shuffle", "if (threadIdx.x < 4) __shfl_sync(15u, 1, 9);", 32, "lane 0 reads lane 9, which takes no part"},
		{"division", "p.y[0] = 7 / int(threadIdx.x);", 1, "an integer is divided by zero"},
		{"stack", "volatile char big[1 << 20]; for (int i = 1 << 20; i-- > 0;) big[i] = 1;", 1,
			"bytes of local variables"},
	}
	var sources []string
	for _, tt := range tests {
		sources = append(sources, source(fields, tt.body))
	}
	newRig(t, emulator.Options{}).compile(sources)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, emulator.Options{})
			x, y := upload(r, make([]float32, 64)), r.alloc(256)
			err := r.launch(fields, tt.body, 1, tt.block, 1024, x, y, x)
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "kernel k") {
				t.Fatalf("error %v\nwant %s", err, tt.want)
			}
			if again := r.stream.Sync(); again == nil || !strings.Contains(again.Error(), tt.want) {
				t.Errorf("the device is still there: %v", again)
			}
		})
	}
}

// TestCollectives compares the collectives of a warp with what they mean.
func TestCollectives(t *testing.T) {
	r := newRig(t, emulator.Options{Seed: 5})
	const n = 96
	y := r.alloc(n * 16 * 4)
	r.must(r.launch("int *y;", `
  const int i = threadIdx.x, l = i % 32;
  int *y = p.y + i * 16;
  y[0] = __shfl_sync(~0u, i, 7);
  y[1] = __shfl_xor_sync(~0u, i, 5);
  y[2] = __shfl_down_sync(~0u, i, 3);
  y[3] = __shfl_up_sync(~0u, i, 3);
  y[4] = __shfl_down_sync(~0u, i, 3, 8);
  y[5] = __shfl_sync(~0u, i, 9, 8);
  y[6] = __ballot_sync(~0u, l % 3 == 0);
  y[7] = __any_sync(~0u, l == 31) + 2 * __all_sync(~0u, l < 31);
  y[8] = __reduce_add_sync(~0u, i - 40);
  y[9] = __reduce_min_sync(~0u, i - 40);
  y[10] = __reduce_max_sync(~0u, (unsigned)i);
  if (l < 10) y[11] = __shfl_sync(0x3ffu, i, 2); else y[11] = __reduce_add_sync(~0x3ffu, 1);
  y[12] = int(__shfl_xor_sync(~0u, i64(i) << 40, 1) >> 40);
  y[13] = int(__shfl_xor_sync(~0u, float(i) / 2, 1) * 2);
  y[14] = __match_any_sync(~0u, i / 8);
  y[15] = i;
`, 1, n, 0, y))
	got := download[int32](r, y, n*16)
	for i := range n {
		l, w := i%32, i/32*32
		within := func(x, width, self int) int {
			if x < 0 || x/width != l/width {
				return self
			}
			return w + x
		}
		ballot, sum := uint32(0), 0
		for k := range 32 {
			if k%3 == 0 {
				ballot |= 1 << k
			}
			sum += w + k - 40
		}
		part := w + 2
		if l >= 10 {
			part = 22
		}
		want := []int{w + 7, w + l ^ 5, within(l+3, 32, i), within(l-3, 32, i), within(l+3, 8, i), w + l/8*8 + 1,
			int(int32(ballot)), 1, sum, w - 40, w + 31, part, i ^ 1, i ^ 1, 0xff << (l / 8 * 8), i}
		want[1] = w + (l ^ 5)
		want[14] = int(int32(uint32(want[14])))
		for k, v := range want {
			if int(got[i*16+k]) != v {
				t.Errorf("thread %d, result %d: %d, want %d", i, k, got[i*16+k], v)
			}
		}
	}
}

// TestBarriers reverses a block through shared memory, and lets two halves synchronise at separate barriers.
func TestBarriers(t *testing.T) {
	r := newRig(t, emulator.Options{})
	const blocks, n = 50, 256
	y := r.alloc(blocks * n * 4)
	r.must(r.launch("int *y;", `
  SHARED;
  int *s = (int *)shared;
  const int i = threadIdx.x;
  for (int k = 0; k < 3; k++) {
    s[i] = i + k;
    __syncthreads();
    const int x = s[blockDim.x - 1 - i];
    __syncthreads();
    if (k == 2) p.y[blockIdx.x * blockDim.x + i] = x + blockIdx.x;
  }
`, blocks, n, n*4, y))
	for i, x := range download[int32](r, y, blocks*n) {
		if want := int32(n - 1 - i%n + 2 + i/n); x != want {
			t.Fatalf("element %d is %d, want %d", i, x, want)
		}
	}
}

// TestTogether compiles kernels for several goroutines at once: with templates in common, one that has to be compiled alone since
// it specialises one of them, and one that is wrong, of which only its own goroutine hears.
func TestTogether(t *testing.T) {
	r := newRig(t, emulator.Options{})
	common := kernels.Prelude() + "\n// ---- generated ----\n\n"
	if had, _ := kernels.Parts(common); had == "" {
		t.Fatal("kernels have another mark between their parts")
	}
	const alone, wrong, all = 2, 3, 4
	var images [all][]byte
	var errs [all]error
	var done sync.WaitGroup
	for i := range all {
		more, value := "", fmt.Sprint(rand.Int32())
		switch i {
		case alone:
			more = "template <> struct Integer<float *> { static constexpr bool value = true; };\n"
		case wrong:
			value = "nothing"
		}
		source := fmt.Sprintf("%s%sstruct Params { int *y; };\nKERNEL(k, 32, 1) { p.y[0] = %s; p.y[1] = %d; }\n", common, more, value, i)
		done.Go(func() { images[i], _, errs[i] = r.compiler.Compile(source, r.gpu.Chip()) })
	}
	done.Wait()
	for i, err := range errs {
		if i == wrong {
			refused(t, err, "‘nothing’")
			continue
		}
		r.must(err)
		m, err := r.gpu.Load(images[i])
		r.must(err)
		f, err := m.Function("k")
		r.must(err)
		y := r.alloc(8)
		r.must(r.stream.Launch(f, [3]int{1, 1, 1}, 1, 0, binary.LittleEndian.AppendUint64(nil, uint64(y))))
		if got := download[int32](r, y, 2); got[1] != int32(i) {
			t.Errorf("kernel %d wrote %v", i, got)
		}
	}
}
