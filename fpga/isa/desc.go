package isa

import (
	"encoding/binary"
	"fmt"
	"reflect"
	"strings"
)

// DescBytes is the size of a descriptor, QueueDepth how many wait before each engine, Semaphores their number. A
// semaphore counts to SemaphoreMax; posting one that has this value is ErrSemaphore.
const (
	DescBytes    = 32
	QueueDepth   = 8
	Semaphores   = 8
	SemaphoreMax = 255
)

// Op is a descriptor's operation.
type Op uint8

// The operations. Fetch itself does End and Barrier; LOAD does Load; STORE does Store and Stamp; EXEC the others.
const (
	OpEnd Op = iota
	OpBarrier
	OpLoad
	OpStore
	OpStamp
	OpGemm
	OpAttention
	OpVector
	OpRoute
)

var opNames = [...]string{"end", "barrier", "load", "store", "stamp", "gemm", "attention", "vector", "route"}

// String gives the operation's name.
func (o Op) String() string {
	if int(o) < len(opNames) {
		return opNames[o]
	}
	return fmt.Sprintf("op%d", uint8(o))
}

// Space is an on-chip memory that Load fills and Store reads, or that gets results.
type Space uint8

// The spaces. Results go to Y, X or W; Store reads Y or X.
const (
	SpaceY Space = iota
	SpaceX
	SpaceW
	SpaceParams // Load: Addr's bytes are Records; Base counts records, Words is of the one row
	SpaceTables // Load: Base is the table's number, the row has 256 bytes
)

var spaceNames = [...]string{"Y", "X", "W", "params", "table"}

// String gives the space's name.
func (s Space) String() string {
	if int(s) < len(spaceNames) {
		return spaceNames[s]
	}
	return fmt.Sprintf("space%d", uint8(s))
}

// Sync orders a descriptor relative to other engines' descriptors, by masks of semaphores.
type Sync struct {
	Wait uint8 `at:"0:4:8"`
	Post uint8 `at:"0:12:8"`
}

// Command is a descriptor. The tags of its fields give their positions: word:bit:width.
type Command interface {
	Op() Op
	Syncs() *Sync
}

// End waits until all engines are idle and ends the program.
type End struct{ Sync }

// Barrier holds fetch until all engines are idle.
type Barrier struct{ Sync }

// Load copies rows from memory into a scratchpad. Row i goes to lane (Lane+i)%L, L being the space's lanes, at word
// Base + (Lane+i)/L·Panel. Its words are at Addr + i·Stride, or with Gather at Addr + t·Stride, t being the token of entry
// Start+i of list List, and rows beyond the list's end are left out. With Skip such rows are left out without
// gathering, so that the weights of an expert without tokens are not read.
//
// An overlay with Patches takes rows of several segments of Words words: segment s is TapStride·s bytes behind the first
// in memory and TapStep·s words behind it in the lane. Word j of a segment goes WordStep·j words behind its first. So one
// Load brings the patches of a row of pixels: segments are the rows of a window. Rows of parameters and tables, and those
// of a list, have one segment, lane 0 and WordStep 1.
type Load struct {
	Sync
	Gather bool   `at:"0:20:1"`
	Skip   bool   `at:"0:21:1"` // nothing moves if list List has no entry Start
	Space  Space  `at:"0:24:3"`
	Addr   uint32 `at:"1:0:32"`
	Stride uint32 `at:"2:0:32"` // bytes, a multiple of WordBytes
	Rows   uint16 `at:"3:0:16"`
	Words  uint16 `at:"3:16:16"` // of each row
	Base   uint16 `at:"4:0:16"`
	Panel  uint16 `at:"4:16:16"` // words from one panel to the next
	List   uint8  `at:"5:0:8"`
	Start  uint16 `at:"6:0:16"`

	Lane      uint8  `at:"5:8:6"`
	Taps      uint8  `at:"5:16:8"` // segments of a row; 0 is 1
	WordStep  uint8  `at:"5:24:8"` // 0 is 1
	TapStep   uint16 `at:"6:16:16"`
	TapStride uint32 `at:"7:0:32"` // a multiple of WordBytes
}

// Segments is how many segments a row has.
func (d *Load) Segments() int { return max(1, int(d.Taps)) }

// Span is how many words of a lane a row covers, from its first word to its last.
func (d *Load) Span() int {
	return (d.Segments()-1)*int(d.TapStep) + (int(d.Words)-1)*max(1, int(d.WordStep)) + 1
}

// Panels is how many panels a scratchpad of so many lanes gets rows of.
func (d *Load) Panels(lanes int) int { return (int(d.Lane)+int(d.Rows)-1)/lanes + 1 }

