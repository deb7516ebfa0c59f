// Package trace defines the records of a compilation: matches and missed fusions of every pass, the resulting program and
// the times of its launches. Records are plain data. Passes and lowering fill them, and package dot, the command line
// and users' tools print them.
package trace

import (
	"time"

	"fusec/graph"
)

// Trace is one compilation, stage by stage.
type Trace struct {
	Target    string // named target, such as "cpu"
	Overlay   string // of target "fpga" the overlay's name, such as "sim8"; else empty
	Precision string // the format to which contractions may round: "f32", "tf32", "bf16" or "f16"; "int8" on an overlay
	Stages    []Stage
	Program   *Program // nil until lowered
}

// Final is the name of the last stage, the compiled graph. FinalPass is the name of its pass.
const (
	Final     = "final"
	FinalPass = "check-lowered"
)

// Stage is the graph after one pass and what the pass did.
type Stage struct {
	Name    string // of the pass; "import" for the imported graph, [Final] for the compiled one
	Doc     string
	Graph   *graph.Graph // a snapshot, which must not be changed; stages share equal parts
	Took    time.Duration
	Matches []Match
	// Numeric is the weakest contract of the stage's rewrites, of those too whose result another one has replaced, and which
	// are not among Matches. It is zero without rewrites.
	Numeric Numeric
	Misses  []Miss
	Notes   []Note

	Recompute *Recompute // of the pass recompute, if the program has a memory budget
}

// Match is one rewrite.
type Match struct {
	Pattern string         // the pattern's or rule's name, such as "gelu-tanh"
	Kind    string         // of the result, such as "linear"
	Node    int            // ID of the resulting node in the stage's graph
	Origin  []graph.Origin // the user's nodes it covers
	Numeric Numeric        // what it may change of the value
}

// Miss is a missed fusion: a pattern that matched in part, and the first condition that failed.
type Miss struct {
	Pattern string
	Node    int            // ID of the node where matching stopped, in the graph before the stage
	At      string         // that node, as errors name it
	Reason  string         // the expected and the actual value
	Origin  []graph.Origin // the user's nodes it had matched
}

// Note is any other information from a pass, or in the first stage from the front end: for example which operations run
// on the host and why, a warning about the graph, or a difference from the framework from which it was imported.
type Note struct {
	Kind   graph.NoteKind
	Topic  string // of a divergence or an imitation
	Node   int    // or -1
	Text   string
	Origin []graph.Origin
}

// Recompute describes the recomputation for a memory budget. All sizes are in bytes.
type Recompute struct {
	Budget int64
	// Before and After are the arena's size without and with recomputation. After is more than Budget if the budget
	// cannot be met; a note says so.
	Before, After int64
	Launches      []Repeated // the repeated launches, in their order
}

// Repeated is a launch that repeats an earlier one.
type Repeated struct {
	Node  int   // ID in the stage's graph
	Of    int   // ID of the launch that computes it first
	FLOPs int64 // of the repetition
	Bytes int64 // operands and results, read and written once
}

// Program is a lowered graph.
type Program struct {
	Target   string
	Refusal  string // why the target cannot run it, or empty
	Launches []Launch
	// ArenaBytes is the planned memory for intermediate values; BufferBytes is their size without sharing of memory.
	ArenaBytes, BufferBytes int64
	// ParamBytes is the memory of weights and constants.
	ParamBytes int64
}

// Launch is one step of a program.
type Launch struct {
	Node     int    // ID of the node in the last stage's graph
	Kernel   string // such as "gemm 6x16" or "row"
	Kind     string // such as "linear"
	Name     string // the user's name for its result
	Device   string
	Reason   string   // why it does not run on the program's target
	Source   string   // the generated source, on targets that have it
	Reads    []string // buffers
	Writes   []string
	FLOPs    int64
	Bytes    int64 // read and written, by its buffers
	Origin   []graph.Origin
	Measured time.Duration // median of the runs; 0 until measured

	// On targets that count cycles: the estimated cycles, after a run the counted ones, and the error of the results
	// against the float program, maximum and root mean square, relative to the values' range.
	Cycles, Counted    int64
	MaxError, RMSError float64
}
