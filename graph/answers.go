package graph

import (
	"cmp"
	"fmt"
)

// Answers says for each operation of the table how a target computes it: with a kernel of type K, or not at all, with
// the reason.
type Answers[K any] struct {
	target  string
	kernels map[string]K
	refused map[string]string
}

// NewAnswers makes the answers of a target from its kernels and its reasons for refusals, by the names of operations.
// It is an error if an operation has neither or both, or if a name is not that of an operation. A composite with a Lower
// needs neither: its decomposition takes its place.
func NewAnswers[K any](target string, kernels map[string]K, refused map[string]string) (Answers[K], error) {
	a := Answers[K]{target, kernels, refused}
	for i := range opTable {
		name, apart := opTable[i].Name, opTable[i].Decompose != nil && opTable[i].Lower != nil
		switch _, ok := kernels[name]; {
		case !ok && refused[name] == "" && !apart:
			return a, fmt.Errorf("%s has neither a kernel for %s nor a reason to refuse it", target, name)
		case ok && refused[name] != "":
			return a, fmt.Errorf("%s has a kernel for %s and a reason to refuse it", target, name)
		}
	}
	for name := range kernels {
		if byName[name] == nil {
			return a, fmt.Errorf("%s has a kernel for %s, which is no operation", target, name)
		}
	}
	for name := range refused {
		if byName[name] == nil {
			return a, fmt.Errorf("%s refuses %s, which is no operation", target, name)
		}
	}
	return a, nil
}

// Of is the kernel for op. If there is none, the error gives the target's reason.
func (a Answers[K]) Of(op Op) (K, error) {
	k, ok := a.Lookup(op)
	if !ok {
		return k, fmt.Errorf("%s does not compute %s: %s", a.target, op.OpName(),
			cmp.Or(a.refused[op.OpName()], "its decomposition takes its place"))
	}
	return k, nil
}

// Lookup is the kernel for op, if there is one.
func (a Answers[K]) Lookup(op Op) (k K, ok bool) {
	k, ok = a.kernels[op.OpName()]
	return k, ok
}

// NotLaunched has the operations that are never separate launches, with the reason. A view that may fail, such as a
// slice whose start is computed, can be a launch.
func NotLaunched() map[string]string {
	refused := map[string]string{"result": "it is a value, not a launch"}
	for i := range opTable {
		switch r := &opTable[i]; {
		case r.Class == ClassSource:
			refused[r.Name] = "it is a value, not a launch"
		case r.Class == ClassView && r.Fails == nil:
			refused[r.Name] = "it is a view, which its readers take by strides"
		}
	}
	return refused
}
