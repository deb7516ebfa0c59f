package cuda

import (
	"fmt"
	"strings"

	"fusec/graph"
)

// The text of elementwise functions is src/ops.cuh. A function has its name there, in namespace op, but for words that C++
// has taken.
var (
	reserved = map[string]string{"not": "logical_not", "and": "logical_and", "or": "logical_or", "xor": "logical_xor"}
	// checked are the forms that report operands of integers for which there is no result.
	checked = map[graph.BinaryFn]string{graph.Div: "divide", graph.Pow: "power", graph.Rem: "remainder", graph.Mod: "modulo"}
)

func init() {
	err := checkFunctions(include("ops"), checked)
	if err == nil {
		err = checkReductions(include("rows"), include("windows"), reducers)
	}
	if err != nil {
		panic(err)
	}
}

// checkReductions reports a reduction or a pool that the text does not define.
func checkReductions(rows, windows string, reducers map[graph.ReduceFn]string) error {
	if err := graph.CheckReductions("cuda", reducers); err != nil {
		return err
	}
	for _, r := range graph.Reductions() {
		if name := reducers[r.Fn]; !strings.Contains(rows, "struct "+name+" {") {
			return fmt.Errorf("cuda: src/rows.cuh has no struct %s, for the reduction %s", name, r.Name)
		}
	}
	for _, r := range graph.Pools() {
		for _, name := range []string{r.Name + "_pool", r.Name + "_pool_grad"} {
			if !strings.Contains(windows, " "+name+"(") {
				return fmt.Errorf("cuda: src/windows.cuh has no %s", name)
			}
		}
	}
	return nil
}

// checkFunctions reports a function that the text does not define.
func checkFunctions(text string, checked map[graph.BinaryFn]string) error {
	defines := func(macro, name string) error {
		if strings.Contains(text, macro+"("+name+")") {
			return nil
		}
		return fmt.Errorf("cuda: src/ops.cuh has no %s(%s)", macro, name)
	}
	for _, f := range graph.UnaryFns() {
		macro := "UNARY"
		if f.Fn.HasAlpha() {
			macro = "UNARY_ALPHA"
		}
		if err := defines(macro, functionName(f.Name)); err != nil {
			return err
		}
	}
	for _, f := range graph.BinaryFns() {
		if err := defines("BINARY", functionName(f.Name)); err != nil {
			return err
		}
		if f.Fails {
			if checked[f.Fn] == "" {
				return fmt.Errorf("cuda: %s of integers may have no result, and has no form that reports it", f.Name)
			}
			if err := defines("CHECKED", checked[f.Fn]); err != nil {
				return err
			}
		}
	}
	return nil
}

// functionName is what ops.cuh calls a function.
func functionName(name string) string {
	if s := reserved[name]; s != "" {
		return s
	}
	return name
}
