// Package tracejson is the JSON form of a [trace.Trace], for other programs and for the page of package report. The
// file docs/trace-json.md describes every field.
//
// The form is compact. What occurs often is in a table, and is referred to by its index: the user's nodes, lists of
// them, bodies of fusions, and kernel sources. A stage lists only the nodes that differ from the stage before it.
package tracejson

import "fusec/graph/trace"

// Schema names the form and its version. The version changes if a field is removed or changes its meaning; fields may
// be added.
const Schema = "fusec.trace/5"

// Trace is a compilation. Nodes have IDs, which are stable from stage to stage; all other references are indices from 0.
type Trace struct {
	Schema string `json:"schema"` // [Schema]
	About
	Target      string   `json:"target"`
	Chip        string   `json:"chip,omitempty"`
	Precision   string   `json:"precision,omitempty"`
	Unfused     Work     `json:"unfused"` // of the first stage of the compilation, one launch for each operation
	Origins     []Origin `json:"origins"`
	OriginLists [][]int  `json:"origin_lists"` // of Origins
	Bodies      []Graph  `json:"bodies"`
	Sources     []string `json:"sources"`
	Stages      []Stage  `json:"stages"`
	// Missed is the missed fusions of all stages of the compilation by their cause: those that count first, the largest
	// groups first.
	Missed  []Missed `json:"missed,omitempty"`
	Program *Program `json:"program,omitempty"`
}

// About is what a trace does not know of itself. All fields may be empty.
type About struct {
	Model   string   `json:"model,omitempty"`
	Fusec   string   `json:"fusec,omitempty"`
	Machine *Machine `json:"machine,omitempty"`
	Flags   []string `json:"flags,omitempty"`
	// Lines are the user's source lines by position, for the positions of Origins that can be read.
	Lines map[string]string `json:"lines,omitempty"`
}

// Machine is the computer that compiled the program, and for a measured trace ran it.
type Machine struct {
	CPU   string `json:"cpu"`
	Cores int    `json:"cores"`
	OS    string `json:"os"`
	Arch  string `json:"arch"`
	Go    string `json:"go"`
	// FLOPRate and ByteRate are the ceilings of the device that the program ran on, by measurement: of a large matrix
	// product, in operations each second, and of a large copy, in bytes read and written each second. 0 if unknown.
	FLOPRate float64 `json:"flops_per_s,omitempty"`
	ByteRate float64 `json:"bytes_per_s,omitempty"`
}

// Work is what a program does: its launches, arithmetic and memory traffic.
type Work = trace.Work

// Origin is one of the user's nodes.
type Origin struct {
	Name string `json:"name,omitempty"`
	Pos  string `json:"pos,omitempty"`
}

// Stage is the graph after one pass.
type Stage struct {
	Name string `json:"name"`
	Doc  string `json:"doc,omitempty"`
	// Index counts in the whole compilation; a file may have some stages only.
	Index  int   `json:"index"`
	Nodes  int   `json:"nodes"` // operations
	Work         // one launch for each operation or fusion; of the last stage, what the program says
	TookNS int64 `json:"took_ns,omitempty"`
	// Changed are the nodes that the stage before in the file does not have, or has otherwise, operands before users.
	// Removed are the IDs of those that it has and this one does not.
	Changed []Node   `json:"changed"`
	Removed []int    `json:"removed,omitempty"`
	Outputs []Output `json:"outputs,omitempty"` // absent if they are those of the stage before in the file
	Updates []Update `json:"updates,omitempty"` // likewise
	Matches []Match  `json:"matches,omitempty"`
	Misses  []Miss   `json:"misses,omitempty"`
	Notes   []Note   `json:"notes,omitempty"`
	// Numeric is the weakest contract of the stage's rewrites, as [trace.Stage] has it.
	Numeric  *trace.Numeric  `json:"numeric,omitempty"`
	Pipeline *trace.Pipeline `json:"pipeline,omitempty"` // if the graph is that of all stages of a pipeline
}

// Graph is the body of a fusion. Its IDs are its own, and its nodes have no names and no origins: fusions that compute
// the same share it.
type Graph struct {
	Nodes   []Node `json:"nodes"`
	Outputs []int  `json:"outputs"`
}

// Node is one operation and its value.
type Node struct {
	ID    int    `json:"id"`
	Name  string `json:"name,omitempty"`
	Phase string `json:"phase,omitempty"` // empty for forward
	Op    string `json:"op"`
	Attrs Attrs  `json:"attrs,omitempty"`
	Args  []int  `json:"args,omitempty"` // IDs
	Type  string `json:"type"`           // such as f32[2,3]
	FLOPs int64  `json:"flops,omitempty"`
	Bytes int64  `json:"bytes,omitempty"` // operands and results, each read or written once
	// Origin and Body are indices of OriginLists and Bodies plus 1; 0 means none.
	Origin int `json:"origin,omitempty"`
	Body   int `json:"body,omitempty"`
}

