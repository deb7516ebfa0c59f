// Package sim builds cycle-exact simulators of an overlay out of its hardware (package rtl) with Verilator: a program
// that a link talks to over a pipe, the same as a shared library, and a board with a serial line on a pseudo-terminal.
// What they speak is in PROTOCOL.md. A simulator is built once for each configuration and kept in the user's cache
// folder with a checksum; one that is damaged is built again.
package sim

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"fusec/fpga/isa"
	"fusec/fpga/rtl"
)

//go:embed src
var harness embed.FS

// Options say how a simulator is built. The zero value is the fast one out of package rtl.
type Options struct {
	// Log gets a line for each step of a build, and none if the simulator is there already.
	Log func(line string)
	// Cache is the folder that keeps simulators; "": fusec/fpga in the user's cache folder.
	Cache string
	// Sources is other hardware than package rtl's: every file *.sv and *.v in it, with the same tops, and what they
	// include, *.svh.
	Sources fs.FS
	// Check makes a simulator for tests: registers without reset start with random bits, by the seed that is passed to
	// the program.
	Check bool
	// Defines are further macros for the hardware, NAME or NAME=VALUE.
	Defines []string
	// Divisor is how many clocks a bit of the board's serial line takes; 0: 4.
	Divisor int
}

// Built are the files of a simulator.
type Built struct {
	Program string // speaks frames over its standard input and output
	Library string // has the C interface of overlay.h
}

// Build gives the simulator of a configuration. It takes some ten seconds the first time, and uses the cache after
// that. Processes and goroutines may build at the same time. The error names a missing tool, or is the first error of a
// tool.
func Build(ctx context.Context, c isa.Config, o Options) (Built, error) {
	dir, err := build(ctx, c, o, target{top: "fx_overlay", harness: []string{"overlay.cpp", "main.cpp"},
		program: "simulator", library: "liboverlay.so"})
	if err != nil {
		return Built{}, err
	}
	return Built{Program: filepath.Join(dir, "simulator"), Library: filepath.Join(dir, "liboverlay.so")}, nil
}

// BuildBoard gives the program that plays a board's serial line bit by bit on a pseudo-terminal. It prints the
// terminal's path as a line on standard output, and ends with its standard input.
func BuildBoard(ctx context.Context, c isa.Config, o Options) (string, error) {
	o.Divisor = cmp.Or(o.Divisor, 4)
	// A simulated clock is slow: a frame that stops is noticed after 2^16 cycles, some tenths of a second.
	o.Defines = append(slices.Clone(o.Defines), fmt.Sprint("FX_DIVISOR=", o.Divisor), "FX_TIMEOUT=16")
	dir, err := build(ctx, c, o, target{top: "fx_board_uart", harness: []string{"board.cpp"}, program: "board",
		flags: []string{fmt.Sprint("-DFX_DIVISOR=", o.Divisor)}})
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "board"), nil
}

// Bench is a program of a test's own around a module.
type Bench struct {
	Top       string   // the module
	Main      []byte   // C++ with main, which includes VTOP.h
	Verilator []string // further options of Verilator
	Compiler  []string // further options of the compiler
}

// BuildBench gives the program of a bench, of the configuration's header and of package rtl or Options.Sources.
func BuildBench(ctx context.Context, c isa.Config, o Options, b Bench) (string, error) {
	dir, err := build(ctx, c, o, target{top: b.Top, main: b.Main, harness: []string{"bench.cpp"}, program: "bench",
		verilator: b.Verilator, flags: b.Compiler})
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "bench"), nil
}

// target is what is built: the hardware's top, and the C++ files around it.
type target struct {
	top       string
	harness   []string
	main      []byte // the text of bench.cpp
	program   string
	library   string // "": none
	verilator []string
	flags     []string
}

// tools are the programs that a build runs, with what they call themselves.
type tools struct {
	verilator, compiler, include, version string
}

