package graph

import (
	"fmt"
	"reflect"
)

// Op is an operation: a small comparable struct whose exported fields are its attributes.
type Op interface {
	// OpName is the operation's name in the table and in the text form.
	OpName() string
}

// OpInfo is a row of the operation table.
type OpInfo struct {
	Name     string
	Doc      string // one line: what the operation computes
	Operands string // names of the operands, for messages and documentation
	Proto    Op     // a value of the operation's type; its fields are the attributes
	Class    Class
	MinArgs  int
	MaxArgs  int // -1: any number
	// Infer is the type rule: the types of the results from those of the operands.
	Infer func(op Op, args []Type) ([]Type, error)
	// FLOPs counts floating-point operations; nil means one per element of the first result.
	FLOPs func(op Op, args []Type, out []Type) int64
	// Decompose rebuilds a composite from primitives; its result is the composite's meaning. Nil for primitives.
	Decompose func(b *Builder, op Op, args []*Node) []*Node
	// Grad appends the gradient of n's operands to the graph, given the gradient dy of each of n's results (nil where
	// none flows). It returns one node per operand, nil where no gradient flows. A nil Grad of a composite means: that
	// of its decomposition; of a primitive: no gradient.
	Grad func(b *Builder, n *Node, dy []*Node) ([]*Node, error)

	// Fuses says that a Fusion's body may hold the operation. Anchor is then that of the Fusion in which it is computed
	// where it stands alone; AnchorNone for elementwise work, which all others take.
	Fuses  bool
	Anchor Anchor
	// RowAxes are the axes, in ascending order, along which an operation of AnchorRow combines elements.
	RowAxes func(n *Node) Ints
	// Strided says that a launch of the operation alone reads its operands through any strides; others want their
	// elements side by side.
	Strided bool
	// Fails reports whether n may find at run time that it has no result. Nil: it always has one.
	Fails func(n *Node) bool
	// Kind is what the operation is to the user, as reports and drawings show it.
	Kind Kind
}

// CheckAnswers reports an operation of the table for which a target has no answer, and an answer for none.
func CheckAnswers[A any](target string, answers map[string]A) error {
	for i := range opTable {
		if _, ok := answers[opTable[i].Name]; !ok {
			return fmt.Errorf("%s has neither a kernel for %s nor a reason to refuse it", target, opTable[i].Name)
		}
	}
	for name := range answers {
		if byName[name] == nil {
			return fmt.Errorf("%s has a kernel for %s, which is no operation", target, name)
		}
	}
	return nil
}

// Class sorts operations by what a compiler may do with them.
type Class uint8

// The classes.
const (
	ClassSource      Class = iota // a value from outside, or a constant
	ClassElementwise              // element i of the result depends on element i of the operands only
	ClassContraction              // matrix products and convolutions
	ClassReduce                   // fewer elements out than in
	ClassView                     // the operand's elements under other indices: free where strides can say it
	ClassMove                     // copies elements about
	ClassIndex                    // reads or writes where another operand says
	ClassRandom                   // draws from a counter-based generator
	ClassComposite                // has a decomposition
	ClassFusion                   // Fusion, Host and Result
)

func (i *OpInfo) arity() string {
	s := func(n int) string {
		if n == 1 {
			return "1 operand"
		}
		return fmt.Sprintf("%d operands", n)
	}
	switch {
	case i.MaxArgs < 0:
		return "at least " + s(i.MinArgs)
	case i.MinArgs == i.MaxArgs:
		return s(i.MinArgs)
	}
	return fmt.Sprintf("%d to %s", i.MinArgs, s(i.MaxArgs))
}

var byType = map[reflect.Type]*OpInfo{}
var byName = map[string]*OpInfo{}

func init() {
	for i := range opTable {
		info := &opTable[i]
		t := reflect.TypeOf(info.Proto)
		if byType[t] != nil || byName[info.Name] != nil || info.Proto.OpName() != info.Name {
			panic("graph: operation table: " + info.Name)
		}
		if err := info.check(); err != nil {
			panic(err)
		}
		byType[t], byName[info.Name] = info, info
	}
}

// check reports a row whose facts do not fit together.
func (i *OpInfo) check() error {
	switch {
	case i.Doc == "" || i.Infer == nil:
		return fmt.Errorf("graph: the row of %s lacks what it is, or its type rule", i.Name)
	case i.Class == ClassElementwise && (!i.Fuses || i.Anchor != AnchorNone):
		return fmt.Errorf("graph: %s is elementwise, and no body may hold it", i.Name)
	case !i.Fuses && i.Anchor != AnchorNone:
		return fmt.Errorf("graph: %s has an anchor, and no body may hold it", i.Name)
	case (i.Anchor == AnchorRow) != (i.RowAxes != nil):
		return fmt.Errorf("graph: %s needs row axes if its anchor is a row, and only then", i.Name)
	case (i.Class == ClassComposite) != (i.Decompose != nil):
		return fmt.Errorf("graph: %s needs a decomposition if it is composite, and only then", i.Name)
	}
	return nil
}

