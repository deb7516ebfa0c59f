package emulator_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"fusec/graph"
	kernels "fusec/kernels/cuda"
	"fusec/lowering/cuda/driver"
	"fusec/lowering/cuda/emulator"
)

// small draws n whole numbers from −8 to 8, which every type holds, so that sums of few products are exact.
func small(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.IntN(17) - 8)
	}
	return x
}

// product is a·b for a [m, k] and b [k, n].
func product(a, b []float32, m, n, k int) []float32 {
	d := make([]float32, m*n)
	for i := range m {
		for j := range n {
			for l := range k {
				d[i*n+j] += a[i*k+l] * b[l*n+j]
			}
		}
	}
	return d
}

func transposed(x []float32, rows, cols int) []float32 {
	y := make([]float32, len(x))
	for i := range rows {
		for j := range cols {
			y[j*rows+i] = x[i*cols+j]
		}
	}
	return y
}

// half is a whole number from −8 to 8 as bits of bf16 or f16.
func half(typ string, x float32) uint16 {
	b := math.Float32bits(x)
	if typ == "bf16" {
		return uint16(b >> 16)
	}
	if x == 0 {
		return 0
	}
	return uint16(b>>16&0x8000 | (b>>23&0xff-127+15)<<10 | b>>13&0x3ff)
}

// elements copies numbers to the device as a type.
func elements(r *rig, typ string, x []float32) driver.Ptr {
	r.Helper()
	if typ == "float" || typ == "tf32" {
		return upload(r, x)
	}
	y := make([]uint16, len(x))
	for i := range x {
		y[i] = half(typ, x[i])
	}
	return upload(r, y)
}

func same(t *testing.T, got, want []float32, columns int) {
	t.Helper()
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("element [%d, %d] is %v, want %v", i/columns, i%columns, got[i], want[i])
		}
	}
}

// TestMMA fills fragments by their definition and compares products of a warp with plain ones.
func TestMMA(t *testing.T) {
	r := newRig(t, emulator.Options{})
	rnd := rand.New(rand.NewPCG(1, 1))
	for _, tt := range []struct {
		typ   string
		depth int
		fill  string
	}{
		{"bf16", 16, halves}, {"f16", 16, halves},
		{"float", 8, `for (int i = 0; i < 4; i++) a[i] = float_to_bits(p.a[(g + i % 2 * 8) * 8 + t + i / 2 * 4]);
      for (int i = 0; i < 2; i++) b[i] = float_to_bits(p.b[(t + i * 4) * 8 + g]);`},
	} {
		a, b := small(rnd, 16*tt.depth), small(rnd, tt.depth*8)
		y := r.alloc(16 * 8 * 4)
		r.must(r.launch(fmt.Sprintf("const %s *a, *b; float *y;", tt.typ), fmt.Sprintf(`
  const int g = threadIdx.x / 4, t = threadIdx.x %% 4;
  u32 a[4], b[2];
  float d[4] = {1, 1, 1, 1};
  %s
  mma(%s{}, d, a, b);
  for (int i = 0; i < 4; i++) p.y[(g + i / 2 * 8) * 8 + 2 * t + i %% 2] = d[i] - 1;`, tt.fill, tt.typ),
			1, 32, 0, elements(r, tt.typ, a), elements(r, tt.typ, b), y))
		same(t, download[float32](r, y, 128), product(a, b, 16, 8, tt.depth), 8)
	}
}

const halves = `for (int i = 0; i < 4; i++) a[i] = *(const u32 *)(p.a + (g + i % 2 * 8) * 16 + 2 * t + i / 2 * 8);
  for (int i = 0; i < 2; i++) {
    const bf16 *const at = (const bf16 *)p.b + (2 * t + 8 * i) * 8 + g;
    b[i] = at[0].bits | u32(at[8].bits) << 16;
  }`

