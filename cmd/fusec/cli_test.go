package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestHelp(t *testing.T) {
	golden(t, "help.txt", good(t, "help"))
	for _, name := range commandNames() {
		text := good(t, "help", name)
		golden(t, "help-"+name+".txt", text)
		for _, flag := range []string{"--help", "-h"} {
			if got := good(t, name, flag); got != text {
				t.Errorf("fusec %s %s is not fusec help %s", name, flag, name)
			}
		}
		if !strings.Contains(text, "examples:") && name != "version" {
			t.Errorf("the help of %s has no examples", name)
		}
	}
	source, err := os.ReadFile("main.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range commandNames() {
		if !strings.Contains(string(source), "\n//\tfusec "+name+" ") && name != "version" && name != "help" {
			t.Errorf("the program's comment does not tell of fusec %s", name)
		}
	}
	if good(t, "--help") != good(t, "help") {
		t.Error("fusec --help is not fusec help")
	}
}

func TestVersion(t *testing.T) {
	if got := good(t, "version"); !strings.HasPrefix(got, "fusec ") || strings.Count(got, "\n") != 1 {
		t.Errorf("version prints %q", got)
	}
	if good(t, "--version") != good(t, "version") {
		t.Error("fusec --version is not fusec version")
	}
}

func TestUsage(t *testing.T) {
	for _, c := range []struct {
		line string
		want string
	}{
		{"", "a command is missing"},
		{"dmup", `there is no command "dmup"; did you mean dump?`},
		{"exp", "did you mean explain?"},
		{"xyzzy", `there is no command "xyzzy"`},
		{"help dunp", "did you mean dump?"},
		{"help dump run", "one command"},
		{"version x", `unexpected argument "x"`},
		{"doctor x", `unexpected argument "x"`},
		{"doctor --jsn", "doctor has no flag --jsn; did you mean --json?"},
		{"dump", "which model?"},
		{"dump a.graph b.graph", "one model at a time"},
		{"dump " + bare + " --fromat svg", "dump has no flag --fromat; did you mean --format?"},
		{"dump " + bare + " --format jpg", "--format jpg: want one of dot, svg, png, text, json"},
		{"dump " + bare + " --stage", "flag --stage needs a value"},
		{"dump " + bare + " --stage rase", `there is no stage "rase": want one of import, `},
		{"dump " + bare + " --stage nosuch", "check-lowered, cuda, fpga"},
		{"dump " + bare + " --stage 99", `there is no stage "99"`},
		{"dump " + bare + " --all", "name their folder with -o"},
		{"dump " + bare + " --all --stage raise", "contradict"},
		{"dump " + bare + " --all=maybe", "--all maybe: want true or false"},
		{"dump " + bare + " --disable rase", "did you mean raise?"},
		{"dump " + bare + " --target gpu", "want one of cpu"},
		{"dump -z " + bare, "dump has no flag -z"},
		{"run", "which model?"},
		{"run " + bare + " --threads 0", "--threads 0: want a whole number of at least 1"},
		{"bench matmul --threads 99999999", "--threads 99999999: want a whole number of at least 1 and at most 16384"},
		{"run " + bare + " --in x", "want NAME=FILE"},
		{"run " + bare + " --in x=a --in x=b", "x is given twice"},
		{"run " + bare + " --seed -1", "--seed -1: want a whole number from 0"},
		{"dump " + bare + " -o x.pdf", "-o x.pdf: no format writes .pdf: want one of dot, svg"},
		{"explain", "which model?"},
		{"explain " + bare + " --memory-budget 0", "--memory-budget 0: want a number of bytes"},
		{"run " + bare + " --memory-budget 3MB", "--memory-budget 3MB: want a number of bytes"},
		{"bench", "which model?"},
		{"bench " + bare + " --rounds 2", "want a whole number of at least 3"},
		{"bench " + bare + " --seconds nan", "want a number of seconds"},
		{"bench " + bare + " --ladder", "--ladder is for fusec bench matmul and fusec bench attention"},
		{"bench attention --sizes 12", "--sizes is for fusec bench matmul"},
		{"bench matmul --causal", "--seq, --heads, --dim and --causal are for fusec bench attention"},
		{"bench attention --seq 12,x", `"x" is no length of a sequence`},
		{"bench attention --seq 0", `"0" is no length of a sequence`},
		{"bench attention --heads 2000", "--heads is at most 1024"},
		{"bench " + bare + " --experts 4", "--experts, --tokens, --d-model, --hidden, --top-k and --plot are for fusec bench moe"},
		{"bench moe --experts 4,x", `"x" is no number of experts`},
		{"bench moe --experts 0", `"0" is no number of experts`},
		{"bench moe --experts 1,4", "--top-k 2 is more than the 1 expert of a mixture"},
		{"bench moe --top-k 9", "--top-k 9 is more than the 4 experts"},
		{"bench moe --tokens 99999999", "--tokens 99999999: want at most 1048576"},
		{"bench moe --plot moe.gif", "--plot moe.gif: want a name that ends in .svg or .png"},
		{"demo x", `unexpected argument "x"`},
		{"demo --batch-size 0", "--batch-size 0: want a whole number of at least 1"},
		{"demo --seq-len -1", "--seq-len -1: want a whole number of at least 1"},
		{"demo --d-model many", "--d-model many: want a whole number of at least 1"},
		{"demo --block-size -1", "--block-size -1: want a whole number of at least 0"},
		{"demo --num-experts 0", "--num-experts 0: want a whole number of at least 1"},
		{"demo --num-experts 4096", "--num-experts 4096: want at most 512"},
		{"demo --top-k 0", "--top-k 0: want a whole number of at least 1"},
		{"demo --top-k 9", "--top-k 9 is more than --num-experts 8"},
		{"demo --d-model 100 --heads 3", "--d-model 100 is not a multiple of --heads 3"},
		{"demo --batch-size 65536 --seq-len 131072 --d-model 32768", "--seq-len 131072"},
		{"demo --seq-len 200000", "--seq-len 200000: want at most 131072"},
		{"demo --capacity -1", "--capacity -1: want a number from 0 to 512"},
		{"demo --capacity nan", "--capacity nan: want a number"},
		{"dump --stage cuda --all " + bare, "--all and --measured are not for it"},
		{"demo --device tpu", "--device tpu: want one of cpu, cuda"},
		{"demo --device fpga", "--device fpga: want one of cpu"},
		{"bench " + bare + " --update", "--update needs --baseline"},
		{"bench " + bare + " --baseline x --no-gorgonia", "contradicts --no-gorgonia"},
		{"bench matmul --sizes 12x13", "want N or MxKxN"},
		{"bench matmul --sizes 0", `"0" is no size`},
		{"bench --peer-protocol mlp 1", "takes WORKLOAD THREADS SECONDS"},
		{"bench --peer-protocol mlp x 1", "THREADS x: want"},
		{"bench --peer-protocol mlp 1 0", "SECONDS 0: want"},
	} {
		t.Run(c.line, func(t *testing.T) {
			r := fusecRun(t, strings.Fields(c.line)...)
			bad(t, r, exitUsage, c.want, "see fusec help")
			if r.out != "" {
				t.Errorf("it printed %q", r.out)
			}
		})
	}
}

