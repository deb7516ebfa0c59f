package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/clitest"
	"fusec/graph/graphtest"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"
)

func TestHelp(t *testing.T) {
	clitest.Golden(t, "help.txt", clitest.Good(t, "help"))
	for _, name := range cli.CommandNames(clitest.TestedCommands) {
		text := clitest.Good(t, "help", name)
		clitest.Golden(t, "help-"+name+".txt", text)
		for _, flag := range []string{"--help", "-h"} {
			if got := clitest.Good(t, name, flag); got != text {
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
	for _, name := range cli.CommandNames(clitest.TestedCommands) {
		if !strings.Contains(string(source), "\n//\tfusec "+name+" ") && name != "version" && name != "help" {
			t.Errorf("the program's comment does not tell of fusec %s", name)
		}
	}
	if clitest.Good(t, "--help") != clitest.Good(t, "help") {
		t.Error("fusec --help is not fusec help")
	}
}

// screen is a terminal of 80 columns.
type screen struct{ bytes.Buffer }

func (*screen) Columns() int { return 80 }

// On a terminal of 80 columns no line of help, overview or report is longer, unless it is one word.
func TestScreen(t *testing.T) {
	lines := [][]string{{}, {"help"}, {"train"}, {"doctor"}, {"explain", clitest.Bare}, {"run", "--random-weights", clitest.Bare},
		{"bench", "--no-gorgonia", "--random-weights", "--seconds", "0.01", "--rounds", "3", clitest.Bare},
		{"fpga", "plan", clitest.Bare}}
	for _, name := range cli.CommandNames(clitest.TestedCommands) {
		lines = append(lines, []string{"help", name})
	}
	for _, args := range lines {
		var out, stderr screen
		if code := cli.RunCommandLine(context.Background(), clitest.TestedCommands, args, nil, &out, &stderr); code != cli.ExitOK &&
			len(args) > 0 {
			t.Errorf("fusec %s: exit code %d: %s", strings.Join(args, " "), code, stderr.String())
		}
		for line := range strings.FieldsFuncSeq(out.String()+stderr.String(), func(r rune) bool { return r == '\n' || r == '\r' }) {
			line = strings.TrimPrefix(line, "\x1b[K")
			if n := utf8.RuneCountInString(line); n > 80 && len(strings.Fields(line)) > 1 {
				t.Errorf("fusec %s: %d columns: %s", strings.Join(args, " "), n, line)
			}
		}
	}
}

func TestVersion(t *testing.T) {
	if got := clitest.Good(t, "version"); !strings.HasPrefix(got, "fusec ") || strings.Count(got, "\n") != 1 {
		t.Errorf("version prints %q", got)
	}
	var rep versionReport
	if err := json.Unmarshal([]byte(clitest.Good(t, "version", "--json")), &rep); err != nil || rep.Version != cli.Version() ||
		rep.Schema != "fusec.version/1" || rep.Go == "" || rep.OS == "" || rep.Arch == "" {
		t.Errorf("version --json is %+v, %v", rep, err)
	}
	if clitest.Good(t, "--version") != clitest.Good(t, "version") {
		t.Error("fusec --version is not fusec version")
	}
}

func TestUsage(t *testing.T) {
	for _, c := range []struct {
		line string
		want string
	}{
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
		{"dump " + clitest.Bare + " --fromat svg", "dump has no flag --fromat; did you mean --format?"},
		{"dump " + clitest.Bare + " --format jpg", `unknown format "jpg"; choose dot, svg, png, text, json`},
		{"dump " + clitest.Bare + " --stage", "flag --stage needs a value"},
		{"dump " + clitest.Bare + " --stage rase", `unknown stage "rase"; choose import, `},
		{"dump " + clitest.Bare + " --stage nosuch", "final, cuda or fpga"},
		{"dump " + clitest.Bare + " --stage 99", `unknown stage "99"`},
		{"dump " + clitest.Bare + " --all", "name their folder with -o"},
		{"dump " + clitest.Bare + " --all --stage raise", "contradict"},
		{"dump " + clitest.Bare + " --all=maybe", "--all maybe: want true or false"},
		{"dump " + clitest.Bare + " --disable rase", "did you mean raise?"},
		{"dump " + clitest.Bare + " --target gpu", `unknown target "gpu"; choose cpu, cuda, fpga or ref; did you mean cuda?`},
		{"dump " + clitest.Bare + " --target gpu:1", "did you mean cuda:1?"},
		{"explain " + clitest.Bare + " --target reff", `unknown target "reff"; choose cpu, cuda, fpga or ref; did you mean ref?`},
		{"explain " + clitest.Bare + " --precision fp16", `unknown precision "fp16"; choose f32, tf32, bf16 or f16; did you mean f16?`},
		{"explain " + clitest.Bare + " --precision bfloat16", "did you mean bf16?"},
		{"explain " + clitest.Bare + " --precision Float32", "did you mean f32?"},
		{"bench matmull",
			`unknown benchmark "matmull"; choose model.graph, all, gpu, group, matmul, attention, moe, loader or report; did ` +
				`you mean matmul?`},
		{"dump " + clitest.Bare + " -o x.txtt", "-o x.txtt: no format has the extension .txtt; choose dot, svg"},
		{"dump " + clitest.Bare + " -o x.json --format svg", "-o x.json and --format svg contradict each other"},
		{"dump " + clitest.Bare + " --all --output x.svg", "-o names their folder"},
		{"run " + clitest.Bare + " --workers 0", "--workers 0: want a whole number of at least 1"},
		{"dump -z " + clitest.Bare, "dump has no flag -z"},
		{"run", "which model?"},
		{"run " + clitest.Bare + " --threads 0", "--threads 0: want a whole number of at least 1"},
		{"bench matmul --threads 99999999", "--threads 99999999: want a whole number of at least 1 and at most 16384"},
		{"run " + clitest.Bare + " --in x", "want NAME=FILE"},
		{"run " + clitest.Bare + " --in x=a --in x=b", "x is given twice"},
		{"run " + clitest.Bare + " --seed -1", "--seed -1: want a whole number from 0"},
		{"dump " + clitest.Bare + " -o x.pdf", "-o x.pdf: no format has the extension .pdf; choose dot, svg"},
		{"explain", "which model?"},
		{"explain " + clitest.Bare + " --memory-budget 0", "--memory-budget 0: want a number of bytes"},
		{"run " + clitest.Bare + " --memory-budget 3MB", "--memory-budget 3MB: want a number of bytes"},
		{"bench", "which model?"},
		{"bench " + clitest.Bare + " --rounds 2", "want a whole number of at least 3"},
		{"bench " + clitest.Bare + " --seconds nan", "want a number of seconds"},
		{"bench " + clitest.Bare + " --ladder", "--ladder is for fusec bench matmul and fusec bench attention"},
		{"bench attention --sizes 12", "--sizes is for fusec bench matmul"},
		{"bench matmul --causal", "--seq, --heads, --dim and --causal are for fusec bench attention"},
		{"bench attention --seq 12,x", `"x" is no length of a sequence`},
		{"bench attention --seq 0", `"0" is no length of a sequence`},
		{"bench attention --heads 2000", "--heads is at most 1024"},
		{"bench " + clitest.Bare + " --experts 4",
			"--experts, --tokens, --d-model, --hidden, --top-k and --plot are for fusec bench moe"},
		{"bench moe --experts 4,x", `"x" is no number of experts`},
		{"bench moe --experts 0", `"0" is no number of experts`},
		{"bench moe --experts 1,4", "--top-k 2 is more than the 1 expert of a mixture"},
		{"bench moe --top-k 9", "--top-k 9 is more than the 4 experts"},
		{"bench moe --tokens 99999999", "--tokens 99999999: want at most 1048576"},
		{"bench moe --plot moe.gif", "--plot moe.gif: want a name that ends in .svg or .png"},
		{"compile " + clitest.Bare + " --arch sm_1", `--arch sm_1: "sm_1" is no architecture: want sm_70 or later`},
		{"compile " + clitest.Bare + " --target cpu", `unknown target "cpu"; choose cuda or fpga`},
		{"generate " + clitest.Bare + " --target fpga", `unknown target "fpga"; choose cpu, cuda or ref`},
		{"dump " + strings.TrimSuffix(clitest.Bare, ".graph"), "mlp: no such file; did you mean " + clitest.Bare + "?"},
		{"run ../../testdata/models/lenet.safetensors", "lenet.safetensors has weights: the model is ../../testdata/models/lenet.graph"},
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
		{"dump --stage cuda -o x.png " + clitest.Bare, "--stage cuda is text, which .png is not"},
		{"dump --stage fpga -o x.json " + clitest.Bare, "--stage fpga is text, which .json is not"},
		{"dump --stage cuda --all " + clitest.Bare, "--all and --measured are not for it"},
		{"demo --device tpu", `unknown target "tpu"; choose cpu or cuda`},
		{"demo --device fpga", `unknown target "fpga"; choose cpu or cuda`},
		{"bench " + clitest.Bare + " --update", "--update needs --baseline"},
		{"bench " + clitest.Bare + " --baseline x --no-gorgonia", "contradicts --no-gorgonia"},
		{"bench matmul --sizes 12x13", "want N or MxKxN"},
		{"bench matmul --sizes 0", `"0" is no size`},
		{"bench --peer-protocol mlp 1", "takes WORKLOAD THREADS SECONDS"},
		{"bench --peer-protocol mlp x 1", "THREADS x: want"},
		{"bench --peer-protocol mlp 1 0", "SECONDS 0: want"},
	} {
		t.Run(c.line, func(t *testing.T) {
			r := clitest.FusecRun(t, strings.Fields(c.line)...)
			clitest.Bad(t, r, cli.ExitUsage, c.want, "see fusec help")
			if r.Out != "" {
				t.Errorf("it printed %q", r.Out)
			}
		})
	}
}

// Flags may follow the arguments, and after -- nothing is a flag.
func TestFlagPlaces(t *testing.T) {
	want := clitest.Good(t, "dump", "--format", "text", clitest.Bare)
	for _, args := range [][]string{{"dump", clitest.Bare, "--format", "text"}, {"dump", "-format=text", "--", clitest.Bare}} {
		if clitest.Good(t, args...) != want {
			t.Errorf("fusec %s prints something else", strings.Join(args, " "))
		}
	}
	clitest.Bad(t, clitest.FusecRun(t, "dump", "--", "--format"), cli.ExitFailure, "--format: no such file")
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
			path := graphtest.File(t, "m.graph", c.text)
			for _, args := range [][]string{{"dump"}, {"explain"}, {"run", "--random-weights"}, {"run"}, {"bench", "--no-gorgonia"}} {
				r := clitest.FusecRun(t, append(args, path)...)
				clitest.Bad(t, r, cli.ExitFailure, c.want)
				if r.Out != "" {
					t.Errorf("fusec %s printed %q", args[0], r.Out)
				}
			}
		})
	}
	clitest.Bad(t, clitest.FusecRun(t, "dump", "no-such.graph"), cli.ExitFailure, "no-such.graph: no such file or directory")
	clitest.Bad(t, clitest.FusecRun(t, "dump", t.TempDir()), cli.ExitFailure, "is a directory")
	clitest.Bad(t, clitest.FusecIn(t, "nonsense", "dump", "-"), cli.ExitFailure, "stdin:1:1: ")
}

