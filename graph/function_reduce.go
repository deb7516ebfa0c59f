package graph

import (
	"fmt"
	"math"
)

// The reductions and pools are rows of tables, as the elementwise functions are: see function.go.

// ReduceFn is how a Reduce combines elements.
type ReduceFn uint8

// The reductions. Of no elements: Sum 0, Mean NaN, Prod 1, MaxOf −Inf, MinOf +Inf.
const (
	Sum ReduceFn = iota
	Mean
	Prod
	MaxOf
	MinOf
	endReduce
)

// ReduceInfo is the row of a reduction: a function of two variables that joins the elements one after another, in any
// order, from a value that changes nothing.
type ReduceInfo struct {
	Fn          ReduceFn
	Name        string
	Doc         string // what the reduction is, in one line
	Symbol      string // of a value in a formula
	Of          Domain // the element types
	Join        BinaryFn
	Identity    float64                 // of no elements; [ReduceFn.IdentityOf] has that of integers
	IdentityInt func(of DType) int64    // of a reduction that takes integers
	Averages    bool                    // what was joined is divided by the number of elements
	OfGroup     bool                    // also of the values of a group of participants: [AllReduce]
	Bound       ReduceBound             // of the error of an implementation
	Grad        func(d reduction) *Node // the gradient of x
}

// ReduceBound is the magnitude to which a reduction's error is relative.
type ReduceBound uint8

// The magnitudes.
const (
	OfTerms   ReduceBound = iota // Σ|x|
	OfFactors                    // Π|x|, with what the factors are off
	OfOne                        // none beyond what the elements are off: the result is one of them
)

// reduction has the values from which the gradient of a Reduce is computed.
type reduction struct {
	*Builder
	op   Reduce
	x, y *Node
	dy   *Node // with the shape of x
}

// expand repeats a reduced value along the axes.
func (r reduction) expand(t *Node) *Node { return r.Expand(t, r.op.Axes, r.x.Type.Shape) }

// shared gives the gradient in equal parts to the elements that the result is.
func shared(r reduction) *Node {
	hit := r.Add(Cast{r.x.Type.DType}, r.Binary(Eq, r.x, r.expand(r.y)))
	count := r.Add(Reduce{Sum, r.op.Axes, r.op.Keep}, hit)
	return r.Binary(Mul, hit, r.Binary(Div, r.dy, r.expand(count)))
}

var reduceRows = [endReduce]ReduceInfo{
	{Fn: Sum, Name: "sum", Doc: "the sum", Symbol: "s", Of: Numbers, Join: Add, IdentityInt: number(0), OfGroup: true,
		Bound: OfTerms, Grad: func(r reduction) *Node { return r.dy }},
	{Fn: Mean, Name: "mean", Doc: "the mean", Symbol: "mean", Of: Floats, Join: Add, Averages: true, OfGroup: true,
		Bound: OfTerms, Grad: func(r reduction) *Node {
			return r.BinaryScalar(Mul, r.dy, float64(r.y.Type.Shape.Elems())/float64(r.x.Type.Shape.Elems()))
		}},
	{Fn: Prod, Name: "prod", Doc: "the product", Symbol: "prod", Of: Numbers, Join: Mul, Identity: 1, IdentityInt: number(1),
		Bound: OfFactors, Grad: func(r reduction) *Node { return r.Binary(Mul, r.dy, otherFactors(r.Builder, r.op, r.x)) }},
	{Fn: MaxOf, Name: "max", Doc: "the largest", Symbol: "m", Of: Numbers, Join: Max, Identity: math.Inf(-1),
		IdentityInt: func(d DType) int64 { least, _ := d.Limits(); return least }, OfGroup: true, Bound: OfOne, Grad: shared},
	{Fn: MinOf, Name: "min", Doc: "the smallest", Symbol: "m", Of: Numbers, Join: Min, Identity: math.Inf(1),
		IdentityInt: func(d DType) int64 { _, greatest := d.Limits(); return greatest }, OfGroup: true, Bound: OfOne, Grad: shared},
}

func number(v int64) func(DType) int64 { return func(DType) int64 { return v } }

// otherFactors is, for each element of x, the product of the other elements of its Prod. It divides only by factors
// other than 0: if no other factor is 0, it is the product of all factors that are not 0, divided by the element itself
// if that is not 0. Its derivative is right where no factor is 0.
func otherFactors(b *Builder, op Reduce, x *Node) *Node {
	d, s := x.Type.DType, x.Type.Shape
	zero := b.BinaryScalar(Eq, x, 0)
	safe := b.Add(Select{}, zero, b.Scalar(d, 1), x)
	product := b.Expand(b.Add(Reduce{Prod, op.Axes, true}, safe), op.Axes, s)
	isZero := b.Add(Cast{d}, zero)
	zeros := b.Expand(b.Add(Reduce{Sum, op.Axes, true}, isZero), op.Axes, s)
	noOther := b.Binary(Eq, zeros, isZero)
	return b.Add(Select{}, noOther, b.Binary(Div, product, safe), b.Scalar(d, 0))
}

