package inner

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestRegistersAVX2 checks that functions for AVX2 name none of the registers that only AVX-512 has, which the generator takes
// where sixteen are too few. A processor with AVX-512 runs such a function.
func TestRegistersAVX2(t *testing.T) {
	files, err := filepath.Glob("../../*/kernel_amd64.s")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	further := regexp.MustCompile(`\b(Z\d+|K\d|[XY](1[6-9]|2\d|3[01]))\b`)
	checked := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, function := range strings.Split(string(text), "\nTEXT ")[1:] {
			name, body, _ := strings.Cut(function, "(")
			if !strings.Contains(name, "AVX2") {
				continue
			}
			checked++
			if found := further.FindString(body); found != "" {
				t.Errorf("%s: %s has register %s", file, name, found)
			}
		}
	}
	if checked < 50 {
		t.Errorf("only %d functions are for AVX2", checked)
	}
}