func TestUnreadableModel(t *testing.T) {
	path, why := clitest.Model(t, nil), "permission denied"
	if err := os.Chmod(path, 0); err != nil {
		t.Fatal(err)
	}
	if f, err := os.Open(path); err == nil { // this user may read everything, but nobody address 0
		f.Close()
		path, why = "/proc/self/mem", "input/output error"
	}
	clitest.Bad(t, clitest.FusecRun(t, "dump", path), cli.ExitFailure, path+": "+why)
}

func TestFullDisk(t *testing.T) {
	full := clitest.FullDisk(t)
	f, err := os.OpenFile(full, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, args := range [][]string{{"help"}, {"dump", clitest.Bare}, {"dump", "--format", "text", clitest.Bare},
		{"explain", clitest.Bare}, {"run", "--random-weights", clitest.Bare}} {
		var stderr bytes.Buffer
		code := cli.RunCommandLine(context.Background(), clitest.TestedCommands, args, nil, f, &stderr)
		clitest.Bad(t, clitest.Result{Code: code, Stderr: stderr.String()}, cli.ExitFailure,
			"writing to standard output: no space left on device")
		if strings.Count(stderr.String(), "\n") != 1 {
			t.Errorf("fusec %s says it more than once:\n%s", args[0], stderr.String())
		}
	}
	clitest.Bad(t, clitest.FusecRun(t, "dump", clitest.Bare, "-o", full), cli.ExitFailure,
		"writing /dev/full: no space left on device")
}

func TestOutputPlaces(t *testing.T) {
	dir := t.TempDir()
	file := graphtest.File(t, "file", "old")
	clitest.Bad(t, clitest.FusecRun(t, "dump", clitest.Bare, "-o", filepath.Join(dir, "no", "x.dot")), cli.ExitFailure,
		"x.dot: no such file or directory")
	clitest.Bad(t, clitest.FusecRun(t, "dump", clitest.Bare, "-o", dir), cli.ExitFailure, "not a regular file")
	clitest.Bad(t, clitest.FusecRun(t, "dump", clitest.Bare, "--all", "-o", file), cli.ExitFailure, "making the folder "+file)
	clitest.Bad(t, clitest.FusecRun(t, "run", "--random-weights", clitest.Bare, "--out", file), cli.ExitFailure,
		"making the folder "+file)
	if text, err := os.ReadFile(file); err != nil || string(text) != "old" {
		t.Errorf("the file is now %q, %v", text, err)
	}
	model := clitest.Model(t, nil)
	clitest.Bad(t, clitest.FusecRun(t, "dump", model, "--format", "text", "-o", model), cli.ExitUsage, "that is the model itself")
	if names := clitest.FileNames(t, dir); len(names) > 0 {
		t.Errorf("left behind: %v", names)
	}
}

// Of several files none is replaced if one cannot be written.
func TestAllOrNone(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a"), []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	failing := cli.Output{Path: "b", Write: func(io.Writer) error { return errors.New("no luck") }}
	if err := cli.WriteFolder(dir, []cli.Output{cli.Fixed("a", []byte("new")), failing}); err == nil ||
		!strings.Contains(err.Error(), "b: no luck") {
		t.Errorf("error %v", err)
	}
	if text, _ := os.ReadFile(filepath.Join(dir, "a")); string(text) != "old" {
		t.Errorf("a is now %q", text)
	}
	if names := clitest.FileNames(t, dir); len(names) != 1 {
		t.Errorf("left behind: %v", names)
	}
	if err := cli.WriteFolder(dir, []cli.Output{cli.Fixed("a", []byte("new"))}); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(dir, "a"))
	if err != nil || info.Mode().Perm() != 0o600 || info.Size() != 3 {
		t.Errorf("a is %v, %v", info, err)
	}
}

