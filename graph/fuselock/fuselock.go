// Package fuselock keeps in a text file, beside a model, what compiling made of it, so that a test can tell when a fusion is
// lost:
//
//	fuselock 1
//
//	target cpu f32
//	  launches 2
//	  host 0
//	  traffic 4096
//	  memory 1024
//	  pattern raise gelu-tanh matched 1 missed 0 approximate 1e-05
//	  fusion linear "act" in "block1/mlp": "act" "hidden" "sum" of "block1.mlp.bias" "block1.mlp.weight" "x"
//	  fusion matmul/backward in "block1/mlp": "hidden" "sum" of "x"
//
// A section is what one target makes in one precision. Traffic and memory are in bytes; memory is the arena's. A fusion is a
// launch of several of the user's nodes: its kind, with the phase if that is not forward, the name of the value that it makes
// and its layer if they are known, the names of the nodes, and those of the inputs, parameters and states that it reads. Lines hold
// no positions, so that moving code changes nothing. A name that several of the nodes have, such as that of an operation, is
// followed by their number, as in "+"×3. Sections, patterns and fusions are sorted, and equal fusions are on equal lines.
package fuselock

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"fusec/graph"
	"fusec/graph/atomicfile"
	"fusec/graph/trace"
)

// Version is that of the files that this package reads and writes.
const Version = 1

// Ext is the extension of lock files.
const Ext = ".fuselock"

// The bounds of a file that is read: its size, and the number of nodes and sources of all its fusions.
const (
	MaxBytes = 64 << 20
	MaxNames = 1 << 22
)

// File is the contents of a lock file.
type File struct{ Sections []Section }

// Section is what one target makes of the model in one precision.
type Section struct {
	Target    string // such as "cpu", "cuda/sm_90a" or "fpga/sim8": the name, and after a slash the chip
	Precision string // as in [trace.Trace]
	Refusal   string // why the target cannot run the program, or empty
	Launches  int
	Host      int   // launches that run on the host although the target is another
	Traffic   int64 // bytes that launches read and write
	Memory    int64 // bytes for temporary values, at their peak
	Patterns  []Pattern
	Fusions   []Fusion
}

// Pattern is how often a rule of a pass matched, how often it did so only in part, and what it may change.
type Pattern struct {
	Stage, Name     string // "*" for rewrites whose result another one has replaced
	Matched, Missed int
	Numeric         trace.Numeric // of the matches
}

// Fusion is a launch of several of the user's nodes.
type Fusion struct {
	Kind    string
	Phase   graph.Phase
	Name    string   // of the value that it makes, or empty
	Scope   string   // the path of its layer, or empty; see [graph.Scopes]
	Nodes   []string // the names of the user's nodes, or their operations, sorted; a name that several have is there several times
	Sources []string // the inputs, parameters and states that it reads, or copies of them, sorted
}

// String is the fusion as the file has it.
func (f Fusion) String() string {
	var b strings.Builder
	b.WriteString(f.Kind)
	if f.Phase != graph.Forward {
		b.WriteString("/" + f.Phase.String())
	}
	if f.Name != "" {
		b.WriteString(" " + strconv.Quote(f.Name))
	}
	if f.Scope != "" {
		b.WriteString(" in " + strconv.Quote(f.Scope))
	}
	b.WriteString(":")
	for i := 0; i < len(f.Nodes); {
		from := i
		for i < len(f.Nodes) && f.Nodes[i] == f.Nodes[from] {
			i++
		}
		b.WriteString(" " + strconv.Quote(f.Nodes[from]))
		if i-from > 1 {
			fmt.Fprintf(&b, "×%d", i-from)
		}
	}
	if len(f.Sources) > 0 {
		b.WriteString(" of")
	}
	for _, n := range f.Sources {
		b.WriteString(" " + strconv.Quote(n))
	}
	return b.String()
}

// Of is the section of a compilation.
func Of(t *trace.Trace) (Section, error) {
	if t == nil || t.Program == nil || len(t.Stages) == 0 {
		return Section{}, errors.New("the trace holds no program: the graph was not compiled")
	}
	s := Section{Target: t.TargetChip(), Precision: t.Precision, Refusal: t.Program.Refusal, Launches: t.Program.Work().Launches,
		Memory: t.Program.ArenaBytes}
	for _, l := range launches(t) {
		if !l.Prepared {
			s.Traffic += l.Bytes
		}
		if l.Device != "" && l.Device != t.Target {
			s.Host++
		}
		if len(l.fusion.Nodes) > 1 {
			s.Fusions = append(s.Fusions, l.fusion)
		}
	}
	s.Patterns = patterns(t)
	s.sort()
	return s, nil
}

// launch is a launch of a program, as a fusion.
type launch struct {
	*trace.Launch
	fusion Fusion
}

