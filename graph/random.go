package graph

import "fmt"

// Dropout zeroes each element with probability P and divides the others by 1−P, where P is rounded as [DropoutRuleOf] says. A
// counter-based generator decides on each element by the seed and its index, so a recomputation draws the same; see [DropoutRule].
// The seed is an I64 scalar.
type Dropout struct{ P float64 }

// Random draws a tensor from a distribution with parameters A and B: uniform on [A,B), normal with mean A and
// deviation B, or Bernoulli with probability A. The seed is an I64 scalar; see Dropout.
type Random struct {
	Dist Dist
	A, B float64
	Type Type
}

// OpName implements Op.
func (Dropout) OpName() string { return "dropout" }

// OpName implements Op.
func (Random) OpName() string { return "random" }

var dropoutRow = OpInfo{
	Name: "dropout", Doc: "elements zeroed at random, the others scaled", Operands: "x, seed", Proto: Dropout{},
	Class: ClassRandom, Fuses: true, MinArgs: 2, MaxArgs: 2, Infer: inferDropout, Grad: gradDropout,
	Skips: func(Op) bool { return true },
}

var randomRow = OpInfo{
	Name: "random", Doc: "a tensor drawn from a distribution", Operands: "seed", Proto: Random{},
	Class: ClassRandom, MinArgs: 1, MaxArgs: 1, Infer: inferRandom,
}

// gradDropout drops the same elements, by the same seed.
func gradDropout(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	return []*Node{b.Add(n.Op, dys[0], n.Args[1]), nil}, nil
}

func wantSeed(t Type) error {
	if t.DType != I64 || t.Shape.Rank() != 0 {
		return fmt.Errorf("the seed is %v, not an i64 scalar", t)
	}
	return nil
}

func inferDropout(op Op, args []Type) ([]Type, error) {
	if p := op.(Dropout).P; !(p >= 0 && p < 1) {
		return nil, fmt.Errorf("probability %v is outside [0,1)", p)
	}
	if err := wantFloat(args[0]); err != nil {
		return nil, err
	}
	return args[:1], wantSeed(args[1])
}

func inferRandom(op Op, args []Type) ([]Type, error) {
	t := op.(Random).Type
	if err := wantFloat(t); err != nil {
		return nil, err
	}
	return []Type{t}, wantSeed(args[0])
}
