package main

import (
	"cmp"
	"fmt"
	"path/filepath"

	"fusec"
	"fusec/fpga/isa"
	"fusec/lowering/fpga"
)

// aheadExt is the extension of a model that was compiled ahead of time.
const aheadExt = ".fuse"

var compileCommand = &command{
	name:    "compile",
	args:    "[flags] model.graph",
	summary: "compile a model ahead of time for a CUDA chip or an overlay",
	doc: `
Makes the machine code of the model's kernels for a chip, which need not be in this machine, and writes it with the
graph and its weights into one file. fusec run and fusec bench take that file in place of a model; where they run it,
the GPU's driver is all that is needed. Compiling needs NVIDIA's run-time compiler: fusec doctor tells whether it is
there, and make cuda-tools fetches it.

With --target fpga the model is compiled for an overlay instead: the file then holds the ranges of its values, found on the
samples that --calibrate gives, and the overlay's descriptors to be read.`,
	examples: []example{
		{"fusec compile model.graph --arch sm_90a -o model.fuse", "for an H100 or H200"},
		{"fusec run model.fuse --in x=x.npy", "run it there"},
		{"fusec compile model.graph --target fpga --overlay ecp5 --calibrate samples.npz", "for an overlay"},
	},
	setup: func(f *flagSet) action {
		c := &aheadCompiler{}
		c.compile.declare(f)
		c.values.declare(f)
		f.StringVar(&c.out, "o", "", "write `FILE` (default: the model's name with the extension .fuse)")
		return c.run
	},
}

// aheadCompiler is fusec compile with its flags.
type aheadCompiler struct {
	compile compileFlags
	values  valueFlags
	out     string
}

func (c *aheadCompiler) run(e *env, args []string) error {
	path, err := modelArgument(args)
	if err != nil {
		return err
	}
	g, vals, err := c.values.load(e, path, false)
	if err != nil {
		return err
	}
	out := c.out
	if out == "" {
		out = modelName(path) + aheadExt
	}
	if filepath.Ext(out) != aheadExt {
		return usage("-o %s: a compiled model is named like model%s", out, aheadExt)
	}
	if len(vals.weights) == 0 {
		vals.weights = nil
	}
	if c.compile.target == overlayTarget {
		samples, err := c.compile.overlay.samples(g)
		if err != nil {
			return err
		}
		if samples == nil {
			return usage("fusec compile --target fpga wants --calibrate FILE: the values' ranges are part of the file")
		}
		if err := fusec.CompileAhead(out, g, vals.weights, nil, c.compile.options(fpga.Samples(samples...))...); err != nil {
			return err
		}
		_, err = fmt.Fprintf(e.out, "%s: %s for the overlay %s\n", out, modelName(path), cmp.Or(c.compile.overlay.overlay, isa.Overlays()[0]))
		return err
	}
	c.compile.target = "cuda"
	if err := c.compile.check(); err != nil {
		return err
	}
	show := newProgress(e.stderr)
	defer show.done()
	err = fusec.CompileAhead(out, g, vals.weights, func(done, all int) {
		show.show("compiled %d of %s", done, plural(all, "kernel", "kernels"))
	}, c.compile.options()...)
	if err != nil {
		return err
	}
	show.done()
	_, err = fmt.Fprintf(e.out, "%s: %s for %s\n", out, modelName(path), c.compile.arch)
	return err
}
