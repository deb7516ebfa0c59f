package pool

import (
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"fusec/lowering/cuda/driver"
)

// fake is a GPU that has memory and nothing else.
type fake struct {
	driver.GPU
	mu     sync.Mutex
	left   int64
	next   driver.Ptr
	blocks map[driver.Ptr]int64
	host   map[unsafe.Pointer][]byte
	calls  int
	lost   bool
	closed bool
}

func newFake(bytes int64) *fake {
	return &fake{left: bytes, next: 4096, blocks: map[driver.Ptr]int64{}, host: map[unsafe.Pointer][]byte{}}
}

func (f *fake) Alloc(bytes int64) (driver.Ptr, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case bytes < 0:
		return 0, errors.New("negative")
	case bytes == 0:
		return 0, nil
	case f.lost:
		return 0, driver.ErrLost
	case bytes > f.left:
		return 0, driver.ErrOutOfMemory
	}
	f.calls++
	f.left -= bytes
	at := f.next
	f.next += driver.Ptr(bytes)
	f.blocks[at] = bytes
	return at, nil
}

func (f *fake) Free(at driver.Ptr) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	bytes, ok := f.blocks[at]
	switch {
	case f.lost:
		return driver.ErrLost
	case !ok:
		return errors.New("not there")
	}
	f.left += bytes
	delete(f.blocks, at)
	return nil
}

func (f *fake) AllocHost(bytes int64) (unsafe.Pointer, error) {
	if bytes <= 0 {
		return nil, errors.New("nothing")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	b := make([]byte, bytes)
	f.host[unsafe.Pointer(&b[0])] = b
	return unsafe.Pointer(&b[0]), nil
}

func (f *fake) FreeHost(at unsafe.Pointer) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.host[at] == nil {
		return errors.New("not there")
	}
	delete(f.host, at)
	return nil
}

func (f *fake) Memory() (free, total int64, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lost {
		return 0, 0, driver.ErrLost
	}
	return f.left, 1 << 40, nil
}

func (f *fake) Close() error { f.closed = true; return nil }