func launches(t *trace.Trace) []launch {
	ops := map[graph.Origin]string{} // of the user's nodes without names
	for _, n := range t.Stages[0].Graph.Nodes {
		for _, o := range n.Origin {
			if o.Name == "" {
				ops[o] = n.Op.OpName()
			}
		}
	}
	list := make([]launch, len(t.Program.Launches))
	copies := map[int][]string{} // buffers that hold copies, with the sources
	for i := range t.Program.Launches {
		l := &t.Program.Launches[i]
		f := Fusion{Kind: l.Kind, Phase: l.Phase, Name: l.Name, Scope: l.Scope}
		for _, o := range l.Origin {
			f.Nodes = append(f.Nodes, cmp.Or(o.Name, ops[o], "?"))
		}
		for _, r := range l.Reads {
			switch b := t.Program.Buffers[r]; b.Role {
			case "input", "param", "state":
				f.Sources = append(f.Sources, b.Name)
			default:
				f.Sources = append(f.Sources, copies[r]...)
			}
		}
		slices.Sort(f.Nodes)
		slices.Sort(f.Sources)
		f.Sources = slices.Compact(f.Sources)
		for _, w := range l.Writes {
			delete(copies, w)
			if l.Kind == "copy" {
				copies[w] = f.Sources
			}
		}
		list[i] = launch{l, f}
	}
	return list
}

// patterns are the rules that recognise something, and those that change numbers.
func patterns(t *trace.Trace) []Pattern {
	type key struct{ stage, name string }
	recognise := map[key]bool{}
	at := map[key]int{}
	var list []Pattern
	get := func(stage, name string) *Pattern {
		k := key{stage, name}
		i, ok := at[k]
		if !ok {
			i = len(list)
			at[k], list = i, append(list, Pattern{Stage: stage, Name: name})
		}
		return &list[i]
	}
	for _, s := range t.Stages {
		for _, m := range s.Matches {
			if m.Kind != "" && m.Pattern != s.Name {
				recognise[key{s.Name, m.Pattern}] = true
			}
		}
		for _, m := range s.Misses {
			get(s.Name, m.Pattern).Missed++
		}
	}
	for _, c := range t.Contracts() {
		if c.Numeric.Class != trace.ClassExact || recognise[key{c.Stage, c.Pattern}] {
			p := get(c.Stage, cmp.Or(c.Pattern, "*"))
			p.Matched, p.Numeric = c.Times, c.Numeric
		}
	}
	return list
}

// bound is the largest of the rules that put another function in place of one, and the rule.
func (s *Section) bound() (bound float64, by Pattern) {
	for _, p := range s.Patterns {
		if p.Numeric.Class == trace.ClassApproximate && p.Numeric.Bound > bound {
			bound, by = p.Numeric.Bound, p
		}
	}
	return bound, by
}

func (s *Section) sort() {
	slices.SortFunc(s.Patterns, func(a, b Pattern) int {
		return cmp.Or(cmp.Compare(a.Stage, b.Stage), cmp.Compare(a.Name, b.Name))
	})
	slices.SortFunc(s.Fusions, func(a, b Fusion) int { return cmp.Compare(a.String(), b.String()) })
}

// Find is the section of a target and precision, or nil.
func (f *File) Find(target, precision string) *Section {
	for i := range f.Sections {
		if s := &f.Sections[i]; s.Target == target && s.Precision == precision {
			return s
		}
	}
	return nil
}

// Set puts a section in the place of that of its target and precision, or adds it.
func (f *File) Set(s Section) {
	if old := f.Find(s.Target, s.Precision); old != nil {
		*old = s
		return
	}
	f.Sections = append(f.Sections, s)
	slices.SortFunc(f.Sections, func(a, b Section) int {
		return cmp.Or(cmp.Compare(a.Target, b.Target), cmp.Compare(a.Precision, b.Precision))
	})
}

// String is the file's text.
func (f *File) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "fuselock %d\n", Version)
	for _, s := range f.Sections {
		fmt.Fprintf(&b, "\ntarget %s %s\n", s.Target, s.Precision)
		if s.Refusal != "" {
			fmt.Fprintf(&b, "  refused %q\n", s.Refusal)
		}
		fmt.Fprintf(&b, "  launches %d\n  host %d\n  traffic %d\n  memory %d\n", s.Launches, s.Host, s.Traffic, s.Memory)
		for _, p := range s.Patterns {
			fmt.Fprintf(&b, "  pattern %s %s matched %d missed %d", p.Stage, p.Name, p.Matched, p.Missed)
			if p.Matched > 0 {
				fmt.Fprintf(&b, " %s %s", p.Numeric.Class, strconv.FormatFloat(p.Numeric.Bound, 'g', -1, 64))
			}
			b.WriteString("\n")
		}
		for _, x := range s.Fusions {
			fmt.Fprintf(&b, "  fusion %v\n", x)
		}
	}
	return b.String()
}

// Write replaces the file at path.
func (f *File) Write(path string) error {
	w, err := atomicfile.Create(path)
	if err != nil {
		return err
	}
	defer w.Abort()
	if _, err := w.Write([]byte(f.String())); err != nil {
		return err
	}
	return w.Commit()
}

// Read reads the file at path. The error of a file that is not there is [fs.ErrNotExist].
func Read(path string) (*File, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, &fs.PathError{Op: "read", Path: path, Err: errors.New("not a regular file")}
	case info.Size() > MaxBytes:
		return nil, fmt.Errorf("%s has %d bytes; a lock file has at most %d", path, info.Size(), MaxBytes)
	}
	src, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return Parse(path, src)
}
