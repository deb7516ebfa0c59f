package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"
)

// files are the rivals' programs and the pinned versions of what they need.
//
//go:embed rivals/*.py rivals/*.c rivals/*.txt
var files embed.FS

// rival is a contestant that this program knows how to install.
type rival struct {
	name, meaning string
	kit           string // what is installed for it: "openblas" or a Python environment; several rivals may share one
}

var rivals = []rival{
	{"openblas", "OpenBLAS as the system has it, from C: gemm and linear-plain", "openblas"},
	{"onnxruntime", "ONNX Runtime, CPU provider, weights constant; plain or contributed operators, the faster", "onnxruntime"},
	{"onnxruntime-varb", "ONNX Runtime with the second operand of a gemm as an input: gemm", "onnxruntime"},
	{"torch", "PyTorch, eager", "torch"},
	{"torch-compile", "PyTorch, torch.compile with and without weight freezing, the faster: not gemm", "torch"},
	{"jax", "JAX under jax.jit", "jax"},
}

const openblasHint = "apt-get install libopenblas-dev gcc"

// Places inside the folder. A stamp holds the digest of what its kit was made from and is written last.
func kitDir(dir, kit string) string    { return filepath.Join(dir, kit) }
func stampFile(dir, kit string) string { return filepath.Join(dir, kit, "peers-stamp") }
func gemmFile(dir string) string       { return filepath.Join(dir, "openblas", "gemm") }
func pythonFile(dir, kit string) string {
	return filepath.Join(dir, kit, "bin", "python")
}

// source is the embedded file that a kit is made from.
func source(kit string) []byte {
	name := "rivals/requirements-" + kit + ".txt"
	if kit == "openblas" {
		name = "rivals/openblas_gemm.c"
	}
	b, err := files.ReadFile(name)
	if err != nil {
		panic(err) // embedded; a test reads them all
	}
	return b
}

func digest(b []byte) string {
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:8])
}

// installed reports whether a kit is there and made from what is embedded now.
func installed(dir, kit string) bool {
	b, err := os.ReadFile(stampFile(dir, kit))
	return err == nil && string(bytes.TrimSpace(b)) == digest(source(kit))
}

// contestant gives the program of an installed rival.
func (r rival) contestant(o *opts) (*contestant, error) {
	own := r.kit == "torch" && o.torch != ""
	if !own && !installed(o.dir, r.kit) {
		return nil, fmt.Errorf("it is not installed (peers setup --only %s)", r.name)
	}
	if r.kit == "openblas" {
		return &contestant{name: r.name, argv: []string{gemmFile(o.dir)}, env: func(threads int) []string {
			return []string{"OPENBLAS_NUM_THREADS=" + strconv.Itoa(threads)}
		}}, nil
	}
	scripts, err := unpack(o.dir)
	if err != nil {
		return nil, err
	}
	python := pythonFile(o.dir, r.kit)
	if own {
		python = o.torch
	}
	return &contestant{
		name: r.name, argv: []string{python, filepath.Join(scripts, r.kit+"_bench.py")},
		env: func(threads int) []string {
			n := strconv.Itoa(threads)
			return []string{
				"PEER=" + r.name, "PYTHONDONTWRITEBYTECODE=1",
				"OMP_NUM_THREADS=" + n, "MKL_NUM_THREADS=" + n, "OPENBLAS_NUM_THREADS=" + n,
				// On few cores PyTorch's own epilogue doubles its time when OpenMP's threads spin.
				"OMP_WAIT_POLICY=PASSIVE",
				"TORCHINDUCTOR_CACHE_DIR=" + filepath.Join(o.dir, "inductor"),
				"CUDA_VISIBLE_DEVICES=",
			}
		},
	}, nil
}

