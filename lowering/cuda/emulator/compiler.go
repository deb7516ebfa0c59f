package emulator

// Compiling kernels for the processor.

import (
	"bytes"
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
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"fusec/graph/atomicfile"
	kernels "fusec/kernels/cuda"
	"fusec/lowering/cuda/driver"
)

//go:embed src
var sources embed.FS

// Compiler makes libraries of kernels. They are stored in the user's cache folder, by the hash of their inputs.
type Compiler struct {
	command string // of the C++ compiler
	flags   []string
	version string // of the compiler and of its common inputs
	dir     string // of the libraries
	headers string // the folder of src on the disk

	mu sync.Mutex // one compilation at a time in a process

	waiting sync.Mutex
	next    []*request // for the next compilation
}

// A request is a unit that somebody waits for.
type request struct {
	unit unit
	done chan error
}

var _ interface {
	driver.Compiler
	driver.Batcher
} = (*Compiler)(nil)

// flags are the options for kernels. The calls before loads and stores are those of a race detector; the runtime
// implements them. Signed overflow and aliasing have no special meaning, as in the GPU's compiler.
var flags = []string{"-std=c++17", "-O1", "-fPIC", "-fwrapv", "-fno-strict-aliasing", "-fno-exceptions", "-fno-rtti",
	"-fvisibility=hidden", "-ffp-contract=off", "-fsanitize=thread", "-Wno-unknown-pragmas", "-DFUSEC_HOST"}

// quiet leaves out the calls at the beginning and at the end of functions, which the runtime does not need. GCC knows it since 11.
const quiet = "--param=tsan-instrument-func-entry-exit=0"

var gccVersion = regexp.MustCompile(`^\S+ \([^)]*\) (\d+)\.`)

// flagsOf are the flags for a compiler that says this of its version.
func flagsOf(said string) []string {
	if m := gccVersion.FindStringSubmatch(said); m != nil {
		if n, err := strconv.Atoi(m[1]); err == nil && n >= 11 {
			return append(slices.Clone(flags), quiet)
		}
	}
	return flags
}

// idle is how long an unused library is kept.
const idle = 14 * 24 * time.Hour

var newCompiler = sync.OnceValues(func() (*Compiler, error) {
	command, err := findCompiler()
	if err != nil {
		return nil, err
	}
	said, err := exec.Command(command, "--version").Output()
	if err != nil {
		return nil, fmt.Errorf("%s --version: %w", command, err)
	}
	c := &Compiler{command: command, flags: flagsOf(string(said))}
	sum := sha256.New()
	fmt.Fprintf(sum, "%s\n%q\n", said, c.flags)
	files, err := fs.Glob(sources, "src/*")
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		text, err := sources.ReadFile(f)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(sum, "%s %d\n%s", f, len(text), text)
	}
	line, _, _ := strings.Cut(string(said), "\n")
	key := hex.EncodeToString(sum.Sum(nil))[:16]
	c.version = fmt.Sprintf("emulator %s %s", line, key)
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	root := filepath.Join(cache, "fusec", "emulator")
	c.dir = filepath.Join(root, key)
	c.headers = filepath.Join(c.dir, "src")
	if err := os.MkdirAll(c.headers, 0o777); err != nil {
		return nil, err
	}
	for _, f := range files {
		text, _ := sources.ReadFile(f)
		if err := writeOnce(filepath.Join(c.headers, filepath.Base(f)), text); err != nil {
			return nil, err
		}
	}
	tidy(root)
	return c, nil
})

// findCompiler returns the path of a C++ compiler.
func findCompiler() (string, error) {
	names := []string{"g++", "clang++"}
	if s := os.Getenv("CXX"); s != "" {
		names = []string{s}
	}
	for _, n := range names {
		if p, err := exec.LookPath(n); err == nil {
			return p, nil
		}
	}
	return "", fmt.Errorf("no C++ compiler was found (%s): install g++, or set CXX", strings.Join(names, ", "))
}

// writeOnce writes a file whose name depends on its content, unless it exists.
func writeOnce(path string, text []byte) error {
	if had, err := os.ReadFile(path); err == nil && bytes.Equal(had, text) {
		return nil
	}
	return atomicfile.Write(path, func(w io.Writer) error { _, err := w.Write(text); return err })
}

// copyOnce copies a file to such a name, unless it exists.
func copyOnce(path, from string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return writeOnce(path, text)
}

// tidy removes libraries that were not used for a long time. Errors are ignored.
func tidy(root string) {
	versions, _ := filepath.Glob(filepath.Join(root, "*"))
	for _, v := range versions {
		files, _ := filepath.Glob(filepath.Join(v, "*.so"))
		left := len(files)
		for _, f := range files {
			if info, err := os.Stat(f); err != nil || time.Since(info.ModTime()) > idle {
				os.Remove(f)
				left--
			}
		}
		if info, err := os.Stat(v); err == nil && left == 0 && time.Since(info.ModTime()) > idle {
			os.RemoveAll(v)
		}
	}
}

// Version names the compiler, the runtime and the options.
func (c *Compiler) Version() string { return c.version }

