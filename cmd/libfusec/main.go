// Command libfusec is the library of include/fusec.h, for programs in C and in languages that call C. `make libfusec` builds it
// as libfusec.so and libfusec.a.
//
// libfusec.c has the functions of the header. They call the functions here, which convert C's values and call package capi.
package main

/*
#include "../../include/fusec.h"
#include <stdlib.h>

void fusec_keep_error(char *text);
*/
import "C"

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"fusec/cmd/internal/capi"
	"fusec/cmd/internal/cli"
	"fusec/graph"
)

func main() {}

// programs are the open programs by the handle that C has.
var programs = struct {
	sync.Mutex
	byHandle map[C.uintptr_t]*open
	last     C.uintptr_t
}{byHandle: map[C.uintptr_t]*open{}}

// open is a program with what C holds of it.
type open struct {
	*capi.Program
	owned []unsafe.Pointer // C memory that describes its values
	kinds map[C.fusec_kind][]C.fusec_value
}

func add(p *capi.Program) C.uintptr_t {
	programs.Lock()
	defer programs.Unlock()
	programs.last++
	programs.byHandle[programs.last] = &open{Program: p, kinds: map[C.fusec_kind][]C.fusec_value{}}
	return programs.last
}

func find(h C.uintptr_t) (*open, error) {
	programs.Lock()
	defer programs.Unlock()
	if p := programs.byHandle[h]; p != nil {
		return p, nil
	}
	if h == 0 {
		return nil, errors.New("the program is NULL")
	}
	return nil, errors.New("the program is closed, or was never opened")
}

// guard calls f, keeps its error for fusec_error, and reports whether there was none. A panic does not reach C.
func guard(f func() error) (ok bool) {
	defer func() {
		if r := recover(); r != nil {
			C.fusec_keep_error(C.CString(fmt.Sprint("internal error: ", r)))
			ok = false
		}
	}()
	if err := f(); err != nil {
		C.fusec_keep_error(C.CString(err.Error()))
		return false
	}
	return true
}

func status(f func() error) C.int {
	if !guard(f) {
		return -1
	}
	return 0
}

// with is status for a call on a program.
func with(h C.uintptr_t, f func(*open) error) C.int {
	return status(func() error {
		p, err := find(h)
		if err != nil {
			return err
		}
		return f(p)
	})
}

// text is a C string, which may be NULL if something says what it is.
func text(s *C.char, what string) (string, error) {
	if s == nil {
		return "", fmt.Errorf("the %s is NULL", what)
	}
	return C.GoString(s), nil
}

// list is a list of C strings that ends with NULL.
func list(s **C.char) (all []string) {
	for ; s != nil && *s != nil; s = (**C.char)(unsafe.Add(unsafe.Pointer(s), unsafe.Sizeof(*s))) {
		all = append(all, C.GoString(*s))
	}
	return all
}

func tensor(t *C.DLTensor) *capi.Tensor { return (*capi.Tensor)(unsafe.Pointer(t)) }

// tensors is a list of n tensors, each of which may be NULL.
func tensors(t **C.DLTensor, n int) []*capi.Tensor {
	return unsafe.Slice((**capi.Tensor)(unsafe.Pointer(t)), n)
}

var version = C.CString(cli.Version())

//export goVersion
func goVersion() *C.char { return version }

//export goOpen
func goOpen(path *C.char, options **C.char) (h C.uintptr_t) {
	guard(func() error {
		name, err := text(path, "path")
		if err != nil {
			return err
		}
		p, err := capi.Open(name, list(options))
		if err == nil {
			h = add(p)
		}
		return err
	})
	return h
}

//export goParse
func goParse(source *C.char, size C.size_t, options **C.char) (h C.uintptr_t) {
	guard(func() error {
		if source == nil {
			return errors.New("the text is NULL")
		}
		if size > graph.MaxText { // which is less than what a C.int holds
			return fmt.Errorf("the text has %d bytes, more than %d", size, graph.MaxText)
		}
		p, err := capi.Parse(C.GoBytes(unsafe.Pointer(source), C.int(size)), list(options))
		if err == nil {
			h = add(p)
		}
		return err
	})
	return h
}