// TestIntegers multiplies bytes with signs.
func TestIntegers(t *testing.T) {
	r := newRig(t, emulator.Options{})
	rnd := rand.New(rand.NewPCG(1, 1))
	a, b, want := make([]int8, 16*32), make([]int8, 8*32), make([]int32, 16*8)
	for i := range a {
		a[i] = int8(rnd.IntN(256) - 128)
	}
	for i := range b {
		b[i] = int8(rnd.IntN(256) - 128)
	}
	for i := range want {
		want[i] = 1
		for k := range 32 {
			want[i] += int32(a[i/8*32+k]) * int32(b[i%8*32+k])
		}
	}
	y := r.alloc(16 * 8 * 4)
	r.must(r.launch("const u32 *a, *b; int *y;", `
  const int g = threadIdx.x / 4, t = threadIdx.x % 4;
  u32 a[4], b[2];
  int d[4] = {1, 1, 1, 1};
  for (int i = 0; i < 4; i++) a[i] = p.a[(g + i % 2 * 8) * 8 + t + i / 2 * 4];
  for (int i = 0; i < 2; i++) b[i] = p.b[g * 8 + t + i * 4];
  mma_integers(d, a, b);
  for (int i = 0; i < 4; i++) p.y[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = d[i];`, 1, 32, 0, upload(r, a), upload(r, b), y))
	if got := download[int32](r, y, len(want)); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestLoads passes both operands through shared memory, copied there asynchronously, and load_matrices.
func TestLoads(t *testing.T) {
	r := newRig(t, emulator.Options{})
	rnd := rand.New(rand.NewPCG(2, 1))
	a, b := small(rnd, 16*16), small(rnd, 16*16)
	y := r.alloc(16 * 16 * 4)
	body := `
  SHARED;
  bf16 *const as = (bf16 *)shared, *const bs = as + 256;
  const int l = threadIdx.x, g = l / 4, t = l % 4;
  copy_async<16>(as + l * 8, p.a + l * 8, true);
  copy_commit();
  copy_async<16>(bs + l * 8, p.b + l * 8, true);
  copy_commit();
  copy_wait<1>();
  __syncwarp();
  u32 ra[4], rb[4];
  load_matrices<false>(ra, as + l % 16 * 16 + l / 16 * 8);
  copy_wait<0>();
  __syncwarp();
  load_matrices<true>(rb, bs + l % 16 * 16 + l / 16 * 8);
  for (int j = 0; j < 2; j++) {
    float d[4] = {};
    mma(bf16{}, d, ra, {rb[2 * j], rb[2 * j + 1]});
    for (int i = 0; i < 4; i++) p.y[(g + i / 2 * 8) * 16 + 8 * j + 2 * t + i % 2] = d[i];
  }`
	fields := "const bf16 *a, *b; float *y;"
	r.must(r.launch(fields, body, 1, 32, 1024, elements(r, "bf16", a), elements(r, "bf16", b), y))
	same(t, download[float32](r, y, 256), product(a, b, 16, 16, 16), 16)

	early := strings.Replace(body, "copy_wait<0>();", "", 1)
	err := r.launch(fields, early, 1, 32, 1024, elements(r, "bf16", a), elements(r, "bf16", b), y)
	refused(t, err, "of shared memory of 1024 bytes, which was never written")
}

// TestWindows copies patches of images at consecutive positions of a window, from places inside and beyond the last image, and
// refuses places that are none.
func TestWindows(t *testing.T) {
	const channels, width, height, images, pixels = 12, 7, 5, 2, 40
	r := newRig(t, emulator.Options{})
	w := &kernels.Windows{First: [2]int{-2, -1}, Count: [2]int{4, 6}, Step: [2]int{2, 1}}
	m := &kernels.TensorMap{DType: graph.F32, Dims: []uint64{channels, width, height, images}, Windows: w, Box: []uint32{8, pixels},
		Strides: []uint64{channels * 4, width * channels * 4, height * width * channels * 4}}
	values := small(rand.New(rand.NewPCG(9, 1)), images*height*width*channels)
	x, y := upload(r, values), r.alloc(pixels*8*4)
	copied := func(load string) error {
		f := r.function("TensorMap map; float *y;", fmt.Sprintf(`
  SHARED;
  u64 *const bar = (u64 *)(shared + %[1]d);
  if (threadIdx.x == 0) {
    barrier_init(bar, 1);
    barrier_init_done();
    barrier_expect(bar, %[1]d);
    %[2]s;
  }
  __syncthreads();
  barrier_wait(bar, 0);
  for (int i = threadIdx.x; i < %[1]d / 4; i += blockDim.x) p.y[i] = ((float *)shared)[i];`, pixels*32, load))
		return r.stream.Launch(f, [3]int{1, 1, 1}, 64, pixels*32+8, mapParams(r, m, x, y))
	}
	// From position 1 of row 3 of the first image on, channels 6 to 13 of tap (3, 2).
	r.must(copied("tma_patches(shared, &p.map, bar, 6, 0, 2, 0, 3, 2)"))
	got := download[float32](r, y, pixels*8)
	for i := range got {
		position, c := 3*4+1+i/8, 6+i%8
		col, row, n := position%4*2-2+3, position/4%6-1+2, position/24
		want := float32(0)
		if c < channels && col >= 0 && col < width && row >= 0 && row < height && n < images {
			want = values[((n*height+row)*width+col)*channels+c]
		}
		if got[i] != want {
			t.Fatalf("element %d is %v, want %v", i, got[i], want)
		}
	}
	for load, want := range map[string]string{
		"tma_patches(shared, &p.map, bar, 0, 1, 2, 0, 0, 0)":   "begins at 1 along axis 1, which is no position",
		"tma_patches(shared, &p.map, bar, 0, 0, 5, 0, 0, 0)":   "begins at 5 along axis 2, which is no position",
		"tma_patches(shared, &p.map, bar, 0, 0, 0, 0, 0, 256)": "a tap is 256 from the first",
		"tma_load(shared, &p.map, bar, 0, 0, 0, 0)":            "a tensor map with windows",
	} {
		r = newRig(t, emulator.Options{})
		x, y = upload(r, values), r.alloc(pixels*8*4)
		refused(t, copied(load), want)
	}
	m.Windows, m.Box = nil, []uint32{8, pixels, 1, 1}
	r = newRig(t, emulator.Options{})
	x, y = upload(r, values), r.alloc(pixels*8*4)
	refused(t, copied("tma_patches(shared, &p.map, bar, 0, 0, 0, 0, 0, 0)"), "a tensor map without windows")
}

// TestZeroFill copies what is there, and zeros.
func TestZeroFill(t *testing.T) {
	r := newRig(t, emulator.Options{})
	y := r.alloc(32 * 4)
	r.must(r.launch("const float *x; float *y;", `
  SHARED;
  float *const s = (float *)shared;
  const int i = threadIdx.x;
  copy_async<4>(s + i, p.x + (i < 20 ? i : 0), i < 20);
  copy_commit();
  copy_wait<0>();
  p.y[i] = s[i];`, 1, 32, 128, upload(r, small(rand.New(rand.NewPCG(1, 3)), 20)), y))
	x := small(rand.New(rand.NewPCG(1, 3)), 20)
	same(t, download[float32](r, y, 32), append(x, make([]float32, 12)...), 32)
}

// mapParams is a parameter of a tensor map and pointers.
func mapParams(r *rig, m *kernels.TensorMap, base driver.Ptr, pointers ...driver.Ptr) []byte {
	r.Helper()
	var to [128]byte
	r.must(r.gpu.EncodeMap(m, base, &to))
	params := to[:]
	for _, p := range pointers {
		params = binary.LittleEndian.AppendUint64(params, uint64(p))
	}
	for len(params)%64 != 0 {
		params = append(params, 0)
	}
	return params
}

// TestBoxes copies boxes of tensors of 2 to 4 axes at places inside, over and beyond the edges, with every swizzle, and back to the
// same places of other tensors.
func TestBoxes(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 1))
	for _, tt := range []struct {
		dims    []int // innermost first
		box     []int
		swizzle int
		at      []int
	}{
		{[]int{40, 20}, []int{16, 8}, 0, []int{8, 3}},
		{[]int{40, 20}, []int{32, 16}, 128, []int{-5, 10}},
		{[]int{100, 20}, []int{16, 16}, 64, []int{90, -3}},
		{[]int{100, 7}, []int{8, 32}, 32, []int{0, 0}},
		{[]int{32, 9, 5}, []int{32, 4, 3}, 128, []int{0, 6, 1}},
		{[]int{12, 3, 4, 5}, []int{4, 2, 3, 2}, 0, []int{9, 2, -1, 4}},
	} {
		r := newRig(t, emulator.Options{})
		m := &kernels.TensorMap{DType: graph.F32, Swizzle: tt.swizzle}
		pitch, total := 1, 1
		for i, d := range tt.dims {
			m.Dims, m.Box = append(m.Dims, uint64(d)), append(m.Box, uint32(tt.box[i]))
			total *= tt.box[i]
			pitch *= d
			if i == 0 {
				pitch = (d + 3) / 4 * 4
			}
			if i < len(tt.dims)-1 {
				m.Strides = append(m.Strides, uint64(pitch*4))
			}
		}
		x, stored := small(rnd, pitch), make([]float32, pitch)
		y, z := r.alloc(total*4), upload(r, stored)
		f := r.function("TensorMap map, to; float *y;", fmt.Sprintf(`
  SHARED;
  u64 *const bar = (u64 *)(shared + %[1]d);
  if (threadIdx.x == 0) {
    barrier_init(bar, 1);
    barrier_init_done();
    barrier_expect(bar, %[1]d);
    tma_load(shared, &p.map, bar%[2]s);
  }
  __syncthreads();
  barrier_wait(bar, 0);
  for (int i = threadIdx.x; i < %[1]d / 4; i += blockDim.x) p.y[i] = ((float *)shared)[i];
  if (threadIdx.x == 0) {
    tma_store(&p.to, shared%[2]s);
    bulk_commit();
    bulk_read_wait();
  }`, total*4, arguments(tt.at)))
		params := append(mapParams(r, m, upload(r, x)), mapParams(r, m, z, y)...)
		r.must(r.stream.Launch(f, [3]int{1, 1, 1}, 64, total*4+8, params))
		got := download[float32](r, y, total)
		width := tt.box[0] * 4
		for i := range total {
			want, from, inside, rest := float32(0), 0, true, i
			for k := range tt.dims {
				c := tt.at[k] + rest%tt.box[k]
				rest /= tt.box[k]
				inside = inside && c >= 0 && c < tt.dims[k]
				if k == 0 {
					from = c
				} else {
					from += c * int(m.Strides[k-1]) / 4
				}
			}
			if inside {
				want = x[from]
				stored[from] = want
			}
			// Rows of the box follow one another; bits 4 to 6 of a place are changed by bits 7 to 9.
			place := i * 4
			switch width {
			case 128:
				place ^= place / 128 % 8 * 16 * (tt.swizzle / 128)
			case 64:
				place ^= place / 128 % 4 * 16 * (tt.swizzle / 64)
			case 32:
				place ^= place / 128 % 2 * 16 * (tt.swizzle / 32)
			}
			if got[place/4] != want {
				t.Fatalf("%+v: element %d of the box is %v, want %v", tt, i, got[place/4], want)
			}
		}
		same(t, download[float32](r, z, pitch), stored, tt.dims[0])
	}
}