// findTools looks for the tools once.
var findTools = sync.OnceValues(func() (t tools, err error) {
	find := func(names ...string) string {
		for _, n := range names {
			if p, e := exec.LookPath(n); e == nil {
				return p
			}
		}
		err = errors.Join(err, fmt.Errorf("it is built with %s, which was not found: install it, "+
			"e.g. apt-get install %s", names[0], names[0]))
		return ""
	}
	t.verilator = find("verilator")
	if cxx := os.Getenv("CXX"); cxx != "" {
		t.compiler = find(cxx)
	} else {
		t.compiler = find("g++", "clang++")
	}
	if err != nil {
		return t, err
	}
	for _, p := range []string{t.verilator, t.compiler} {
		said, err := exec.Command(p, "--version").Output()
		if err != nil {
			return t, fmt.Errorf("%s --version: %w", p, err)
		}
		line, _, _ := bytes.Cut(said, []byte("\n"))
		t.version += string(line) + "\n"
	}
	root, err := exec.Command(t.verilator, "--getenv", "VERILATOR_ROOT").Output()
	if err != nil {
		return t, fmt.Errorf("%s --getenv VERILATOR_ROOT: %w", t.verilator, err)
	}
	t.include = filepath.Join(strings.TrimSpace(string(root)), "include")
	return t, nil
})

// Flags of the compiler: for code that runs in every cycle, and for code that runs once. The definitions are those of
// Verilator's own makefile for a model without traces and coverage.
var (
	common = []string{"-std=c++17", "-fPIC", "-fcf-protection=none", "-DVERILATOR=1", "-DVM_COVERAGE=0",
		"-DVM_SC=0", "-DVM_TRACE=0",
		"-DVM_TRACE_FST=0", "-DVM_TRACE_VCD=0", "-w"}
	hot  = "-O2"
	warm = "-O1" // every cycle, in a simulator for tests
	cold = "-O0"
)

// private makes a folder, if it is not there, that nobody else reads or writes, and takes the right to write to one that is
// there from all others: what lies in it is run.
func private(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if p := info.Mode().Perm(); p&0o022 != 0 {
		return os.Chmod(dir, p&^0o022)
	}
	return nil
}

// build returns the folder with a target's files, from the cache or newly made.
func build(ctx context.Context, c isa.Config, o Options, t target) (dir string, err error) {
	if err := c.Check(); err != nil {
		return "", err
	}
	fail := func(err error) (string, error) { return "", fmt.Errorf("simulator of overlay %q: %w", c.Name, err) }
	tool, err := findTools()
	if err != nil {
		return fail(err)
	}
	if o.Cache == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return fail(fmt.Errorf("no folder to keep it in: %w", err))
		}
		o.Cache = filepath.Join(cache, "fusec", "fpga")
	}
	if err := private(o.Cache); err != nil {
		return fail(err)
	}
	if o.Log == nil {
		o.Log = func(string) {}
	}
	b := builder{tools: tool, log: o.Log}
	if b.files, err = sources(o.Sources); err != nil {
		return fail(err)
	}
	b.files["fx_config.svh"] = []byte(header(c))
	src, err := fs.Sub(harness, "src")
	if err != nil {
		return fail(err)
	}
	if b.harness, err = readAll(src); err != nil {
		return fail(err)
	}
	if t.main != nil {
		b.harness = map[string][]byte{"bench.cpp": t.main}
	}
	initial := "fast"
	b.level = hot
	if o.Check {
		initial, b.level = "unique", warm
	}
	b.verilate = []string{"--cc", "-O3", "--x-assign", "fast", "--x-initial", initial, "--no-timing",
		"--noassert", "-Wno-fatal",
		"-Wno-lint", "-Wno-style", "--output-split", "20000", "--top-module", t.top, "--prefix", "V" + t.top}
	for _, d := range o.Defines {
		b.verilate = append(b.verilate, "+define+"+d)
	}
	b.verilate = append(b.verilate, t.verilator...)
	b.defines = append([]string{fmt.Sprint("-DFX_WORD_BYTES=", c.WordBytes),
		fmt.Sprint("-DFX_ADDR_BITS=", c.AddrBits)}, t.flags...)

	dir = filepath.Join(o.Cache, b.key(t))
	if err := b.cached(ctx, dir, func() error { return b.make(ctx, o.Cache, dir, t) }); err != nil {
		return fail(err)
	}
	return dir, nil
}

