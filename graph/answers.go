package graph

import "fmt"

// Answers is how something computes each operation of the table: with a kernel of type K, or not at all, for a reason.
type Answers[K any] struct {
	target  string
	kernels map[string]K
	refused map[string]string
}

// NewAnswers makes the answers of a target from its kernels and reasons, by the names of operations. An operation that
// has neither is an error, and so are one that has both and a name that is no operation's.
func NewAnswers[K any](target string, kernels map[string]K, refused map[string]string) (Answers[K], error) {
	a := Answers[K]{target, kernels, refused}
	for i := range opTable {
		name := opTable[i].Name
		switch _, ok := kernels[name]; {
		case !ok && refused[name] == "":
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

// Of is the kernel for op. The error gives the target's reason to have none.
func (a Answers[K]) Of(op Op) (K, error) {
	k, ok := a.kernels[op.OpName()]
	if !ok {
		return k, fmt.Errorf("%s does not compute %s: %s", a.target, op.OpName(), a.refused[op.OpName()])
	}
	return k, nil
}

// NotLaunched has the operations that are never launches of their own, with the reason. A view that may fail, such as a
// slice whose start is computed, can be one.
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
