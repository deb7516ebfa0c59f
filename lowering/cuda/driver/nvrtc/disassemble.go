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

// Disassemble returns the instructions of each entry of an image, by CUDA's nvdisasm. It is searched for in the folder
// bin next to the library's folder, then next to the other possible folders of a library, and in the path.
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

// entriesOf splits a disassembly into the sections of entries.
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
	libraries := search.Folders()
	if dir := filepath.Dir(c.lib.path); dir != "." {
		libraries = append([]string{dir}, libraries...)
	}
	for _, f := range libraries {
		path := filepath.Join(f, "..", "bin", name)
		if info, err := os.Stat(path); err == nil && !info.IsDir() {
			return path, nil
		}
	}
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	return "", fmt.Errorf("CUDA's %s was found neither in ../bin of %s nor in the path: install CUDA 12 or 13, or run "+
		"`make cuda-tools`", name, strings.Join(libraries, ", "))
}
