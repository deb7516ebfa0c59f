package cpu

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// adviseLarge asks for large pages for memory that runs read from one end to the other, as prepared weights: the processor reads
// ahead within a page only, and finds more of the memory's pages in its table.
func adviseLarge(words []uint64) {
	if len(words) == 0 {
		return
	}
	bytes := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), 8*len(words))
	page := os.Getpagesize()
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(bytes))) % uintptr(page))
	if size := (len(bytes) - skip) / page * page; size > 0 {
		_ = unix.Madvise(bytes[skip:][:size], unix.MADV_HUGEPAGE) // advice may be refused: it changes no result
	}
}