func arguments(at []int) string {
	s := ""
	for _, x := range at {
		s += fmt.Sprintf(", %d", x)
	}
	return s
}

// TestWarpgroup multiplies [64, 64] by [64, N] in shared memory, copied there by the copy engine, in every arrangement
// of the operands.
func TestWarpgroup(t *testing.T) {
	rnd := rand.New(rand.NewPCG(4, 1))
	dtype := map[string]graph.DType{"bf16": graph.BF16, "f16": graph.F16, "tf32": graph.F32}
	for _, tt := range []struct {
		typ       string
		n         int
		ta, tb    bool
		registers bool
	}{
		{"bf16", 64, false, false, false}, {"f16", 128, false, true, false}, {"bf16", 192, true, false, false},
		{"f16", 256, true, true, false}, {"bf16", 128, false, true, true}, {"f16", 64, false, false, true},
		{"tf32", 64, false, false, false}, {"tf32", 128, false, false, false},
	} {
		name := fmt.Sprintf("%s_%d_%v_%v_%v", tt.typ, tt.n, tt.ta, tt.tb, tt.registers)
		t.Run(name, func(t *testing.T) {
			r := newRig(t, emulator.Options{Seed: rnd.Uint64()})
			k := 64
			if tt.typ == "tf32" {
				k = 32
			}
			a, b := small(rnd, 64*k), small(rnd, k*tt.n)
			want := product(a, b, 64, tt.n, k)
			// An operand lies in memory as [outer, k], or turned, [k, outer], in boxes of 64 columns.
			place := func(x []float32, outer int, turned bool) (*kernels.TensorMap, driver.Ptr) {
				cols, rows := k, outer
				if turned {
					cols, rows = outer, k
				}
				d := dtype[tt.typ]
				return &kernels.TensorMap{DType: d, Dims: []uint64{uint64(cols), uint64(rows)},
					Strides: []uint64{uint64(cols * d.Size())}, Box: []uint32{uint32(128 / d.Size()), uint32(rows)},
					Swizzle: 128}, elements(r, tt.typ, x)
			}
			am, ap := place(a, 64, false)
			if tt.ta {
				am, ap = place(transposed(a, 64, k), 64, true)
			}
			bm, bp := place(transposed(b, k, tt.n), tt.n, false)
			if tt.tb {
				bm, bp = place(b, tt.n, true)
			}
			y := r.alloc(64 * tt.n * 4)
			load := func(to, m string, outer int, turned bool) string {
				s := ""
				for c := 0; c < outer && (turned || c == 0); c += 64 {
					s += fmt.Sprintf("    tma_load(%s + %d, &p.%s, bar, %d, 0);\n", to, c*128, m, c)
				}
				return s
			}
			step := func(turned bool) int {
				if turned {
					return 2048
				}
				return 32
			}
			multiply := fmt.Sprintf(`const u64 ad = wgmma_operand(as + %[5]d * k, 8192, 1024);
    Wgmma<%[1]s, %[2]d>::multiply<%[3]v, %[4]v>(d, ad, bd, k > 0);`,
				tt.typ, tt.n, tt.tb, tt.ta, step(tt.ta))
			if tt.registers {
				multiply = fmt.Sprintf(`u32 a[4];
    for (int i = 0; i < 4; i++)
      a[i] = *(const u32 *)(p.a + (w * 16 + g + i %% 2 * 8) * 64 + k * 16 + 2 * t + i / 2 * 8);
    Wgmma<%s, %d>::multiply<%v>(d, a, bd, k > 0);`, tt.typ, tt.n, tt.tb)
			}
			bytes := 128 * (64 + tt.n)
			f := r.function(fmt.Sprintf("TensorMap am, bm; const %s *a; float *y;", tt.typ), fmt.Sprintf(`
  SHARED;
  u8 *const as = shared, *const bs = shared + 8192;
  u64 *const bar = (u64 *)(shared + %[1]d);
  const int l = threadIdx.x %% 32, w = threadIdx.x / 32, g = l / 4, t = l %% 4;
  if (threadIdx.x == 0) {
    barrier_init(bar, 1);
    barrier_init_done();
    barrier_expect(bar, %[1]d);
%[2]s%[3]s  }
  __syncthreads();
  barrier_wait(bar, 0);
  float d[%[4]d / 2];
  wgmma_fence();
  for (int k = 0; k < 4; k++) {
    const u64 bd = wgmma_operand(bs + %[5]d * k, %[6]d, 1024);
    %[7]s
    wgmma_commit();
  }
  wgmma_wait<0>();
  pin(d);
  for (int i = 0; i < %[4]d / 2; i++)
    p.y[(w * 16 + g + i / 2 %% 2 * 8) * %[4]d + i / 4 * 8 + 2 * t + i %% 2] = d[i];`,
				bytes, load("as", "am", 64, tt.ta), load("bs", "bm", tt.n, tt.tb), tt.n, step(tt.tb), 8192, multiply))
			var maps [2][128]byte
			r.must(r.gpu.EncodeMap(am, ap, &maps[0]))
			r.must(r.gpu.EncodeMap(bm, bp, &maps[1]))
			params := append(append([]byte(nil), maps[0][:]...), maps[1][:]...)
			for _, p := range []driver.Ptr{ap, y} {
				params = binary.LittleEndian.AppendUint64(params, uint64(p))
			}
			params = append(params, make([]byte, 48)...)
			r.must(r.stream.Launch(f, [3]int{1, 1, 1}, 128, bytes+8, params))
			same(t, download[float32](r, y, 64*tt.n), want, tt.n)
		})
	}
}

