package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"fusec/cmd/internal/clitest"
)

// TestTutorial follows docs/tutorial.md: it writes the program, applies the changes, runs the commands and compares what
// they print. With -update it writes the page and its picture again.
func TestTutorial(t *testing.T) {
	if testing.Short() {
		t.Skip("-short leaves out this test, which builds and trains the program three times")
	}
	const path = "../../docs/tutorial.md"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	dir, bin := t.TempDir(), commandFolder(t)
	run := func(input, in, name string, args ...string) string {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Dir, cmd.Stdin = in, strings.NewReader(input)
		cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	blocks := regexp.MustCompile("(?ms)^```([a-z]+)\n(.*?)^```$")
	kinds, program := map[string]int{}, filepath.Join(dir, "main.go")
	page := blocks.ReplaceAllStringFunc(string(text), func(block string) string {
		m := blocks.FindStringSubmatch(block)
		kinds[m[1]]++
		switch m[1] {
		case "go":
			if err := os.WriteFile(program, []byte(m[2]), 0o666); err != nil {
				t.Fatal(err)
			}
		case "diff":
			run(m[2], dir, "git", "apply", "-p0", "-")
		case "console":
			var b strings.Builder
			for line := range strings.Lines(m[2]) {
				command, ok := strings.CutPrefix(line, "$ ")
				if !ok {
					continue
				}
				if strings.HasPrefix(command, "go run .") { // in the module of this test
					run("", "../..", "go", "build", "-ldflags=-s -w", "-o", filepath.Join(bin, "moons"), program)
					command = strings.Replace(command, "go run .", "moons", 1)
				}
				if strings.Contains(command, "bench") && !clitest.Update() {
					command = strings.TrimSpace(command) + " --seconds 0.02 --rounds 3"
				}
				b.WriteString(line + run("", dir, "sh", "-c", command))
			}
			if !clitest.Update() && steady(b.String()) != steady(m[2]) {
				t.Errorf("docs/tutorial.md shows\n%s\nbut the commands print (go test -update rewrites it)\n%s", m[2], b.String())
			}
			return "```console\n" + b.String() + "```"
		default:
			t.Errorf("a block of %s", m[1])
		}
		return block
	})
	if kinds["go"] != 1 || kinds["diff"] != 2 || kinds["console"] != 9 {
		t.Errorf("the page has blocks %v", kinds)
	}
	if gofmt := run("", dir, "gofmt", "-l", "."); gofmt != "" {
		t.Errorf("gofmt changes %s", gofmt)
	}
	drawn, err := os.ReadFile(filepath.Join(dir, "moons.svg"))
	if err != nil || !strings.Contains(string(drawn), "moons") {
		t.Fatalf("the picture: %v", err)
	}
	if !clitest.Update() {
		return
	}
	for name, text := range map[string]string{path: page, "../../docs/tutorial/moons.svg": string(drawn)} {
		if err := os.WriteFile(name, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
}

// steady leaves out of what a command prints what differs from run to run and from machine to machine: all numbers of
// measurements, processors, and the width of columns.
func steady(s string) string {
	var b strings.Builder
	measured := false
	for line := range strings.Lines(s) {
		if strings.HasPrefix(line, "$ ") {
			measured = strings.Contains(line, "fusec bench") || strings.Contains(line, "fusec report")
		}
		if measured {
			line = anyNumber.ReplaceAllString(line, "0")
		}
		line = strings.Join(strings.Fields(line), " ")
		if line = processor.ReplaceAllString(line, "processor"); line != "" {
			b.WriteString(line + "\n")
		}
	}
	return b.String()
}

var (
	processor = regexp.MustCompile(`\d+ threads? \(.* kernels\)`)
	anyNumber = regexp.MustCompile(`[\d.]+(e-\d+)?( (ns|µs|ms|s|B|KiB|MiB|%))?`)
)
