package loader

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// openRing makes a ring. Where the system refuses it, as containers often do, the loader reads by preads, which the other tests
// have.
func openRing(t testing.TB) *ring {
	t.Helper()
	r, err := newRing()
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) {
		t.Skipf("this system refuses io_uring: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// random writes a file of random bytes.
func random(t testing.TB, n int) (path string, data []byte) {
	t.Helper()
	data = make([]byte, n)
	g := rand.NewChaCha8([32]byte{1})
	if _, err := g.Read(data); err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(t.TempDir(), "data")
	if err := os.WriteFile(path, data, 0o666); err != nil {
		t.Fatal(err)
	}
	return path, data
}

// TestRing reads more parts of a file than the ring takes at a time, some of them behind its end, again and again.
func TestRing(t *testing.T) {
	r := openRing(t)
	path, data := random(t, 100_001)
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	g := rand.New(rand.NewPCG(2, 3))
	for range 50 {
		list := make([]extent, 1+g.IntN(3*ringReads))
		for i := range list {
			list[i] = extent{begin: g.Int64N(int64(len(data)) + 50), buf: make([]byte, 1+g.IntN(5000))}
		}
		if at, err := r.read(int(f.Fd()), list); err != nil {
			t.Fatalf("part %d: %v", at, err)
		}
		for i, x := range list {
			want := data[min(x.begin, int64(len(data))):min(x.begin+int64(len(x.buf)), int64(len(data)))]
			if x.got != int64(len(want)) || !bytes.Equal(x.buf[:x.got], want) {
				t.Fatalf("part %d, %d bytes at byte %d: %d bytes, or others", i, len(x.buf), x.begin, x.got)
			}
		}
	}
	// The first that fails is named, and the ring goes on.
	list := []extent{{buf: make([]byte, 1)}, {buf: make([]byte, 1), begin: -1 << 62}, {buf: make([]byte, 1), begin: -1 << 61}}
	if at, err := r.read(int(f.Fd()), list); at != 1 || !errors.Is(err, unix.EINVAL) || list[0].got != 1 {
		t.Errorf("part %d: %v; %d bytes of the first", at, err, list[0].got)
	}
	if at, err := r.read(-1, list); at != 0 || !errors.Is(err, unix.EBADF) {
		t.Errorf("no file: part %d: %v", at, err)
	}
	if _, err := r.read(int(f.Fd()), list[:1]); err != nil {
		t.Error(err)
	}
}

// TestRingBroken: where the kernel takes no reads, that is an error.
func TestRingBroken(t *testing.T) {
	r := openRing(t)
	was := r.fd
	r.fd = -1
	at, err := r.read(0, make([]extent, 3))
	if r.fd = was; at != 2 || !errors.Is(err, unix.EBADF) {
		t.Errorf("part %d: %v", at, err)
	}
	path, data := random(t, 10)
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	list := []extent{{buf: make([]byte, 10)}}
	if _, err := r.read(int(f.Fd()), list); err != nil || !bytes.Equal(list[0].buf, data) {
		t.Errorf("later: %v", err)
	}
}

// shuffled opens a loader of rows of a file in random order, past the page cache; with rings or without.
func shuffled(t testing.TB, path string, row, batch int, rings bool) *Loader {
	t.Helper()
	l, err := Open(Options{Batch: batch, Shuffle: true, Seed: 3, Epochs: 1, Access: Direct},
		Source{Name: "x", Path: path, Raw: "u8", Row: []int{row}})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range l.scratch {
		s.asked = !rings
	}
	return l
}

// TestRingRows: rows that are read many at a time are those that are read one after another, to the last one of the file.
func TestRingRows(t *testing.T) {
	openRing(t)
	for _, c := range []struct{ rows, row, batch int }{{1000, 37, 100}, {301, 4096, 300}, {17, 1 << 20, 5}, {500, 5000, 499}} {
		path, _ := random(t, c.rows*c.row)
		var all [2][]byte
		for i := range all {
			l := shuffled(t, path, c.row, c.batch, i == 0)
			if got := l.Stats().Files[0]; got.Access != Direct {
				t.Logf("through the page cache, without a ring: %s", got.Reason)
			}
			for b, err := range l.Batches(context.Background()) {
				if err != nil {
					t.Fatal(err)
				}
				all[i] = append(all[i], b.Tensors["x"].Bytes()...)
			}
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		}
		if len(all[0]) == 0 || !bytes.Equal(all[0], all[1]) {
			t.Errorf("%d rows of %d bytes differ", c.rows, c.row)
		}
	}
}

// TestRingTruncated: a file that becomes shorter is an error with the rows.
func TestRingTruncated(t *testing.T) {
	openRing(t)
	path, _ := random(t, 100*4096)
	l := shuffled(t, path, 4096, 50, true)
	defer l.Close()
	if err := os.Truncate(path, 5000); err != nil {
		t.Fatal(err)
	}
	_, err := l.Next()
	wantError(t, err, path, "rows ", "the file was truncated while it was in use")
}

// BenchmarkShuffled reads rows in random order past the page cache, by rings and one after another.
func BenchmarkShuffled(b *testing.B) {
	openRing(b)
	path, _ := random(b, 256<<20)
	for _, row := range []int{4 << 10, 16 << 10, 64 << 10, 1 << 20} {
		for _, name := range []string{"ring", "preads"} {
			b.Run(fmt.Sprintf("%dKiB/%s", row>>10, name), func(b *testing.B) {
				l := shuffled(b, path, row, max(1, 2<<20/row), name == "ring")
				l.end = 1 << 40
				defer l.Close()
				b.SetBytes(int64(max(1, 2<<20/row) * row))
				for b.Loop() {
					if _, err := l.Next(); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