// ring is a pipeline: thread 0 of the second warp fills two stages of a ring with rows of x by the copy engine, the
// first warp adds them up.
const ring = `
  SHARED;
  constexpr int STAGES = 2, STEPS = 7;
  u64 *const full = (u64 *)(shared + STAGES * 128), *const empty = full + STAGES;
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++) {
      barrier_init(full + i, 1);
      barrier_init(empty + i, 32);
    }
    barrier_init_done();
  }
  __syncthreads();
  if (threadIdx.x == 32) {
    bulk_prefetch(p.x, STEPS * 128);
    for (int i = 0; i < STEPS; i++) {
      const int s = i % STAGES;
      barrier_wait(empty + s, i / STAGES % 2 ^ 1);
      barrier_expect(full + s, 128);
      bulk_load(shared + s * 128, p.x + i * 32, 128, full + s);
    }
  } else if (threadIdx.x < 32) {
    float sum = 0;
    for (int i = 0; i < STEPS; i++) {
      const int s = i % STAGES;
      barrier_wait(full + s, i / STAGES % 2);
      sum += ((float *)(shared + s * 128))[threadIdx.x];
      barrier_arrive(empty + s);
    }
    p.y[blockIdx.x * 32 + threadIdx.x] = sum;
  }`

// TestRing runs the pipeline in many orders, and broken ones.
func TestRing(t *testing.T) {
	x := small(rand.New(rand.NewPCG(5, 1)), 7*32)
	want := make([]float32, 32)
	for i, v := range x {
		want[i%32] += v
	}
	r := newRig(t, emulator.Options{})
	const blocks = 50
	y := r.alloc(blocks * 128)
	r.must(r.launch("const float *x; float *y;", ring, blocks, 64, 300, upload(r, x), y))
	got := download[float32](r, y, blocks*32)
	for i := range blocks {
		same(t, got[i*32:(i+1)*32], want, 32)
	}
	const fields = "const float *x; float *y;"
	tests := []struct{ from, to, want string }{
		{"barrier_wait(full + s, i / STAGES % 2);", "", "which was never written"},
		{"i / STAGES % 2 ^ 1", "i / STAGES % 2",
			"32 at the mbarrier at byte 272 of shared memory (32 arrivals, 0 bytes missing)"},
		{"barrier_arrive(empty + s);", "if (threadIdx.x) barrier_arrive(empty + s);", "(1 arrivals, 0 bytes missing)"},
		{"barrier_expect(full + s, 128);", "barrier_expect(full + s, 144);", "(0 arrivals, 16 bytes missing)"},
		{"i < STEPS; i++) {", "i < STEPS + 1; i++) {", "the memory of 896 bytes"},
		{"p.x + i * 32, 128", "p.x + i * 32 + 1, 128", "no multiples of 16"},
		{"STEPS * 128)", "STEPS * 128 + 16)", "the memory of 896 bytes"},
		{"bulk_prefetch(p.x", "bulk_prefetch(p.x + 1", "a prefetch of 896 bytes"},
		{"barrier_init(full + i, 1);", "", "which was never written"},
	}
	var sources []string
	for _, tt := range tests {
		sources = append(sources, source(fields, strings.Replace(ring, tt.from, tt.to, 1)))
	}
	r.compile(sources)
	for _, tt := range tests {
		r := newRig(t, emulator.Options{})
		if !strings.Contains(ring, tt.from) {
			t.Fatalf("nothing to break: %s", tt.from)
		}
		err := r.launch(fields, strings.Replace(ring, tt.from, tt.to, 1), 1, 64, 300, upload(r, x), r.alloc(128))
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("with %q for %q: %v\nwant %s", tt.to, tt.from, err, tt.want)
		}
	}
}

