package emulator_test

import (
	"encoding/binary"
	"errors"
	"strings"
	"testing"
	"unsafe"

	"fusec/graph"
	kernels "fusec/kernels/cuda"
	"fusec/lowering/cuda/driver"
	"fusec/lowering/cuda/emulator"
)

// refused looks for words in an error.
func refused(t *testing.T, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want one about %q", err, want)
	}
}

// TestMemory allocates, copies, fills and frees.
func TestMemory(t *testing.T) {
	r := newRig(t, emulator.Options{Memory: 1 << 20})
	p, q := r.alloc(1000), r.alloc(1000)
	if p%256 != 0 || q%256 != 0 {
		t.Errorf("allocations at %#x and %#x", p, q)
	}
	for _, b := range download[byte](r, p, 1000) {
		if b != emulator.Poison {
			t.Fatalf("fresh memory holds %#x", b)
		}
	}
	r.must(r.stream.Fill(p, 7, 1000))
	r.must(r.stream.Copy(q+100, p, 50))
	got := download[byte](r, q, 1000)
	if got[99] != emulator.Poison || got[100] != 7 || got[149] != 7 || got[150] != emulator.Poison {
		t.Errorf("a copy of 50 bytes to byte 100 gives %v", got[95:155])
	}
	if free, total, err := r.gpu.Memory(); err != nil || total != 1<<20 || free != total-2000 {
		t.Errorf("%d of %d bytes are free, %v", free, total, err)
	}
	_, err := r.gpu.Alloc(1 << 20)
	if !errors.Is(err, driver.ErrOutOfMemory) {
		t.Errorf("more than there is: %v", err)
	}
	_, err = r.gpu.Alloc(0)
	refused(t, err, "0 bytes")
	refused(t, r.stream.Fill(p, 0, 1001), "1001 bytes from byte 0 of an allocation of 1000")
	refused(t, r.stream.Copy(q, p-1, 1), "no address of the device")
	refused(t, r.gpu.Free(p+1), "was not allocated")
	r.must(r.gpu.Free(p))
	refused(t, r.gpu.Free(p), "was not allocated")
	host, err := r.gpu.AllocHost(100)
	r.must(err)
	copy(unsafe.Slice((*byte)(host), 100), "host")
	r.must(r.stream.CopyIn(q, host, 100))
	if got := download[byte](r, q, 4); string(got) != "host" {
		t.Errorf("a copy from the host gives %q", got)
	}
	r.must(r.gpu.FreeHost(host))
	refused(t, r.gpu.FreeHost(host), "was not allocated")
	_, err = r.gpu.AllocHost(-1)
	refused(t, err, "-1 bytes")
}

// TestGraph records work, and does it twice.
func TestGraph(t *testing.T) {
	r := newRig(t, emulator.Options{})
	y := upload(r, []int32{1, 2, 3})
	f := r.function("int *y;", "p.y[threadIdx.x] *= 2;")
	params := make([]byte, 8)
	*(*driver.Ptr)(unsafe.Pointer(&params[0])) = y
	_, err := r.stream.EndCapture()
	refused(t, err, "not recording")
	r.must(r.stream.BeginCapture())
	refused(t, r.stream.BeginCapture(), "recording already")
	refused(t, r.stream.Sync(), "is recording")
	begin, end := r.event(), r.event()
	r.must(r.stream.Record(begin))
	r.must(r.stream.Launch(f, [3]int{1, 1, 1}, 3, 0, params))
	clear(params) // has been read
	r.must(r.stream.Record(end))
	r.must(r.stream.Wait(end))
	g, err := r.stream.EndCapture()
	r.must(err)
	if got := download[int32](r, y, 3); got[2] != 3 {
		t.Errorf("recording did %v", got)
	}
	_, err = end.Since(begin)
	refused(t, err, "not recorded")
	for range 2 {
		r.must(g.Launch(r.stream))
	}
	if got := download[int32](r, y, 3); got[0] != 4 || got[1] != 8 || got[2] != 12 {
		t.Errorf("twice gives %v", got)
	}
	if d, err := end.Since(begin); err != nil || d <= 0 {
		t.Errorf("a launch took %v, %v", d, err)
	}
	r.must(g.Close())
	r.must(begin.Close())
}

func (r *rig) event() driver.Event {
	r.Helper()
	e, err := r.gpu.NewEvent()
	r.must(err)
	return e
}

