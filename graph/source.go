package graph

import "fmt"

// Input is a value that the caller sets for each run.
type Input struct{ Type Type }

// Param is a weight: it persists between runs and is written only by an Update or by its owner.
type Param struct{ Type Type }

// State is a value that a run reads at its start and may update at its end (running statistics, counters, moments).
type State struct{ Type Type }

// Const is a constant. Constants are compared by identity of the tensor; simplify merges equal ones.
type Const struct{ Value *Tensor }

// OpName implements Op.
func (Input) OpName() string { return "input" }

// OpName implements Op.
func (Param) OpName() string { return "param" }

// OpName implements Op.
func (State) OpName() string { return "state" }

// OpName implements Op.
func (Const) OpName() string { return "const" }

var inputRow = OpInfo{
	Name: "input", Doc: "a value given for each run", Proto: Input{}, Class: ClassSource,
	Infer: func(op Op, args []Type) ([]Type, error) { return declared(args, op.(Input).Type) }, FLOPs: free,
}

var paramRow = OpInfo{
	Name: "param", Doc: "a weight", Proto: Param{}, Class: ClassSource,
	Infer: func(op Op, args []Type) ([]Type, error) { return declared(args, op.(Param).Type) }, FLOPs: free,
}

var stateRow = OpInfo{
	Name: "state", Doc: "a value that persists between runs", Proto: State{}, Class: ClassSource,
	Infer: func(op Op, args []Type) ([]Type, error) { return declared(args, op.(State).Type) }, FLOPs: free,
}

var constRow = OpInfo{
	Name: "const", Doc: "a constant", Proto: Const{}, Class: ClassSource, Infer: inferConst, FLOPs: free,
}

func declared(args []Type, t Type) ([]Type, error) {
	if t.DType == Invalid || int(t.DType) >= len(dtypes) {
		return nil, fmt.Errorf("has no element type")
	}
	return one(args, t)
}

func inferConst(op Op, args []Type) ([]Type, error) {
	v := op.(Const).Value
	if v == nil {
		return nil, fmt.Errorf("has no value")
	}
	return declared(args, v.Type)
}
