package inspect

import (
	"bytes"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"fusec"
	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/modelio"
	"fusec/graph/dot"
	"fusec/graph/trace"
	"fusec/graph/trace/tracejson"
)

// Dump is fusec dump.
var Dump = &cli.Command{
	Name:    "dump",
	Args:    "[flags] model.graph",
	Summary: "print a model's compilation as a picture, text or JSON",
	Doc: `
Prints the stage final: what runs, launch by launch. Any earlier stage can be had by its name or number, or all of
them as numbered files. Weights are not needed. The same graph and target give the same bytes.

DOT goes to standard output unless -o names a file, whose extension then decides the format. SVG and PNG need no
Graphviz. With --all and a folder, the default is SVG; text and JSON can hold all stages in one file.`,
	Examples: []cli.Example{
		{"fusec dump model.graph -o model.svg", "the compiled model as a picture"},
		{"fusec dump model.graph | dot -Tpdf > model.pdf", "the same through Graphviz"},
		{"fusec dump model.graph --all -o stages", "every stage: stages/01-import.svg, stages/02-strip-grad.svg, ..."},
		{"fusec dump model.graph --all -o all.json", "every stage in one file"},
		{"fusec dump model.graph --stage raise --format text",
			"one stage as text, with what its pass matched, and the fusions that it missed"},
		{"fusec dump model.graph --stage cuda", "the CUDA C++ of its kernels, with your names beside it"},
		{"fusec dump model.graph --stage fpga --overlay sim16", "the descriptors of its launches on an overlay"},
		{"fusec dump model.graph --measured -o model.svg", "run it and write each launch's time beside it"},
	},
	Setup: func(f *cli.FlagSet) cli.Action {
		d := &dumper{}
		d.compile.Declare(f)
		d.values.Declare(f)
		stages, formats, also := "", formatNames(), ""
		for _, t := range coded() {
			stages += "; " + t.Name + ": " + t.Code
			if t.CodeFormat != "" {
				formats, also = append(formats, t.CodeFormat), also+"; of the stage "+t.Name+" also "+t.CodeFormat
			}
		}
		f.StringVar(&d.stage, "stage", "", "the stage of the pass `NAME`, or of that number (default final, the compiled graph)"+stages)
		f.Values("stage", stageNames)
		f.BoolVar(&d.all, "all", false, "every stage")
		f.Output(&d.out, "write to `FILE`, or with --all to this folder")
		f.Choice(&d.format, "format", formats,
			"`FORMAT` "+strings.Join(formatNames(), ", ")+" (default: by the file's extension, or dot)"+also)
		f.BoolVar(&d.measured, "measured", false, "run the model and print times; without weights beside it, on random ones")
		f.BoolVar(&d.expand, "expand", false, "draw every repetition of a repeated layer")
		f.Choice(&d.detail, "detail", modelio.SortedKeys(details),
			"`LEVEL` "+strings.Join(modelio.SortedKeys(details), ", ")+" (default auto: what keeps the picture readable)")
		return d.run
	},
}

var details = map[string]dot.Detail{"auto": dot.Auto, "full": dot.Full, "compact": dot.Compact, "outline": dot.Outline,
	"layers": dot.Layers}

func formatNames() []string {
	var names []string
	for _, f := range dot.Formats() {
		names = append(names, string(f))
	}
	return names
}

// stageNames are those that --stage takes for a model on any target.
func stageNames() []string {
	return slices.Concat([]string{"import"}, fusec.Passes(), []string{"final"}, codeStages())
}

// dumper is fusec dump with its flags.
type dumper struct {
	compile modelio.CompileFlags
	values  modelio.ValueFlags

	stage, out, format, detail string
	all, measured, expand      bool

	one   bool // all stages go into one file
	about tracejson.About
}

func (d *dumper) run(e *cli.Env, args []string) error {
	path, err := modelio.ModelArgument(args)
	if err != nil {
		return err
	}
	if d.out != "" && modelio.SameFile(path, d.out) {
		return cli.Usage("-o %s: that is the model itself, which would be lost; name another file", d.out)
	}
	for _, t := range coded() {
		switch {
		case d.stage == t.Name:
			return d.dumpCode(e, path, t)
		case d.format != "" && d.format == t.CodeFormat:
			return cli.Usage("--format %s is of --stage %s", t.CodeFormat, t.Name)
		}
	}
	opts, err := d.options()
	if err != nil {
		return err
	}
	tr, err := traceOf(e, &d.compile, &d.values, path, d.measured)
	if err != nil && (tr == nil || d.stage == "" && !d.all) {
		return err
	}
	// A stage that was asked for by name is shown even if a later one failed: it is then of most use.
	d.about = d.compile.About(path)
	if shown := d.print(e, tr, opts); shown != nil && err == nil {
		return shown
	}
	return err
}