// TestCluster lets two blocks share a copy, and each tell the other when it has read it.
func TestCluster(t *testing.T) {
	r := newRig(t, emulator.Options{})
	x := small(rand.New(rand.NewPCG(6, 1)), 64*32)
	m := &kernels.TensorMap{DType: graph.F32, Dims: []uint64{32, 64, 1, 1}, Strides: []uint64{128, 8192, 8192},
		Box: []uint32{32, 8, 1, 1}}
	const blocks = 4
	y := r.alloc(blocks * 512 * 4)
	text := kernels.Prelude() + `
struct Params { TensorMap map; float *y; };
CLUSTER_KERNEL(k, 64, 1, 2) {
  SHARED;
  u64 *const full = (u64 *)(shared + 2048), *const empty = full + 1;
  const int rank = cluster_rank();
  if (threadIdx.x == 0) {
    barrier_init(full, 1);
    barrier_init(empty, 2);
    barrier_init_done();
  }
  cluster_sync();
  for (int i = 0; i < 3; i++) {
    if (threadIdx.x == 0) {
      barrier_wait(empty, i % 2 ^ 1);
      barrier_expect(full, 2048);
      tma_multicast(shared + rank * 1024, &p.map, full, 0, 16 * i + 8 * rank, 0, 0, 3);
    }
    barrier_wait(full, i % 2);
    float v[8];
    for (int j = 0; j < 8; j++) v[j] = ((float *)shared)[threadIdx.x * 8 + j];
    __syncthreads();
    if (threadIdx.x < 2) barrier_arrive_at(empty, threadIdx.x);
    if (i == 2)
      for (int j = 0; j < 8; j++) p.y[blockIdx.x * 512 + threadIdx.x * 8 + j] = v[j];
  }
  cluster_sync();
}
`
	image, _, err := r.compiler.Compile(text, r.gpu.Chip())
	r.must(err)
	module, err := r.gpu.Load(image)
	r.must(err)
	f, err := module.Function("k")
	r.must(err)
	params := mapParams(r, m, upload(r, x), y)
	refused(t, r.stream.Launch(f, [3]int{3, 1, 1}, 64, 2064, params), "in clusters of 2")
	r.must(r.stream.Launch(f, [3]int{blocks, 1, 1}, 64, 2064, params))
	got := download[float32](r, y, blocks*512)
	for i := range blocks {
		same(t, got[i*512:(i+1)*512], x[32*32:48*32], 32)
	}
}

