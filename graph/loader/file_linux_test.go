package loader

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mappedIn is how many bytes of files the process has mapped in at the moment.
func mappedIn(t *testing.T) int64 {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "RssFile:")
	var kib int64
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		t.Fatal(err)
	}
	return kib << 10
}

// cached is how many bytes of a file are in the page cache.
func cached(t *testing.T, path string, size int64) int64 {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	mem, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mem)
	page := os.Getpagesize()
	in := make([]byte, (len(mem)+page-1)/page)
	_, _, errno := unix.Syscall(unix.SYS_MINCORE,
		uintptr(unsafe.Pointer(&mem[0])), uintptr(size), uintptr(unsafe.Pointer(&in[0])))
	if errno != 0 {
		t.Fatal(errno)
	}
	n := int64(0)
	for _, b := range in {
		n += int64(b&1) * int64(page)
	}
	return n
}

// TestDoesNotGrow reads a file of holes that counts as larger than memory, in order and shuffled.
func TestDoesNotGrow(t *testing.T) {
	if testing.Short() {
		t.Skip("a large file, and nothing for a detector of races to find")
	}
	const size, row = 320 << 20, 5000
	path := filepath.Join(t.TempDir(), "holes")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(size / row * row); err != nil {
		t.Fatal(err)
	}
	f.Close()
	for _, shuffle := range []bool{false, true} {
		l, err := open(Options{Batch: 100, Shuffle: shuffle, Epochs: 1}, size/2,
			[]Source{{Name: "x", Path: path, Raw: "u8", Row: []int{row / 4, 4}}})
		if err != nil {
			t.Fatal(err)
		}
		before, most := mappedIn(t), int64(0)
		for i := range l.Steps() {
			next(t, l)
			if i%50 == 0 {
				most = max(most, mappedIn(t)-before)
			}
		}
		in := cached(t, path, size/row*row)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		t.Logf("shuffled %v: at most %d MiB mapped in, %d MiB cached", shuffle, most>>20, in>>20)
		if most > 2*keepMapped {
			t.Errorf("shuffled %v: %d MiB are mapped in", shuffle, most>>20)
		}
		if !shuffle && in > size/4 {
			t.Errorf("%d MiB stay in the page cache", in>>20)
		}
	}
}

// TestReadsRowsOnly: of a file that is not in the page cache, rows in random order are read, and not what lies around them.
func TestReadsRowsOnly(t *testing.T) {
	const size, batch = 96 << 20, 4
	path, _ := random(t, size)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, row := range []int{8 << 10, 384 << 10} {
		if err := errors.Join(f.Sync(), unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)); err != nil {
			t.Fatal(err)
		}
		if cached(t, path, size) > 0 { // as tmpfs does: there is no disk to read too much from
			t.Skipf("the file system of %s keeps files in memory", path)
		}
		l := opened(t, Options{Batch: batch, Shuffle: true, Seed: 5, Prefetch: 1},
			Source{Name: "x", Path: path, Raw: "u8", Row: []int{row}})
		next(t, l)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if in := cached(t, path, size); in < int64(batch*row) || in > int64(2*batch*row) { // another batch may have been read ahead
			t.Errorf("%d KiB are in the page cache after a batch of %d rows of %d KiB", in>>10, batch, row>>10)
		}
	}
}

// TestFallsBack: an unavailable access is replaced, and the reason is reported.
func TestFallsBack(t *testing.T) {
	// Files of /proc are regular and empty to look at, and can be read in no way but the plain one.
	f, err := openFile("/proc/version", Direct, false, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	if f.access != Plain {
		t.Errorf("it is read %v", f.access)
	}
	wantError(t, errors.New(f.reason), "no O_DIRECT: ", "; not mapped: it is empty")
	for _, dir := range []string{t.TempDir(), "/dev/shm"} {
		x, err := os.CreateTemp(dir, "x")
		if err != nil {
			continue // no such file system here
		}
		defer os.Remove(x.Name())
		if _, err := x.Write(make([]byte, 10000)); err != nil {
			t.Fatal(err)
		}
		x.Close()
		l := opened(t, Options{Batch: 1, Access: Direct}, Source{Name: "x", Path: x.Name(), Raw: "u8"})
		next(t, l)
		if f := l.Stats().Files[0]; (f.Access == Direct) != (f.Reason == "") || f.Access == Plain {
			t.Errorf("%s: %v, because %q", dir, f.Access, f.Reason)
		}
	}
}