// InfoOf returns op's row of the table, or nil.
func InfoOf(op Op) *OpInfo { return byType[reflect.TypeOf(op)] }

// OpByName returns the row of the named operation, or nil.
func OpByName(name string) *OpInfo { return byName[name] }

// Ops returns the operation table in its order.
func Ops() []*OpInfo {
	r := make([]*OpInfo, len(opTable))
	for i := range opTable {
		r[i] = &opTable[i]
	}
	return r
}

// ClassOf is the class of op.
func ClassOf(op Op) Class {
	if i := InfoOf(op); i != nil {
		return i.Class
	}
	return ClassFusion
}

// Elementwise reports whether op computes element i of its result from element i of its operands.
func Elementwise(op Op) bool { return ClassOf(op) == ClassElementwise }

// IsView reports whether op only renames the indices of its first operand's elements.
func IsView(op Op) bool { return ClassOf(op) == ClassView }

// ReadsStrides reports whether op, as a launch of its own, reads its operands through any strides; others want their
// elements side by side.
func ReadsStrides(op Op) bool {
	i := InfoOf(op)
	return i != nil && i.Strided
}

// AnchorOf is the anchor of a Fusion of op alone; ok is false for operations that no body may hold.
func AnchorOf(op Op) (a Anchor, ok bool) {
	if i := InfoOf(op); i != nil && i.Fuses {
		return i.Anchor, true
	}
	return AnchorNone, false
}

// Joins reports whether op is work that any body may hold beside its anchor: elementwise, or Dropout, which also knows an
// element's index.
func Joins(op Op) bool {
	a, ok := AnchorOf(op)
	return ok && a == AnchorNone
}

// KindOf is what op is to the user.
func KindOf(op Op) Kind {
	if i := InfoOf(op); i != nil {
		return i.Kind
	}
	return KindElementwise
}

// Fails reports whether n may find at run time that it has no result.
func Fails(n *Node) bool {
	i := InfoOf(n.Op)
	return i == nil || i.Fails != nil && i.Fails(n)
}

// ---- sources ----

// Input is a value given anew for each run.
type Input struct{ Type Type }

// Param is a weight: it persists between runs and is written only by an Update or by its owner.
type Param struct{ Type Type }

// State is a value that a run reads at its start and may update at its end (running statistics, counters, moments).
type State struct{ Type Type }

// Const is a constant. Constants are compared by identity of the tensor; simplify merges equal ones.
type Const struct{ Value *Tensor }

// ---- elementwise ----

// Unary applies a function of one variable. Alpha is the parameter of the functions that have one (leaky_relu, elu).
// AtZero is the derivative at 0 of those that have a kink there (relu, leaky_relu, elu); it changes no value.
type Unary struct {
	Fn     UnaryFn
	Alpha  float64
	AtZero Slope `attr:"optional"`
}

// Binary applies a function of two variables. Comparisons give Bool.
type Binary struct{ Fn BinaryFn }

// Select is cond ? a : b.
type Select struct{}

// Cast converts to another element type: float to integer truncates, to Bool is x ≠ 0; to a 16-bit type rounds to
// nearest, ties to even.
type Cast struct{ To DType }

// ---- contraction ----

// MatMul multiplies matrices: a [..., m, k] by b [..., k, n]. TransA and TransB swap the last two axes of an operand
// first. Leading axes are batches and broadcast as in NumPy. Operands of a 16-bit type are summed up in F32, the type of
// the result, as of every contraction's.
type MatMul struct{ TransA, TransB bool }

// Conv2D convolves x [N,C,H,W] with w [O,C/Groups,KH,KW] (cross-correlation, as is the custom). Pad is top, left,
// bottom, right; Stride and Dilation are vertical, horizontal.
type Conv2D struct {
	Stride, Dilation Ints
	Pad              Ints
	Groups           int
}

// ---- reduction ----

// Reduce combines the elements along Axes. With Keep the reduced axes stay with size 1.
type Reduce struct {
	Fn   ReduceFn
	Axes Ints
	Keep bool
}

// ---- movement ----

// Reshape gives the elements, in row-major order, another shape.
type Reshape struct{ Shape Shape }

// Transpose permutes axes: axis i of the result is axis Perm[i] of the operand.
type Transpose struct{ Perm Ints }

// Broadcast repeats elements until the operand, aligned at the last axis, has the given shape.
type Broadcast struct{ Shape Shape }