// TestWaiting has blocks wait for one another: each reads what the next one has written, and all are there. If one does not count,
// the others wait in vain.
func TestWaiting(t *testing.T) {
	text := kernels.Prelude() + `
struct Params { int *y, *count; };
TOGETHER_KERNEL(k, 32) {
  if (threadIdx.x == 0) {
    p.y[blockIdx.x] = blockIdx.x * 3;
    count_arrive(p.count, 1);
    count_await(p.count, gridDim.x);
    p.y[gridDim.x + blockIdx.x] = p.y[(blockIdx.x + 1) % gridDim.x];
  }
}
`
	const blocks = 20
	for _, idle := range []bool{false, true} {
		r := newRig(t, emulator.Options{})
		if idle {
			text = strings.Replace(text, "count_arrive", "if (blockIdx.x != 7) count_arrive", 1)
		}
		image, _, err := r.compiler.Compile(text, r.gpu.Chip())
		r.must(err)
		module, err := r.gpu.Load(image)
		r.must(err)
		f, err := module.Function("k")
		r.must(err)
		y := r.alloc(2 * blocks * 4)
		params := binary.LittleEndian.AppendUint64(nil, uint64(y))
		params = binary.LittleEndian.AppendUint64(params, uint64(upload(r, []int32{0})))
		err = r.stream.Launch(f, [3]int{blocks, 1, 1}, 32, 0, params)
		if idle {
			refused(t, err, "for a count of blocks, which is 19")
			continue
		}
		r.must(err)
		for i, x := range download[int32](r, y, 2*blocks)[blocks:] {
			if want := int32(i+1) % blocks * 3; x != want {
				t.Errorf("block %d read %d, want %d", i, x, want)
			}
		}
	}
}