//export goClose
func goClose(h C.uintptr_t) C.int {
	if h == 0 {
		return 0
	}
	return with(h, func(p *open) error {
		if err := p.Close(); err != nil {
			return err
		}
		programs.Lock()
		delete(programs.byHandle, h)
		programs.Unlock()
		for _, m := range p.owned {
			C.free(m)
		}
		return nil
	})
}

// values describes the values of a kind in C's memory, once.
func (p *open) values(kind C.fusec_kind) ([]C.fusec_value, error) {
	list, err := p.Values(capi.Kind(kind))
	if err != nil {
		return nil, err
	}
	programs.Lock()
	defer programs.Unlock()
	if vs, ok := p.kinds[kind]; ok {
		return vs, nil
	}
	vs := make([]C.fusec_value, len(list))
	for i, v := range list {
		dims := v.Type.Shape.Slice()
		shape := C.malloc(C.size_t(8*len(dims) + 1))
		name := C.CString(v.Name)
		p.owned = append(p.owned, shape, unsafe.Pointer(name))
		for i, d := range dims {
			unsafe.Slice((*C.int64_t)(shape), len(dims))[i] = C.int64_t(d)
		}
		d := capi.DTypeOf(v.Type.DType)
		vs[i] = C.fusec_value{name: name, ndim: C.int32_t(len(dims)), shape: (*C.int64_t)(shape),
			dtype: C.DLDataType{code: C.uint8_t(d.Code), bits: C.uint8_t(d.Bits), lanes: C.uint16_t(d.Lanes)}}
	}
	p.kinds[kind] = vs
	return vs, nil
}

//export goCount
func goCount(h C.uintptr_t, kind C.fusec_kind) (n C.int) {
	if with(h, func(p *open) error {
		vs, err := p.values(kind)
		n = C.int(len(vs))
		return err
	}) != 0 {
		return -1
	}
	return n
}

//export goDescribe
func goDescribe(h C.uintptr_t, kind C.fusec_kind, index C.int, to *C.fusec_value) C.int {
	return with(h, func(p *open) error {
		vs, err := p.values(kind)
		switch {
		case err != nil:
			return err
		case to == nil:
			return errors.New("the place for the description is NULL")
		case index < 0 || int(index) >= len(vs):
			return fmt.Errorf("index %d of %d values", index, len(vs))
		}
		*to = vs[index]
		return nil
	})
}

//export goSet
func goSet(h C.uintptr_t, name *C.char, t *C.DLTensor) C.int {
	return with(h, func(p *open) error {
		n, err := text(name, "name")
		if err != nil {
			return err
		}
		return p.Set(n, tensor(t))
	})
}

//export goGet
func goGet(h C.uintptr_t, name *C.char, view *C.DLTensor) C.int {
	return with(h, func(p *open) error {
		n, err := text(name, "name")
		if err != nil {
			return err
		}
		return p.Get(n, tensor(view))
	})
}

//export goRun
func goRun(h C.uintptr_t) C.int { return with(h, func(p *open) error { return p.Run() }) }

//export goStart
func goStart(h C.uintptr_t) C.int { return with(h, func(p *open) error { return p.Start() }) }

//export goWait
func goWait(h C.uintptr_t) C.int { return with(h, func(p *open) error { return p.Wait() }) }

//export goCall
func goCall(h C.uintptr_t, values, results unsafe.Pointer) C.int {
	return withPointers(h, values, results, (*open).Call)
}

// withPointers calls f with the addresses in lists of a program's inputs and outputs.
func withPointers(h C.uintptr_t, values, results unsafe.Pointer, f func(p *open, in, out []unsafe.Pointer) error) C.int {
	return with(h, func(p *open) error {
		in, err := p.Pointers(values, capi.KindInput)
		if err != nil {
			return err
		}
		out, err := p.Pointers(results, capi.KindOutput)
		if err != nil {
			return err
		}
		return f(p, in, out)
	})
}

//export goQueueBytes
func goQueueBytes(h C.uintptr_t) (bytes C.int64_t) {
	if with(h, func(p *open) error {
		n, err := p.QueueBytes()
		bytes = C.int64_t(n)
		return err
	}) != 0 {
		return -1
	}
	return bytes
}

//export goQueue
func goQueue(h C.uintptr_t, values, results unsafe.Pointer, scratch, stream C.uintptr_t) C.int {
	return withPointers(h, values, results, func(p *open, in, out []unsafe.Pointer) error {
		return p.Queue(in, out, uintptr(scratch), uintptr(stream))
	})
}

