package cuda

import (
	"fmt"
	"slices"
	"strings"

	"fusec/graph"
)

// Name is the name of the target.
const Name = "cuda"

// custom is what the text calls a custom function. The error is a refusal: the function has no body for CUDA.
func (u *unit) custom(f graph.CustomFn) (string, error) {
	if f.Info().Bodies[Name] == "" {
		return "", fmt.Errorf("the custom function %s has no body for CUDA", f)
	}
	if !slices.Contains(u.customs, f) {
		u.customs = append(u.customs, f)
	}
	return customName(f), nil
}

// customName keeps a function apart from those of CUDA and of ops.cuh, which its body may call by names like its own.
func customName(f graph.CustomFn) string { return "custom_" + string(f) }

// customText defines custom functions, each once, of numbers and of vectors. Numbers of lines in messages of the compiler count
// from the first of the body.
func customText(list []graph.CustomFn) string {
	var text strings.Builder
	for i, f := range list {
		if slices.Contains(list[:i], f) {
			continue
		}
		info, name := f.Info(), customName(f)
		var numbers, vectors, elements []string
		for k := range info.Operands {
			numbers = append(numbers, fmt.Sprint("T x", k))
			vectors = append(vectors, fmt.Sprint("Vec<T, W> x", k))
			elements = append(elements, fmt.Sprintf("x%d[i]", k))
		}
		fmt.Fprintf(&text, "template <class T> DEVICE T %s(%s) {\n#line 1 %q\n%s\n}\n#line 1 \"generated\"\n", name,
			strings.Join(numbers, ", "), "custom function "+string(f), info.Bodies[Name])
		fmt.Fprintf(&text, "template <class T, int W> DEVICE Vec<T, W> %s(%s) {\n  Vec<T, W> y;\n#pragma unroll\n"+
			"  for (int i = 0; i < W; i++) y[i] = %s(%s);\n  return y;\n}\n\n", name, strings.Join(vectors, ", "), name,
			strings.Join(elements, ", "))
	}
	return text.String()
}
