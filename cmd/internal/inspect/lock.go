package inspect

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"fusec"
	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/modelio"
	"fusec/graph"
	"fusec/graph/fuselock"
	"fusec/graph/trace"
)

// Lock is fusec lock.
var Lock = &cli.Command{
	Name:    "lock",
	Args:    "[flags] model.graph",
	Summary: "write down what is fused, for fusec check to compare with",
	Doc: `
Compiles the model and writes the file model.fuselock beside it: for each target and precision the fusions by the names
of your nodes, the launches, memory traffic, the memory for values, and what the rules of the passes may change of the
numbers. It is text in a fixed order, to be kept under version control and read in a review. Weights and hardware are not
needed.

Without --target and --precision it writes again what the file has, and cpu in f32 into a new file. With them it writes
those sections, and leaves the others as they are.`,
	Examples: []cli.Example{
		{"fusec lock model.graph", "write model.fuselock, or bring it up to date"},
		{"fusec lock model.graph --target cpu,cuda,fpga", "for three targets; cuda is planned for --arch"},
		{"fusec lock model.graph --target cuda --precision f32,bf16", "in two precisions"},
	},
	Setup: func(f *cli.FlagSet) cli.Action {
		l := &locker{}
		l.declare(f)
		return l.lock
	},
}

// Check is fusec check.
var Check = &cli.Command{
	Name:    "check",
	Args:    "[flags] model.graph",
	Summary: "tell which fusions of the lock file are lost, and why",
	Doc: `
Compiles the model as model.fuselock says, for each target and precision that the file has, and compares. A fusion is kept
if one launch computes all its nodes, alone or with others. The exit code is 1 if a fusion is lost, if there are more
launches, memory traffic or memory for values, or if a rule may change the numbers by more than any did; each line says
what, and for a lost fusion which launches compute its nodes and where patterns stopped. It is 0 if all is equal or
better; what is better, and fusions of which nodes have left the model, are listed. Nothing is written: fusec lock does
that.

In Go tests fusectest.Check does the same for a machine or a program.`,
	Examples: []cli.Example{
		{"fusec check model.graph", "compare with model.fuselock"},
		{"fusec check model.graph --target cpu --json", "one target; for programs"},
	},
	Setup: func(f *cli.FlagSet) cli.Action {
		l := &locker{}
		l.declare(f)
		f.BoolVar(&l.json, "json", false, "print the report as JSON")
		return l.check
	},
}

// locker is fusec lock and fusec check with their flags.
type locker struct {
	targets    []string
	precisions []string
	file       string
	chips      modelio.TargetFlags
	json       bool
	shapes     modelio.Shapes
}

func (l *locker) declare(f *cli.FlagSet) {
	f.Names(&l.targets, "target", "target", fusec.Targets,
		fmt.Sprintf("the `TARGETS`, separated by commas: %s (default: those of the file)", strings.Join(fusec.Targets(), ", ")))
	f.Names(&l.precisions, "precision", "precision", func() []string { return []string{"f32", "tf32", "bf16", "f16"} },
		"the `PRECISIONS`, separated by commas: f32, tf32, bf16 or f16 (default: those of the file)")
	l.chips.Declare(f, true)
	l.shapes.Declare(f, "")
	f.StringVar(&l.file, "file", "", "the lock `FILE` (default: the model's name with the extension "+fuselock.Ext+", beside it)")
}

// planned says what a section is compiled for.
type planned struct{ target, chip, precision string }

// sectionPlan is that of a section of a file.
func sectionPlan(s *fuselock.Section) planned {
	target, chip, _ := strings.Cut(s.Target, "/")
	return planned{target, chip, s.Precision}
}

// open reads the model and, if it is there, the lock file.
func (l *locker) open(e *cli.Env, args []string) (g *graph.Graph, model string, file *fuselock.File, err error) {
	path, err := modelio.ModelArgument(args)
	if err != nil {
		return nil, "", nil, err
	}
	if l.file == "" {
		if path == modelio.StdinName {
			return nil, "", nil, cli.Usage("which lock file? --file names it for a model on standard input")
		}
		l.file = strings.TrimSuffix(path, filepath.Ext(path)) + fuselock.Ext
	}
	if filepath.Ext(l.file) != fuselock.Ext {
		return nil, "", nil, cli.Usage("--file %s: a lock file is named like model%s", l.file, fuselock.Ext)
	}
	if err := l.chips.Check(l.targets...); err != nil { // without --target the file says what to plan for
		return nil, "", nil, err
	}
	if g, err = modelio.LoadGraph(e, path, &l.shapes); err != nil {
		return nil, "", nil, err
	}
	if file, err = fuselock.Read(l.file); errors.Is(err, fs.ErrNotExist) {
		return g, modelio.ModelName(path), nil, nil
	}
	return g, modelio.ModelName(path), file, err
}

// asked lists what the flags name; without flags what the file has.
func (l *locker) asked(file *fuselock.File) []planned {
	if len(l.targets)+len(l.precisions) == 0 && len(file.Sections) > 0 {
		var list []planned
		for i := range file.Sections {
			list = append(list, sectionPlan(&file.Sections[i]))
		}
		return list
	}
	targets, precisions := l.targets, l.precisions
	if len(targets) == 0 {
		targets = fusec.Targets()[:1]
	}
	if len(precisions) == 0 {
		precisions = []string{fusec.F32.String()}
	}
	var list []planned
	for _, t := range targets {
		for _, p := range precisions {
			x := planned{t, l.chips.Chip(t), p}
			if !slices.Contains(list, x) {
				list = append(list, x)
			}
		}
	}
	return list
}