//export goSave
func goSave(h C.uintptr_t, path *C.char) C.int {
	return with(h, func(p *open) error {
		name, err := text(path, "path")
		if err != nil {
			return err
		}
		return p.Save(name)
	})
}

//export goReport
func goReport(h C.uintptr_t, form *C.char) (report *C.char) {
	with(h, func(p *open) error {
		name, err := text(form, "form")
		if err != nil {
			return err
		}
		b, err := p.Report(name)
		if err == nil {
			report = C.CString(string(b))
		}
		return err
	})
	return report
}

// kernel is status for a kernel with n tensors and the name of an activation, which may be NULL.
func kernel(activation *C.char, t **C.DLTensor, n int, f func(act string, t []*capi.Tensor) error) C.int {
	return status(func() error {
		act := ""
		if activation != nil {
			act = C.GoString(activation)
		}
		return f(act, tensors(t, n))
	})
}

//export goLinear
func goLinear(activation *C.char, t **C.DLTensor) C.int {
	return kernel(activation, t, 5, func(act string, t []*capi.Tensor) error {
		return capi.Linear(t[0], t[1], t[2], t[3], act, t[4])
	})
}

//export goLinearBackward
func goLinearBackward(activation *C.char, t **C.DLTensor) C.int {
	return kernel(activation, t, 8, func(act string, t []*capi.Tensor) error {
		return capi.LinearBackward(t[0], t[1], t[2], act, t[3], t[4], t[5], t[6], t[7])
	})
}

func attention(o *C.fusec_attention_options) capi.AttentionOptions {
	return capi.AttentionOptions{Scale: float64(o.scale), Causal: o.causal != 0, Window: int(o.window)}
}

//export goAttention
func goAttention(o *C.fusec_attention_options, t **C.DLTensor) C.int {
	return kernel(nil, t, 5, func(_ string, t []*capi.Tensor) error {
		return capi.Attention(t[0], t[1], t[2], t[3], attention(o), t[4])
	})
}

//export goAttentionBackward
func goAttentionBackward(o *C.fusec_attention_options, t **C.DLTensor) C.int {
	return kernel(nil, t, 8, func(_ string, t []*capi.Tensor) error {
		return capi.AttentionBackward(t[0], t[1], t[2], t[3], attention(o), t[4], t[5], t[6], t[7])
	})
}

//export goMoE
func goMoE(activation *C.char, t **C.DLTensor) C.int {
	return kernel(activation, t, 6, func(act string, t []*capi.Tensor) error {
		return capi.MoE(t[0], t[1], t[2], t[3], t[4], act, t[5])
	})
}

//export goMoEBackward
func goMoEBackward(activation *C.char, t **C.DLTensor) C.int {
	return kernel(activation, t, 11, func(act string, t []*capi.Tensor) error {
		return capi.MoEBackward(t[0], t[1], t[2], t[3], t[4], act, t[5], t[6], t[7], t[8], t[9], t[10])
	})
}

//export goLayerNorm
func goLayerNorm(eps C.double, t **C.DLTensor) C.int {
	return kernel(nil, t, 4, func(_ string, t []*capi.Tensor) error {
		return capi.LayerNorm(t[0], t[1], t[2], float64(eps), t[3])
	})
}

//export goLayerNormBackward
func goLayerNormBackward(eps C.double, t **C.DLTensor) C.int {
	return kernel(nil, t, 6, func(_ string, t []*capi.Tensor) error {
		return capi.LayerNormBackward(t[0], t[1], float64(eps), t[2], t[3], t[4], t[5])
	})
}

//export goRMSNorm
func goRMSNorm(eps C.double, t **C.DLTensor) C.int {
	return kernel(nil, t, 3, func(_ string, t []*capi.Tensor) error {
		return capi.RMSNorm(t[0], t[1], float64(eps), t[2])
	})
}

//export goRMSNormBackward
func goRMSNormBackward(eps C.double, t **C.DLTensor) C.int {
	return kernel(nil, t, 5, func(_ string, t []*capi.Tensor) error {
		return capi.RMSNormBackward(t[0], t[1], float64(eps), t[2], t[3], t[4])
	})
}

//export goFreeKernels
func goFreeKernels() C.int { return status(capi.FreeKernels) }