// cached makes the folder dir of the cache if it is missing or was changed after it was sealed.
func (b *builder) cached(ctx context.Context, dir string, make func() error) error {
	if !intact(dir) {
		unlock, err := lock(ctx, dir+".lock")
		if err != nil {
			return err
		}
		defer unlock()
		if !intact(dir) { // no other process made it meanwhile
			if exists(dir) {
				b.log(filepath.Base(dir) + " is not as it was built: it is built again")
				if err := os.RemoveAll(dir); err != nil {
					return err
				}
			}
			if err := make(); err != nil {
				return err
			}
		}
	}
	now := time.Now()
	_ = os.Chtimes(dir, now, now) // when it was last used
	return nil
}

// sealName is the file of a folder in the cache that holds the checksum of the others.
const sealName = "sha256"

// seal writes the checksum of the files in dir to dir.
func seal(dir string) error {
	sum, err := checksum(dir)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, sealName), []byte(sum), 0o666)
}

// intact is whether the files in dir are those that were sealed.
func intact(dir string) bool {
	want, err := os.ReadFile(filepath.Join(dir, sealName))
	if err != nil {
		return false
	}
	sum, err := checksum(dir)
	return err == nil && sum == string(want)
}

// checksum is a hash of the names, permissions and contents of all files in dir but the seal.
func checksum(dir string) (string, error) {
	sum := sha256.New()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() == sealName {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			return err
		}
		fmt.Fprintf(sum, "%q %v %d\n", strings.TrimPrefix(path, dir), info.Mode(), info.Size())
		_, err = io.Copy(sum, f)
		return err
	})
	return hex.EncodeToString(sum.Sum(nil)), err
}

// header is a configuration's header without its name, so that those that differ by it alone share a simulator.
func header(c isa.Config) string {
	c.Name = ""
	return c.Header()
}