// TestLaunchRefused launches kernels as no GPU would.
func TestLaunchRefused(t *testing.T) {
	r := newRig(t, emulator.Options{})
	f := r.function("int *y;", "")
	one := [3]int{1, 1, 1}
	refused(t, r.stream.Launch(f, [3]int{1, 0, 1}, 1, 0, make([]byte, 8)), "a grid of [1 0 1] blocks")
	refused(t, r.stream.Launch(f, [3]int{1, 1, 65536}, 1, 0, make([]byte, 8)), "a grid of")
	refused(t, r.stream.Launch(f, one, 1025, 0, make([]byte, 8)), "a block of 1025 threads, of at most 1024")
	refused(t, r.stream.Launch(f, one, 1, 232449, make([]byte, 8)), "232449 bytes of shared memory, of at most 232448")
	refused(t, r.stream.Launch(f, one, 1, 0, make([]byte, 4)), "the parameter has 8 bytes, 4 were given")
	refused(t, r.stream.Launch(nil, one, 1, 0, nil), "no function of the emulator")
	r.must(r.stream.Launch(f, one, 1024, 232448, make([]byte, 8)))
	if res := f.Resources(); res.MaxThreads != 1024 {
		t.Errorf("resources %+v", res)
	}
	if n, err := f.Occupancy(256, 100<<10); err != nil || n != 2 {
		t.Errorf("%d blocks of 100 KiB on a multiprocessor, %v", n, err)
	}
	if n, err := f.Occupancy(32, 0); err != nil || n != 32 {
		t.Errorf("%d blocks of a warp on a multiprocessor, %v", n, err)
	}
	_, err := f.Occupancy(2000, 0)
	refused(t, err, "2000 threads")
}

// TestModules compiles, loads and unloads.
func TestModules(t *testing.T) {
	r := newRig(t, emulator.Options{})
	good := kernels.Prelude() + `
struct Params { int *y; };
KERNEL(k, 32, 1) {
#if __CUDA_ARCH__ != 900
#error no Hopper
#endif
}
`
	image, log, err := r.compiler.Compile(good, r.gpu.Chip())
	r.must(err)
	if log != "" || r.compiler.Version() == "" {
		t.Errorf("log %q of %q", log, r.compiler.Version())
	}
	bad := strings.Replace(good, "int *y", "int *x, *x", 1)
	_, err = r.compiler.(*emulator.Compiler).CompileAll([]string{good, bad}, r.gpu.Chip())
	refused(t, err, "redeclaration of ‘int* unit_")
	_, err = r.gpu.Load([]byte("something"))
	refused(t, err, "not made by the emulator's compiler")
	_, err = r.gpu.Load([]byte("fusec emulator image\nx"))
	refused(t, err, "damaged")
	other := newRig(t, emulator.Options{Chip: kernels.ChipOf(80)})
	_, err = other.gpu.Load(image)
	refused(t, err, "made for sm_90, the device is an sm_80")
	m, err := r.gpu.Load(image)
	r.must(err)
	_, err = m.Function("other")
	refused(t, err, "no function other")
	f, err := m.Function("k")
	r.must(err)
	r.must(m.Unload())
	refused(t, m.Unload(), "unloaded already")
	refused(t, r.stream.Launch(f, [3]int{1, 1, 1}, 1, 0, make([]byte, 8)), "its module is not loaded")
}

