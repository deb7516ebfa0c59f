package graph

import (
	"strings"
	"testing"
)

// TestAnswers checks that a target that forgets an operation, answers twice or names none is refused by name.
func TestAnswers(t *testing.T) {
	whole := func() (map[string]int, map[string]string) {
		kernels, refused := map[string]int{}, NotLaunched()
		for i := range opTable {
			if refused[opTable[i].Name] == "" {
				kernels[opTable[i].Name] = i
			}
		}
		return kernels, refused
	}
	for want, spoil := range map[string]func(kernels map[string]int, refused map[string]string){
		"":                                    func(map[string]int, map[string]string) {},
		"neither a kernel for rms_norm nor":   func(k map[string]int, _ map[string]string) { delete(k, "rms_norm") },
		"neither a kernel for reshape nor":    func(_ map[string]int, r map[string]string) { delete(r, "reshape") },
		"kernel for input and a reason":       func(k map[string]int, _ map[string]string) { k["input"] = 0 },
		"kernel for rms, which is no":         func(k map[string]int, _ map[string]string) { k["rms"] = 0 },
		"refuses result_of, which is no oper": func(_ map[string]int, r map[string]string) { r["result_of"] = "it is" },
	} {
		kernels, refused := whole()
		spoil(kernels, refused)
		switch _, err := NewAnswers("the target", kernels, refused); {
		case want == "" && err != nil:
			t.Error(err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%v, want %q", err, want)
		}
	}
	kernels, refused := whole()
	delete(kernels, "recurrence")
	a, err := NewAnswers("the target", kernels, refused)
	if err != nil {
		t.Fatal(err)
	}
	if k, err := a.Of(MatMul{}); err != nil || opTable[k].Name != "matmul" {
		t.Errorf("matmul has kernel %d: %v", k, err)
	}
	if _, err := a.Of(Transpose{}); err == nil ||
		err.Error() != "the target does not compute transpose: it is a view, which its readers take by strides" {
		t.Errorf("a transpose: %v", err)
	}
	if _, err := a.Of(Recurrence{}); err == nil ||
		err.Error() != "the target does not compute recurrence: its decomposition takes its place" {
		t.Errorf("a recurrence: %v", err)
	}
}
