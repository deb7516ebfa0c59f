package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"fusec"
	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/modelio"
	"fusec/graph"
	"fusec/graph/atomicfile"
	"fusec/lowering/local"
)

// ceilings are what a GPU was measured to reach: what a launch is compared with.
type ceilings struct {
	Schema string  `json:"schema"` // fusec.ceilings/1
	Device string  `json:"device"`
	Copy   float64 `json:"copy_gbs"` // gigabytes per second, read and written, of a large copy
	// GEMM are teraFLOPs per second of a large matrix product in each precision.
	GEMM map[string]float64 `json:"gemm_tflops"`
}

const ceilingsSchema = "fusec.ceilings/1"

// ceilingSizes are the elements of the copy and the side of the product; tests take small ones.
var ceilingSizes = struct{ copy, side int }{1 << 26, 8192}

// ceilings are those of the device that was measured before, or measured now and kept beside the compiled kernels.
func (b *bencher) ceilings(device string) (ceilings, error) {
	folder, err := local.Folder(modelio.GPU().Name)
	if err != nil {
		return ceilings{}, err
	}
	path := filepath.Join(folder, "ceilings-"+strings.ReplaceAll(device, string(filepath.Separator), "-")+".json")
	if c, err := readCeilings(path); err == nil && c.Device == device {
		return c, nil
	}
	c := ceilings{Schema: ceilingsSchema, Device: device, GEMM: map[string]float64{}}
	list := ceilingWorks()
	for i, w := range list {
		line, err := w.measure(b.compile.Target, false)
		if err != nil {
			return c, fmt.Errorf("measuring the ceilings of %s: %s: %w", device, w.name, err)
		}
		if i == 0 {
			c.Copy = line.Rate
		} else {
			c.GEMM[w.precision.String()] = line.Rate
		}
	}
	if err := os.MkdirAll(folder, 0o777); err != nil {
		return c, err
	}
	return c, atomicfile.Write(path, func(w io.Writer) error { return cli.WriteJSON(w, c) })
}

func readCeilings(path string) (c ceilings, err error) {
	src, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(src, &c)
	}
	if err == nil && (c.Schema != ceilingsSchema || !(c.Copy > 0)) {
		err = fmt.Errorf("%s holds no ceilings", path)
	}
	return c, err
}

// ceilingWorks are a copy, with a change of sign so that it is not left out, and a product in each precision.
func ceilingWorks() []*gpuWork {
	values := graph.TypeOf(graph.F32, ceilingSizes.copy)
	side := ceilingSizes.side
	list := []*gpuWork{{
		name: "copy", work: 2 * float64(values.Bytes()), unit: gigabytes,
		build: func(b *graph.Builder) { b.Output("y", b.Unary(graph.Neg, b.Input("x", values))) },
		check: func(v *gpuValues) error {
			for _, i := range samples(ceilingSizes.copy) {
				if err := near("y", v.out["y"], i, -v.in["x"].Float(i), 0); err != nil {
					return err
				}
			}
			return nil
		},
	}}
	for _, p := range []fusec.Precision{fusec.F32, fusec.TF32, fusec.BF16} {
		list = append(list, linearWork(size{side, side, side}, p, true))
	}
	return list
}

// String lists the ceilings.
func (c ceilings) String() string {
	text := fmt.Sprintf("a copy reaches %s GB/s, a matrix product", cli.Digits(c.Copy))
	for i, p := range modelio.SortedKeys(c.GEMM) {
		if i > 0 {
			text += ","
		}
		text += fmt.Sprintf(" %s TFLOP/s in %s", cli.Digits(c.GEMM[p]), p)
	}
	return text
}
