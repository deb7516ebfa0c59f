package cpu

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// adviseLarge asks for large pages for memory that runs read from one end to the other, as prepared weights and caches of keys are:
// the processor reads ahead within a page only, and finds more of the memory's pages in its table.
func adviseLarge(bytes []byte) {
	const least = 1 << 16 // bytes that are worth a system call
	if len(bytes) < least {
		return
	}
	page := os.Getpagesize()
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(bytes))) % uintptr(page))
	if size := (len(bytes) - skip) / page * page; size > 0 {
		_ = unix.Madvise(bytes[skip:][:size], unix.MADV_HUGEPAGE) // advice may be refused: it changes no result
	}
}
