package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/clitest"
)

// zshStubs have the script of zsh print what it gives to zsh's own functions, of which a terminal is needed.
const zshStubs = `
compdef() { :; }
compset() { [[ $words[CURRENT] == *=* ]]; }
_describe() { print -rl -- ${list%%:*}; }
_files() {
	local f files=${2:-'*'}
	[[ $1 == -/ ]] && files=
	for f in $current*(N/) ${files:+$~current$~files(N)}; do print -r -- $before$f; done
}
`

// shells run the script of a shell, and print what it offers for a command line.
var shells = map[string]func(script, line string) string{
	"bash": func(script, line string) string {
		words := strings.Split(strings.ReplaceAll(line, "=", " = "), " ")
		if strings.HasSuffix(line, "=") {
			words = words[:len(words)-1]
		}
		return fmt.Sprintf("source %s\nCOMP_WORDS=(%s) COMP_CWORD=%d\n_fusec\nprintf '%%s\\n' \"${COMPREPLY[@]}\"",
			script, quoted(words), len(words)-1)
	},
	"zsh": func(script, line string) string {
		words := strings.Split(line, " ")
		last := words[len(words)-1]
		before, current, valued := strings.Cut(last, "=")
		if !valued {
			before, current = "", last
		} else {
			before += "="
		}
		return fmt.Sprintf("%s\nsource %s\nwords=(%s) CURRENT=%d current=%s before=%s\n_fusec; true", zshStubs, script, quoted(words),
			len(words), current, before)
	},
	"fish": func(script, line string) string { return fmt.Sprintf("source %s\ncomplete -C '%s'", script, line) },
}

func quoted(words []string) string {
	var b strings.Builder
	for _, w := range words {
		b.WriteString("'" + w + "' ")
	}
	return b.String()
}

// TestCompletion asks each shell what it offers.
func TestCompletion(t *testing.T) {
	bin, dir := commandFolder(t), t.TempDir()
	for _, name := range []string{"net.graph", "net.safetensors", "net.fuse"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "nets"), 0o777); err != nil {
		t.Fatal(err)
	}
	for shell, command := range shells {
		t.Run(shell, func(t *testing.T) {
			path := clitest.Tool(t, shell)
			script := filepath.Join(bin, "completion."+shell)
			if err := os.WriteFile(script, []byte(clitest.Good(t, "completion", shell)), 0o666); err != nil {
				t.Fatal(err)
			}
			for _, c := range []struct {
				line, want string
			}{
				{"fusec du", "dump"},
				{"fusec ", strings.Join(cli.CommandNames(commands()), " ")},
				{"fusec nosuch ", ""},
				{"fusec dump --format ", "dot json png ptx svg text"},
				{"fusec dump net.graph --target c", "cpu cuda"},
				{"fusec dump --target=c", "--target=cpu --target=cuda"},
				{"fusec dump --target cuda --prec", "--precision"},
				{"fusec explain --precision t", "tf32"},
				{"fusec dump --stage fin", "final"},
				{"fusec dump --allow-nan ne", "net.fuse net.graph nets"},
				{"fusec dump -- ne", "net.fuse net.graph nets"},
				{"fusec run --in x=net.s", "x=net.safetensors"},
				{"fusec run --out ne", "nets"},
				{"fusec bench ma", "matmul"},
				{"fusec bench all net.graph ne", "net.fuse net.graph nets"},
				{"fusec lock net.graph --target cpu,r", "cpu,ref"},
				{"fusec lock net.graph --target cpu,c", "cpu,cuda"},
				{"fusec fpga pl", "plan"},
				{"fusec train digits-", "digits-mlp digits-vit"},
				{"fusec help com", "compile completion"},
				{"fusec completion ", "bash fish zsh"},
			} {
				cmd := exec.Command(path, "-c", command(script, c.line))
				if shell != "fish" {
					cmd.Args = slices.Insert(cmd.Args, 1, map[string]string{"bash": "--norc", "zsh": "-f"}[shell])
				} else {
					cmd.Args = slices.Insert(cmd.Args, 1, "--no-config")
				}
				cmd.Dir, cmd.Env = dir, append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "HOME="+bin)
				out, err := cmd.CombinedOutput()
				if err != nil {
					t.Fatalf("%s: %v\n%s", c.line, err, out)
				}
				var got []string
				for line := range strings.Lines(string(out)) {
					word, _, _ := strings.Cut(strings.TrimSpace(line), "\t")
					if word = strings.TrimSuffix(word, "/"); word != "" {
						got = append(got, word)
					}
				}
				slices.Sort(got)
				want := strings.Fields(c.want)
				slices.Sort(want)
				if shell == "bash" { // which completes what follows the =
					for i, w := range want {
						want[i] = w[strings.Index(w, "=")+1:]
					}
				}
				if !slices.Equal(slices.Compact(got), want) {
					t.Errorf("%q: got %q, want %q", c.line, got, want)
				}
			}
		})
	}
	clitest.Bad(t, clitest.FusecRun(t, "completion"), cli.ExitUsage, "which shell? bash, fish or zsh")
	clitest.Bad(t, clitest.FusecRun(t, "completion", "bsh"), cli.ExitUsage,
		`unknown shell "bsh"; choose bash, fish or zsh; did you mean bash?`)
}

// TestManual has mandoc check the page of every command.
func TestManual(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "man")
	clitest.Good(t, "man", "-o", dir)
	pages := clitest.FileNames(t, dir)
	if len(pages) != len(commands())+1 {
		t.Errorf("the pages are %v", pages)
	}
	text, err := os.ReadFile(filepath.Join(dir, "fusec-dump.1"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`fusec\-dump \- print`, `.B \-o, \-\-output FILE`, ".SH EXAMPLES",
		`.B fusec dump model.graph \-o model.svg`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the page of dump lacks %q:\n%s", want, text)
		}
	}
	if clitest.Good(t, "man", "dump") != string(text) {
		t.Error("fusec man dump prints another page than fusec man -o writes")
	}
	if !strings.Contains(clitest.Good(t, "man"), `.B fusec\-dump(1)`) {
		t.Error("the page of fusec does not name that of dump")
	}
	clitest.Bad(t, clitest.FusecRun(t, "man", "dunp"), cli.ExitUsage, "did you mean dump?")
	clitest.Bad(t, clitest.FusecRun(t, "man", "dump", "run"), cli.ExitUsage, "one command")
	clitest.Bad(t, clitest.FusecRun(t, "man", "dump", "-o", dir), cli.ExitUsage, "leave out dump")
	for i, p := range pages {
		pages[i] = filepath.Join(dir, p)
	}
	if out, err := exec.Command(clitest.Tool(t, "mandoc"),
		append([]string{"-Tlint", "-Wwarning"}, pages...)...).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