// Slice takes Size elements, Step apart, along Axis, from the index that the operand start (an I64 scalar) gives. A
// start outside what fits is an error at run time, or when compiling if it is constant.
type Slice struct{ Axis, Size, Step int }

// Unslice is the transpose of Slice: zeros with Size elements along Axis, in which the operand stands Step apart from
// start on.
type Unslice struct{ Axis, Size, Step int }

// Concat joins operands along Axis.
type Concat struct{ Axis int }

// Pad surrounds the operand with Lo and Hi elements per axis, of the given value.
type Pad struct {
	Lo, Hi Ints
	Value  float64
}

// Im2Col turns x [N,C,H,W] into patches [N,OH,OW,C·KH·KW], zero where a patch reaches into the padding.
type Im2Col struct{ Kernel, Stride, Dilation, Pad Ints }

// Col2Im is the transpose of Im2Col: it sums patches into an image of height H and width W.
type Col2Im struct {
	Kernel, Stride, Dilation, Pad Ints
	H, W                          int
}

// ---- indexing ----

// Gather takes rows: x [..., d, ...] and indices [i...] give [..., i..., ...] with Axis replaced by the indices' axes.
// An index outside 0..d-1 is an error at run time.
type Gather struct{ Axis int }

// ScatterAdd is the transpose of Gather: zeros whose Axis has Size elements, to which each update is added in the
// order of the indices.
type ScatterAdd struct{ Axis, Size int }

// ---- random ----

// Dropout zeroes each element with probability P and divides the others by 1−P. Element i is decided by the
// counter-based generator Philox-4×32-10 at (seed, i), so a recomputation draws the same. The seed is an I64 scalar.
type Dropout struct{ P float64 }

// Random draws a tensor from a distribution with parameters A and B: uniform on [A,B), normal with mean A and
// deviation B, or Bernoulli with probability A. The seed is an I64 scalar; see Dropout.
type Random struct {
	Dist Dist
	A, B float64
	Type Type
}

// ---- composites ----

// Softmax is exp(x − max x) ÷ Σ exp(x − max x) along Axis; a slice wholly at −Inf gives zeros, and of one with +Inf only
// that gives NaN, as exp x ÷ Σ exp x does.
type Softmax struct{ Axis int }

// LogSoftmax is x − max x − log Σ exp(x − max x) along Axis, at infinities the logarithm of [Softmax].
type LogSoftmax struct{ Axis int }

// LayerNorm normalises the last axis to mean 0 and variance 1 (biased, plus Eps), times gamma, plus beta.
type LayerNorm struct{ Eps float64 }

// RMSNorm divides by √(mean of squares along the last axis + Eps), times gamma.
type RMSNorm struct{ Eps float64 }

// BatchNorm normalises x [N,C,...] per channel. In training it uses the batch's mean and biased variance and hands out
// the new running statistics, Momentum·old + (1−Momentum)·batch (unbiased variance), as results 1 and 2; else it uses
// the running ones and hands them out unchanged.
type BatchNorm struct {
	Eps, Momentum float64
	Train         bool
}

// GroupNorm normalises x [N,C,...] over groups of C/Groups channels, times gamma [C], plus beta [C].
type GroupNorm struct {
	Groups int
	Eps    float64
}

// Pool takes the maximum or the mean of each window of x [N,C,H,W]. Padding counts as −Inf for the maximum; for the
// mean it counts as zeros, in the divisor too, if CountPad, and else not at all.
type Pool struct {
	Fn                  PoolFn
	Kernel, Stride, Pad Ints
	CountPad            bool
}

// PoolGrad is the gradient of Pool for x given dy; a maximum reached several times passes it to the first.
type PoolGrad struct {
	Fn                  PoolFn
	Kernel, Stride, Pad Ints
	CountPad            bool
}

