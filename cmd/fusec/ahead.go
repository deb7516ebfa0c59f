package main

import (
	"fmt"
	"path/filepath"
	"strings"

	"fusec"
	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/modelio"
	"fusec/lowering"
)

var compileCommand = &cli.Command{
	Name:    "compile",
	Args:    "[flags] model.graph",
	Summary: "compile a model ahead of time for a CUDA chip or an overlay",
	Doc: `
Makes the machine code of the model's kernels for a chip, which need not be in this machine, and writes it with the
graph and its weights into one file. fusec run and fusec bench take that file in place of a model; where they run it,
the GPU's driver is all that is needed. Compiling needs NVIDIA's run-time compiler: fusec doctor tells whether it is
there, and make cuda-tools fetches it.

With --target fpga the model is compiled for an overlay instead: the file then holds the ranges of its values, found on the
samples that --calibrate gives, and the overlay's descriptors to be read.`,
	Examples: []cli.Example{
		{"fusec compile model.graph --arch sm_90a -o model.fuse", "for an H100 or H200"},
		{"fusec run model.fuse --in x=x.npy", "run it there"},
		{"fusec compile model.graph --target fpga --overlay ecp5 --calibrate samples.npz", "for an overlay"},
	},
	Setup: func(f *cli.FlagSet) cli.Action {
		c := &aheadCompiler{}
		c.compile.Declare(f, cli.Targets(func(t lowering.Target) bool { return t.Load != nil })...)
		c.values.Declare(f)
		f.Output(&c.out, "write `FILE` (default: the model's name with the extension .fuse)")
		return c.run
	},
}

// aheadCompiler is fusec compile with its flags.
type aheadCompiler struct {
	compile modelio.CompileFlags
	values  modelio.ValueFlags
	out     string
}

func (c *aheadCompiler) run(e *cli.Env, args []string) error {
	path, err := modelio.ModelArgument(args)
	if err != nil {
		return err
	}
	g, vals, err := c.values.Load(e, path, &c.compile.Shapes, false)
	if err != nil {
		return err
	}
	out := c.out
	if out == "" {
		out = modelio.ModelName(path) + modelio.AheadExt
	}
	if filepath.Ext(out) != modelio.AheadExt {
		return cli.Usage("-o %s: a compiled model is named like model%s", out, modelio.AheadExt)
	}
	if len(vals.Weights) == 0 {
		vals.Weights = nil
	}
	if err := cli.CanWrite(out); err != nil {
		return err
	}
	if err := c.compile.Check(); err != nil {
		return err
	}
	samples, err := c.compile.Calibration(g)
	if err != nil {
		return err
	}
	if c.compile.NeedsCalibration() && samples == nil {
		return cli.Usage("fusec compile --target %s requires --calibrate FILE: the values' ranges are part of the file", c.compile.Target)
	}
	show := cli.NewProgress(e.Stderr)
	defer show.Done()
	err = fusec.CompileAhead(out, g, vals.Weights, func(done, all int) {
		show.Show("compiled %d of %s", done, cli.Plural(all, "kernel", "kernels"))
	}, c.compile.Options(samples...)...)
	if err != nil {
		return err
	}
	show.Done()
	text := fmt.Sprintf("%s: %s for %s\n", out, modelio.ModelName(path), c.compile.Chip())
	if n := strings.Count(c.compile.Target, ",") + 1; n > 1 {
		text += fmt.Sprintf("its kernels are those of one of %d participants: run it with --target %s\n", n, c.compile.Target)
	}
	return e.Print(text)
}
