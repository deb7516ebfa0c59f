package cuda

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"fusec/graph"
	kernels "fusec/kernels/cuda"
	"fusec/lowering"
	"fusec/lowering/cuda/driver"
)

// imagesFolder has the image of each kernel, by its key.
const imagesFolder = "images/"

// aheadHeader is the header of a model that was compiled ahead of time.
type aheadHeader struct {
	Chip    kernels.Chip `json:"chip"`
	Kernels int          `json:"kernels"`
}

// CompileAhead implements [lowering.Ahead]: it compiles a program's kernels for the device's chip.
func (d *Device) CompileAhead(p *lowering.Program, _ map[string]*graph.Tensor, progress func(done, all int)) (
	header any, parts map[string][]byte, err error) {
	compiler, err := d.compilerAhead()
	if err != nil {
		return nil, nil, err
	}
	sources := d.Sources(p)
	texts := make([]string, len(sources))
	for i, s := range sources {
		texts[i] = s.Text
	}
	images, errs := compileAll(texts, compiler, d.cfg.Chip, progress)
	parts = map[string][]byte{}
	said := map[string]bool{} // what is wrong with the chip is wrong with each source
	for i, s := range sources {
		if err := errs[i]; err != nil && !said[err.Error()] {
			said[err.Error()], errs[i] = true, fmt.Errorf("%s: %w", s.Where, err)
		} else {
			errs[i] = nil
		}
		parts[imagesFolder+kernels.Key(s.Text)] = images[i]
	}
	return aheadHeader{d.cfg.Chip, len(parts)}, parts, errors.Join(errs...)
}

// compilerAhead is the compiler, without a GPU.
func (d *Device) compilerAhead() (driver.Compiler, error) {
	if d.driver == nil {
		return compilerWithCache()
	}
	g, compiler, err := d.driver(0)
	if err != nil {
		return nil, err
	}
	return compiler, g.Close()
}

// ahead is the kernels of a model that was compiled ahead of time. It implements [driver.Compiler].
type ahead struct {
	chip   kernels.Chip
	images map[string][]byte
}

func load(header json.RawMessage, parts map[string][]byte) (opts []lowering.TargetOption, what string, ok bool, err error) {
	var info aheadHeader
	if err := json.Unmarshal(header, &info); err != nil {
		return nil, "", false, err
	}
	if info.Chip.Arch == 0 {
		return nil, "", false, nil
	}
	a := &ahead{info.Chip, map[string][]byte{}}
	for name, image := range parts {
		key, ok := strings.CutPrefix(name, imagesFolder)
		if !ok {
			return nil, "", true, fmt.Errorf("%s: an unknown part", name)
		}
		a.images[key] = image
	}
	if len(a.images) != info.Kernels {
		return nil, "", true, fmt.Errorf("it holds %d kernels of %d", len(a.images), info.Kernels)
	}
	return []lowering.TargetOption{Option(func(d *Device) { d.ahead, d.cfg.Chip = a, a.chip })}, a.chip.Target(), true, nil
}

// Version implements [driver.Compiler].
func (a *ahead) Version() string { return "compiled ahead of time for " + a.chip.Target() }

// Compile implements [driver.Compiler]: it finds what was compiled.
func (a *ahead) Compile(source string, _ kernels.Chip) ([]byte, string, error) {
	if image, ok := a.images[kernels.Key(source)]; ok {
		return image, "", nil
	}
	return nil, "", fmt.Errorf("the file, compiled for %s, has no such kernel: it was compiled with other options or by another "+
		"version of fusec; compile it again", a.chip.Target())
}