// Attrs are an operation's attributes as the text form of a graph writes them.
type Attrs map[string]string

// Output is a result of the graph.
type Output struct {
	Name string `json:"name"`
	Node int    `json:"node"`
}

// Update is a value that a run writes to a parameter or a state at its end.
type Update struct {
	Target int `json:"target"`
	Value  int `json:"value"`
}

// Match is a rewrite.
type Match struct {
	Pattern string `json:"pattern,omitempty"` // absent if it is the stage's name
	Kind    string `json:"kind,omitempty"`
	Node    int    `json:"node"`
	Origin  int    `json:"origin,omitempty"`

	Numeric *trace.Numeric `json:"numeric,omitempty"` // what the rule may change of the value; absent if it is exact
}

// Miss is a missed fusion.
type Miss struct {
	Pattern string `json:"pattern"`
	Node    int    `json:"node"`
	At      string `json:"at"`
	Reason  string `json:"reason"`
	Cause   string `json:"cause"` // Reason without what is particular to one place
	Origin  int    `json:"origin,omitempty"`
	// Launches are those that compute what the pattern had matched and the node where it stopped. Saves and Counts are
	// as [trace.MissCost] has them.
	Launches []int `json:"launches,omitempty"`
	Saves    Work  `json:"saves"`
	Counts   bool  `json:"counts,omitempty"`
}

// Missed is missed fusions of one pattern in one stage with the same cause; see [trace.Missed].
type Missed struct {
	Stage   int    `json:"stage"` // its index in the whole compilation
	Pattern string `json:"pattern"`
	Cause   string `json:"cause"`
	Times   int    `json:"times"`
	Saves   Work   `json:"saves"`
	Counts  bool   `json:"counts,omitempty"`
}

// Note is any other remark of a pass.
type Note struct {
	Node   int    `json:"node"` // or -1
	Text   string `json:"text"`
	Kind   string `json:"kind"`
	Topic  string `json:"topic,omitempty"`
	Origin int    `json:"origin,omitempty"`
}

// Program is what runs.
type Program struct {
	Target      string `json:"target"`
	Refusal     string `json:"refusal,omitempty"`
	ArenaBytes  int64  `json:"arena_bytes"`
	BufferBytes int64  `json:"buffer_bytes"`
	ParamBytes  int64  `json:"param_bytes"`
	// PreparedBytes is the memory of what the prepared part makes.
	PreparedBytes int64    `json:"prepared_bytes,omitempty"`
	Buffers       []Buffer `json:"buffers"`
	Launches      []Launch `json:"launches"`
	Repeats       []Repeat `json:"repeats,omitempty"`
}

// Run is the number of launches of a run, which leaves out the prepared ones.
func (p *Program) Run() (n int) {
	for i := range p.Launches {
		if !p.Launches[i].Prepared {
			n++
		}
	}
	return n
}

// Buffer is memory for one value.
type Buffer struct {
	Name   string `json:"name"`
	Role   string `json:"role"`
	Type   string `json:"type"`
	Bytes  int64  `json:"bytes"`
	Offset int64  `json:"offset,omitempty"` // in the arena, of a "temp"; among themselves, of the "prepared"
	First  int    `json:"first"`
	Last   int    `json:"last"`
}

// Launch is one call of one kernel.
type Launch struct {
	Node       int    `json:"node"`
	Kernel     string `json:"kernel,omitempty"`
	Kind       string `json:"kind"`
	Name       string `json:"name,omitempty"`
	Prepared   bool   `json:"prepared,omitempty"` // it runs when parameters are set, not in each run
	Phase      string `json:"phase,omitempty"`
	Scope      string `json:"scope,omitempty"`
	Layer      string `json:"layer,omitempty"` // the scope up to its first part with a number, else its first part
	Device     string `json:"device"`
	Reason     string `json:"reason,omitempty"`
	Source     int    `json:"source,omitempty"` // index of Sources plus 1
	Reads      []int  `json:"reads"`
	Writes     []int  `json:"writes"`
	FLOPs      int64  `json:"flops"`
	Bytes      int64  `json:"bytes"`
	Origin     int    `json:"origin,omitempty"`
	MeasuredNS int64  `json:"measured_ns,omitempty"`
	trace.Company
	// Estimates are what the target estimates, Counts what it has counted in a run.
	Estimates trace.Measures `json:"estimates,omitempty"`
	Counts    trace.Measures `json:"counts,omitempty"`
}

// Repeat is a group of layers whose names differ only in a number.
type Repeat struct {
	Pattern string   `json:"pattern"` // the name with # for the number
	Layers  []string `json:"layers"`  // by their number
	// Alike says that each of them has launches of the same kinds, phases and results in the same order.
	Alike bool `json:"alike"`
}
