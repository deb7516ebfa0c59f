package main

import (
	"bytes"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"fusec/graph/dot"
	"fusec/graph/trace"
	"fusec/lowering"
)

var dumpCommand = &command{
	name:    "dump",
	args:    "[flags] model.graph",
	summary: "print a model's compilation as a picture, text or JSON",
	doc: `
Prints the final stage: what runs, launch by launch. Any earlier stage can be had by its name or number, or all of
them as numbered files. Weights are not needed. The same graph and target give the same bytes.

DOT goes to standard output unless -o names a file, whose extension then decides the format. SVG and PNG need no
Graphviz. With --all and a folder, the default is SVG; text and JSON can hold all stages in one piece.`,
	examples: []example{
		{"fusec dump model.graph -o model.svg", "the compiled model as a picture"},
		{"fusec dump model.graph | dot -Tpdf > model.pdf", "the same through Graphviz"},
		{"fusec dump model.graph --all -o stages", "every stage: stages/01-import.svg, stages/02-strip-grad.svg, ..."},
		{"fusec dump model.graph --stage raise --format text", "one stage as text, with what its pass matched and nearly matched"},
		{"fusec dump model.graph --stage cuda", "the CUDA C++ of its kernels, with your names beside it"},
		{"fusec dump model.graph --stage fpga --overlay sim16", "the descriptors of its launches on an overlay"},
		{"fusec dump model.graph --measured -o model.svg", "run it and write each launch's time beside it"},
	},
	setup: func(f *flagSet) action {
		d := &dumper{}
		d.compile.declare(f)
		d.values.declare(f)
		f.StringVar(&d.stage, "stage", "", "the stage of the pass `NAME`, or of that number (default: the last); cuda: the kernels' CUDA C++; fpga: the overlay's descriptors")
		f.BoolVar(&d.all, "all", false, "every stage")
		f.StringVar(&d.out, "o", "", "write to `FILE`, or with --all to this folder")
		f.choice(&d.format, "format", append(formatNames(), ptxFormat),
			"`FORMAT` "+strings.Join(formatNames(), ", ")+" (default: by the file's extension, or dot); of the stage cuda also "+ptxFormat)
		f.BoolVar(&d.measured, "measured", false, "run the model and print times; without weights beside it, on random ones")
		f.BoolVar(&d.expand, "expand", false, "draw every repetition of a repeated layer")
		f.choice(&d.detail, "detail", sortedKeys(details), "`LEVEL` "+strings.Join(sortedKeys(details), ", ")+" (default auto: what keeps the picture readable)")
		return d.run
	},
}

var details = map[string]dot.Detail{"auto": dot.Auto, "full": dot.Full, "compact": dot.Compact, "outline": dot.Outline}

// pictures are extensions of pictures that dot does not draw: DOT in such a file would be a surprise.
var pictures = []string{".bmp", ".eps", ".gif", ".jpeg", ".jpg", ".pdf", ".ps", ".tif", ".tiff", ".webp"}

func formatNames() []string {
	var names []string
	for _, f := range dot.Formats() {
		names = append(names, string(f))
	}
	return names
}

// dumper is fusec dump with its flags.
type dumper struct {
	compile compileFlags
	values  valueFlags

	stage, out, format, detail string
	all, measured, expand      bool
}

func (d *dumper) run(e *env, args []string) error {
	path, err := modelArgument(args)
	if err != nil {
		return err
	}
	if d.stage == cudaStage {
		return d.dumpCUDA(e, path)
	}
	if d.stage == overlayStage {
		return d.dumpOverlay(e, path)
	}
	if d.format == ptxFormat {
		return usage("--format %s is of --stage %s", ptxFormat, cudaStage)
	}
	opts, err := d.options()
	if err != nil {
		return err
	}
	tr, err := d.trace(e, path)
	if err != nil && (tr == nil || d.stage == "" && !d.all) {
		return err
	}
	// A stage that was asked for by name is shown even if a later one failed: that is when one wants to see it.
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
	switch {
	case d.format != "":
		opts.Format = dot.Format(d.format)
	case d.all:
		opts.Format = dot.FormatSVG
	case d.out != "":
		if i := slices.IndexFunc(dot.Formats(), func(f dot.Format) bool { return f.Ext() == filepath.Ext(d.out) }); i >= 0 {
			opts.Format = dot.Formats()[i]
		} else if ext := filepath.Ext(d.out); slices.Contains(pictures, strings.ToLower(ext)) {
			return opts, usage("-o %s: no format writes %s: want one of %s", d.out, ext, strings.Join(formatNames(), ", "))
		}
	}
	if d.all && d.stage != "" {
		return opts, usage("--all and --stage %s contradict each other", d.stage)
	}
	whole := opts.Format == dot.FormatText || opts.Format == dot.FormatJSON
	if d.all && d.out == "" && !whole {
		return opts, usage("--all makes several files: name their folder with -o, or print them in one piece with --format text or json")
	}
	return opts, nil
}

// trace compiles the model, and runs it if times are wanted.
func (d *dumper) trace(e *env, path string) (*trace.Trace, error) {
	if !d.measured {
		g, err := d.compile.load(e, path)
		if err != nil {
			return nil, err
		}
		tr, _, err := d.compile.plan(g)
		return tr, err
	}
	g, vals, err := d.values.load(e, path, true)
	if err != nil {
		return nil, err
	}
	show := newProgress(e.stderr)
	p, err := d.compile.compile(g, vals, []lowering.TargetOption{opening(e, show)})
	show.done()
	if err != nil {
		return nil, err
	}
	defer p.Close()
	times, _, err := profile(e.ctx, p, profileSeconds)
	if err != nil {
		return nil, err
	}
	tr := p.Trace()
	for i, t := range times {
		tr.Program.Launches[i].Measured = t
	}
	for i, c := range p.Counts() {
		l := &tr.Program.Launches[i]
		l.Counted, l.MaxError, l.RMSError = c.Cycles, c.MaxError, c.RMSError
	}
	return tr, nil
}

// print writes what was asked for.
func (d *dumper) print(e *env, tr *trace.Trace, opts dot.Options) error {
	if d.all && d.out == "" {
		return dot.Trace(e.out, tr, opts)
	}
	if d.all {
		var files []output
		for i, s := range tr.Stages {
			if e.ctx.Err() != nil {
				return e.ctx.Err()
			}
			var b bytes.Buffer
			if err := dot.Stage(&b, tr, i, opts); err != nil {
				return fmt.Errorf("stage %s: %w", s.Name, err)
			}
			files = append(files, fixed(fmt.Sprintf("%02d-%s%s", i+1, s.Name, opts.Format.Ext()), b.Bytes()))
		}
		return writeFolder(d.out, files)
	}
	i, err := findStage(tr, d.stage)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err := dot.Stage(&b, tr, i, opts); err != nil {
		return err
	}
	if e.ctx.Err() != nil {
		return e.ctx.Err()
	}
	if d.out != "" {
		return writeFile(d.out, b.Bytes())
	}
	_, err = e.out.Write(b.Bytes())
	return err
}

// findStage finds a stage by its name or its number, from 1; the last one if name is empty.
func findStage(tr *trace.Trace, name string) (int, error) {
	if name == "" {
		return len(tr.Stages) - 1, nil
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
	names = append(names, cudaStage, overlayStage)
	return 0, usage("there is no stage %q: want one of %s%s", name, strings.Join(names, ", "), suggest(name, names))
}