// Flags may follow the arguments, and after -- nothing is a flag.
func TestFlagPlaces(t *testing.T) {
	want := good(t, "dump", "--format", "text", bare)
	for _, args := range [][]string{{"dump", bare, "--format", "text"}, {"dump", "-format=text", "--", bare}} {
		if good(t, args...) != want {
			t.Errorf("fusec %s prints something else", strings.Join(args, " "))
		}
	}
	bad(t, fusecRun(t, "dump", "--", "--format"), exitFailure, "--format: no such file")
}

// Every way in which a model can be wrong gives a message that names the place, and an exit code.
func TestBadModels(t *testing.T) {
	const head = "fusec graph 1 \"m\" {\n"
	for _, c := range []struct {
		name, text string
		want       string
	}{
		{"empty", "", "m.graph:1:1: "},
		{"other", "digraph { a -> b }", "m.graph:1:1: "},
		{"truncated", head + "  x = input : f32[2]\n", "m.graph:3:1: "},
		{"cut", head + "  x = inp", "m.graph:2:"},
		{"op", head + "  x = input : f32[2]\n  y = frobnicate x\n  output y = y\n}\n", "m.graph:3:7: "},
		{"shapes", head + "  x = input : f32[2,3]\n  y = matmul x x\n  output y = y\n}\n", "m.graph:3:7: "},
		{"type", head + "  x = input : f31[2]\n}\n", "m.graph:2:15: "},
		{"name", head + "  x = input : f32[2]\n  output y = z\n}\n", "m.graph:3:14: "},
		{"huge", head + "  x = input : f32[999999999,999999999]\n}\n", "m.graph:2:"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := write(t, "m.graph", c.text)
			for _, args := range [][]string{{"dump"}, {"explain"}, {"run", "--random-weights"}, {"run"}, {"bench", "--no-gorgonia"}} {
				r := fusecRun(t, append(args, path)...)
				bad(t, r, exitFailure, c.want)
				if r.out != "" {
					t.Errorf("fusec %s printed %q", args[0], r.out)
				}
			}
		})
	}
	bad(t, fusecRun(t, "dump", "no-such.graph"), exitFailure, "no-such.graph: no such file or directory")
	bad(t, fusecRun(t, "dump", t.TempDir()), exitFailure, "is a directory")
	bad(t, fusecIn(t, "nonsense", "dump", "-"), exitFailure, "stdin:1:1: ")
}

