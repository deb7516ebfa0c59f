package gorgonia

import (
	"fmt"
	"maps"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	gorg "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

const (
	upstream = "gorgonia.org/gorgonia"
	version  = "v0.9.18"
)

// fields reads the unexported fields of a struct of Gorgonia's. The first field that is not as expected is kept in
// err; after it, reads give zero values.
type fields struct {
	v   reflect.Value // a struct
	err error
}

// fieldsOf looks at x, a struct or a pointer to one. A pointer is followed, so that later changes are seen.
func fieldsOf(x any) *fields {
	f := fieldsIn(x)
	return &f
}

// fieldsIn is *fieldsOf(x).
func fieldsIn(x any) fields {
	v := reflect.ValueOf(x)
	for v.Kind() == reflect.Pointer && !v.IsNil() {
		v = v.Elem()
	}
	if v.Kind() != reflect.Struct {
		return fields{err: fmt.Errorf("%T is not a struct as in Gorgonia %s", x, version)}
	}
	return fields{v: v}
}

// A memo remembers what a slow function gives. It suits few keys: each new one copies all that is known, so that what is
// known is found without a lock.
type memo[K comparable, V any] struct {
	known atomic.Pointer[map[K]V]
	mu    sync.Mutex
}

func (m *memo[K, V]) of(k K, slow func(K) V) V {
	if known := m.known.Load(); known != nil {
		if v, ok := (*known)[k]; ok {
			return v
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	more := map[K]V{k: slow(k)}
	if known := m.known.Load(); known != nil {
		maps.Copy(more, *known)
	}
	m.known.Store(&more)
	return more[k]
}

// fieldIndex remembers where the fields of a type are: nil if it has no such field.
var fieldIndex memo[fieldKey, []int]

type fieldKey struct {
	t    uintptr // [typeID] of the type
	name string
}

// typeID tells types apart, and is found in a map sooner than the type itself.
func typeID(t reflect.Type) uintptr { return reflect.ValueOf(t).Pointer() }

// fieldByName is v.FieldByName(name).
func fieldByName(v reflect.Value, name string) reflect.Value {
	t := v.Type()
	at := fieldIndex.of(fieldKey{typeID(t), name}, func(fieldKey) []int {
		f, _ := t.FieldByName(name)
		return f.Index
	})
	if at == nil {
		return reflect.Value{}
	}
	return v.FieldByIndex(at)
}

// addressable has f look at a copy of its struct if that has no address.
func (f *fields) addressable() *fields {
	if f.v.IsValid() && !f.v.CanAddr() {
		c := reflect.New(f.v.Type()).Elem()
		c.Set(f.v)
		f.v = c
	}
	return f
}

// get finds a field, through embedded structs too, and checks its kind.
func (f *fields) get(name string, kinds ...reflect.Kind) (reflect.Value, bool) {
	if f.err != nil {
		return reflect.Value{}, false
	}
	v := fieldByName(f.v, name)
	if v.IsValid() {
		for _, k := range kinds {
			if v.Kind() == k {
				return v, true
			}
		}
	}
	f.err = fmt.Errorf("%s has no field %s of kind %v: this is not Gorgonia %s", f.v.Type(), name, kinds[0], version)
	return reflect.Value{}, false
}

func (f *fields) int(name string) int {
	if v, ok := f.get(name, reflect.Int); ok {
		return int(v.Int())
	}
	return 0
}

func (f *fields) byte(name string) int {
	if v, ok := f.get(name, reflect.Uint8); ok {
		return int(v.Uint())
	}
	return 0
}

func (f *fields) bool(name string) bool {
	if v, ok := f.get(name, reflect.Bool); ok {
		return v.Bool()
	}
	return false
}

func (f *fields) float(name string) float64 {
	if v, ok := f.get(name, reflect.Float64); ok {
		return v.Float()
	}
	return 0
}

func (f *fields) string(name string) string {
	if v, ok := f.get(name, reflect.String); ok {
		return v.String()
	}
	return ""
}

func (f *fields) ints(name string) []int {
	v, ok := f.get(name, reflect.Slice)
	if !ok {
		return nil
	}
	if v.Type().Elem().Kind() != reflect.Int {
		f.err = fmt.Errorf("%s.%s is %s, not a list of integers as in Gorgonia %s", f.v.Type(), name, v.Type(), version)
		return nil
	}
	r := make([]int, v.Len())
	for i := range r {
		r[i] = int(v.Index(i).Int())
	}
	return r
}

// value reads a field of any type T.
func value[T any](f *fields, name string) T {
	var zero T
	t := reflect.TypeFor[T]()
	v, ok := f.addressable().get(name, t.Kind())
	if !ok {
		return zero
	}
	if !v.Type().ConvertibleTo(t) {
		f.err = fmt.Errorf("%s.%s is %s, not %s as in Gorgonia %s", f.v.Type(), name, v.Type(), t, version)
		return zero
	}
	r, _ := reflect.NewAt(v.Type(), unsafe.Pointer(v.UnsafeAddr())).Elem().Convert(t).Interface().(T) // a nil interface is no T
	return r
}

// pointer reads a field that is a pointer, of whatever type.
func (f *fields) pointer(name string) unsafe.Pointer {
	if v, ok := f.get(name, reflect.Pointer); ok {
		return v.UnsafePointer()
	}
	return nil
}

// fieldAt is where a field of type T is, so that its later values can be read fast; nil if there is none.
func fieldAt[T any](f *fields, name string) *T {
	t := reflect.TypeFor[T]()
	v, ok := f.addressable().get(name, t.Kind())
	if !ok {
		return nil
	}
	if v.Type() != t {
		f.err = fmt.Errorf("%s.%s is %s, not %s as in Gorgonia %s", f.v.Type(), name, v.Type(), t, version)
		return nil
	}
	return (*T)(unsafe.Pointer(v.UnsafeAddr()))
}

// inner looks at the struct inside an interface field, or behind a pointer.
func (f *fields) inner(name string) fields {
	v, ok := f.get(name, reflect.Interface, reflect.Pointer)
	if !ok || v.IsNil() {
		return fields{err: f.err}
	}
	v = v.Elem()
	for v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	return fields{v: v, err: f.err}
}

// set overwrites an interface field.
func (f *fields) set(name string, x any) error {
	v, ok := f.addressable().get(name, reflect.Interface)
	if !ok {
		return f.err
	}
	reflect.NewAt(v.Type(), unsafe.Pointer(v.UnsafeAddr())).Elem().Set(reflect.ValueOf(x))
	return nil
}

// nodeLayout is where the fields of a Gorgonia node are that its methods do not show.
type nodeLayout struct {
	children, name, group, bound, shape uintptr
}

// layout checks once that nodes look as they do in the version that this package knows.
var layout = sync.OnceValues(func() (nodeLayout, error) {
	var l nodeLayout
	t := reflect.TypeFor[gorg.Node]()
	for _, f := range []struct {
		name string
		typ  reflect.Type
		at   *uintptr
	}{
		{"children", reflect.TypeFor[gorg.Nodes](), &l.children},
		{"name", reflect.TypeFor[string](), &l.name},
		{"group", reflect.TypeFor[string](), &l.group},
		{"boundTo", reflect.TypeFor[gorg.Value](), &l.bound},
		{"shape", reflect.TypeFor[tensor.Shape](), &l.shape},
	} {
		sf, ok := t.FieldByName(f.name)
		if !ok || sf.Type != f.typ {
			return l, fmt.Errorf("gorgonia.Node has no field %s of type %s: this program is built with another Gorgonia than %s", f.name,
				f.typ, version)
		}
		*f.at = sf.Offset
	}
	return l, nil
})

func nodeField[T any](n *gorg.Node, offset uintptr) T {
	return *(*T)(unsafe.Add(unsafe.Pointer(n), offset))
}

var typeNames memo[uintptr, string] // by [typeID]

// typeName is the name of a type of Gorgonia's own, or "" for a type from elsewhere and for no operation.
func typeName(op gorg.Op) string {
	if op == nil {
		return ""
	}
	t := reflect.TypeOf(op)
	return typeNames.of(typeID(t), func(uintptr) string {
		if t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		if t.PkgPath() != upstream {
			return ""
		}
		return t.Name()
	})
}

// describe is op's own description, kept to one line.
func describe(op gorg.Op) (s string) {
	defer func() {
		if recover() != nil {
			s = fmt.Sprintf("%T", op)
		}
	}()
	switch typeName(op) {
	case "elemBinOp":
		f := fieldsIn(op)
		if fn, err := binaryOf(op, &f); err == nil { // whether a comparison gives numbers is not part of its sign
			return binaries[fn].sign
		}
	case "linAlgBinOp":
		s = products.of(op, gorg.Op.String)
	}
	if s == "" {
		s = op.String()
	}
	s, _, _ = strings.Cut(s, "\n")
	return strings.TrimSuffix(s, "()")
}
