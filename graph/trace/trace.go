// Package trace defines the records of a compilation: matches and missed fusions of every pass, the resulting program and
// the times of its launches. Records are plain data. Passes and lowering fill them, and package dot, the command line
// and users' tools print them.
package trace

import (
	"fmt"
	"regexp"
	"time"

	"fusec/graph"
)

// Trace is one compilation, stage by stage.
type Trace struct {
	Target    string // named target, such as "cpu"
	Chip      string // what the target compiles for, if that is not this machine: "sm_90a" or "sim8"; else empty
	Precision string // the format to which contractions may round: "f32", "tf32", "bf16", "f16" or "int8"
	Rule      string // of the optimiser, such as "adamw"; empty without one
	Stages    []Stage
	Program   *Program // nil until lowered
}

// TargetChip is the target, with the chip after a slash if there is one: "cpu" or "cuda/sm_90a".
func (t *Trace) TargetChip() string {
	if t.Chip == "" {
		return t.Target
	}
	return t.Target + "/" + t.Chip
}

// Final is the name of the last stage, the compiled graph. FinalPass is the name of its pass. FusePass is the pass that
// puts the operations into launches.
const (
	Final     = "final"
	FinalPass = "check-lowered"
	FusePass  = "fuse-regions"
	// FoldPass and OpenPass write one operation as several.
	FoldPass = "fold-weights"
	OpenPass = "open-norms"
)

// Unfused is the work of the program if each operation were a launch of its own: the operations of the first stage, or
// if compiling added gradients and an optimiser's step, those before fusion and before one operation is written as several.
func (t *Trace) Unfused() Work {
	if len(t.Stages) == 0 {
		return Work{}
	}
	before := t.Stages[len(t.Stages)-1].Graph
	for i, s := range t.Stages[1:] {
		if s.Name == FoldPass || s.Name == OpenPass || s.Name == FusePass {
			before = t.Stages[i].Graph
			break
		}
	}
	w, later := Unfused(t.Stages[0].Graph), Unfused(before)
	if later.Launches > w.Launches {
		return later
	}
	return w
}

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
	Pipeline  *Pipeline  // if the graph is that of all stages of a pipeline
}

// Pipeline is the stages of a pipeline, each of which a participant computes for one microbatch after another.
type Pipeline struct {
	Microbatches int             `json:"microbatches"`
	Stages       []PipelineStage `json:"stages"`
	// At is the stage, from 0, of each node of the graph, by ID. What is handed over lies between stages, and is not there.
	At map[int]int `json:"at,omitempty"`
	// Measured is how steps went, if they were measured.
	Measured *PipelineRun `json:"measured,omitempty"`
}

// PipelineStage is one stage of a pipeline.
type PipelineStage struct {
	Ends    string   `json:"ends,omitempty"`    // the name of the last value of its forward pass
	Devices []string `json:"devices,omitempty"` // that compute it
	Flight  int      `json:"in_work"`           // how many microbatches are in work at a time, at most
	// Sent is what a participant sends to other stages for each microbatch, and Kept what it keeps of each in work, in bytes.
	Sent int64 `json:"sent_bytes"`
	Kept int64 `json:"kept_bytes"`
}

// Bubble is the part of a step for which a participant waits, if stages take equally long.
func (p *Pipeline) Bubble() float64 {
	n := len(p.Stages)
	return float64(n-1) / float64(p.Microbatches+n-1)
}

// String says how many stages, participants and microbatches there are.
func (p *Pipeline) String() string {
	each := ""
	if n := len(p.Stages[0].Devices); n > 1 {
		each = fmt.Sprintf(" of %d participants each", n)
	}
	return fmt.Sprintf("%d stages%s · %d microbatches", len(p.Stages), each, p.Microbatches)
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

	// IDs in the graph of the last stage. Nodes are the operations that compute what the pattern had matched and the node
	// where it stopped, Became is the one of the latter, or -1. Joins are those of Nodes that would become one launch; the
	// others have work of their own, and would remain.
	Nodes, Joins []int
	Became       int
}