func TestUnreadableModel(t *testing.T) {
	path, why := model(t, nil), "permission denied"
	if err := os.Chmod(path, 0); err != nil {
		t.Fatal(err)
	}
	if f, err := os.Open(path); err == nil { // this user may read everything, but nobody address 0
		f.Close()
		path, why = "/proc/self/mem", "input/output error"
	}
	bad(t, fusecRun(t, "dump", path), exitFailure, path+": "+why)
}

// fullDisk gives the path of a device that takes nothing.
func fullDisk(t *testing.T) string {
	t.Helper()
	const path = "/dev/full"
	if _, err := os.Stat(path); err != nil {
		t.Skip(err)
	}
	return path
}

func TestFullDisk(t *testing.T) {
	full := fullDisk(t)
	f, err := os.OpenFile(full, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, args := range [][]string{{"help"}, {"dump", bare}, {"dump", "--format", "text", bare}, {"explain", bare}, {"run", "--random-weights", bare}} {
		var stderr bytes.Buffer
		code := run(context.Background(), args, nil, f, &stderr)
		bad(t, result{code, "", stderr.String()}, exitFailure, "writing to standard output: no space left on device")
		if strings.Count(stderr.String(), "\n") != 1 {
			t.Errorf("fusec %s says it more than once:\n%s", args[0], stderr.String())
		}
	}
	bad(t, fusecRun(t, "dump", bare, "-o", full), exitFailure, "writing /dev/full: no space left on device")
}

func TestOutputPlaces(t *testing.T) {
	dir := t.TempDir()
	file := write(t, "file", "old")
	bad(t, fusecRun(t, "dump", bare, "-o", filepath.Join(dir, "no", "x.dot")), exitFailure, "x.dot: no such file or directory")
	bad(t, fusecRun(t, "dump", bare, "-o", dir), exitFailure, "not a regular file")
	bad(t, fusecRun(t, "dump", bare, "--all", "-o", file), exitFailure, "making the folder "+file)
	bad(t, fusecRun(t, "run", "--random-weights", bare, "--out", file), exitFailure, "making the folder "+file)
	if text, err := os.ReadFile(file); err != nil || string(text) != "old" {
		t.Errorf("the file is now %q, %v", text, err)
	}
	if names := fileNames(t, dir); len(names) > 0 {
		t.Errorf("left behind: %v", names)
	}
}

// Of several files none is replaced if one cannot be written.
func TestAllOrNone(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a"), []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	failing := output{"b", func(io.Writer) error { return errors.New("no luck") }}
	if err := writeFolder(dir, []output{fixed("a", []byte("new")), failing}); err == nil || !strings.Contains(err.Error(), "b: no luck") {
		t.Errorf("error %v", err)
	}
	if text, _ := os.ReadFile(filepath.Join(dir, "a")); string(text) != "old" {
		t.Errorf("a is now %q", text)
	}
	if names := fileNames(t, dir); len(names) != 1 {
		t.Errorf("left behind: %v", names)
	}
	if err := writeFolder(dir, []output{fixed("a", []byte("new"))}); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(dir, "a"))
	if err != nil || info.Mode().Perm() != 0o600 || info.Size() != 3 {
		t.Errorf("a is %v, %v", info, err)
	}
}