// TestClusterSend has each of two blocks write numbers to the shared memory of the other, whose barrier counts them.
func TestClusterSend(t *testing.T) {
	text := kernels.Prelude() + `
struct Params { const float *x; float *y; };
CLUSTER_KERNEL(k, 32, 1, 2) {
  SHARED;
  u64 *const inbox = (u64 *)(shared + 128);
  if (threadIdx.x == 0) {
    barrier_init(inbox, 1);
    barrier_init_done();
  }
  __syncthreads();
  cluster_arrive();
  if (threadIdx.x == 0) barrier_expect(inbox, 128);
  cluster_wait();
  const int i = blockIdx.x * 32 + threadIdx.x;
  cluster_send((float *)shared + threadIdx.x, p.x[i], 1 - cluster_rank(), inbox);
  barrier_wait(inbox, 0);
  p.y[i] = ((float *)shared)[31 - threadIdx.x];
}
`
	exchange(t, text, []exchangeCase{
		{},
		{"expect(inbox, 128)", "expect(inbox, 132)", "4 bytes missing"},
		{"1 - cluster_rank()", "2", "sends to block 2 of its cluster, which there is not"},
	})
}

// TestClusterRead has each of two blocks read what the other has written to its own shared memory, each at another place.
func TestClusterRead(t *testing.T) {
	text := kernels.Prelude() + `
struct Params { const float *x; float *y; };
CLUSTER_KERNEL(k, 32, 1, 2) {
  SHARED;
  float *const room = (float *)shared;
  const int rank = cluster_rank(), i = blockIdx.x * 32 + threadIdx.x, own = rank * 32, far = 32 - own;
  room[own + threadIdx.x] = p.x[i];
  cluster_sync();
  p.y[i] = cluster_read(room + far + (31 - threadIdx.x), 1 - rank);
  cluster_sync();
}
`
	exchange(t, text, []exchangeCase{
		{},
		{"room + far", "room + own", "which was never written"},
		{"room + far", "room + 96", "behind the end of shared memory"},
		{"1 - rank)", "2)", "reads shared memory of block 2 of its cluster, which there is not"},
	})
}

