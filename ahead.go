package fusec

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"fusec/fpga/isa"
	"fusec/graph"
	"fusec/graph/atomicfile"
	kernels "fusec/kernels/cuda"
	"fusec/lowering/cuda"
	"fusec/lowering/cuda/driver"
	"fusec/lowering/cuda/driver/nvrtc"
	"fusec/lowering/fpga"
)

// The parts of a file that CompileAhead writes: a zip archive.
const (
	aheadSchema  = "fusec.fuse/1"
	aheadHeader  = "fuse.json"
	aheadGraph   = "model.graph"
	aheadWeights = "model.safetensors"
	aheadImages  = "images/"     // one for each kernel, by its key
	aheadProgram = "program.txt" // an overlay's descriptors, for people
)

// aheadInfo is the header of such a file.
type aheadInfo struct {
	Schema  string       `json:"schema"`
	Chip    kernels.Chip `json:"chip"`
	Kernels int          `json:"kernels"`

	Overlay *isa.Config  `json:"overlay,omitempty"` // that the model was compiled for, in place of a chip
	Ranges  []fpga.Range `json:"ranges,omitempty"`  // of its values
}

// Ahead is a model that was compiled ahead of time for a chip: the graph, its weights, and the machine code of its
// kernels. [Compile] with [WithAhead] runs it with the GPU's driver alone.
type Ahead struct {
	Graph   *graph.Graph
	Weights map[string]*graph.Tensor // by parameter and state; nil if the file holds none
	Chip    string                   // what it was compiled for, such as "sm_90a" or "the overlay sim8"

	chip   kernels.Chip
	images map[string][]byte

	overlay *isa.Config
	ranges  []fpga.Range
}

// CompileAhead compiles a graph for a CUDA chip, such as "sm_90a", which need not be there, and writes what a program
// needs to run on one: the graph, its weights (nil leaves them out) and its kernels. The options are those of [Compile].
// Progress, if not nil, is told how many kernels are done.
func CompileAhead(path string, g *graph.Graph, weights map[string]*graph.Tensor, arch string, progress func(done, all int),
	opts ...Option) error {
	chip, err := kernels.ChipNamed(arch)
	if err != nil {
		return err
	}
	cfg, _, err := newConfig(opts)
	if err != nil {
		return err
	}
	compiler, err := cfg.compilerAhead()
	if err != nil {
		return err
	}
	sources, err := sourcesFor(g, chip, opts)
	if err != nil {
		return err
	}
	images, err := compileImages(sources, compiler, chip, progress)
	if err != nil {
		return err
	}
	info := aheadInfo{Schema: aheadSchema, Chip: chip, Kernels: len(images)}
	return atomicfile.Write(path, func(w io.Writer) error { return writeAhead(w, g, weights, info, images, "") })
}

// CompileOverlay compiles a graph for an overlay, which need not be there, and writes what a program needs to run on one:
// the graph, its weights, the ranges of its values, which are found on the samples of [WithCalibration], and its descriptors
// to be read.
func CompileOverlay(path string, g *graph.Graph, weights map[string]*graph.Tensor, opts ...Option) error {
	opts = append(slices.Clip(opts), WithTarget("fpga"))
	cfg, _, err := newConfig(opts)
	if err != nil {
		return err
	}
	if len(cfg.samples) == 0 {
		return errors.New("a program for an overlay is compiled with samples of its inputs, on which it is calibrated")
	}
	_, program, err := Plan(g, opts...)
	if err != nil {
		return err
	}
	d, err := cfg.fpgaDevice(false)
	if err != nil {
		return err
	}
	ranges, err := d.Calibrate(program, weights)
	if err != nil {
		return err
	}
	list, err := d.Plan(program)
	if err != nil {
		return err
	}
	info := aheadInfo{Schema: aheadSchema, Overlay: &list.Overlay, Ranges: ranges}
	return atomicfile.Write(path, func(w io.Writer) error { return writeAhead(w, g, weights, info, nil, list.String()) })
}

