package nvrtc

// Reading machine code.

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
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

var (
	// instruction is an operation of a disassembly with its operands.
	instruction = regexp.MustCompile(`/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P[0-9T]+ +)?([A-Z][A-Z0-9_.]*)([^;]*);`)
	uniform     = regexp.MustCompile(`(gdesc\[)?\bUR([0-9]+)\b`)
	// setsUniform are the operations whose first uniform register is a result.
	setsUniform = regexp.MustCompile(`^(U|R2UR|S2UR|CS2UR|LDCU|REDUX|CREDUX|VOTEU)`)
)

// Unset lists the uniform registers that instructions of an entry read and none sets. ptxas 13.0 makes such code of a copy to
// shared memory (cp.async) with a cache hint whose address is a sum: it ends in CUDA_ERROR_ILLEGAL_INSTRUCTION.
func Unset(code string) []string {
	set, read := map[int]bool{}, map[int]bool{}
	for _, m := range instruction.FindAllStringSubmatch(code, -1) {
		for i, r := range uniform.FindAllStringSubmatch(m[2], -1) {
			n, _ := strconv.Atoi(r[2])
			if r[1] != "" { // the descriptors of a product, of which the first counts for nothing if that operand is in registers
				continue
			}
			if i > 0 || !setsUniform.MatchString(m[1]) {
				read[n] = true
				continue
			}
			wide := 1
			switch {
			case strings.Contains(m[1], ".128"):
				wide = 4
			case strings.Contains(m[1], ".64"), strings.Contains(m[1], ".WIDE"):
				wide = 2
			}
			for i := range wide {
				set[n+i] = true
			}
		}
	}
	var names []string
	for n := range read {
		if !set[n] {
			names = append(names, fmt.Sprintf("UR%d", n))
		}
	}
	slices.Sort(names)
	return names
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
