package inspect

import (
	"fmt"
	"strings"

	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/modelio"
	"fusec/lowering/cuda"
)

// cudaStage is the stage of dump that is behind the last pass: the text that the kernels are compiled from.
var cudaStage = cuda.Target.Name

// ptxFormat is the format that shows what that text compiles to.
const ptxFormat = "ptx"

// cudaText is the CUDA C++ of the kernels, or their PTX.
func (d *dumper) cudaText(e *cli.Env, path string) (string, error) {
	g, err := modelio.LoadGraph(e, path, &d.compile.Shapes)
	if err != nil {
		return "", err
	}
	d.compile.Target = cudaStage
	if err := d.compile.Check(); err != nil {
		return "", err
	}
	device, p, err := modelio.PlanFor[*cuda.Device](g, d.compile.Options()...)
	if err != nil {
		return "", err
	}
	sources := device.Sources(p)
	var b strings.Builder
	fmt.Fprintf(&b, "// %s for %s: %s, after their templates (kernels/cuda/src), which are left out here\n",
		modelio.ModelName(path), d.compile.Chip(),
		cli.Plural(len(sources), "kernel", "kernels"))
	for _, s := range sources {
		text := s.Generated
		if d.format == ptxFormat {
			if text, err = device.PTX(s); err != nil {
				return "", fmt.Errorf("%s: %w", s.Where, err)
			}
		}
		fmt.Fprintf(&b, "\n// ==== %s ====\n\n%s\n", s.Where, strings.TrimSpace(text))
	}
	return b.String(), nil
}

// dumpCUDA writes that text where it was asked for.
func (d *dumper) dumpCUDA(e *cli.Env, path string) error {
	if d.all || d.measured {
		return cli.Usage("--stage cuda is one text, made without running: --all and --measured are not for it")
	}
	if d.format != "" && d.format != ptxFormat {
		return cli.Usage("--stage cuda is text: --format %s shows what it compiles to, and no other format is for it", ptxFormat)
	}
	text, err := d.cudaText(e, path)
	if err != nil {
		return err
	}
	if d.out != "" && d.out != "-" {
		return cli.WriteFile(d.out, []byte(text))
	}
	err = e.Print(text)
	return err
}