// TestLoadsBeside loads and unloads while another device runs kernels: what a library does while it is opened is no access of the
// kernel that runs.
func TestLoadsBeside(t *testing.T) {
	runs, loads := newRig(t, emulator.Options{}), newRig(t, emulator.Options{})
	f := runs.function("int *y;", "for (int i = 0; i < 20; i++) __syncthreads(); p.y[blockIdx.x * blockDim.x + threadIdx.x] = 1;")
	const blocks, n = 20, 64
	y := runs.alloc(blocks * n * 4)
	image, _, err := loads.compiler.Compile(source("int *y;", "p.y[1] = 2;"), loads.gpu.Chip())
	loads.must(err)
	done := make(chan error)
	go func() {
		for range 200 {
			if err := runs.stream.Launch(f, [3]int{blocks, 1, 1}, n, 0, binary.LittleEndian.AppendUint64(nil, uint64(y))); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	for {
		select {
		case err := <-done:
			runs.must(err)
			return
		default:
			m, err := loads.gpu.Load(image)
			loads.must(err)
			loads.must(m.Unload())
		}
	}
}

// TestLost gives every call the error that ended the device.
func TestLost(t *testing.T) {
	r := newRig(t, emulator.Options{})
	y := r.alloc(16)
	err := r.launch("int *y;", "p.y[4] = 1;", 1, 1, 0, y)
	for _, err := range []error{err, r.stream.Sync(), r.stream.Fill(y, 0, 1)} {
		if !errors.Is(err, driver.ErrLost) {
			t.Errorf("error %v", err)
		}
	}
	_, err = r.gpu.Alloc(1)
	refused(t, err, "Alloc: "+driver.ErrLost.Error())
	r.must(r.gpu.Close())
	_, err = r.gpu.NewStream()
	refused(t, err, "the device is closed")
}

// TestMapsRefused encodes tensor maps that the driver refuses.
func TestMapsRefused(t *testing.T) {
	r := newRig(t, emulator.Options{})
	p := r.alloc(1 << 16)
	type tensorMap = kernels.TensorMap
	good := tensorMap{DType: graph.F32, Dims: []uint64{64, 8}, Strides: []uint64{256}, Box: []uint32{32, 8}, Swizzle: 128}
	var to [128]byte
	r.must(r.gpu.EncodeMap(&good, p, &to))
	for want, change := range map[string]func(m *tensorMap) driver.Ptr{
		"no multiple of 16 below":            func(m *tensorMap) driver.Ptr { m.Strides = []uint64{260}; return p },
		"which is no multiple of 16":         func(m *tensorMap) driver.Ptr { return p + 8 },
		"0 strides":                          func(m *tensorMap) driver.Ptr { m.Strides = nil; return p },
		"a swizzle of 96 bytes":              func(m *tensorMap) driver.Ptr { m.Swizzle = 96; return p },
		"a box 3 elements of f32 wide":       func(m *tensorMap) driver.Ptr { m.Box = []uint32{3, 8}; return p },
		"more than the swizzle of 128 bytes": func(m *tensorMap) driver.Ptr { m.Box = []uint32{64, 8}; return p },
		"a box of 257 elements along axis 1": func(m *tensorMap) driver.Ptr { m.Box = []uint32{32, 257}; return p },
		"axis 1 of 0 elements":               func(m *tensorMap) driver.Ptr { m.Dims = []uint64{64, 0}; return p },
		"on images of sizes [64 8]":          func(m *tensorMap) driver.Ptr { m.Windows = &kernels.Windows{}; return p },
	} {
		m := good
		at := change(&m)
		refused(t, r.gpu.EncodeMap(&m, at, &to), want)
	}
}

var borrowed [300]int32 // which stays where it is

// TestBorrow runs a kernel on memory of the process, parts of which overlap, and then without having been told of it.
func TestBorrow(t *testing.T) {
	r := newRig(t, emulator.Options{})
	memory := borrowed[:]
	at := func(i int) driver.Ptr { return driver.Ptr(uintptr(unsafe.Pointer(&memory[i]))) }
	own := upload(r, []int32{1})
	f := r.function("int *y, *x;", "p.y[threadIdx.x] = p.x[threadIdx.x] + 1;")
	launch := func() error {
		params := make([]byte, 16)
		*(*driver.Ptr)(unsafe.Pointer(&params[0])), *(*driver.Ptr)(unsafe.Pointer(&params[8])) = at(200), at(10)
		return r.stream.Launch(f, [3]int{1, 1, 1}, 32, 0, params)
	}
	for i := range memory {
		memory[i] = int32(i)
	}
	b := r.gpu.(driver.Borrower)
	giveBack, err := b.Borrow([]driver.Borrowed{{At: at(200), Bytes: 400}, {At: at(20), Bytes: 100, Written: true},
		{At: at(10), Bytes: 60, Written: true}, {At: own, Bytes: 4}, {}})
	r.must(err)
	r.must(launch())
	giveBack()
	if memory[200] != 11 || memory[231] != 42 || memory[232] != 232 {
		t.Errorf("the kernel wrote %v", memory[200:233])
	}
	if got := download[int32](r, own, 1); got[0] != 1 {
		t.Errorf("memory of the device holds %d", got[0])
	}
	s, err := r.gpu.StreamAt(5)
	r.must(err)
	if recording, err := s.Recording(); recording || err != nil {
		t.Errorf("a stream of others is recorded: %t, %v", recording, err)
	}
	r.must(s.Close())
	giveBack, err = b.Borrow([]driver.Borrowed{{At: at(200), Bytes: 400}, {At: at(10), Bytes: 128}})
	r.must(err)
	refused(t, launch(), "never written")
	giveBack()
	_, err = b.Borrow(nil)
	refused(t, err, "never written")
}