// Store copies rows from Y or X to memory, addressed as in Load with Lane 0. With Scatter row i goes to Addr + (t·TopK + r)·Stride,
// t and r being token and rank of entry Start+i of list List; rows beyond the list's end are left out.
type Store struct {
	Sync
	Scatter bool   `at:"0:20:1"`
	Space   Space  `at:"0:24:3"`
	Addr    uint32 `at:"1:0:32"`
	Stride  uint32 `at:"2:0:32"`
	Rows    uint16 `at:"3:0:16"`
	Words   uint16 `at:"3:16:16"`
	Base    uint16 `at:"4:0:16"`
	Panel   uint16 `at:"4:16:16"`
	List    uint8  `at:"5:0:8"`
	TopK    uint8  `at:"5:8:3"`
	Start   uint16 `at:"6:0:16"`
}

// Stamp writes 16 bytes to Addr when the stores before it are done: the cycle counter and the counter of
// cycles in which the array multiplied, both of 64 bits.
type Stamp struct {
	Sync
	Addr uint32 `at:"1:0:32"`
}

// Out says how an operation of EXEC finishes its results: see [Finish].
type Out struct {
	Residual bool   `at:"0:20:1"` // add element (row, column) of Y at Res, times ResMul/4096
	ReLU     bool   `at:"0:21:1"`
	Wide     bool   `at:"0:22:1"` // int16 results
	RowParam bool   `at:"0:23:1"` // Gemm: the record of panel m, row i is Param + m·Rows + i, not that of the column
	Space    Space  `at:"0:24:3"` // Y, X or W
	Base     uint16 `at:"4:0:16"`
	Panel    uint16 `at:"4:16:16"` // words from one panel of results to the next
	Res      uint16 `at:"5:0:16"`
	ResPanel uint16 `at:"5:16:16"`
	Param    uint16 `at:"6:0:16"` // record of the first column
	ResMul   uint16 `at:"6:16:16"`
	Zero     int8   `at:"7:0:8"`
	Table    uint8  `at:"7:8:3"` // 0: none; n: table n-1; not with Wide
}

// Gemm computes Panels × Tiles tiles of results, Rows × Cols each: for panel m, then tile n,
//
//	acc[i,j] = Σ_k X[m][i,k]·W[n][j,k],  k < Words·WordBytes
//
// and finishes them by Scale with the record of column n·Cols+j and by Out. Panel m of X is at X + m·XPanel, tile n of
// W at W + n·WPanel, results of tile n at Base + m·Panel + n·Cols·b/WordBytes words, b being 1 or with Wide 2. A sum of
// more elements than the scratchpads hold is computed by several Gemms of one panel and tile: all but the first have
// More, all but the last have Hold, with which no result leaves the array. EXEC must not execute anything else between
// them.
//
// With Listed the rows are those of list List from entry Start·Rows on, as a Load with Gather brought them: panels behind
// the list's end are left out, all of them if it has no entry there.
type Gemm struct {
	Sync
	Out
	Listed bool   `at:"0:29:1"`
	List   uint8  `at:"7:16:8"`
	Start  uint8  `at:"7:24:8"` // in panels
	More   bool   `at:"0:27:1"`
	Hold   bool   `at:"0:28:1"`
	X      uint16 `at:"1:0:16"`
	XPanel uint16 `at:"1:16:16"`
	W      uint16 `at:"2:0:16"`
	WPanel uint16 `at:"2:16:16"`
	Words  uint16 `at:"3:0:16"`
	Panels uint8  `at:"3:16:8"`
	Tiles  uint8  `at:"3:24:8"`
}

