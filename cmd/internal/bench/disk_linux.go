package bench

import (
	"context"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// openDisk makes a run of a loop of reads past the page cache: with O_DIRECT or, where the file system has none, of a
// file that is dropped from the page cache before each run.
func openDisk(ctx context.Context, path string) (run func() (int64, error), stop func() error, err error) {
	const align = 4096
	buf := make([]byte, diskBlock+align)
	at := int(uintptr(unsafe.Pointer(unsafe.SliceData(buf))) % align)
	buf = buf[align-at:][:diskBlock]
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECT, 0)
	if err == nil {
		return func() (int64, error) { return readAll(ctx, f, buf) }, f.Close, nil
	}
	if f, err = os.Open(path); err != nil {
		return nil, nil, err
	}
	return func() (int64, error) {
		if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
			return 0, err
		}
		return readAll(ctx, f, buf)
	}, f.Close, nil
}

// freeSpace is how many bytes may be written to the file system of dir.
func freeSpace(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, err
	}
	return int64(st.Bavail) * st.Bsize, nil
}
