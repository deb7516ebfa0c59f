//go:build amd64 || arm64

package nvrtc

// The library's functions, as nvrtc.h declares them.

import (
	"fmt"
	"path/filepath"
	"runtime"
	"unsafe"

	"github.com/ebitengine/purego"

	"fusec/lowering/cuda/driver/find"
)

// Results of the library's functions.
const (
	success = 0 // NVRTC_SUCCESS
	refused = 6 // NVRTC_ERROR_COMPILATION
)

// library is a loaded NVRTC. It is never unloaded.
type library struct {
	path         string
	major, minor int
	chips        []int // the compute capabilities that it supports, 10·major + minor

	create    func(program *uintptr, source, name *byte, headers int32, sources, names unsafe.Pointer) int32
	destroy   func(program *uintptr) int32
	translate func(program uintptr, options int32, list unsafe.Pointer) int32
	logSize   func(program uintptr, size *uintptr) int32
	log       func(program uintptr, to *byte) int32
	cubinSize func(program uintptr, size *uintptr) int32
	cubin     func(program uintptr, to *byte) int32
	ptxSize   func(program uintptr, size *uintptr) int32
	ptx       func(program uintptr, to *byte) int32
	text      func(result int32) string
}

// open loads the first library that can be loaded.
func open() (*library, error) { return find.First(search, load) }

// load loads the library at path.
func load(path string) (*library, error) {
	handle, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, err
	}
	lib := &library{path: path}
	var version func(major, minor *int32) int32
	var count func(n *int32) int32
	var list func(chips *int32) int32
	for _, f := range []struct {
		name string
		to   any
	}{
		{"nvrtcVersion", &version},
		{"nvrtcGetNumSupportedArchs", &count},
		{"nvrtcGetSupportedArchs", &list},
		{"nvrtcCreateProgram", &lib.create},
		{"nvrtcDestroyProgram", &lib.destroy},
		{"nvrtcCompileProgram", &lib.translate},
		{"nvrtcGetProgramLogSize", &lib.logSize},
		{"nvrtcGetProgramLog", &lib.log},
		{"nvrtcGetCUBINSize", &lib.cubinSize},
		{"nvrtcGetCUBIN", &lib.cubin},
		{"nvrtcGetPTXSize", &lib.ptxSize},
		{"nvrtcGetPTX", &lib.ptx},
		{"nvrtcGetErrorString", &lib.text},
	} {
		symbol, err := purego.Dlsym(handle, f.name)
		if err != nil {
			return nil, fmt.Errorf("%s is not NVRTC of CUDA 12 or 13: %w", path, err)
		}
		purego.RegisterFunc(f.to, symbol)
	}
	var major, minor, n int32
	if r := version(&major, &minor); r != success {
		return nil, fmt.Errorf("%s: nvrtcVersion: %s", path, lib.name(int(r)))
	}
	lib.major, lib.minor = int(major), int(minor)
	if r := count(&n); r != success {
		return nil, fmt.Errorf("%s: nvrtcGetNumSupportedArchs: %s", path, lib.name(int(r)))
	}
	chips := make([]int32, n+1)
	if r := list(&chips[0]); r != success {
		return nil, fmt.Errorf("%s: nvrtcGetSupportedArchs: %s", path, lib.name(int(r)))
	}
	for _, c := range chips[:n] {
		lib.chips = append(lib.chips, int(c))
	}
	if dir := filepath.Dir(path); path != filepath.Base(path) {
		// NVRTC loads its second library by name. The loader finds it only if it is loaded already or is in the
		// loader's path.
		builtins := fmt.Sprintf("libnvrtc-builtins.so.%d.%d", major, minor)
		if _, err := purego.Dlopen(filepath.Join(dir, builtins), purego.RTLD_NOW|purego.RTLD_GLOBAL); err != nil {
			return nil, fmt.Errorf("%s lacks its second library: %w", path, err)
		}
	}
	return lib, nil
}

// name is the library's name of a result.
func (l *library) name(result int) string {
	return fmt.Sprintf("%s (result %d)", l.text(int32(result)), result)
}

// compile returns PTX and, unless the architecture among the options is virtual, machine code; the messages; and the result of the
// first function that failed.
func (l *library) compile(source string, options []string) (made translation, log string, result int) {
	defer keepSignals()()
	var program uintptr
	text, name := zeroEnded(source), zeroEnded("kernel.cu")
	if r := l.create(&program, &text[0], &name[0], 0, nil, nil); r != success {
		return made, "", int(r)
	}
	defer l.destroy(&program)
	list := make([]*byte, len(options))
	for i, o := range options {
		list[i] = &zeroEnded(o)[0]
	}
	r := l.translate(program, int32(len(list)), unsafe.Pointer(unsafe.SliceData(list)))
	runtime.KeepAlive(list)
	if b, got := l.get(program, l.logSize, l.log); got == success {
		log = string(b[:max(0, len(b)-1)]) // without the zero at its end
	}
	if r != success {
		return made, log, int(r)
	}
	if made.cubin, r = l.get(program, l.cubinSize, l.cubin); r == success {
		made.ptx, r = l.get(program, l.ptxSize, l.ptx)
	}
	return made, log, int(r)
}

// get calls a pair of the library's functions, one for the size and one for the data.
func (l *library) get(program uintptr, size func(uintptr, *uintptr) int32,
	give func(uintptr, *byte) int32) ([]byte, int32) {
	var n uintptr
	if r := size(program, &n); r != success || n == 0 {
		return nil, r
	}
	b := make([]byte, n)
	return b, give(program, &b[0])
}

func zeroEnded(s string) []byte { return append([]byte(s), 0) }
