package emulator_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"fusec/lowering/cuda/driver"
	"fusec/lowering/cuda/emulator"
)

// inTensorMemory computes [128, 64]·[64, 64] into tensor memory; b is stored [n, k].
const inTensorMemory = `
  SHARED;
  constexpr u32 FORM = 1u << 4 | 1u << 7 | 1u << 10 | 8u << 17 | 8u << 24;
  u8 *const as = shared, *const bs = shared + 16384;
  u64 *const bar = (u64 *)(shared + 24576);
  u32 *const at = (u32 *)(bar + 1);
  for (int i = threadIdx.x; i < 128 * 64; i += 128) *(bf16 *)(as + i / 64 * 128 + (i % 64 * 2 ^ i / 64 % 8 * 16)) = p.a[i];
  for (int i = threadIdx.x; i < 64 * 64; i += 128) *(bf16 *)(bs + i / 64 * 128 + (i % 64 * 2 ^ i / 64 % 8 * 16)) = p.b[i];
  if (threadIdx.x == 0) barrier_init(bar, 1);
  if (threadIdx.x < 32) tensor_take<64>(at);
  tensor_before();
  shared_fence();
  __syncthreads();
  tensor_after();
  const u32 sums = *at;
  if (threadIdx.x == 0) {
    for (int k = 0; k < 4; k++) {
      const u64 a = wgmma_operand(as + 32 * k, 0, 1024) | u64(1) << 46, b = wgmma_operand(bs + 32 * k, 0, 1024) | u64(1) << 46;
      tensor_product<false>(sums, a, b, FORM, k > 0);
    }
    tensor_commit(bar);
  }
  barrier_wait(bar, 0);
  tensor_after();  // of the product
  const int l = threadIdx.x % 32;
  for (int part = 0; part < 2; part++) {
    const int lanes = threadIdx.x / 32 * 32 + part * 16;
    float d[32];
    tensor_load(d, sums + (lanes << 16));
    for (int i = 0; i < 32; i++) p.y[(lanes + l / 4 + i / 2 % 2 * 8) * 64 + i / 4 * 8 + l % 4 * 2 + i % 2] = d[i];
  }
  tensor_before();  // of the loads
  __syncthreads();
  tensor_after();
  if (threadIdx.x < 32) tensor_give_back<64>(sums);`

// storedInTensorMemory computes [128, 128]·[128, 64] of an operand in tensor memory, three times; b is stored [n, k].
const storedInTensorMemory = `
  SHARED;
  constexpr u32 FORM = 1u << 4 | 1u << 7 | 1u << 10 | 8u << 17 | 8u << 24;
  u64 *const bar = (u64 *)(shared + 24576);
  u32 *const at = (u32 *)(bar + 1);
  for (int i = threadIdx.x; i < 64 * 128; i += 128)
    *(bf16 *)(shared + i % 128 / 64 * 8192 + i / 128 * 128 + (i % 64 * 2 ^ i / 128 % 8 * 16)) = p.b[i];
  if (threadIdx.x == 0) barrier_init(bar, 1);
  if (threadIdx.x < 32) tensor_take<128>(at);
  tensor_before();
  shared_fence();
  __syncthreads();
  tensor_after();
  const u32 sums = *at, left = sums + 64;
  const int l = threadIdx.x % 32, warp = threadIdx.x / 32;
  u32 pairs[32];
  for (int part = 0; part < 2; part++) {
    const int lanes = warp * 32 + part * 16;
    for (int i = 0; i < 32; i++) pairs[i] = *(const u32 *)(p.a + (lanes + l / 4 + i % 2 * 8) * 128 + i / 2 * 8 + l % 4 * 2);
    tensor_store(left + (lanes << 16), pairs);
  }
  for (int turn = 0; turn < 2; turn++) {
    tensor_before();  // of the stores
    __syncthreads();
    tensor_after();  // of the stores
    for (int k = 0; threadIdx.x == 0 && k < 8; k++) {
      const u64 b = wgmma_operand(shared + k / 4 * 8192 + k % 4 * 32, 0, 1024) | u64(1) << 46;
      tensor_product_stored(sums, left + 8 * k, b, FORM, turn > 0 || k > 0);
    }
    if (threadIdx.x == 0) tensor_commit(bar);
    barrier_wait(bar, turn);
    tensor_after();  // of the product
    for (int part = 0; part < 2; part++) {
      const int lanes = warp * 32 + part * 16;
      float d[32];
      tensor_load(d, sums + (lanes << 16));
      for (int i = 0; turn == 0 && i < 32; i++) d[i] *= 2;
      if (turn == 0) tensor_store(sums + (lanes << 16), d);
      for (int i = 0; turn > 0 && i < 32; i++) p.y[(lanes + l / 4 + i / 2 % 2 * 8) * 64 + i / 4 * 8 + l % 4 * 2 + i % 2] = d[i];
    }
  }
  tensor_before();  // of the loads
  __syncthreads();
  tensor_after();
  if (threadIdx.x < 32) tensor_give_back<128>(sums);`

const tensorFields, tensorShared = "const bf16 *a, *b; float *y;", 24576 + 16