func TestFileBehindLink(t *testing.T) {
	file := write(t, "file", "old")
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(file, link); err != nil {
		t.Skip(err)
	}
	if err := writeFile(link, []byte("new")); err != nil {
		t.Fatal(err)
	}
	if text, _ := os.ReadFile(file); string(text) != "new" {
		t.Errorf("the file is %q", text)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Error("the link is gone")
	}
}

// brokenPipe is a reader of the output that went away.
type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) {
	return 0, &os.PathError{Op: "write", Path: "|1", Err: syscall.EPIPE}
}

func TestBrokenPipe(t *testing.T) {
	for _, args := range [][]string{{"help"}, {"dump", bare}} {
		var stderr bytes.Buffer
		code := run(context.Background(), args, nil, brokenPipe{}, &stderr)
		if code != exitFailure || stderr.Len() > 0 {
			t.Errorf("fusec %s: exit code %d, %q", args[0], code, stderr.String())
		}
	}
}

func TestInterrupt(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	dir := t.TempDir()
	for _, args := range [][]string{
		{"bench", "--random-weights", "--no-gorgonia", bare},
		{"bench", "matmul", "--sizes", "8"},
		{"bench", "attention", "--seq", "8"},
		{"run", "--random-weights", bare, "--out", filepath.Join(dir, "o")},
		{"dump", bare, "--all", "-o", filepath.Join(dir, "o")},
		{"dump", bare, "-o", filepath.Join(dir, "o")},
		{"dump", bare, "--measured"},
	} {
		var out, stderr bytes.Buffer
		code := run(ctx, args, nil, &out, &stderr)
		if code != exitFailure || stderr.String() != "fusec: interrupted\n" || out.Len() > 0 {
			t.Errorf("fusec %s: exit code %d, %q, %q", strings.Join(args, " "), code, out.String(), stderr.String())
		}
	}
	if names := fileNames(t, dir); len(names) > 0 {
		t.Errorf("left behind: %v", names)
	}
}

func TestPanicIsAnError(t *testing.T) {
	err := guarded(nil, []string{"help"}) // there is nothing to print to
	if err == nil || !strings.HasPrefix(err.Error(), "internal error: ") {
		t.Errorf("error %v", err)
	}
	var stderr bytes.Buffer
	if code := report(&stderr, err); code != exitFailure {
		t.Errorf("exit code %d", code)
	}
}

func TestNearest(t *testing.T) {
	known := []string{"dump", "explain", "run", "bench"}
	for name, want := range map[string]string{
		"dump": "dump", "dmup": "dump", "dum": "dump", "rn": "run", "explian": "explain", "ex": "explain", "benchmark": "", "zzz": "", "": "", "x": "",
	} {
		if got := nearest(name, known); got != want {
			t.Errorf("nearest %q is %q, want %q", name, got, want)
		}
	}
	if d := distance("kitten", "sitting"); d != 3 {
		t.Errorf("distance %d", d)
	}
}