// of names the section of the file that an error is about, if no flag asked for it.
func (l *locker) of(x planned, err error) error {
	if len(l.targets)+len(l.precisions) > 0 {
		return err
	}
	return fmt.Errorf("%s: the section of target %s in %s: %w", l.file, x.target, x.precision, err)
}

// plan compiles the model and gives the section of it.
func plan(g *graph.Graph, x planned) (s fuselock.Section, t *trace.Trace, err error) {
	target, _ := fusec.TargetNamed(x.target)
	c := modelio.CompileFlags{Target: x.target, Flags: modelio.TargetFlags{target.ChipFlag().Name: x.chip}}
	if !target.Integers || x.precision != "int8" { // which is the target's own
		if c.Precision, err = fusec.ParsePrecision(x.precision); err != nil {
			return s, nil, err
		}
	}
	if t, _, err = c.Plan(g); err != nil {
		return s, nil, err
	}
	s, err = fuselock.Of(t)
	return s, t, err
}

func (l *locker) lock(e *cli.Env, args []string) error {
	g, model, file, err := l.open(e, args)
	if err != nil {
		return err
	}
	if file == nil {
		file = &fuselock.File{}
	}
	show := cli.NewProgress(e.Stderr)
	var text strings.Builder
	for _, x := range l.asked(file) {
		show.Show("%s for %s", model, modelio.On(x.target, x.precision))
		s, _, err := plan(g, x)
		if err != nil {
			show.Done()
			return l.of(x, err)
		}
		file.Set(s)
		fmt.Fprintf(&text, "%s for %s: %s in %s\n", model, modelio.On(s.Target, s.Precision),
			cli.Plural(len(s.Fusions), "fusion", "fusions"),
			cli.Plural(s.Launches, "launch", "launches"))
	}
	show.Done()
	if err := file.Write(l.file); err != nil {
		return err
	}
	fmt.Fprintf(&text, "written to %s\n", l.file)
	return e.Print(text.String())
}

// CheckReport is what fusec check found, and its JSON form.
type CheckReport struct {
	Schema   string         `json:"schema"` // fusec.check/1
	Model    string         `json:"model"`
	Lock     string         `json:"lock"` // the file
	Sections []checkSection `json:"sections"`
}

type checkSection struct {
	Target    string      `json:"target"` // with chip or overlay after a slash
	Precision string      `json:"precision"`
	OK        bool        `json:"ok"`
	Lost      []checkLoss `json:"lost"`
	Worse     []string    `json:"worse"`
	Better    []string    `json:"better"`
	Changed   []string    `json:"changed"`

	text string
}

type checkLoss struct {
	What    string   `json:"what"`
	Times   int      `json:"times"`
	Now     []string `json:"now"`
	Reasons []string `json:"reasons"`
}

func (l *locker) check(e *cli.Env, args []string) error {
	g, model, file, err := l.open(e, args)
	if err != nil {
		return err
	}
	if file == nil || len(file.Sections) == 0 {
		return fmt.Errorf("%s is not there or holds nothing: fusec lock writes it", l.file)
	}
	rep := &CheckReport{Schema: "fusec.check/1", Model: model, Lock: l.file, Sections: []checkSection{}}
	bad, better := 0, false
	show := cli.NewProgress(e.Stderr)
	for _, x := range l.asked(file) {
		show.Show("%s for %s", model, modelio.On(x.target, x.precision))
		now, t, err := plan(g, x)
		if err != nil {
			show.Done()
			return l.of(x, err)
		}
		locked := file.Find(now.Target, now.Precision)
		if locked == nil {
			show.Done()
			return fmt.Errorf("%s has nothing for %s in %s: fusec lock adds it", l.file, now.Target, now.Precision)
		}
		v := fuselock.Compare(locked, &now, t)
		s := checkSection{now.Target, now.Precision, v.OK(), []checkLoss{}, append([]string{}, v.Worse...),
			append([]string{}, v.Better...),
			append([]string{}, v.Changed...), v.String()}
		for _, lost := range v.Lost {
			s.Lost = append(s.Lost, checkLoss{lost.What, lost.Times, append([]string{}, lost.Now...),
				append([]string{}, lost.Reasons...)})
		}
		rep.Sections = append(rep.Sections, s)
		if !v.OK() {
			bad++
		}
		better = better || len(v.Better)+len(v.Changed) > 0
	}
	show.Done()
	if l.json {
		err = cli.WriteJSON(e.Out, rep)
	} else {
		err = e.Print(rep.text(bad == 0 && better))
	}
	if err == nil && bad > 0 {
		err = fmt.Errorf("%s is behind %s for %s; if that is meant, fusec lock writes it down", model, l.file,
			cli.Plural(bad, "target", "targets"))
	}
	return err
}

// text prints the report for people; improved says that the lock file could be better.
func (rep *CheckReport) text(improved bool) string {
	var b strings.Builder
	for _, s := range rep.Sections {
		word := "as locked"
		switch {
		case !s.OK:
			word = "not as locked"
		case len(s.Better) > 0:
			word = "better than locked"
		case len(s.Changed) > 0:
			word = "as locked, but for what has left the model"
		}
		fmt.Fprintf(&b, "%s for %s: %s\n%s", rep.Model, modelio.On(s.Target, s.Precision), word, s.text)
	}
	if improved {
		fmt.Fprintf(&b, "fusec lock brings %s up to date\n", rep.Lock)
	}
	return b.String()
}