// unpack writes the Python programs into a folder named after their content, and gives it.
func unpack(dir string) (string, error) {
	list, err := files.ReadDir("rivals")
	if err != nil {
		return "", err
	}
	var all []byte
	for _, f := range list {
		b, _ := files.ReadFile("rivals/" + f.Name())
		all = append(append(append(all, f.Name()...), 0), b...)
	}
	to := filepath.Join(dir, "programs-"+digest(all))
	if err := os.MkdirAll(to, 0o755); err != nil {
		return "", err
	}
	for _, f := range list {
		want, _ := files.ReadFile("rivals/" + f.Name())
		path := filepath.Join(to, f.Name())
		if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, want) {
			continue
		}
		if err := os.WriteFile(path, want, 0o644); err != nil {
			return "", err
		}
	}
	return to, nil
}

// setup installs the kits of the chosen rivals.
func setup(ctx context.Context, o *opts, stdout, stderr io.Writer) int {
	seen, good, bad := map[string]bool{}, 0, 0
	for _, r := range o.rivals {
		if seen[r.kit] {
			continue
		}
		seen[r.kit] = true
		if installed(o.dir, r.kit) {
			fmt.Fprintf(stdout, "%s: installed already\n", r.kit)
			good++
			continue
		}
		fmt.Fprintf(stdout, "%s: installing …\n", r.kit)
		start := time.Now()
		if err := install(ctx, o.dir, r.kit); err != nil {
			fmt.Fprintf(stderr, "peers: %s could not be installed: %v\n", r.kit, err)
			bad++
			continue
		}
		fmt.Fprintf(stdout, "%s: installed in %.0f s\n", r.kit, time.Since(start).Seconds())
		good++
	}
	switch {
	case good == 0:
		fmt.Fprintln(stderr, "peers: nothing is installed")
		return exitNothing
	case bad > 0:
		return exitFailed
	}
	return exitOK
}

// install makes a kit. It removes what an earlier try has left.
func install(ctx context.Context, dir, kit string) error {
	to := kitDir(dir, kit)
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	var err error
	if kit == "openblas" {
		err = installOpenBLAS(ctx, dir)
	} else {
		err = installPython(ctx, dir, kit)
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(to))
	}
	return os.WriteFile(stampFile(dir, kit), []byte(digest(source(kit))+"\n"), 0o644)
}

func installOpenBLAS(ctx context.Context, dir string) error {
	if _, err := exec.LookPath("cc"); err != nil {
		return fmt.Errorf("there is no C compiler: %s", openblasHint)
	}
	to := kitDir(dir, "openblas")
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	src := filepath.Join(to, "gemm.c")
	if err := os.WriteFile(src, source("openblas"), 0o644); err != nil {
		return err
	}
	// The numbers must be rounded step by step, as Go does it.
	err := tool(ctx, "cc", "-O2", "-ffp-contract=off", "-o", gemmFile(dir), src, "-lopenblas", "-lm")
	if err != nil {
		return fmt.Errorf("%w (where OpenBLAS is missing: %s)", err, openblasHint)
	}
	return nil
}

func installPython(ctx context.Context, dir, kit string) error {
	python, err := exec.LookPath("python3")
	if err != nil {
		return errors.New("there is no python3: apt-get install python3-venv")
	}
	to := kitDir(dir, kit)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := tool(ctx, python, "-m", "venv", to); err != nil {
		return fmt.Errorf("%w (Python 3.11 or later with venv is needed: apt-get install python3-venv)", err)
	}
	list := filepath.Join(to, "requirements.txt")
	if err := os.WriteFile(list, source(kit), 0o644); err != nil {
		return err
	}
	err = tool(ctx, pythonFile(dir, kit), "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check",
		"--only-binary=:all:", "-r", list)
	if err != nil {
		if kit == "torch" {
			err = fmt.Errorf("%w (Debian's python3-torch will do too: peers run --python-torch /usr/bin/python3)", err)
		}
		return err
	}
	module := map[string]string{"onnxruntime": "onnxruntime, onnx", "torch": "torch", "jax": "jax"}[kit]
	return tool(ctx, pythonFile(dir, kit), "-c", "import "+module)
}

// tool runs a program; what it said last is the error.
func tool(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w: %s", filepath.Base(name), err, lastLine(out.String()))
	}
	return nil
}