// TestTensorMemory computes a product in tensor memory, and finds what breaks it.
func TestTensorMemory(t *testing.T) {
	rnd := rand.New(rand.NewPCG(7, 1))
	a, b := small(rnd, 128*64), small(rnd, 64*64)
	tryTensorMemory(t, inTensorMemory, a, b, product(a, transposed(b, 64, 64), 128, 64, 64), []breakage{
		{"barrier_wait(bar, 0);", "", "reads column"},
		{"tensor_after();  // of the product", "", "without tensor_after"},
		{"tensor_before();  // of the loads", "", "without tensor_before"},
		{"shared_fence();", "", "without shared_fence"},
		{"    tensor_commit(bar);", "    *as = 0;\n    tensor_commit(bar);", "which a product under way reads"},
		{"tensor_commit(bar);", "", "at the mbarrier at byte 24576"},
		{"if (threadIdx.x < 32) tensor_give_back<64>(sums);", "", "the block ends while tensor memory is taken"},
		{"tensor_give_back<64>(sums)", "tensor_give_back<32>(sums)", "gives back 32 columns of tensor memory"},
		{"tensor_take<64>(at);", "tensor_take<48>(at);", "takes 48 columns of tensor memory"},
		{"tensor_take<64>(at);", "tensor_take<64>(at), tensor_take<64>(at);", "takes tensor memory twice"},
		{"tensor_take<64>(at);", "tensor_take<64>(at + threadIdx.x);", "lanes of a warp that name different tensor memory"},
		{"k > 0", "true", "which was never written"},
		{"a, b, FORM", "a, b, FORM + (1 << 7)", "of the types"},
		{"a, b, FORM", "a, b, FORM ^ 1 << 4", "of the form"},
		{"a, b, FORM", "a, b, FORM ^ 8 << 17", "of 128 by 0"},
		{"a, b, FORM", "a, b, FORM ^ 4 << 17", "of which it has 64"},
		{"tensor_product<false>", "tensor_product<true>", "of the types"},
		{"(sums, a, b", "(sums + (16 << 16), a, b", "from lane 16 on"},
		{"b = wgmma_operand(bs + 32 * k, 0, 1024) | u64(1) << 46", "b = wgmma_operand(bs + 32 * k, 0, 1024)", "a matrix descriptor"},
		{"i < 128 * 64", "i < 127 * 64", "of shared memory"},
		{"lanes << 16", "16 << 16", "from 16 on, which another warp can"},
		{"sums + (lanes", "sums + 32 + (lanes", "of which it has 64"},
	})
}

// TestTensorMemoryStored does so for an operand and for sums that threads store in tensor memory.
func TestTensorMemoryStored(t *testing.T) {
	rnd := rand.New(rand.NewPCG(7, 2))
	a, b := small(rnd, 128*128), small(rnd, 64*128)
	want := product(a, transposed(b, 64, 128), 128, 64, 128)
	for i := range want {
		want[i] *= 3
	}
	tryTensorMemory(t, storedInTensorMemory, a, b, want, []breakage{
		{"barrier_wait(bar, turn);", "", "reads column"},
		{"tensor_before();  // of the stores", "", "without tensor_before"},
		{"tensor_after();  // of the stores", "", "without tensor_after"},
		{"tensor_after();  // of the product", "", "without tensor_after"},
		{"tensor_commit(bar);", "tensor_commit(bar);\n__syncthreads(), tensor_store(left + (warp << 21), pairs);", "writes column"},
		{"tensor_store(left + (l", "if (warp < 3) tensor_store(left + (l", "which was never written"},
		{"tensor_store(left + (lanes << 16), pairs);", "tensor_store(left + (16 << 16), pairs);", "from 16 on, which another warp can"},
		{"tensor_store(left + (lanes << 16), pairs);", "tensor_store(left + 64 + (lanes << 16), pairs);", "of which it has 128"},
		{"left + 8 * k", "(turn ? sums : left) + 8 * k", "as pairs of 16 bits"},
		{"left + 8 * k", "left + 64 + 8 * k", "of which it has 128"},
		{"left + 8 * k", "left + (32 << 16) + 8 * k", "an operand in tensor memory from lane 32 on"},
		{"b, FORM", "b, FORM | 1 << 15", "a transposed operand in tensor memory"},
		{"tensor_load(d, sums", "tensor_load(d, left", "as numbers of f32"},
	})
}

// A breakage is a change to a kernel's text, and what the error says.
type breakage struct{ from, to, want string }

// tryTensorMemory runs a kernel in many orders, and with each breakage.
func tryTensorMemory(t *testing.T, text string, a, b, want []float32, tests []breakage) {
	r := newRig(t, emulator.Options{})
	sources := []string{source(tensorFields, text)}
	for _, tt := range tests {
		if !strings.Contains(text, tt.from) {
			t.Fatalf("nothing to break: %s", tt.from)
		}
		sources = append(sources, source(tensorFields, strings.Replace(text, tt.from, tt.to, 1)))
	}
	r.compile(sources)
	launch := func(r *rig, text string, y driver.Ptr) error {
		return r.launch(tensorFields, text, 1, 128, tensorShared, elements(r, "bf16", a), elements(r, "bf16", b), y)
	}
	y := r.alloc(128 * 64 * 4)
	for range 10 {
		r.must(launch(r, text, y))
		same(t, download[float32](r, y, 128*64), want, 64)
	}
	for _, tt := range tests {
		r := newRig(t, emulator.Options{})
		err := launch(r, strings.Replace(text, tt.from, tt.to, 1), r.alloc(128*64*4))
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("with %q for %q: %v\nwant %s", tt.to, tt.from, err, tt.want)
		}
	}
}