// exists is whether there is something at path.
func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// readAll reads the files of a folder.
func readAll(folder fs.FS) (map[string][]byte, error) {
	files := map[string][]byte{}
	list, err := fs.ReadDir(folder, ".")
	if err != nil {
		return nil, err
	}
	for _, f := range list {
		if f.IsDir() {
			continue
		}
		if files[f.Name()], err = fs.ReadFile(folder, f.Name()); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// sources are the hardware's files.
func sources(from fs.FS) (map[string][]byte, error) {
	if from == nil {
		from = rtl.Files
	}
	files, err := readAll(from)
	for name := range files {
		if !isVerilog(name) && !strings.HasSuffix(name, ".svh") {
			delete(files, name)
		}
	}
	return files, err
}

// isVerilog reports by the name whether a file is a source and not an include file.
func isVerilog(name string) bool {
	return strings.HasSuffix(name, ".sv") || strings.HasSuffix(name, ".v")
}

// builder is one build.
type builder struct {
	tools
	log               func(string)
	files, harness    map[string][]byte
	verilate, defines []string
	level             string // of optimisation
}

// key is the name of what is built: a hash of everything that goes into it.
func (b *builder) key(t target) string {
	sum := sha256.New()
	fmt.Fprintf(sum, "%s\n%q\n%q\n%q\n%q\n%d\n%v\n", b.version, b.verilate, b.defines, common, b.level+cold,
		jointly, t)
	for _, m := range []map[string][]byte{b.files, b.harness} {
		for _, name := range sorted(m) {
			fmt.Fprintf(sum, "%s %d\n%s", name, len(m[name]), m[name])
		}
	}
	return t.program + "-" + hex.EncodeToString(sum.Sum(nil))[:24]
}

// sorted are the names of files in order.
func sorted(files map[string][]byte) []string {
	var names []string
	for n := range files {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// make builds in a temporary folder, which is renamed to dir when it is complete.
func (b *builder) make(ctx context.Context, cache, dir string, t target) (err error) {
	began := time.Now()
	objects, err := b.runtime(ctx, cache)
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp(cache, "building-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	obj := filepath.Join(work, "obj")
	if err := os.Mkdir(obj, 0o777); err != nil {
		return err
	}
	var verilog []string
	for _, m := range []map[string][]byte{b.files, b.harness} {
		for name, text := range m {
			if err := os.WriteFile(filepath.Join(obj, name), text, 0o666); err != nil {
				return err
			}
		}
	}
	for _, name := range sorted(b.files) {
		if isVerilog(name) {
			verilog = append(verilog, name)
		}
	}
	b.log("verilator: " + t.top)
	if err := run(ctx, obj, b.verilator,
		append(append(slices.Clone(b.verilate), "--Mdir", ".", "-I."), verilog...)...); err != nil {
		return err
	}
	units, err := b.generated(obj)
	if err != nil {
		return err
	}
	for _, h := range t.harness {
		units = append(units, unit{h, b.level})
	}
	b.log(fmt.Sprintf("%s: %d files", filepath.Base(b.compiler), len(units)))
	flags, err := b.headers(ctx, cache)
	if err != nil {
		return err
	}
	made, err := b.compile(ctx, obj, units, flags...)
	if err != nil {
		return err
	}
	objects = append(objects, made...)
	out := filepath.Join(work, "out")
	if err := os.Mkdir(out, 0o777); err != nil {
		return err
	}
	if err := run(ctx, obj, b.compiler, append([]string{"-o", filepath.Join(out, t.program)},
		append(objects, "-lpthread")...)...); err != nil {
		return err
	}
	if t.library != "" {
		library := slices.DeleteFunc(slices.Clone(objects),
			func(s string) bool { return filepath.Base(s) == "main.cpp.o" })
		if err := run(ctx, obj, b.compiler,
			append([]string{"-shared", "-o", filepath.Join(out, t.library)},
				append(library, "-lpthread")...)...); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(out, "overlay.h"), b.harness["overlay.h"], 0o666); err != nil {
			return err
		}
	}
	if err := seal(out); err != nil {
		return err
	}
	if err := os.Rename(out, dir); err != nil && !intact(dir) {
		return err
	}
	b.log(fmt.Sprintf("%s: built in %.1f s", t.program, time.Since(began).Seconds()))
	return nil
}

// unit is a C++ file and how it is optimised.
type unit struct{ file, level string }

// made is the name of what the compiler makes of it. It looks for what it has read of a header by that name.
func (u unit) made() string {
	name := filepath.Base(u.file)
	if filepath.Ext(name) == ".h" {
		return filepath.Join(name+".gch", strings.TrimPrefix(u.level, "-"))
	}
	return name + ".o"
}

// jointly is how many bytes of Verilator's output are compiled together. Most files are short, and reading the headers
// takes 0.6 s for each, as long as compiling 200 kB at -O1.
const jointly = 5 << 18

// generated are the units of what Verilator wrote into a folder: files of one level, put together up to a size.
func (b *builder) generated(dir string) (units []unit, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "V*.cpp"))
	if err != nil {
		return nil, err
	}
	var texts []string // of the units
	var sizes []int64
	for _, f := range files {
		info, err := os.Stat(f)
		if err != nil {
			return nil, err
		}
		name, level := filepath.Base(f), b.level
		if strings.Contains(name, "__Slow") || strings.Contains(name, "__Syms") {
			level = cold
		}
		i := 0
		for i < len(units) && (units[i].level != level || sizes[i]+info.Size() > jointly) {
			i++
		}
		if i == len(units) {
			units = append(units, unit{fmt.Sprintf("joint%d.cpp", i), level})
			texts, sizes = append(texts, ""), append(sizes, 0)
		}
		texts[i] += fmt.Sprintf("#include %q\n", name)
		sizes[i] += info.Size()
	}
	for i, u := range units {
		if err := os.WriteFile(filepath.Join(dir, u.file), []byte(texts[i]), 0o666); err != nil {
			return nil, err
		}
	}
	return units, nil
}

// compile makes object files in dir, as many at a time as there are processors.
func (b *builder) compile(ctx context.Context, dir string, units []unit, flags ...string) ([]string, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	objects := make([]string, len(units))
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	var wait sync.WaitGroup
	for i, u := range units {
		wait.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			objects[i] = filepath.Join(dir, u.made())
			if err := os.MkdirAll(filepath.Dir(objects[i]), 0o777); err != nil {
				cancel(err)
			}
			args := slices.Concat(common, b.defines, flags, []string{u.level, "-I.", "-I" + b.include,
				"-I" + filepath.Join(b.include, "vltstd"), "-c", u.file, "-o", objects[i]})
			if err := run(ctx, dir, b.compiler, args...); err != nil {
				cancel(err)
			}
		})
	}
	wait.Wait()
	return objects, context.Cause(ctx)
}