// An exchangeCase replaces a part of a kernel's text, and tells why the kernel is then refused.
type exchangeCase struct{ from, to, refused string }

// exchange runs a kernel in which each of the two blocks of a cluster gets the other's 32 numbers, in reverse.
func exchange(t *testing.T, text string, cases []exchangeCase) {
	t.Helper()
	for _, c := range cases {
		r := newRig(t, emulator.Options{})
		x := small(rand.New(rand.NewPCG(6, 2)), 128)
		y := r.alloc(len(x) * 4)
		image, _, err := r.compiler.Compile(strings.Replace(text, c.from, c.to, 1), r.gpu.Chip())
		r.must(err)
		module, err := r.gpu.Load(image)
		r.must(err)
		f, err := module.Function("k")
		r.must(err)
		params := binary.LittleEndian.AppendUint64(nil, uint64(upload(r, x)))
		params = binary.LittleEndian.AppendUint64(params, uint64(y))
		err = r.stream.Launch(f, [3]int{4, 1, 1}, 32, 256, params)
		if c.refused != "" {
			refused(t, err, c.refused)
			continue
		}
		r.must(err)
		want := make([]float32, len(x))
		for i := range want {
			want[i] = x[(i/32^1)*32+31-i%32]
		}
		same(t, download[float32](r, y, len(x)), want, 32)
	}
}

// TestFixed transposes through shared memory of a fixed size.
func TestFixed(t *testing.T) {
	r := newRig(t, emulator.Options{})
	x, y := upload(r, small(rand.New(rand.NewPCG(7, 1)), 1024)), r.alloc(4096)
	body := `
  __shared__ float s[32][33];
  const int i = threadIdx.x % 32, j = threadIdx.x / 32;
  s[j][i] = p.x[threadIdx.x];
  __syncthreads();
  p.y[threadIdx.x] = s[i][j];`
	fields := "const float *x; float *y;"
	r.must(r.launch(fields, body, 3, 1024, 0, x, y))
	same(t, download[float32](r, y, 1024), transposed(download[float32](r, x, 1024), 32, 32), 32)
	err := r.launch(fields, strings.Replace(body, "s[j][i] =", "if (i) s[j][i] =", 1), 1, 1024, 0, x, y)
	refused(t, err, "of fixed shared memory")
}

// TestBulkStore copies a block's part out of shared memory, and ends before all of it has been read.
func TestBulkStore(t *testing.T) {
	r := newRig(t, emulator.Options{})
	x := small(rand.New(rand.NewPCG(8, 1)), 8*64)
	body := `
  SHARED;
  float *const s = (float *)shared;
  for (int k = 0; k < 4; k++) {
    s[threadIdx.x] = p.x[(blockIdx.x * 4 + k) * 64 + threadIdx.x];
    shared_fence();
    __syncthreads();
    if (threadIdx.x == 0) {
      bulk_store(p.y + (blockIdx.x * 4 + k) * 64, shared, 256);
      bulk_commit();
      bulk_read_wait();
    }
    __syncthreads();
  }`
	fields := "const float *x; float *y;"
	y := r.alloc(len(x) * 4)
	r.must(r.launch(fields, body, 2, 64, 256, upload(r, x), y))
	same(t, download[float32](r, y, len(x)), x, 64)
	for _, wait := range []string{"", "bulk_read_wait<1>();"} {
		r := newRig(t, emulator.Options{})
		y := r.alloc(len(x) * 4)
		err := r.launch(fields, strings.Replace(body, "bulk_read_wait();", wait, 1), 2, 64, 256, upload(r, x), y)
		refused(t, err, "thread 0: returns while copies from shared memory are under way")
	}
}
