package link

import (
	"errors"
	"io"
	"os"
	"testing"
	"time"
)

// TestPatient reads and writes pipes on whose other side something moves now and then, and then nothing.
func TestPatient(t *testing.T) {
	const limit = 600 * time.Millisecond
	from, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	defer to.Close()
	go func() {
		for range 8 { // longer than the limit in all
			time.Sleep(limit / 6)
			to.Write([]byte{1})
		}
	}()
	b := make([]byte, 8)
	if _, err := io.ReadFull(patient{from, limit}, b); err != nil {
		t.Error("slow bytes:", err)
	}
	if n, err := (patient{from, limit}).Read(b); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("no bytes: %d, %v", n, err)
	}

	from.SetReadDeadline(time.Time{})
	const size = 1 << 18 // more than a pipe holds
	read := make(chan int)
	go func() {
		all := 0
		for all < size {
			time.Sleep(limit / 10)
			n, err := from.Read(make([]byte, size/8))
			if err != nil {
				break
			}
			all += n
		}
		read <- all
	}()
	if n, err := (patient{to, limit}).Write(make([]byte, size)); n != size || err != nil {
		t.Errorf("slow readers: %d of %d bytes, %v", n, size, err)
	}
	if n := <-read; n != size {
		t.Errorf("%d bytes came of %d", n, size)
	}
	if n, err := (patient{to, limit}).Write(make([]byte, size)); n == size || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("no reader: %d bytes, %v", n, err)
	}
}