// Attention is softmax(Scale·q·kᵀ + masks)·v for q [..., h, sq, d], k [..., hk, sk, d] and v [..., hk, sk, dv]; two axes
// alone are one head. h is a multiple of hk: head i reads keys and values of head i÷(h÷hk) (grouped queries). Result 0
// is [..., h, sq, dv]; result 1 the log-sum-exp [..., h, sq] of the masked scores. A query with nothing to attend gets
// zeros and −Inf.
//
// Queries stand at the end of the keys: query i stands where key i+sk−sq does; with Tail, i+length−sq. Causal lets it
// attend keys up to there; Window w > 0 those less than w away, to both sides unless Causal.
//
// Optional operands follow in this order: mask if HasMask, broadcast to [..., h, sq, sk] and added to the scores, or if
// it is a Bool, keeping those where it is true; lengths if HasLengths, the number of valid keys of each batch [...],
// clamped to 0..sk; a table if Page > 0; and for Dropout > 0 a seed: probability (..., i, j) is dropped as element
// number (..., i, j) of [..., h, sq, sk] by [Dropout]. Result 1 is that before dropout.
//
// With q, k and v of a 16-bit type, masks and results are F32; probabilities are rounded before they meet v.
//
// With Page > 0, k and v are pools of pages, [pages, hk, Page, d] and [pages, hk, Page, dv], and the table (I64,
// [..., n]) lists the pages of each batch in order, so that sk = n·Page; lengths are required. An entry that is no page
// of the pool is an error at run time unless all its keys are beyond the valid ones.
type Attention struct {
	Scale               float64
	Causal              bool
	Window              int
	Dropout             float64
	HasMask, HasLengths bool
	Page                int  `attr:"optional"` // keys of a page, 0 without pages
	Tail                bool // with lengths: queries stand at the end of the valid keys, as with a cache of keys
}

// ---- structure ----

// Result is a further result, Index ≥ 1, of an operation that has several.
type Result struct{ Index int }

// Copy makes a contiguous copy on the node's device.
type Copy struct{}

// Fusion computes what Body computes, in one launch. Operand i is Body's i-th Input; the results are Body's outputs
// in order. Anchor is the expensive part; the elementwise work around it sits in the anchor's slots.
type Fusion struct {
	Anchor Anchor
	Kind   Kind
	Body   *Graph
}

// Host runs an opaque operation of the user's by its own code.
type Host struct {
	Name string
	Type Type
	Impl HostImpl // nil in a graph that was read from a file
}

// HostImpl is the code behind a Host operation. Implementations are pointers, so that Host stays comparable.
type HostImpl interface {
	// Do computes the operation. It must not keep or change its operands.
	Do(args []*Tensor) (*Tensor, error)
}

// OpName implements Op.
func (Input) OpName() string { return "input" }

// OpName implements Op.
func (Param) OpName() string { return "param" }

// OpName implements Op.
func (State) OpName() string { return "state" }

// OpName implements Op.
func (Const) OpName() string { return "const" }

// OpName implements Op.
func (Unary) OpName() string { return "unary" }

// OpName implements Op.
func (Binary) OpName() string { return "binary" }

// OpName implements Op.
func (Select) OpName() string { return "select" }

// OpName implements Op.
func (Cast) OpName() string { return "cast" }

// OpName implements Op.
func (MatMul) OpName() string { return "matmul" }

// OpName implements Op.
func (Conv2D) OpName() string { return "conv2d" }

// OpName implements Op.
func (Reduce) OpName() string { return "reduce" }

// OpName implements Op.
func (Reshape) OpName() string { return "reshape" }

// OpName implements Op.
func (Transpose) OpName() string { return "transpose" }

// OpName implements Op.
func (Broadcast) OpName() string { return "broadcast" }

// OpName implements Op.
func (Slice) OpName() string { return "slice" }

// OpName implements Op.
func (Unslice) OpName() string { return "unslice" }

// OpName implements Op.
func (Concat) OpName() string { return "concat" }

// OpName implements Op.
func (Pad) OpName() string { return "pad" }

// OpName implements Op.
func (Im2Col) OpName() string { return "im2col" }

// OpName implements Op.
func (Col2Im) OpName() string { return "col2im" }

// OpName implements Op.
func (Gather) OpName() string { return "gather" }

// OpName implements Op.
func (ScatterAdd) OpName() string { return "scatter_add" }

// OpName implements Op.
func (Dropout) OpName() string { return "dropout" }

// OpName implements Op.
func (Random) OpName() string { return "random" }

// OpName implements Op.
func (Softmax) OpName() string { return "softmax" }

// OpName implements Op.
func (LogSoftmax) OpName() string { return "log_softmax" }

// OpName implements Op.
func (LayerNorm) OpName() string { return "layer_norm" }

// OpName implements Op.
func (RMSNorm) OpName() string { return "rms_norm" }

// OpName implements Op.
func (BatchNorm) OpName() string { return "batch_norm" }

// OpName implements Op.
func (GroupNorm) OpName() string { return "group_norm" }

// OpName implements Op.
func (Pool) OpName() string { return "pool" }

// OpName implements Op.
func (PoolGrad) OpName() string { return "pool_grad" }

// OpName implements Op.
func (Attention) OpName() string { return "attention" }

// OpName implements Op.
func (Result) OpName() string { return "result" }

// OpName implements Op.
func (Copy) OpName() string { return "copy" }

// OpName implements Op.
func (Fusion) OpName() string { return "fusion" }

// OpName implements Op.
func (Host) OpName() string { return "host" }
