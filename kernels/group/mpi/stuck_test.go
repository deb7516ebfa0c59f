//go:build linux || darwin

package mpi

import (
	"errors"
	"strings"
	"testing"
	"time"
	"unsafe"

	"fusec/kernels/group"
)

// TestStuck gives up calls of the library that do not return, as after the death of another process.
func TestStuck(t *testing.T) {
	const patience = 100 * time.Millisecond
	never := make(chan struct{})
	works := func() *library {
		return &library{
			initThread: func(_, _ uintptr, _ int32, _ *int32) int32 { return 0 },
			errhandler: func(_, _ uintptr) int32 { return 0 },
			rank:       func(_ uintptr, n *int32) int32 { *n = 1; return 0 },
			size:       func(_ uintptr, n *int32) int32 { *n = 3; return 0 },
			isend:      func(unsafe.Pointer, int32, uintptr, int32, int32, uintptr, *uintptr) int32 { return 0 },
			irecv:      func(unsafe.Pointer, int32, uintptr, int32, int32, uintptr, *uintptr) int32 { return 0 },
			test:       func(_ *uintptr, done *int32, _ unsafe.Pointer) int32 { *done = 1; return 0 },
			finalize:   func() int32 { return 0 },
		}
	}
	l := works()
	l.initThread = func(_, _ uintptr, _ int32, _ *int32) int32 { <-never; return 0 }
	if _, err := start(l, patience, patience); err == nil || !strings.Contains(err.Error(), "MPI_Init has not returned for") {
		t.Errorf("error %v of a beginning without an end", err)
	}

	l = works()
	ends, err := start(l, patience, patience)
	if err != nil {
		t.Fatal(err)
	}
	if err := ends.Close(); err != nil {
		t.Error(err)
	}
	if ends.Close() != nil {
		t.Error("a second Close has an error")
	}

	l = works()
	l.finalize = func() int32 { <-never; return 0 }
	if ends, err = start(l, patience, patience); err != nil {
		t.Fatal(err)
	}
	if err := ends.Close(); err == nil || !strings.Contains(err.Error(), "MPI_Finalize has not returned for") {
		t.Errorf("error %v of an end without an end", err)
	}

	l = works()
	l.test = func(request *uintptr, done *int32, _ unsafe.Pointer) int32 { <-never; return 0 }
	g, err := start(l, patience, patience)
	if err != nil {
		t.Fatal(err)
	}
	lost := new(group.LostError)
	for range 2 {
		err = g.Exchange([]group.Message{{Peer: 2, Bytes: []byte{1}}}, nil)
		if !errors.As(err, &lost) || lost.Rank != 2 {
			t.Errorf("error %v, want that participant 2 is lost", err)
		}
	}
	if err := g.Close(); !errors.As(err, &lost) {
		t.Errorf("closing: error %v", err)
	}

	// Who does not come to Close is named.
	l = works()
	l.test = func(_ *uintptr, done *int32, _ unsafe.Pointer) int32 { *done = 0; return 0 }
	if g, err = start(l, patience, patience); err != nil {
		t.Fatal(err)
	}
	if err := g.Close(); !errors.As(err, &lost) || lost.Rank != 0 {
		t.Errorf("closing: error %v, want that participant 0 is lost", err)
	}
}