func alloc(t *testing.T, p *Pool, bytes int64) driver.Ptr {
	t.Helper()
	at, err := p.Alloc(bytes)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func free(t *testing.T, p *Pool, at driver.Ptr) {
	t.Helper()
	if err := p.Free(at); err != nil {
		t.Fatal(err)
	}
}

func TestClass(t *testing.T) {
	for n, want := range map[int64]int64{
		1: 256, 256: 256, 257: 512, 2048: 2048, 2049: 2304, 4096: 4096, 4097: 4608, 5000: 5120, 100_000: 106_496,
		1 << 20: 1 << 20, 1<<20 + 1: 2 << 20, 3 << 20: 4 << 20, 16 << 20: 16 << 20, 16<<20 + 1: 18 << 20, 33 << 20: 36 << 20,
	} {
		if got := class(n); got != want {
			t.Errorf("class(%d) = %d, want %d", n, got, want)
		}
	}
	r := rand.New(rand.NewPCG(1, 1))
	for range 10000 {
		n := 1 + r.Int64N(1<<r.IntN(40))
		c := class(n)
		if c < n || c%256 != 0 || class(c) != c || n > 2048 && n <= page/2 && c > n+n/8 || n > 8*page && c > n+n/8 {
			t.Fatalf("class(%d) = %d", n, c)
		}
	}
}

func TestReuse(t *testing.T) {
	f := newFake(1 << 40)
	p := New(f)
	a := alloc(t, p, 5000)
	free(t, p, a)
	if b := alloc(t, p, 4700); b != a {
		t.Errorf("%#x was freed, and %#x given", a, b)
	}
	c := alloc(t, p, 5000)
	if c == a {
		t.Error("given twice")
	}
	if d := alloc(t, p, 4000); d == a || d == c {
		t.Error("given twice")
	}
	if f.calls != 3 || len(f.blocks) != 3 {
		t.Errorf("the driver gave %d times and has %d blocks out", f.calls, len(f.blocks))
	}
	if at := alloc(t, p, 0); at != 0 || p.Free(0) != nil || p.FreeHost(nil) != nil {
		t.Error("no bytes are not nothing")
	}
	if _, err := p.Alloc(-1); err == nil {
		t.Error("-1 bytes were given")
	}
	if err := p.Close(); err != nil || !f.closed {
		t.Errorf("the GPU is closed: %v, %v", f.closed, err)
	}
}

func TestUse(t *testing.T) {
	p := New(newFake(1 << 40))
	a, b := alloc(t, p, 1000), alloc(t, p, 3<<20)
	free(t, p, a)
	free(t, p, b)
	c := alloc(t, p, 2000)
	want := Use{Used: 2048, Kept: 1024 + 4<<20, Peak: 1024 + 4<<20, PeakHeld: 1024 + 2048 + 4<<20, Calls: 3}
	if got := p.Device(); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if err := p.Trim(); err != nil {
		t.Fatal(err)
	}
	want.Kept = 0
	if got := p.Device(); got != want {
		t.Errorf("after Trim: got %+v, want %+v", got, want)
	}
	free(t, p, c)
}

func TestWrongFrees(t *testing.T) {
	p := New(newFake(1 << 40))
	a := alloc(t, p, 100)
	free(t, p, a)
	other := alloc(t, New(newFake(1<<40)), 100) + 1
	for name, at := range map[string]driver.Ptr{"twice": a, "not of this pool": other} {
		if err := p.Free(at); err == nil || !strings.Contains(err.Error(), "not given out") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestOutOfMemory(t *testing.T) {
	f := newFake(10 << 20)
	p := New(f)
	a, b := alloc(t, p, 4<<20), alloc(t, p, 4<<20)
	free(t, p, a)
	if _, err := p.Alloc(8 << 20); !errors.Is(err, driver.ErrOutOfMemory) {
		t.Errorf("got %v", err)
	}
	if f.left != 6<<20 {
		t.Errorf("what was kept was not given back: %d bytes are left", f.left)
	}
	a = alloc(t, p, 4<<20)
	free(t, p, a)
	c := alloc(t, p, 6<<20) // only after the block of a has gone back
	free(t, p, b)
	free(t, p, c)
	if u := p.Device(); u.Used != 0 || u.Kept != 10<<20 {
		t.Errorf("%+v", u)
	}
	free(t, p, alloc(t, p, 9<<20+256)) // of whose class the GPU has none
	if u := p.Device(); u.Used != 0 || u.Kept != 9<<20+256 {
		t.Errorf("%+v", u)
	}
	f.lost = true
	if _, err := p.Alloc(9 << 20); !errors.Is(err, driver.ErrLost) {
		t.Errorf("on a lost GPU: %v", err)
	}
	if u := p.Device(); u.Kept != 0 {
		t.Errorf("on a lost GPU: %+v", u)
	}
}

func TestHost(t *testing.T) {
	f := newFake(0)
	p := New(f)
	a, err := p.AllocHost(5000)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.FreeHost(a); err != nil {
		t.Fatal(err)
	}
	if b, err := p.AllocHost(5000); b != a || err != nil {
		t.Errorf("%v was freed, and %v given: %v", a, b, err)
	}
	if u := p.Host(); u.Used != 5120 || u.Calls != 1 {
		t.Errorf("%+v", u)
	}
	if err := p.FreeHost(a); err != nil {
		t.Fatal(err)
	}
	if err := p.Trim(); err != nil || len(f.host) != 0 {
		t.Errorf("%d blocks are left: %v", len(f.host), err)
	}
	if _, err := p.AllocHost(0); err == nil {
		t.Error("no bytes were given")
	}
}

func TestGoroutines(t *testing.T) {
	f := newFake(64 << 20)
	p := New(f)
	var owned sync.Map
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 1))
			var mine []driver.Ptr
			for range 2000 {
				if len(mine) < 4 && r.IntN(2) == 0 {
					at, err := p.Alloc(1 + r.Int64N(1<<20))
					if err != nil {
						t.Error(err)
						return
					}
					if _, taken := owned.LoadOrStore(at, i); taken {
						t.Errorf("%#x was given twice", at)
						return
					}
					mine = append(mine, at)
				} else if len(mine) > 0 {
					at := mine[0]
					mine = mine[1:]
					owned.Delete(at)
					if err := p.Free(at); err != nil {
						t.Error(err)
						return
					}
				}
				if r.IntN(200) == 0 {
					if err := p.Trim(); err != nil {
						t.Error(err)
					}
				}
			}
			for _, at := range mine {
				owned.Delete(at)
				if err := p.Free(at); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if err := p.Trim(); err != nil || len(f.blocks) != 0 || f.left != 64<<20 {
		t.Errorf("%d blocks are left: %v", len(f.blocks), err)
	}
	if u := p.Device(); u.Used != 0 || u.Kept != 0 {
		t.Errorf("%+v", u)
	}
}
