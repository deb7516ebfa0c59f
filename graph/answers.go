package graph

import (
	"errors"
	"fmt"
)

// Answers says for each operation of the table how a target computes it: with a kernel of type K, or not at all, with
// the reason. Each file of a target adds its kernels when the package is initialised, and [Answers.Check] finds what is missing.
type Answers[K any] struct {
	target  string
	kernels map[string]K
	refused map[string]string
	rest    string
	twice   error
}

// NewAnswers are those of a target, so far none.
func NewAnswers[K any](target string) *Answers[K] {
	return &Answers[K]{target: target, kernels: map[string]K{}, refused: map[string]string{}}
}

// Add gives the kernel for the named operation. It returns itself, so that a file can say beside a kernel
//
//	var _ = answers.Add(own(compileConcat))
func (a *Answers[K]) Add(name string, kernel K) *Answers[K] {
	if _, ok := a.kernels[name]; ok {
		a.twice = fmt.Errorf("%s has two kernels for %s", a.target, name)
	}
	a.kernels[name] = kernel
	return a
}

// AddBodies gives the kernel for the elementwise operations and those along rows that may stand in the body of a [Fusion], and
// that have none.
func (a *Answers[K]) AddBodies(kernel K) {
	for i := range opTable {
		r := &opTable[i]
		if _, ok := a.kernels[r.Name]; !ok && r.Fuses && (r.Anchor == AnchorNone || r.Anchor == AnchorRow) {
			a.kernels[r.Name] = kernel
		}
	}
}

// Refuse gives the reason why the target does not compute the named operations.
func (a *Answers[K]) Refuse(reason string, names ...string) {
	for _, name := range names {
		a.refused[name] = reason
	}
}

// Rest gives the reason why the target does not compute operations that nothing else is said of. Without it, they are an error.
func (a *Answers[K]) Rest(reason string) { a.rest = reason }

// RefuseNotLaunched refuses the operations that are never separate launches. A view that may fail, such as a slice whose start
// is computed, can be a launch.
func (a *Answers[K]) RefuseNotLaunched() {
	a.Refuse("it is a value, not a launch", "result")
	for i := range opTable {
		switch r := &opTable[i]; {
		case r.Class == ClassSource:
			a.Refuse("it is a value, not a launch", r.Name)
		case r.Class == ClassView && r.Fails == nil:
			a.Refuse("it is a view, which its readers take by strides", r.Name)
		}
	}
}

// Check reports an operation that has neither a kernel nor a reason, or both, or two kernels, and a name that is not that of an
// operation. A composite with a Lower needs neither: its decomposition takes its place.
func (a *Answers[K]) Check() error {
	err := a.twice
	for i := range opTable {
		name := opTable[i].Name
		switch _, ok := a.kernels[name]; {
		case !ok && a.reason(name) == "":
			err = errors.Join(err, fmt.Errorf("%s has neither a kernel for %s nor a reason to refuse it", a.target, name))
		case ok && a.refused[name] != "":
			err = errors.Join(err, fmt.Errorf("%s has a kernel for %s and a reason to refuse it", a.target, name))
		}
	}
	for name := range a.kernels {
		if byName[name] == nil {
			err = errors.Join(err, fmt.Errorf("%s has a kernel for %s, which is no operation", a.target, name))
		}
	}
	for name := range a.refused {
		if byName[name] == nil {
			err = errors.Join(err, fmt.Errorf("%s refuses %s, which is no operation", a.target, name))
		}
	}
	return err
}

// reason is why there is no kernel for the named operation, or empty if nothing says why.
func (a *Answers[K]) reason(name string) string {
	if why := a.refused[name]; why != "" {
		return why
	}
	if r := byName[name]; r != nil && r.Decompose != nil && r.Lower != nil {
		return "its decomposition takes its place"
	}
	return a.rest
}

// Of is the kernel for op. If there is none, the error gives the target's reason.
func (a *Answers[K]) Of(op Op) (K, error) {
	k, ok := a.Lookup(op)
	if !ok {
		return k, fmt.Errorf("%s does not compute %s: %s", a.target, op.OpName(), a.reason(op.OpName()))
	}
	return k, nil
}

// Lookup is the kernel for op, if there is one.
func (a *Answers[K]) Lookup(op Op) (k K, ok bool) {
	k, ok = a.kernels[op.OpName()]
	return k, ok
}
