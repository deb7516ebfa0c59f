package nvrtc

// Reading machine code.

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Disassemble gives the instructions of each entry of an image, by CUDA's nvdisasm. That is looked for in bin beside the
// library's folder, then in $CUDA_PATH/bin, /usr/local/cuda/bin and the path.
func (c *Compiler) Disassemble(image []byte) (map[string]string, error) {
	tool, err := c.tool("nvdisasm")
	if err != nil {
		return nil, err
	}
	f, err := os.CreateTemp("", "fusec-*.cubin")
	if err != nil {
		return nil, err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(image)
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	text, err := exec.Command(tool, "--print-code", f.Name()).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", tool, err, text)
	}
	return entriesOf(string(text)), nil
}

// entriesOf cuts a disassembly at the sections of entries.
func entriesOf(text string) map[string]string {
	code := map[string]string{}
	name := ""
	for _, line := range strings.SplitAfter(text, "\n") {
		if section, ok := strings.CutPrefix(strings.TrimLeft(line, "/-* \t"), ".text."); ok && strings.HasPrefix(line, "//") {
			name, _, _ = strings.Cut(section, " ")
			name = strings.TrimSpace(name)
		}
		if name != "" {
			code[name] += line
		}
	}
	return code
}

// tool finds a program of CUDA.
func (c *Compiler) tool(name string) (string, error) {
	folders := []string{"/usr/local/cuda/bin"}
	if p := os.Getenv("CUDA_PATH"); p != "" {
		folders = append([]string{filepath.Join(p, "bin")}, folders...)
	}
	if filepath.Base(c.lib.path) != c.lib.path {
		folders = append([]string{filepath.Join(filepath.Dir(c.lib.path), "..", "bin")}, folders...)
	}
	for _, f := range folders {
		path := filepath.Join(f, name)
		if info, err := os.Stat(path); err == nil && !info.IsDir() {
			return path, nil
		}
	}
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	return "", fmt.Errorf("CUDA's %s was not found in %s or in the path: install CUDA 12 or 13, or run `make cuda-tools`",
		name, strings.Join(folders, ", "))
}
