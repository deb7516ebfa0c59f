package inspect

import (
	"bytes"
	"fmt"

	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/modelio"
	"fusec/lowering/fpga"
)

// overlayStage is the stage of dump that is behind the last pass: the overlay's descriptors.
var overlayStage = fpga.Target.Name

// dumpOverlay writes the descriptors.
func (d *dumper) dumpOverlay(e *cli.Env, path string) error {
	if d.all || d.measured || d.format != "" {
		return cli.Usage("--stage fpga is one text, made without running: --all, --measured and --format are not for it")
	}
	g, err := d.compile.Load(e, path)
	if err != nil {
		return err
	}
	d.compile.Target = overlayStage
	device, p, err := modelio.PlanFor[*fpga.Device](g, d.compile.Options()...)
	if err != nil {
		return err
	}
	list, err := device.Plan(p)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "# %s: factors, shifts and zeros come by calibration and are 0 here\n%s", modelio.ModelName(path), list)
	if d.out != "" && d.out != "-" {
		return cli.WriteFile(d.out, b.Bytes())
	}
	_, err = e.Out.Write(b.Bytes())
	return err
}
