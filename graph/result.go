package graph

import "fmt"

// Result is a further result, Index ≥ 1, of an operation with several results.
type Result struct{ Index int }

// OpName implements Op.
func (Result) OpName() string { return "result" }

var resultRow = OpInfo{
	Name: "result", Doc: "a further result of an operation with several results", Operands: "node", Proto: Result{},
	Class: ClassFusion, MinArgs: 1, MaxArgs: 1,
	Infer: func(Op, []Type) ([]Type, error) { return nil, fmt.Errorf("result needs its node") }, FLOPs: free,
}