// An image is this line, the architecture and the source. They are the key of the compiled library.
const header = "fusec emulator image\n"

func imageOf(source string, chip kernels.Chip) []byte {
	return fmt.Appendf(nil, "%s%d\n%s", header, chip.Arch, source)
}

// A unit is a source that becomes part of a library.
type unit struct {
	name   string // unique to the source and the architecture
	source string
	arch   int
}

func unitOf(image []byte) (unit, error) {
	text, ok := strings.CutPrefix(string(image), header)
	if !ok {
		return unit{}, errors.New("the image was not made by the emulator's compiler")
	}
	u := unit{}
	n, err := fmt.Sscanf(text, "%d\n", &u.arch)
	_, source, ok := strings.Cut(text, "\n")
	if n != 1 || err != nil || !ok {
		return unit{}, errors.New("the emulator's image is damaged")
	}
	u.source = source
	sum := sha256.Sum256([]byte(text))
	u.name = "unit_" + hex.EncodeToString(sum[:12])
	return u, nil
}

// Compile makes the library of a source, together with what other goroutines want to have compiled at the same time. The image
// has the source itself.
func (c *Compiler) Compile(source string, chip kernels.Chip) (image []byte, log string, err error) {
	image = imageOf(source, chip)
	u, err := unitOf(image)
	if err != nil {
		return nil, "", err
	}
	if c.has(u) {
		return image, "", nil
	}
	r := &request{u, make(chan error, 1)}
	c.waiting.Lock()
	c.next = append(c.next, r)
	first := len(c.next) == 1
	c.waiting.Unlock()
	if first { // it compiles for all
		time.Sleep(gathering)
		c.mu.Lock()
		c.waiting.Lock()
		list := c.next
		c.next = nil
		c.waiting.Unlock()
		units := make([]unit, len(list))
		for i, r := range list {
			units[i] = r.unit
		}
		errs := c.compile(units)
		c.mu.Unlock()
		for i, r := range list {
			r.done <- errs[i]
		}
	}
	if err := <-r.done; err != nil {
		return nil, "", err
	}
	return image, "", nil
}

// gathering is how long the first of several goroutines waits for the others.
const gathering = 2 * time.Millisecond

// batch is how many sources make one library: the compiler's start and the headers cost as much as several sources.
const batch = 24

// Batch implements [driver.Batcher].
func (c *Compiler) Batch() int { return batch * runtime.GOMAXPROCS(0) }

