package inspect

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/modelio"
	"fusec/graph/report"
	"fusec/graph/trace/tracejson"
)

// Report is fusec report.
var Report = &cli.Command{
	Name:    "report",
	Args:    "[flags] model.graph [other.graph]",
	Summary: "write a page on a model: its time, layers, launches, missed fusions, memory and code",
	Doc: `
Compiles the model, runs it to measure each launch, and writes one HTML file that opens in any browser, from disk and
without a network: what runs when and for how long, by layer and phase; how far from the machine's ceilings it is; what
each pass changed; the missed fusions and what they cost; what holds the memory; and the code of each launch beside
your lines. Without weights beside the model it runs on random ones.

A second model is compared with the first, launch by launch. In place of a model either file may be the JSON that
fusec dump --all --format json writes, for example on another machine or with other flags.`,
	Examples: []cli.Example{
		{"fusec report model.graph -o report.html", "the whole page"},
		{"fusec report model.graph old.graph -o report.html", "what became faster and slower since"},
		{"fusec dump model.graph --all --measured --disable raise -o without.json && fusec report model.graph without.json",
			"what a pass is worth"},
		{"fusec report model.graph --target cuda --unmeasured", "a page without times, for a GPU that is not here"},
	},
	Setup: func(f *cli.FlagSet) cli.Action {
		r := &reporter{}
		r.compile.Declare(f)
		r.values.Declare(f)
		f.Output(&r.out, "write to `FILE` (default report.html); - is standard output")
		f.BoolVar(&r.unmeasured, "unmeasured", false, "do not run the model: without times, widths are memory traffic")
		return r.run
	},
}

// reporter is fusec report with its flags.
type reporter struct {
	compile    modelio.CompileFlags
	values     modelio.ValueFlags
	out        string
	unmeasured bool
}

func (r *reporter) run(e *cli.Env, args []string) error {
	if len(args) == 0 {
		return cli.Usage("which model? Give the path of a .graph file, or - for standard input")
	}
	if len(args) > 2 {
		return cli.Usage("a report compares two models, not %d: %s", len(args), strings.Join(args, ", "))
	}
	if len(args) == 2 && args[0] == modelio.StdinName && args[1] == modelio.StdinName {
		return cli.Usage("standard input holds one model: it cannot be compared with itself")
	}
	if r.out == "" {
		r.out = "report.html"
	}
	switch ext := strings.ToLower(filepath.Ext(r.out)); {
	case r.out == modelio.StdinName:
	case ext != ".html" && ext != ".htm":
		return cli.Usage("-o %s: a report is a file that ends in .html", r.out)
	default:
		if err := cli.CanWrite(r.out); err != nil {
			return err
		}
	}
	var all []*tracejson.Trace
	for _, path := range args {
		t, err := r.read(e, path)
		if err != nil {
			return err
		}
		all = append(all, t)
	}
	var page bytes.Buffer
	if err := report.Page(&page, all[0], all[1:]...); err != nil {
		return err
	}
	if r.out == modelio.StdinName {
		_, err := e.Out.Write(page.Bytes())
		return err
	}
	if err := cli.WriteFile(r.out, page.Bytes()); err != nil {
		return err
	}
	return e.Print(fmt.Sprintf("%s: %s, %s\n", r.out, strings.Join(args, " against "), cli.HumanBytes(int64(page.Len()))))
}

// read reads a trace, or makes that of a model.
func (r *reporter) read(e *cli.Env, path string) (*tracejson.Trace, error) {
	if strings.ToLower(filepath.Ext(path)) == ".json" {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		t, err := tracejson.Read(f)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		return t, nil
	}
	tr, err := traceOf(e, &r.compile, &r.values, path, !r.unmeasured)
	if err != nil {
		return nil, err
	}
	about := r.compile.About(path)
	if !r.unmeasured {
		if about.Machine.FLOPRate, about.Machine.ByteRate, err = ceilings(e, &r.compile); err != nil {
			return nil, fmt.Errorf("measuring what the machine can do: %w", err)
		}
	}
	t := tracejson.New(tr, tracejson.All(about, !r.unmeasured))
	t.Lines = report.Lines(t, linesOf(path))
	return t, nil
}

// linesOf reads the model's own file, and files of Go and graphs below the current folder. A model that comes from
// elsewhere may name any file as the place of its nodes, and others must not come into the page.
func linesOf(model string) func(file string) ([]byte, error) {
	return func(file string) ([]byte, error) {
		if file == filepath.Base(model) {
			return os.ReadFile(model)
		}
		if ext := filepath.Ext(file); ext != ".go" && ext != ".graph" || !filepath.IsLocal(file) {
			return nil, os.ErrNotExist
		}
		root, err := os.OpenRoot(".")
		if err != nil {
			return nil, err
		}
		defer root.Close()
		return root.ReadFile(file)
	}
}