// PoolFn is how a Pool combines the elements of a window.
type PoolFn uint8

// The pools.
const (
	MaxPool PoolFn = iota
	AvgPool
	endPool
)

// PoolInfo is the row of a kind of pool.
type PoolInfo struct {
	Fn     PoolFn
	Name   string
	Doc    string   // what the pool takes of a window, in one line
	Reduce ReduceFn // of a window
	// GradGrad is the gradient for dy of n, a PoolGrad of x and dy, which is linear in it; dx is the gradient of n.
	GradGrad func(b *Builder, n, dx *Node) *Node
}

var poolRows = [endPool]PoolInfo{
	{Fn: MaxPool, Name: "max", Doc: "the largest element; the first of several has the gradient", Reduce: MaxOf,
		GradGrad: firstMaximum},
	{Fn: AvgPool, Name: "avg", Doc: "the mean of the elements", Reduce: Mean,
		GradGrad: func(b *Builder, n, dx *Node) *Node { return b.Add(Pool(n.Op.(PoolGrad)), dx) }},
}

func init() {
	if err := checkReductions(reduceRows[:], poolRows[:]); err != nil {
		panic(err)
	}
}

// checkReductions reports a reduction or pool without a row, or with an incomplete row.
func checkReductions(reductions []ReduceInfo, pools []PoolInfo) error {
	for i, r := range reductions {
		switch {
		case r.Name == "":
			return fmt.Errorf("graph: reduction %d has no row", i)
		case int(r.Fn) != i:
			return fmt.Errorf("graph: the row of %s is that of reduction %d, not %d", r.Name, r.Fn, i)
		case r.Doc == "" || r.Symbol == "" || r.Of&Floats == 0:
			return fmt.Errorf("graph: the row of the reduction %s lacks its doc, its symbol or its operands", r.Name)
		case !r.Join.Commutes():
			return fmt.Errorf("graph: the reduction %s joins elements by %v, whose operands have an order", r.Name, r.Join)
		case (r.IdentityInt == nil) != (r.Of&Integers == 0):
			return fmt.Errorf("graph: the reduction %s needs IdentityInt if and only if it takes integers", r.Name)
		case r.Grad == nil:
			return fmt.Errorf("graph: the reduction %s has no gradient", r.Name)
		}
	}
	for i, r := range pools {
		switch {
		case r.Name == "":
			return fmt.Errorf("graph: pool %d has no row", i)
		case int(r.Fn) != i:
			return fmt.Errorf("graph: the row of %s is that of pool %d, not %d", r.Name, r.Fn, i)
		case r.Doc == "" || r.GradGrad == nil:
			return fmt.Errorf("graph: the row of the pool %s lacks its doc or its gradient", r.Name)
		}
	}
	return nil
}

// Reductions lists the rows of the reductions in their order.
func Reductions() []ReduceInfo { return reduceRows[:] }

// Pools lists the rows of the pools in their order.
func Pools() []PoolInfo { return poolRows[:] }

// CheckReductions reports a reduction for which a target, named by who, has no answer.
func CheckReductions[A any](who string, answers map[ReduceFn]A) error {
	for _, r := range reduceRows {
		if _, ok := answers[r.Fn]; !ok {
			return fmt.Errorf("%s has no answer for the reduction %s", who, r.Name)
		}
	}
	return nil
}

// CheckPools reports a pool for which a target, named by who, has no answer.
func CheckPools[A any](who string, answers map[PoolFn]A) error {
	for _, r := range poolRows {
		if _, ok := answers[r.Fn]; !ok {
			return fmt.Errorf("%s has no answer for the pool %s", who, r.Name)
		}
	}
	return nil
}

// Info is the reduction's row. It panics for a number that is not a reduction; the type rule keeps such numbers out of
// graphs.
func (f ReduceFn) Info() *ReduceInfo { return &reduceRows[f] }

// Info is the pool's row. It panics for a number that is not a pool; the type rule keeps such numbers out of graphs.
func (f PoolFn) Info() *PoolInfo { return &poolRows[f] }

// String gives the reduction's name in the text form.
func (f ReduceFn) String() string { return f.Info().Name }

// String gives the pool's name in the text form.
func (f PoolFn) String() string { return f.Info().Name }

// UnmarshalText implements encoding.TextUnmarshaler.
func (f *ReduceFn) UnmarshalText(b []byte) (err error) {
	*f, err = parseEnum(string(b), ReduceFn.String, int(endReduce))
	return
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (f *PoolFn) UnmarshalText(b []byte) (err error) {
	*f, err = parseEnum(string(b), PoolFn.String, int(endPool))
	return
}