// compilerAhead is the compiler, without a GPU that it would be for.
func (c *config) compilerAhead() (driver.Compiler, error) {
	if c.open == nil {
		return cudaCompiler()
	}
	g, compiler, err := c.open(0)
	if err != nil {
		return nil, err
	}
	return compiler, g.Close()
}

// sourcesFor lists what has to be compiled for a graph.
func sourcesFor(g *graph.Graph, chip kernels.Chip, opts []Option) ([]cuda.Source, error) {
	cfg, _, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	if err := check(g, cfg.gradients); err != nil {
		return nil, err
	}
	cfg.frozen = true
	if chip.Arch != 0 {
		cfg.chip = chip
	}
	steps, err := cfg.stepsOf(g)
	if err != nil {
		return nil, err
	}
	device, err := cfg.cudaDevice(0, false)
	if err != nil {
		return nil, err
	}
	_, program, err := (&request{g, cfg, cfg.gradients, steps}).plan(device)
	if err != nil {
		return nil, err
	}
	return device.Sources(program), nil
}

// CUDASources lists the CUDA C++ of a graph's kernels, each text once, in the order of the launches. Neither a GPU nor a
// compiler is needed.
func CUDASources(g *graph.Graph, opts ...Option) ([]cuda.Source, error) {
	return sourcesFor(g, kernels.Chip{}, opts)
}

// PTX compiles one of them to the assembly of the virtual machine, for a chip such as "sm_90a".
func PTX(source cuda.Source, arch string) (string, error) {
	chip, err := kernels.ChipNamed(arch)
	if err != nil {
		return "", err
	}
	c, err := nvrtc.Open()
	if err != nil {
		return "", err
	}
	ptx, _, err := c.PTX(source.Text, chip)
	return ptx, err
}

// compileImages makes the machine code of each source, several at a time.
func compileImages(sources []cuda.Source, compiler driver.Compiler, chip kernels.Chip, progress func(done, all int)) (map[string][]byte, error) {
	images := map[string][]byte{}
	var mu sync.Mutex
	var wait sync.WaitGroup
	var errs []error
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	for _, s := range sources {
		wait.Add(1)
		slots <- struct{}{}
		go func() {
			defer wait.Done()
			image, _, err := compiler.Compile(s.Text, chip)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", s.Where, err))
			}
			images[kernels.Key(s.Text)] = image
			if progress != nil {
				progress(len(images), len(sources))
			}
			<-slots
		}()
	}
	wait.Wait()
	return images, errors.Join(errs...)
}

func writeAhead(w io.Writer, g *graph.Graph, weights map[string]*graph.Tensor, info aheadInfo, images map[string][]byte, program string) error {
	dir, err := os.MkdirTemp("", "fuse")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := graph.Save(filepath.Join(dir, aheadGraph), g, weights); err != nil {
		return err
	}
	z := zip.NewWriter(w)
	put := func(name string, from io.Reader) error {
		to, err := z.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Store})
		if err == nil {
			_, err = io.Copy(to, from)
		}
		return err
	}
	header, err := json.MarshalIndent(info, "", "  ")
	if err != nil {
		return err
	}
	if err := put(aheadHeader, bytes.NewReader(header)); err != nil {
		return err
	}
	for _, name := range []string{aheadGraph, aheadWeights} {
		f, err := os.Open(filepath.Join(dir, name))
		if errors.Is(err, os.ErrNotExist) {
			continue // a graph without weights
		}
		if err != nil {
			return err
		}
		err = put(name, f)
		f.Close()
		if err != nil {
			return err
		}
	}
	for _, key := range slices.Sorted(maps.Keys(images)) {
		if err := put(aheadImages+key, bytes.NewReader(images[key])); err != nil {
			return err
		}
	}
	if program != "" {
		if err := put(aheadProgram, strings.NewReader(program)); err != nil {
			return err
		}
	}
	return z.Close()
}