// options checks the flags against each other.
func (d *dumper) options() (dot.Options, error) {
	opts := dot.Options{Detail: details[d.detail], Expand: d.expand, Measured: d.measured}
	if d.out == "-" {
		d.out = ""
	}
	ext := strings.ToLower(filepath.Ext(d.out))
	named := slices.IndexFunc(dot.Formats(), func(f dot.Format) bool { return f.Ext() == ext })
	switch {
	case d.format != "" && named >= 0 && dot.Formats()[named] != dot.Format(d.format):
		return opts, cli.Usage("-o %s and --format %s contradict each other", d.out, d.format)
	case d.format != "":
		opts.Format = dot.Format(d.format)
	case named >= 0:
		opts.Format = dot.Formats()[named]
	case d.all:
		opts.Format = dot.FormatSVG
	case ext != "" && ext != ".gv":
		return opts, cli.Usage("-o %s: no format has the extension %s; choose %s, or name one with --format", d.out, ext,
			cli.Either(formatNames()))
	}
	if d.all && d.stage != "" {
		return opts, cli.Usage("--all and --stage %s contradict each other", d.stage)
	}
	whole := opts.Format == dot.FormatText || opts.Format == dot.FormatJSON
	if d.all && d.out == "" && !whole {
		return opts,
			cli.Usage("--all makes several files: name their folder with -o, or print them in one piece with --format text or json")
	}
	if d.out == "" {
		opts.Width = cli.Columns()
	}
	d.one = d.all && whole && ext == opts.Format.Ext()
	if d.all && named >= 0 && !d.one {
		return opts, cli.Usage("--all makes several files: -o names their folder, and %s is the name of one file", d.out)
	}
	return opts, nil
}

// print writes what was asked for.
func (d *dumper) print(e *cli.Env, tr *trace.Trace, opts dot.Options) error {
	if d.all && d.out == "" {
		return d.write(e.Out, tr, 0, -1, opts)
	}
	if d.one {
		var b bytes.Buffer
		if err := d.write(&b, tr, 0, -1, opts); err != nil {
			return err
		}
		return cli.WriteFile(d.out, b.Bytes())
	}
	if d.all {
		var files []cli.Output
		for i, s := range tr.Stages {
			if e.Ctx.Err() != nil {
				return e.Ctx.Err()
			}
			var b bytes.Buffer
			if err := d.write(&b, tr, i, i, opts); err != nil {
				return fmt.Errorf("stage %s: %w", s.Name, err)
			}
			files = append(files, cli.Fixed(fmt.Sprintf("%02d-%s%s", i+1, s.Name, opts.Format.Ext()), b.Bytes()))
		}
		return cli.WriteFolder(d.out, files)
	}
	i, err := findStage(tr, d.stage)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err := d.write(&b, tr, i, i, opts); err != nil {
		return err
	}
	if e.Ctx.Err() != nil {
		return e.Ctx.Err()
	}
	if d.out != "" {
		return cli.WriteFile(d.out, b.Bytes())
	}
	_, err = e.Out.Write(b.Bytes())
	return err
}

// write prints the stages from first to last, which is below 0 for all of them.
func (d *dumper) write(w io.Writer, tr *trace.Trace, first, last int, opts dot.Options) error {
	switch {
	case opts.Format == dot.FormatJSON:
		return tracejson.New(tr, tracejson.Options{About: d.about, First: first, Last: last, Measured: opts.Measured}).Write(w)
	case last < 0:
		return dot.Trace(w, tr, opts)
	}
	return dot.Stage(w, tr, first, opts)
}

// findStage finds a stage by its name or its number, from 1; the last one if name is empty.
func findStage(tr *trace.Trace, name string) (int, error) {
	if name == "" {
		return len(tr.Stages) - 1, nil
	}
	if name == trace.FinalPass {
		name = trace.Final
	}
	var names []string
	for i, s := range tr.Stages {
		if s.Name == name {
			return i, nil
		}
		names = append(names, s.Name)
	}
	if n, err := strconv.Atoi(name); err == nil && n >= 1 && n <= len(tr.Stages) {
		return n - 1, nil
	}
	return 0, cli.Usage("%s", cli.Unknown("stage", name, append(names, codeStages()...)))
}