// runtime gives the object files of Verilator's own library, which all simulators share.
func (b *builder) runtime(ctx context.Context, cache string) (objects []string, err error) {
	var units []unit
	for _, f := range []string{"verilated.cpp", "verilated_threads.cpp"} {
		units = append(units, unit{filepath.Join(b.include, f), hot})
	}
	dir, err := b.shared(ctx, cache, "runtime", units)
	for _, u := range units {
		objects = append(objects, filepath.Join(dir, u.made()))
	}
	return objects, err
}

// headers returns the flags with which g++ uses a precompiled Verilator header, which saves a second for each unit. The
// precompiled header is large, and worthwhile only for many simulators, those of tests.
func (b *builder) headers(ctx context.Context, cache string) ([]string, error) {
	if b.level != warm || strings.Contains(filepath.Base(b.compiler), "clang") {
		return nil, nil
	}
	h := filepath.Join(b.include, "verilated.h")
	dir, err := b.shared(ctx, cache, "headers", []unit{{h, warm}, {h, cold}})
	return []string{"-include", filepath.Join(dir, "verilated.h")}, err
}

// shared gives the folder with what is compiled once for many simulators.
func (b *builder) shared(ctx context.Context, cache, name string, units []unit) (dir string, err error) {
	sum := sha256.Sum256([]byte(fmt.Sprint(b.version, common, units)))
	dir = filepath.Join(cache, name+"-"+hex.EncodeToString(sum[:12]))
	return dir, b.cached(ctx, dir, func() error {
		b.log(fmt.Sprintf("%s: Verilator's library, %s", filepath.Base(b.compiler), name))
		work, err := os.MkdirTemp(cache, "building-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(work)
		plain := builder{tools: b.tools}
		if _, err := plain.compile(ctx, work, units); err != nil {
			return err
		}
		if err := seal(work); err != nil {
			return err
		}
		if err := os.Rename(work, dir); err != nil && !intact(dir) {
			return err
		}
		return nil
	})
}

// run runs a tool in a folder. The error has the first line that tells of one, else the last line.
func run(ctx context.Context, dir, tool string, args ...string) error {
	c := exec.CommandContext(ctx, tool, args...)
	c.Dir = dir
	c.WaitDelay = time.Second
	said, err := c.CombinedOutput()
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	lines := strings.Split(strings.TrimSpace(string(said)), "\n")
	first := lines[len(lines)-1]
	if i := slices.IndexFunc(lines, func(l string) bool {
		return strings.HasPrefix(l, "%Error") || strings.Contains(l, "error:") ||
			strings.Contains(l, "undefined reference")
	}); i >= 0 {
		first = lines[i]
	}
	return fmt.Errorf("%s: %w: %s", filepath.Base(tool), err, first)
}
