package training

import (
	"bytes"
	"context"
	"encoding/json"
	"image/png"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/clitest"
	"fusec/examples"
	"fusec/examples/train"
	"fusec/graph"
	"fusec/graph/checkpoint"
	"fusec/graph/dot"
	"fusec/graph/graphtest"
)

func TestTrainLists(t *testing.T) {
	text := clitest.Good(t, "train")
	clitest.Golden(t, "train.txt", text)
	for _, x := range examples.All() {
		if !strings.Contains(text, x.Name) || !strings.Contains(text, x.Reaches) || x.Reaches == "" {
			t.Errorf("%s is not listed with what it reaches, %q", x.Name, x.Reaches)
		}
	}
}

// varying is what may differ from machine to machine in what fusec train prints.
var varying = regexp.MustCompile(`\d+(\.\d+)? (ns|µs|ms|s), \S+ samples/s|loss \S+,|\S+ %|\S+ left|` +
	`\d+ launches a step, memory \S+ \S+,`)

func TestTrain(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	text := clitest.Good(t, "train", "karate", "--workers", "1", "--metrics", file("m.jsonl"), "--curve", file("c.svg"),
		"--draw", file("d.svg"), "--report", file("r.html"), "--save", file("k.graph"))
	text = varying.ReplaceAllString(strings.ReplaceAll(text, dir+string(os.PathSeparator), ""), "…")
	clitest.Golden(t, "train-karate.txt", text)

	if got := clitest.Good(t, "run", file("k.graph"), "--json"); !strings.Contains(got, `"f32[34,2]"`) {
		t.Errorf("the saved model gives %s", got)
	}
	clitest.Good(t, "dump", file("k.graph"))
	for name, want := range map[string]string{"c.svg": "accuracy", "d.svg": "scatter"} {
		svg, err := os.ReadFile(file(name))
		if err != nil || !bytes.Contains(svg, []byte("<svg")) || !bytes.Contains(svg, []byte(want)) {
			t.Errorf("%s (%v) is no picture with %q", name, err, want)
		}
	}
	if page, err := os.ReadFile(file("r.html")); err != nil || !bytes.Contains(page, []byte("<title>karate</title>")) {
		t.Errorf("r.html (%v) is no page on karate", err)
	}
	lines, err := os.ReadFile(file("m.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(lines)) {
		var r train.Record
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		n++
		scored := len(r.Scores) == 1
		if r.Step != n || !(r.Loss > 0) || r.Rate != 0.01 || !(r.Speed > 0) || !(r.Seconds > 0) || scored != (n%20 == 0) {
			t.Errorf("line %d is %s", n, line)
		}
	}
	if n != 200 {
		t.Errorf("%d lines", n)
	}
}

// newest is the newest checkpoint of a folder.
func newest(t *testing.T, dir string) *checkpoint.State {
	t.Helper()
	found, err := checkpoint.Dir{Path: dir}.Latest()
	if err != nil {
		t.Fatal(err)
	}
	return found.State
}

func sameTensors(t *testing.T, got, want map[string]*graph.Tensor) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%d tensors, want %d", len(got), len(want))
	}
	for name, x := range want {
		if got[name] == nil || !got[name].Equal(x) {
			t.Errorf("%s differs", name)
		}
	}
}

// stopping cancels a run when it prints that it has come to a step.
type stopping struct {
	bytes.Buffer
	at     string
	cancel func()
}

func (s *stopping) Write(p []byte) (int, error) {
	if strings.Contains(string(p), s.at) {
		s.cancel()
	}
	return s.Buffer.Write(p)
}