// OpenAhead reads a file that [CompileAhead] wrote.
func OpenAhead(path string) (*Ahead, error) {
	a, err := openAhead(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return a, nil
}

func openAhead(path string) (*Ahead, error) {
	z, err := zip.OpenReader(path)
	if err != nil {
		return nil, fmt.Errorf("not a compiled model: %w", err)
	}
	defer z.Close()
	dir, err := os.MkdirTemp("", "fuse")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	a := &Ahead{images: map[string][]byte{}}
	var info aheadInfo
	if err := unpacks(path, z.File); err != nil {
		return nil, err
	}
	for _, f := range z.File {
		if err := a.readPart(f, dir, &info); err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	switch {
	case info.Schema != aheadSchema:
		return nil, fmt.Errorf("its schema is %q, not %q", info.Schema, aheadSchema)
	case len(a.images) != info.Kernels:
		return nil, fmt.Errorf("it holds %d kernels of %d", len(a.images), info.Kernels)
	}
	if a.overlay, a.ranges = info.Overlay, info.Ranges; a.overlay != nil {
		if err := a.overlay.Check(); err != nil {
			return nil, err
		}
		a.Chip = "the overlay " + a.overlay.Name
	} else {
		a.chip, a.Chip = info.Chip, info.Chip.Target()
	}
	file := filepath.Join(dir, aheadGraph)
	g, w, err := graph.Load(file)
	if missing := (*graph.MissingWeightsError)(nil); errors.As(err, &missing) {
		a.Graph, err = graph.LoadGraph(file)
		return a, err
	}
	if err != nil {
		return nil, err
	}
	a.Graph, a.Weights = g, w.Tensors
	return a, nil
}

// unpacks refuses an archive whose parts have more bytes than the file: [CompileAhead] compresses none, and a small file
// could otherwise fill the memory.
func unpacks(path string, parts []*zip.File) error {
	file, err := os.Stat(path)
	if err != nil {
		return err
	}
	left := uint64(file.Size())
	for _, f := range parts {
		if f.UncompressedSize64 > left {
			return fmt.Errorf("its parts have more bytes than the file, which has %d; they are not compressed in a compiled model",
				file.Size())
		}
		left -= f.UncompressedSize64
	}
	return nil
}

// readPart takes over one part of the archive; the graph and its weights go to files in dir.
func (a *Ahead) readPart(f *zip.File, dir string, info *aheadInfo) error {
	part, err := f.Open()
	if err != nil {
		return err
	}
	defer part.Close()
	r := io.LimitReader(part, int64(f.UncompressedSize64)) // whatever the archive really holds
	switch {
	case f.Name == aheadGraph || f.Name == aheadWeights:
		to, err := os.Create(filepath.Join(dir, f.Name))
		if err != nil {
			return err
		}
		_, err = io.Copy(to, r)
		return errors.Join(err, to.Close())
	case f.Name == aheadProgram:
		return nil
	}
	data, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	if f.Name == aheadHeader {
		return json.Unmarshal(data, info)
	}
	if key, ok := strings.CutPrefix(f.Name, aheadImages); ok {
		a.images[key] = data
		return nil
	}
	return errors.New("an unknown part")
}

// WithAhead has [Compile] take the kernels that were compiled ahead of time, for the graph that stands beside them.
func WithAhead(a *Ahead) Option {
	return own(func(c *config) {
		c.ahead = a
		if a.overlay != nil {
			c.target, c.overlay, c.ranges = "fpga", *a.overlay, a.ranges
			return
		}
		c.chip = a.chip
		if c.target == "cpu" {
			c.target = "cuda"
		}
	})
}

// Target is the name of the target that it was compiled for.
func (a *Ahead) Target() string {
	if a.overlay != nil {
		return "fpga"
	}
	return "cuda"
}

// Version implements driver.Compiler.
func (a *Ahead) Version() string { return "compiled ahead of time for " + a.Chip }

// Compile implements driver.Compiler: it finds what was compiled.
func (a *Ahead) Compile(source string, chip kernels.Chip) ([]byte, string, error) {
	if image, ok := a.images[kernels.Key(source)]; ok {
		return image, "", nil
	}
	return nil, "", fmt.Errorf("the file, compiled for %s, has no such kernel: it was compiled with other options or by another "+
		"version of fusec; compile it again", a.Chip)
}