func TestFileBehindLink(t *testing.T) {
	file := graphtest.File(t, "file", "old")
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(file, link); err != nil {
		t.Skipf("this system makes no symbolic links: %v", err)
	}
	if err := cli.WriteFile(link, []byte("new")); err != nil {
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
	for _, args := range [][]string{{"help"}, {"dump", clitest.Bare}} {
		var stderr bytes.Buffer
		code := cli.RunCommandLine(context.Background(), clitest.TestedCommands, args, nil, brokenPipe{}, &stderr)
		if code != cli.ExitFailure || stderr.Len() > 0 {
			t.Errorf("fusec %s: exit code %d, %q", args[0], code, stderr.String())
		}
	}
}

func TestInterrupt(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	dir := t.TempDir()
	for _, args := range [][]string{
		{"bench", "--random-weights", "--no-gorgonia", clitest.Bare},
		{"bench", "matmul", "--sizes", "8"},
		{"bench", "attention", "--seq", "8"},
		{"run", "--random-weights", clitest.Bare, "--out", filepath.Join(dir, "o")},
		{"dump", clitest.Bare, "--all", "-o", filepath.Join(dir, "o")},
		{"dump", clitest.Bare, "-o", filepath.Join(dir, "o")},
		{"dump", clitest.Bare, "--measured"},
	} {
		var out, stderr bytes.Buffer
		code := cli.RunCommandLine(ctx, clitest.TestedCommands, args, nil, &out, &stderr)
		if code != cli.ExitFailure || stderr.String() != "fusec: interrupted\n" || out.Len() > 0 {
			t.Errorf("fusec %s: exit code %d, %q, %q", strings.Join(args, " "), code, out.String(), stderr.String())
		}
	}
	if names := clitest.FileNames(t, dir); len(names) > 0 {
		t.Errorf("left behind: %v", names)
	}
}

// Without a command the overview is printed, as wrong usage.
func TestBare(t *testing.T) {
	r := clitest.FusecRun(t)
	if want := clitest.Good(t, "help"); r.Code != cli.ExitUsage || r.Stderr != want || r.Out != "" {
		t.Errorf("exit code %d, output %q, standard error:\n%s", r.Code, r.Out, r.Stderr)
	}
}

// TestErrorsNameOnce: a message has the name of the file that it is about once.
func TestErrorsNameOnce(t *testing.T) {
	good := clitest.Model(t, nil)
	t.Chdir(t.TempDir())
	for _, ext := range []string{"graph", "onnx", "fuse", "npy", "npz", "safetensors", "svg", "html", "gguf", "jsonl"} {
		if err := os.Mkdir("dir."+ext, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{
		{"dump", "dir.graph"}, {"run", "dir.onnx"}, {"run", "dir.fuse"}, {"generate", "dir.gguf"},
		{"run", good, "--in", "x=dir.npy"}, {"quantise", good, "--calibrate", "dir.npz", "-o", "small.graph"},
		{"quantise", good, "--calibrate", "dir.safetensors", "-o", "small.graph"}, {"quantise", good, "-o", "dir.graph"},
		{"quantise", good, "-o", "no/small.graph"}, {"convert", good, "no/other.onnx"}, {"dump", good, "-o", "dir.svg"},
		{"report", good, "-o", "dir.html"}, {"train", "karate", "--steps", "1", "--save", "dir.graph"},
		{"train", "karate", "--steps", "1", "--metrics", "dir.jsonl"}, {"train", "karate", "--steps", "1", "--checkpoint", good},
		{"bench", "report", "dir.jsonl"},
	} {
		r := clitest.FusecRun(t, args...)
		clitest.Bad(t, r, cli.ExitFailure)
		name := args[len(args)-1]
		for _, a := range args {
			if strings.Contains(a, "dir.") || strings.HasPrefix(a, "no/") {
				name = strings.TrimPrefix(a, "x=")
			}
		}
		if n := strings.Count(r.Stderr, name); n != 1 {
			t.Errorf("fusec %s names %s %d times: %s", strings.Join(args, " "), name, n, r.Stderr)
		}
	}
}