// TestTrainStops: a run that is interrupted saves a checkpoint, says how to go on, and then comes to the bits, the
// metrics and the result of one that is not.
func TestTrainStops(t *testing.T) {
	dir := t.TempDir()
	whole, halves := filepath.Join(dir, "whole"), filepath.Join(dir, "halves")
	metrics := filepath.Join(dir, "m.jsonl")
	args := []string{"train", "karate", "--steps", "50", "--lr", "0.02", "--seed", "4", "--metrics", metrics, "--checkpoint"}
	clitest.Good(t, append(args, whole)...)

	ctx, cancel := context.WithCancel(context.Background())
	out, stderr := &stopping{at: "step 20", cancel: cancel}, &bytes.Buffer{}
	code := cli.RunCommandLine(ctx, clitest.TestedCommands, append(args, halves, "--every", "7"), nil, out, stderr)
	want := "fusec: note: stopped after step 20 of 50; this goes on:\n  fusec train karate --checkpoint " + halves +
		" --resume --metrics " + metrics + "\nfusec: interrupted\n"
	if code != cli.ExitFailure || stderr.String() != want {
		t.Errorf("exit code %d, %q", code, stderr.String())
	}
	if c := newest(t, halves); c.Step != 20 || c.Seed != 4 {
		t.Errorf("the checkpoint is of step %d, seed %d", c.Step, c.Seed)
	}

	again := []string{"train", "karate", "--checkpoint", halves, "--metrics", metrics, "--curve", filepath.Join(dir, "c.png")}
	clitest.Bad(t, clitest.FusecRun(t, again...), cli.ExitFailure, "has the checkpoints of another run: --resume goes on")
	again = append(again, "--resume")
	for _, c := range []struct{ flags, want string }{
		{"--steps 60", "was made with --steps 50 --batch 1 --lr 0.02 --seed 4: leave these flags out"},
		{"--seed 5", "was made with --steps 50"},
		{"--epochs 2", "leave out --epochs"},
	} {
		clitest.Bad(t, clitest.FusecRun(t, append(again, strings.Fields(c.flags)...)...), cli.ExitFailure, c.want)
	}
	clitest.Bad(t, clitest.FusecRun(t, "train", "digits-mlp", "--resume", "--checkpoint", halves), cli.ExitFailure,
		"is a checkpoint of karate")
	var rep trainReport
	if err := json.Unmarshal([]byte(clitest.Good(t, append(again, "--json", "--workers", "2")...)), &rep); err != nil {
		t.Fatal(err)
	}
	if rep.Resumed != 20 || rep.Steps != 50 || rep.Rate != 0.02 || rep.Seed != 4 {
		t.Errorf("the report is %+v", rep)
	}
	a, b := newest(t, whole), newest(t, halves)
	if a.Step != 50 || b.Step != 50 {
		t.Errorf("steps %d and %d", a.Step, b.Step)
	}
	sameTensors(t, b.Params, a.Params)
	sameTensors(t, b.State, a.State)
	lines, err := os.ReadFile(metrics)
	if n := bytes.Count(lines, []byte("\n")); err != nil || n != 50 {
		t.Errorf("%d lines of metrics, %v", n, err)
	}
	picture, err := os.ReadFile(filepath.Join(dir, "c.png"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := png.Decode(bytes.NewReader(picture)); err != nil {
		t.Error(err)
	}
	// There is nothing left to do, and that is no error.
	if text := clitest.Good(t, "train", "karate", "--checkpoint", halves, "--resume"); !strings.Contains(text,
		"; all 50 steps were done before\n") {
		t.Errorf("it prints %s", text)
	}
	if text := clitest.Good(t, "train", "karate", "--checkpoint", halves, "--resume", "--json"); strings.Contains(text, "loss") ||
		!strings.Contains(text, `"resumed_at": 50`) {
		t.Errorf("it prints %s", text)
	}
}

func TestTrainStopsWithoutCheckpoint(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	out, stderr := &stopping{at: "step  20", cancel: cancel}, &bytes.Buffer{}
	code := cli.RunCommandLine(ctx, clitest.TestedCommands, []string{"train", "karate"}, nil, out, stderr)
	want := "fusec: note: stopped after step 20 of 200; --checkpoint DIR would have kept what was learnt\nfusec: interrupted\n"
	if code != cli.ExitFailure || stderr.String() != want {
		t.Errorf("exit code %d, %q", code, stderr.String())
	}
}

func TestTrainEpochs(t *testing.T) {
	var rep trainReport
	text := clitest.Good(t, "train", "digits-mlp", "--epochs", "2", "--batch", "100", "--json")
	if err := json.Unmarshal([]byte(text), &rep); err != nil {
		t.Fatal(err)
	}
	if rep.Steps != 28 || rep.Batch != 100 || rep.Parameters != 6570 || rep.Launches == 0 || len(rep.Scores) != 1 {
		t.Errorf("the report is %+v", rep)
	}
}

func TestTrainUsage(t *testing.T) {
	for _, c := range []struct{ line, want string }{
		{"train karat",
			`unknown example "karat"; choose digits-mlp, digits-vit, resnet, unet, language, moe or karate; did you mean karate?`},
		{"train karate moe", "one example at a time, not 2"},
		{"train --json", "--json is for the result of an example"},
		{"train karate --steps 0", "--steps 0: want a whole number of at least 1"},
		{"train karate --lr nan", "--lr nan: want a positive number"},
		{"train karate --seed x", "--seed x: want a whole number"},
		{"train digits-mlp --epochs 9223372036854775807", "that many epochs of 44 steps cannot be counted"},
		{"train karate --save k.safetensors", "--save k.safetensors: that is the name of a weights file"},
		{"generate -", "a graph on standard input comes without weights"},
		{"train karate --steps 2 --epochs 2", "--steps and --epochs contradict"},
		{"train karate --resume", "--resume needs the folder of the checkpoints"},
		{"train karate --every 3", "--every needs the folder of the checkpoints"},
		{"train karate --curve c.pdf", "--curve c.pdf: want a file that ends in .svg or .png"},
		{"train karate --report r.txt", "--report r.txt: want a file that ends in .html"},
		{"train karate --draw d.txt", "--draw d.txt: want a file that ends in .svg or .png or .dot"},
		{"generate", "which model?"},
		{"generate x.graph --temperature -1", "--temperature -1: want 0 or a positive number"},
		{"generate x.graph --tokens 0", "--tokens 0: want"},
	} {
		clitest.Bad(t, clitest.FusecRun(t, strings.Fields(c.line)...), cli.ExitUsage, c.want, "see fusec help")
	}
	clitest.Bad(t, clitest.FusecRun(t, "train", "karate", "--batch", "3"), cli.ExitFailure,
		"karate: batches of 3: the club is one graph")
	if runtime.GOOS == "linux" { // elsewhere it is not known how much memory there is
		clitest.Bad(t, clitest.FusecRun(t, "train", "language", "--batch", "2000000", "--steps", "1"), cli.ExitFailure, "language: ",
			" of memory are needed", "a smaller batch needs less")
	}
	nowhere := filepath.Join(t.TempDir(), "no", "m")
	clitest.Bad(t, clitest.FusecRun(t, "train", "karate", "--steps", "2", "--metrics", nowhere), cli.ExitFailure, "no such file")
	damaged := filepath.Join(t.TempDir(), "000001-step-1.safetensors")
	if err := os.WriteFile(damaged, []byte("x"), 0o666); err != nil {
		t.Fatal(err)
	}
	clitest.Bad(t, clitest.FusecRun(t, "train", "karate", "--resume", "--checkpoint", filepath.Dir(damaged)), cli.ExitFailure, damaged,
		"damaged")
}

// What could not be written is told before the first step, and leaves no trace.
func TestTrainPlaces(t *testing.T) {
	dir := t.TempDir()
	file := graphtest.File(t, "notes.jsonl", "mine\n")
	no := filepath.Join(dir, "no")
	for _, c := range []struct{ flag, path, want string }{
		{"--save", filepath.Join(no, "k.graph"), "k.graph: no such file or directory"},
		{"--save", dir, "not a regular file"},
		{"--curve", filepath.Join(no, "c.svg"), "c.svg: no such file or directory"},
		{"--checkpoint", file, "--checkpoint " + file + ": "},
		{"--checkpoint", filepath.Join(file, "run"), "not a directory"},
		{"--metrics", file, file + ":1: this is no record of a step"},
	} {
		r := clitest.FusecRun(t, "train", "karate", "--steps", "2", c.flag, c.path)
		clitest.Bad(t, r, cli.ExitFailure, c.want)
		if r.Out != "" {
			t.Errorf("%s %s: it trained: %s", c.flag, c.path, r.Out)
		}
	}
	clitest.Bad(t, clitest.FusecRun(t, "train", "karate", "--steps", "2", "--metrics", clitest.FullDisk(t)), cli.ExitFailure,
		"not a regular file")
	if text, err := os.ReadFile(file); err != nil || string(text) != "mine\n" {
		t.Errorf("the file is now %q, %v", text, err)
	}
	clitest.Good(t, "train", "karate", "--steps", "2", "--save", filepath.Join(dir, "k.graph"),
		"--checkpoint", filepath.Join(dir, "run"))
	want := []string{"k.graph", "k.safetensors", "run"}
	if names := clitest.FileNames(t, dir); !slices.Equal(names, want) {
		t.Errorf("there are %v, want %v", names, want)
	}
}

// A curve leaves out what is not finite, and needs something to draw.
func TestCurve(t *testing.T) {
	scores := []train.Score{{Name: "one", Value: 1}, {Name: "two", Value: 2}}
	records := []train.Record{{Step: 1, Loss: math.NaN()}, {Step: 2, Loss: 3, Scores: scores}, {Step: 3, Loss: 1}}
	var a, b bytes.Buffer
	for _, w := range []*bytes.Buffer{&a, &b} {
		if err := drawCurve(w, dot.FormatSVG, "title", records); err != nil {
			t.Fatal(err)
		}
	}
	for _, word := range []string{"title", "loss", "one", "two", "step"} {
		if !strings.Contains(a.String(), word) {
			t.Errorf("the curve lacks %q", word)
		}
	}
	if a.String() != b.String() {
		t.Error("the same records give other bytes")
	}
	if err := drawCurve(&a, dot.FormatSVG, "", records[:1]); err == nil || !strings.Contains(err.Error(), "no loss") {
		t.Errorf("error %v", err)
	}
	if err := drawCurve(&a, dot.FormatText, "", records); err == nil || !strings.Contains(err.Error(), "svg or png, not text") {
		t.Errorf("error %v", err)
	}
}