// Attention is one head's softmax(Q·Kᵀ)·V for QPanels panels of queries and one chunk of keys, by the online softmax
// of fixed.go over blocks of KeyBlock keys, and in each block over the panels. With First the panels' state (maximum,
// sum, accumulators) is reset; with Last the results are finished and written. In between the state stays in the
// overlay.
//
//	Q: panel p at X + p·QPanel, Dim words a row
//	K: keys are rows of W; tile t (Cols keys) at K + t·Dim
//	V: its transpose, features are rows of W; tile g (Cols features) at V + g·VPanel, key j being element j
//
// With Causal, query row i (counted over the panels) sees key j of the chunk if j ≤ i + Diagonal; blocks that no row of a
// panel sees are passed over. A row that sees no key at all gives zeros. The results, Dim·WordBytes·b bytes a row, go to Base +
// p·Panel of Space. A row's maximum rises at most once a block, by all the scores of the block that it sees.
type Attention struct {
	Sync
	First    bool   `at:"0:20:1"`
	Last     bool   `at:"0:21:1"`
	Wide     bool   `at:"0:22:1"`
	Causal   bool   `at:"0:23:1"`
	Space    Space  `at:"0:24:3"`
	X        uint16 `at:"1:0:16"`
	QPanel   uint16 `at:"1:16:16"`
	K        uint16 `at:"2:0:16"`
	V        uint16 `at:"2:16:16"`
	Dim      uint8  `at:"3:0:8"` // words of a query; Dim·WordBytes is a multiple of Cols, at most HeadDim
	QPanels  uint8  `at:"3:8:8"`
	Keys     uint16 `at:"3:16:16"` // of the chunk; V's words behind the last key may hold anything
	Base     uint16 `at:"4:0:16"`
	Panel    uint16 `at:"4:16:16"`
	Diagonal int32  `at:"5:0:32"`
	ScoreMul uint16 `at:"6:0:16"` // see Score; at most 32767
	ScoreSh  uint8  `at:"6:16:6"`
	OutSh    uint8  `at:"6:24:6"`
	VPanel   uint16 `at:"7:0:16"`
	OutMul   uint16 `at:"7:16:16"` // see FinishAttention
}

// VectorOp is the function of Vector of element a of X and element b of Y, before Scale and Out.
type VectorOp uint8

// The vector operations.
const (
	VectorAffine    VectorOp = iota // acc = a
	VectorMul                       // acc = a·b, b from Y at Res; not with Residual
	VectorLayerNorm                 // acc = the row's normalised element, see Norm
	VectorRMSNorm                   // the same without the mean
	VectorCombine                   // acc = Σ_r gate(token, r)·X[p·TopK+r][i,k], token = Token + p·Rows + i; not with Residual
)

var vectorNames = [...]string{"affine", "mul", "layernorm", "rmsnorm", "combine"}

// String gives the operation's name.
func (o VectorOp) String() string {
	if int(o) < len(vectorNames) {
		return vectorNames[o]
	}
	return fmt.Sprintf("vector%d", uint8(o))
}

// Vector computes row by row, Panels panels of Words words, X's and the results' elements being int8 (results int16
// with Wide). Column k is scaled with record Param + k, with OneParam with record Param. Norms take the first Count elements of
// each row; Eps is round(Count²·ε/s²), s being the step of the input.
type Vector struct {
	Sync
	Out
	OneParam bool     `at:"0:27:1"`
	X        uint16   `at:"1:0:16"`
	XPanel   uint16   `at:"1:16:16"` // Combine: from one slot to the next, TopK of them a panel
	Eps      uint32   `at:"2:0:32"`
	Words    uint16   `at:"3:0:16"`
	Panels   uint8    `at:"3:16:8"`
	Kind     VectorOp `at:"3:24:3"`
	TopK     uint8    `at:"3:27:3"`
	Count    uint16   `at:"7:16:16"` // norms: elements of a row; Combine: Token
}

// Route takes int16 logits (in units of log2, 10 fraction bits), one row of Experts for each token, from X, and
// appends each token to the lists of its TopK largest, the lower expert first among equals, in the order of tokens
// and then of ranks. Token i of the descriptor has number Token + i. A full list drops the token: its gate is zero and
// the dropped counter is incremented. Gates are as in [Gates]: with Renormalise over the chosen experts only, else over
// all experts. First empties the lists.
type Route struct {
	Sync
	First       bool   `at:"0:20:1"`
	Renormalise bool   `at:"0:21:1"`
	X           uint16 `at:"1:0:16"`
	XPanel      uint16 `at:"1:16:16"`
	Rows        uint16 `at:"3:0:16"` // tokens
	Experts     uint16 `at:"3:16:9"`
	TopK        uint8  `at:"3:25:3"`
	Token       uint16 `at:"4:0:16"`
}

// Op implements Command.
func (*End) Op() Op       { return OpEnd }
func (*Barrier) Op() Op   { return OpBarrier }
func (*Load) Op() Op      { return OpLoad }
func (*Store) Op() Op     { return OpStore }
func (*Stamp) Op() Op     { return OpStamp }
func (*Gemm) Op() Op      { return OpGemm }
func (*Attention) Op() Op { return OpAttention }
func (*Vector) Op() Op    { return OpVector }
func (*Route) Op() Op     { return OpRoute }

// Syncs implements Command.
func (s *Sync) Syncs() *Sync { return s }