// CompileAll makes libraries of many sources with few starts of the compiler. The error is that of the first source
// that does not compile.
func (c *Compiler) CompileAll(list []string, chip kernels.Chip) (images [][]byte, err error) {
	units := make([]unit, len(list))
	for i, s := range list {
		image := imageOf(s, chip)
		images = append(images, image)
		if units[i], err = unitOf(image); err != nil {
			return nil, err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, err := range c.compile(units) {
		if err != nil {
			return nil, err
		}
	}
	return images, nil
}

// compile makes the libraries of those units that have none, several of an architecture in one, and returns the error of each
// unit.
func (c *Compiler) compile(units []unit) []error {
	errs := make([]error, len(units))
	first := map[string]int{} // by name: which of equal units is compiled
	var missing [][]int       // by architecture
	for i, u := range units {
		if _, ok := first[u.name]; ok || c.has(u) {
			continue
		}
		first[u.name] = i
		j := slices.IndexFunc(missing, func(of []int) bool { return units[of[0]].arch == u.arch })
		if j < 0 {
			j, missing = len(missing), append(missing, nil)
		}
		missing[j] = append(missing[j], i)
	}
	if len(missing) == 0 {
		return errs
	}
	if err := c.header(); err != nil {
		for i := range errs {
			errs[i] = err
		}
		return errs
	}
	workers := runtime.GOMAXPROCS(0)
	size := min(batch, (len(first)+workers-1)/workers)
	turns := make(chan bool, workers)
	var wait sync.WaitGroup
	for _, of := range missing {
		for some := range slices.Chunk(of, size) {
			wait.Go(func() {
				turns <- true
				c.buildAll(units, some, errs)
				<-turns
			})
		}
	}
	wait.Wait()
	for i, u := range units {
		if j, ok := first[u.name]; ok {
			errs[i] = errs[j]
		}
	}
	return errs
}

// buildAll builds some of the units, together or, if an error has to be assigned to its unit, each alone.
func (c *Compiler) buildAll(units []unit, some []int, errs []error) {
	list := make([]unit, len(some))
	for i, at := range some {
		list[i] = units[at]
	}
	err := c.build(list)
	switch {
	case err == nil:
	case len(some) == 1:
		errs[some[0]] = err
	default:
		for _, i := range some {
			errs[i] = c.build(units[i : i+1])
		}
	}
}

// path is the path of a unit's library.
func (c *Compiler) path(u unit) string { return filepath.Join(c.dir, u.name+".so") }

func (c *Compiler) has(u unit) bool {
	now := time.Now()
	return os.Chtimes(c.path(u), now, now) == nil
}

// wrapping is the text around a unit's source. The linker names the ends of sections.
const wrapping = `#define FUSEC_UNIT "%[1]s"
#define FUSEC_FIXED __start_%[1]s, __stop_%[1]s
extern "C" __attribute__((weak, visibility("hidden"))) unsigned char __start_%[1]s[], __stop_%[1]s[];
namespace %[1]s {
#include "%[1]s.cu"
}
#undef FUSEC_UNIT
#undef FUSEC_FIXED
`

// parts are what a unit's source has in common with others and what it has alone, which is all if it is compiled alone, or if the
// common part has shared memory, which belongs to one unit.
func parts(u unit, units int) (common, own string) {
	if common, own = kernels.Parts(u.source); units == 1 || strings.Contains(common, "\n  __shared__ ") {
		return "", u.source
	}
	return common, own
}

func commonName(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "common_" + hex.EncodeToString(sum[:12])
}

// batchText is the source of a library of units. Those with a common part stand in its namespace: it is read once. A unit that
// cannot stand there, since it specialises a template, does not compile, and is compiled alone.
func batchText(units []unit) string {
	var text strings.Builder
	fmt.Fprintf(&text, "#define __CUDA_ARCH__ %d\n", 10*units[0].arch)
	done := map[string]bool{}
	for i, u := range units {
		common, _ := parts(u, len(units))
		if done[common] {
			continue
		}
		done[common] = true
		if common != "" {
			fmt.Fprintf(&text, "namespace %[1]s {\n#include \"%[1]s.cuh\"\n", commonName(common))
		}
		for _, v := range units[i:] {
			if of, _ := parts(v, len(units)); of == common {
				fmt.Fprintf(&text, wrapping, v.name)
			}
		}
		if common != "" {
			text.WriteString("}\n")
		}
	}
	return text.String()
}

// build makes one library of units, with a link for the name of each.
func (c *Compiler) build(units []unit) error {
	dir, err := os.MkdirTemp("", "fusec-emulator-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	main := filepath.Join(dir, "batch.cpp")
	if err := os.WriteFile(main, []byte(batchText(units)), 0o666); err != nil {
		return err
	}
	for _, u := range units {
		common, own := parts(u, len(units))
		if common != "" {
			if err := writeOnce(filepath.Join(dir, commonName(common)+".cuh"), []byte(common)); err != nil {
				return err
			}
		}
		if err := os.WriteFile(filepath.Join(dir, u.name+".cu"), []byte(own), 0o666); err != nil {
			return err
		}
	}
	object, library := filepath.Join(dir, "batch.o"), filepath.Join(dir, "batch.so")
	args := []string{"-c", main, "-o", object, "-include", filepath.Join(c.headers, "host.h")}
	if err := c.run(dir, append(args, c.flags...)...); err != nil {
		return err
	}
	if err := c.run(dir, "-shared", object, "-o", library); err != nil {
		return err
	}
	first := c.path(units[0])
	if err := copyOnce(first, library); err != nil {
		return err
	}
	for _, u := range units[1:] { // renamed atomically, because other processes may be loading it
		link := filepath.Join(c.dir, fmt.Sprintf("%s.%d", u.name, os.Getpid()))
		if err := os.Link(first, link); err != nil {
			return err
		}
		if err := os.Rename(link, c.path(u)); err != nil {
			return err
		}
		os.Remove(link) // still exists if both were the same file
	}
	return nil
}

// header makes a precompiled header of host.h, which saves two thirds of the compiler's work.
func (c *Compiler) header() error {
	header := filepath.Join(c.headers, "host.h")
	if _, err := os.Stat(header + ".gch"); err == nil {
		return nil
	}
	dir, err := os.MkdirTemp("", "fusec-emulator-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	read := filepath.Join(dir, "host.h.gch")
	if err := c.run(dir, append([]string{"-x", "c++-header", header, "-o", read}, c.flags...)...); err != nil {
		return err
	}
	return copyOnce(header+".gch", read)
}

// run starts the compiler. Its messages name the folder's files without the folder.
func (c *Compiler) run(dir string, args ...string) error {
	cmd := exec.Command(c.command, args...)
	said, err := cmd.CombinedOutput()
	if err == nil {
		return nil
	}
	text := strings.ReplaceAll(string(said), dir+string(filepath.Separator), "")
	if len(text) > 8<<10 {
		text = text[:8<<10] + "…"
	}
	return fmt.Errorf("%s: %w\n%s", filepath.Base(c.command), err, text)
}

// buildRuntime makes the library that runs kernels.
func (c *Compiler) buildRuntime(path string) error {
	dir, err := os.MkdirTemp("", "fusec-emulator-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	library := filepath.Join(dir, "runtime.so")
	err = c.run(dir, "-std=c++17", "-O3", "-fPIC", "-shared", "-Wall", "-Wextra", "-ffp-contract=off",
		"-fno-exceptions", "-fno-semantic-interposition", "-fvisibility-inlines-hidden",
		filepath.Join(c.headers, "runtime.cpp"), "-o", library)
	if err != nil {
		return err
	}
	return copyOnce(path, library)
}