// specifics are what a reason says of one place: quoted names, positions in files, and numbers.
var specifics = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|[^\s()]+:\d+(?::\d+)?|\d+`)

// Cause is the reason of a miss without the names, positions and numbers of the one place, which are replaced by #.
// Misses of one pattern with the same cause are alike.
func Cause(reason string) string { return specifics.ReplaceAllString(reason, "#") }

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
	// PreparedBytes is the memory of what the prepared part makes.
	PreparedBytes int64
	// ParamBytes is the memory of weights and constants.
	ParamBytes int64
	Buffers    []Buffer
}

// BufferNames are the names of the buffers with the given indices.
func (p *Program) BufferNames(list []int) []string {
	names := make([]string, len(list))
	for i, b := range list {
		names[i] = p.Buffers[b].Name
	}
	return names
}

// Buffer is memory for one contiguous value.
type Buffer struct {
	Name string // of the source, output or node; a number after "b" if those have none
	Role string // "input", "param", "state", "const", "temp", "output" or "prepared"
	Type graph.Type
	// Offset is the place of a "temp" in the arena, or of a "prepared" among those, in bytes.
	Offset int64
	// First is the first launch that writes the buffer, Last the last one that uses it, by index; -1 if there is none.
	First, Last int
}

// Work is what a program does.
type Work struct {
	Launches int   `json:"launches"`
	FLOPs    int64 `json:"flops"`
	Bytes    int64 `json:"bytes"` // of memory traffic
}

// Add counts a launch.
func (w *Work) Add(flops, bytes int64) {
	w.Launches++
	w.FLOPs += flops
	w.Bytes += bytes
}

// IsOperation reports whether op computes something: sources, constants and Results do not.
func IsOperation(op graph.Op) bool {
	_, result := op.(graph.Result)
	return !result && graph.ClassOf(op) != graph.ClassSource
}

// NeedsLaunch reports whether an operation needs a kernel: views, what computes nothing and what waits to be replaced do
// not.
func NeedsLaunch(op graph.Op) bool {
	return IsOperation(op) && !graph.IsView(op) && !graph.IsPlaceholder(op)
}

// Unfused is the work of a graph if each operation is a launch of its own, which reads its operands and writes its
// results once; none for nil.
func Unfused(g *graph.Graph) (w Work) {
	if g == nil {
		return w
	}
	for _, n := range g.Nodes {
		if NeedsLaunch(n.Op) {
			c := graph.CostOf(n)
			w.Add(c.FLOPs, c.Bytes())
		}
	}
	return w
}

// Work is the work of a run: that of the launches without the prepared part.
func (p *Program) Work() (w Work) {
	for _, l := range p.Launches {
		if !l.Prepared {
			w.Add(l.FLOPs, l.Bytes)
		}
	}
	return w
}

// Prepared is the work of the prepared part.
func (p *Program) Prepared() (w Work) {
	for _, l := range p.Launches {
		if l.Prepared {
			w.Add(l.FLOPs, l.Bytes)
		}
	}
	return w
}

// Launch is one step of a program.
type Launch struct {
	Prepared bool   // it runs when the parameters that it depends on are set, not in each run
	Node     int    // ID of the node in the last stage's graph
	Kernel   string // such as "fusion" or "winograd 4×4"
	Kind     string // such as "linear"
	Name     string // the user's name for its result
	Device   string
	Reason   string // why it does not run on the program's target
	Source   string // the generated source, on targets that have it
	Reads    []int  // buffers, by index
	Writes   []int
	FLOPs    int64
	Bytes    int64 // read and written, by its buffers
	Origin   []graph.Origin
	Phase    graph.Phase
	Scope    string        // the path of its layer, such as "block3/attn", or empty; see [graph.Scopes]
	Measured time.Duration // median of the runs; 0 until measured

	Estimates Measures // what the target estimates
	Counts    Measures // what it has counted in a run

	Company
}

// A Company names the launch before a launch that runs at the same time. A launch without one waits for all before it to end.
type Company struct {
	Beside int  `json:"beside,omitempty"` // its number, from 1 on; 0: there is none
	Joined bool `json:"joined,omitempty"` // its kernel computes this launch, too
}

// Words are what tables and drawings say of it; empty if there is none.
func (c Company) Words() string {
	switch {
	case c.Joined:
		return fmt.Sprintf("in the kernel of #%d", c.Beside)
	case c.Beside > 0:
		return fmt.Sprintf("beside #%d", c.Beside)
	}
	return ""
}
