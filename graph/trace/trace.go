// Package trace holds the records of a compilation: what every pass matched, what it nearly matched, what the program
// became and what its launches took. Records are plain data; passes and lowering fill them, and package dot, the
// command line and users' own tools print them.
package trace

import (
	"time"

	"fusec/graph"
)

// Trace is one compilation, stage by stage.
type Trace struct {
	Target    string // named target, such as "cpu"
	Overlay   string // of target "fpga" the overlay's name, such as "sim8"; else empty
	Precision string // what contractions were allowed to round to: "f32", "tf32", "bf16" or "f16"; "int8" on an overlay
	Stages    []Stage
	Program   *Program // nil until lowered
}

// Stage is the graph after one pass and what the pass did.
type Stage struct {
	Name    string // of the pass; "import" for the graph as it came
	Doc     string
	Graph   *graph.Graph // a snapshot, of which stages share what is the same; not to be changed
	Took    time.Duration
	Matches []Match
	Misses  []Miss
	Notes   []Note

	Recompute *Recompute // of the pass of this name, if the program has a memory budget
}

// Match is one rewrite.
type Match struct {
	Pattern string         // the pattern's or rule's name, such as "gelu-tanh"
	Kind    string         // what it made, such as "linear"
	Node    int            // ID of the node it made, in the stage's graph
	Origin  []graph.Origin // the user's nodes it covers
}

// Miss is a near miss: a pattern that matched in part, and the first condition that failed.
type Miss struct {
	Pattern string
	Node    int            // ID of the node where matching stopped, in the graph before the stage
	At      string         // that node, as errors name it
	Reason  string         // what was wanted and what was found
	Origin  []graph.Origin // the user's nodes it had matched
}

// Note is anything else to tell: of a pass, or in the first stage of the front end, such as what stayed on the host and
// why, a warning about the graph as built, or where it means something else than the framework that it came from.
type Note struct {
	Kind   graph.NoteKind
	Topic  string // of a divergence or an imitation
	Node   int    // or -1
	Text   string
	Origin []graph.Origin
}

// Recompute is what was done to meet a memory budget. All sizes are in bytes.
type Recompute struct {
	Budget int64
	// Before and After are the arena's size without and with recomputation. After is more than Budget if nothing was
	// found that meets it; then a note says so.
	Before, After int64
	Launches      []Repeated // what is computed again, in the order in which it runs
}

// Repeated is a launch that computes again what an earlier one has computed.
type Repeated struct {
	Node  int   // ID in the stage's graph
	Of    int   // ID of the launch that computes it first
	FLOPs int64 // that the repetition takes
	Bytes int64 // operands and results, read and written once
}

// Program is a lowered graph.
type Program struct {
	Target   string
	Refusal  string // why the target cannot run it, or empty
	Launches []Launch
	// ArenaBytes is the planned memory for intermediate values; BufferBytes what they would take without sharing.
	ArenaBytes, BufferBytes int64
	// ParamBytes is the memory of weights and constants.
	ParamBytes int64
}

// Launch is one step of a program.
type Launch struct {
	Node     int    // ID of the node in the last stage's graph
	Kernel   string // such as "gemm 6x16" or "row"
	Kind     string // such as "linear"
	Name     string // the user's name for the value it makes
	Device   string
	Reason   string   // why it does not run on the program's target
	Source   string   // the text that was generated for it, on targets that compile it
	Reads    []string // buffers
	Writes   []string
	FLOPs    int64
	Bytes    int64 // read and written, by the buffers it touches
	Origin   []graph.Origin
	Measured time.Duration // median of the runs; 0 until measured

	// Of targets that count cycles: how many it is estimated to take, and after a run how many it took, and by how much its
	// results departed from the float program's, at most and by root mean square, as parts of the values' range.
	Cycles, Counted    int64
	MaxError, RMSError float64
}