// New makes an empty command of an operation, nil if there is none.
func New(o Op) Command {
	switch o {
	case OpEnd:
		return &End{}
	case OpBarrier:
		return &Barrier{}
	case OpLoad:
		return &Load{}
	case OpStore:
		return &Store{}
	case OpStamp:
		return &Stamp{}
	case OpGemm:
		return &Gemm{}
	case OpAttention:
		return &Attention{}
	case OpVector:
		return &Vector{}
	case OpRoute:
		return &Route{}
	}
	return nil
}

// field is the position of a field of a command.
type field struct {
	name             string
	index            []int
	word, low, width int
}

// fields lists the fields of a command's struct, those of embedded structs among them, in the order of the source.
func fields(t reflect.Type) (fs []field) {
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Anonymous {
			for _, g := range fields(f.Type) {
				g.index = append([]int{i}, g.index...)
				fs = append(fs, g)
			}
			continue
		}
		x := field{name: f.Name, index: f.Index}
		if _, err := fmt.Sscanf(f.Tag.Get("at"), "%d:%d:%d", &x.word, &x.low, &x.width); err != nil {
			panic(fmt.Sprintf("isa: %v.%s: %v", t, f.Name, err))
		}
		fs = append(fs, x)
	}
	return fs
}

// layouts are the fields of each operation.
var layouts = func() (l [OpRoute + 1][]field) {
	for o := range l {
		l[o] = fields(reflect.TypeOf(New(Op(o))).Elem())
	}
	return
}()

// Encode appends the command's 32 bytes. The error names a field whose value does not fit its width.
func Encode(to []byte, c Command) ([]byte, error) {
	words := [DescBytes / 4]uint32{uint32(c.Op())}
	v := reflect.ValueOf(c).Elem()
	for _, f := range layouts[c.Op()] {
		x := v.FieldByIndex(f.index)
		var bits uint32
		switch {
		case x.Kind() == reflect.Bool && x.Bool():
			bits = 1
		case x.CanInt():
			bits = uint32(x.Int())
			if f.width < 32 {
				bits &= 1<<f.width - 1
			}
		case x.CanUint():
			bits = uint32(x.Uint())
		}
		if f.width < 32 && bits>>f.width != 0 {
			return to, fmt.Errorf("%v: %s = %d: more than %d bits", c.Op(), f.name, bits, f.width)
		}
		words[f.word] |= bits << f.low
	}
	for _, w := range words {
		to = binary.LittleEndian.AppendUint32(to, w)
	}
	return to, nil
}

// Decode reads a command from its 32 bytes.
func Decode(b []byte) (Command, error) {
	if len(b) < DescBytes {
		return nil, fmt.Errorf("a descriptor has %d bytes, not %d", DescBytes, len(b))
	}
	o := Op(b[0] & 15)
	c := New(o)
	if c == nil {
		return nil, fmt.Errorf("no operation has code %d", uint8(o))
	}
	v := reflect.ValueOf(c).Elem()
	for _, f := range layouts[o] {
		bits := binary.LittleEndian.Uint32(b[4*f.word:]) >> f.low
		if f.width < 32 {
			bits &= 1<<f.width - 1
		}
		x := v.FieldByIndex(f.index)
		switch {
		case x.Kind() == reflect.Bool:
			x.SetBool(bits != 0)
		case x.CanInt():
			x.SetInt(int64(int32(bits<<(32-f.width)) >> (32 - f.width)))
		default:
			x.SetUint(uint64(bits))
		}
	}
	return c, nil
}

// Text is the command in one line: the operation, then all fields that are not zero, in order.
func Text(c Command) string {
	var b strings.Builder
	b.WriteString(c.Op().String())
	v := reflect.ValueOf(c).Elem()
	for _, f := range layouts[c.Op()] {
		x := v.FieldByIndex(f.index)
		named := f.name == "Space" || f.name == "Kind" // whose zero has a name
		switch {
		case x.IsZero() && !named:
		case x.Kind() == reflect.Bool:
			fmt.Fprintf(&b, " %s", f.name)
		case f.name == "Wait" || f.name == "Post":
			fmt.Fprintf(&b, " %s=%s", f.name, mask(uint8(x.Uint())))
		case f.name == "Addr":
			fmt.Fprintf(&b, " %s=%#x", f.name, x.Uint())
		default:
			fmt.Fprintf(&b, " %s=%v", f.name, x.Interface())
		}
	}
	return b.String()
}

// mask lists the semaphores of a mask.
func mask(m uint8) string {
	var s []string
	for i := range Semaphores {
		if m>>i&1 != 0 {
			s = append(s, fmt.Sprint(i))
		}
	}
	return strings.Join(s, ",")
}
