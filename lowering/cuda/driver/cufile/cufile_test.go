//go:build linux && (amd64 || arm64)

package cufile

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"
)

// source is a cuFile that reads into the host's memory. A result of its functions is defined where a test wants another.
const source = `
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifndef OPEN
#define OPEN 0
#endif
#ifndef REGISTER
#define REGISTER 0
#endif
#ifndef READ
#define READ pread((int)(intptr_t)handle, buffer, size < 700 ? size : 700, offset) // of what is asked for, 700 bytes at most
#endif
typedef struct { int code, driver; } status;
typedef struct { int kind; union { int fd; void *p; } handle; void *operations; } descriptor;
static char buffer[1 << 20];
status cuFileDriverOpen(void) {
	const char *set = getenv("CUFILE_ALLOW_COMPAT_MODE");
	return (status){set && !strcmp(set, "false") ? OPEN : 1, 0};
}
status cuFileHandleRegister(void **handle, descriptor *d) {
	int fd = d->handle.fd;
	if (!(fcntl(fd, F_GETFL) & O_DIRECT)) return (status){5020, 0};
	fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_DIRECT); // which needs aligned memory
	*handle = (void *)(intptr_t)fd;
	return (status){d->kind == 1 ? REGISTER : 1, 7};
}
void cuFileHandleDeregister(void *handle) {}
ssize_t cuFileRead(void *handle, void *base, size_t size, off_t offset, off_t at) {
	long n = READ;
	if (n < 0) return n < -1 ? n : -errno;
	memcpy((char *)base + at, buffer, n);
	return n;
}
`

// library compiles the cuFile with some definitions, and has it found.
func library(t *testing.T, definitions ...string) {
	t.Helper()
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "cc"
	}
	dir := t.TempDir()
	file, to := filepath.Join(dir, "cufile.c"), filepath.Join(dir, "libcufile.so.0")
	if err := os.WriteFile(file, []byte(source), 0o666); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(cc, append(definitions, "-shared", "-fPIC", "-o", to, file)...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Setenv(Variable, dir)
	t.Setenv(compatible, "") // which open sets
	t.Setenv(logs, "")
}

// content writes a file.
func content(t *testing.T) (path string, data []byte) {
	t.Helper()
	data = make([]byte, 9000)
	for i := range data {
		data[i] = byte(i * 7 / 3)
	}
	path = filepath.Join(t.TempDir(), "data")
	if err := os.WriteFile(path, data, 0o666); err != nil {
		t.Fatal(err)
	}
	return path, data
}

// TestRead reads parts of a file by a library that reads fewer bytes at a time than it is asked for.
func TestRead(t *testing.T) {
	path, data := content(t)
	library(t)
	l, err := open()
	if err != nil {
		t.Fatal(err)
	}
	f, err := l.OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range [][2]int64{{0, 9000}, {4096, 100}, {17, 2500}, {8999, 1}} {
		got := make([]byte, c[1])
		if err := f.Read(uintptr(unsafe.Pointer(&got[0])), c[0], c[1]); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, data[c[0]:][:c[1]]) {
			t.Errorf("bytes %d to %d differ", c[0], c[0]+c[1])
		}
	}
	got := make([]byte, 20)
	err = f.Read(uintptr(unsafe.Pointer(&got[0])), 8990, 20)
	if err == nil || !strings.Contains(err.Error(), "ends at byte 9000, and 10") {
		t.Errorf("past the end: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}

// TestRefused says why a library does not read.
func TestRefused(t *testing.T) {
	path, _ := content(t)
	for definition, want := range map[string]string{
		"-DOPEN=5001":     "the kernel has no driver nvidia-fs (result 5001)",
		"-DREGISTER=5008": "data: cuFileHandleRegister: GPUDirect Storage does not support this file (result 5008)",
		"-DREGISTER=5011": "cuFileHandleRegister: results 5011 and 7",
		"-DREAD=-5034":    "cuFileRead: GPUDirect Storage is disabled for this file",
		"-DREAD=-5":       "cuFileRead: input/output error",
	} {
		t.Run(definition, func(t *testing.T) {
			library(t, definition)
			l, err := open()
			if err == nil {
				var f *File
				if f, err = l.OpenFile(path); err == nil {
					var to [8]byte
					err = f.Read(uintptr(unsafe.Pointer(&to[0])), 0, 8)
				}
			}
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want one about %q", err, want)
			}
		})
	}
	library(t)
	l, err := open()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.OpenFile(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a file that is not there is opened")
	}
	t.Setenv(Variable, "/nowhere")
	if _, err := open(); err == nil || !strings.Contains(err.Error(), "set FUSEC_CUFILE to the library's path") {
		t.Errorf("without a library: %v", err)
	}
}
