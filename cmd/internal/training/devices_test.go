package training

import (
	"context"
	"encoding/json"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/clitest"
)

// TestMain is fusec train where the tests start themselves as that.
func TestMain(m *testing.M) {
	if os.Getenv("FUSEC_TEST_TRAIN") == "" {
		os.Exit(m.Run())
	}
	os.Exit(cli.RunCommandLine(context.Background(), clitest.TestedCommands, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// TestDevices trains on two participants: the losses are those of one, the files are written once, and a run goes on from them.
func TestDevices(t *testing.T) {
	dir := t.TempDir()
	name := "digits-mlp"
	train := func(args ...string) string {
		t.Helper()
		cmd := exec.Command(os.Args[0], append([]string{"train", name, "--threads", "1"}, args...)...)
		cmd.Env = append(os.Environ(), "FUSEC_TEST_TRAIN=1")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	losses := func(name string) (list []float64) {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			var r struct {
				Loss float64 `json:"loss"`
			}
			if err := json.Unmarshal([]byte(line), &r); err != nil {
				t.Fatal(err)
			}
			list = append(list, r.Loss)
		}
		return list
	}
	train("--steps", "10", "--metrics", filepath.Join(dir, "one.jsonl"))
	run := filepath.Join(dir, "run")
	out := train("--steps", "10", "--metrics", filepath.Join(dir, "two.jsonl"), "--devices", "2", "--checkpoint", run)
	if n := strings.Count(out, "test accuracy"); n == 0 || strings.Count(out, "step 10 of 10") != 1 {
		t.Errorf("two participants say\n%s", out)
	}
	compare := func() {
		t.Helper()
		one, two := losses("one.jsonl"), losses("two.jsonl")
		if len(one) != 10 || len(two) != 10 {
			t.Fatalf("%d and %d losses", len(one), len(two))
		}
		for i := range one {
			if math.Abs(one[i]-two[i]) > 1e-5*one[i] {
				t.Errorf("loss %d is %v, of two participants %v", i, one[i], two[i])
			}
		}
	}
	compare()
	train("--metrics", filepath.Join(dir, "again.jsonl"), "--devices", "2", "--checkpoint", run, "--resume")
	mlp := name
	var corpus string
	name, corpus = bigrams(t, dir)
	own := []string{"--data", "tokens,labels=" + corpus, "--steps", "10", "--metrics"}
	train(append(own, filepath.Join(dir, "one.jsonl"))...)
	train(append(own, filepath.Join(dir, "two.jsonl"), "--devices", "2")...)
	compare()
	train(append(own, filepath.Join(dir, "two.jsonl"), "--target", "cpu,cpu", "--pipeline", "2")...)
	compare()
	ownStages := filepath.Join(dir, "own")
	train(append(own, filepath.Join(dir, "two.jsonl"), "--devices", "2", "--pipeline", "2", "--checkpoint", ownStages)...)
	compare()
	train("--data", "tokens,labels="+corpus, "--checkpoint", ownStages, "--resume", "--devices", "2", "--pipeline", "2")
	train("--data", "tokens,labels="+corpus, "--checkpoint", ownStages, "--resume") // on one device
	clitest.Bad(t, clitest.FusecRun(t, "train", name, "--data", "tokens,labels="+corpus, "--pipeline", "2"), cli.ExitFailure,
		"at least 2 stages")
	name = mlp
	stages := filepath.Join(dir, "stages")
	page := filepath.Join(dir, "step.html")
	out = train("--steps", "10", "--metrics", filepath.Join(dir, "stages.jsonl"), "--devices", "2", "--pipeline", "4",
		"--checkpoint", stages, "--report", page)
	if !strings.Contains(out, "pipeline of 2 stages, 4 microbatches: participants waited for ") ||
		!strings.Contains(out, " of a step, 20.0 % if stages took equally long\n") {
		t.Errorf("two stages say\n%s", out)
	}
	if _, err := os.Stat(page); err != nil {
		t.Error(err)
	}
	train("--steps", "10", "--metrics", filepath.Join(dir, "one.jsonl"))
	one := losses("one.jsonl")
	for i, loss := range losses("stages.jsonl") {
		if math.Abs(one[i]-loss) > 1e-5*one[i] {
			t.Errorf("loss %d is %v, of two stages %v", i, one[i], loss)
		}
	}
	train("--checkpoint", stages, "--resume") // on one device
	out = train("--steps", "10", "--metrics", filepath.Join(dir, "mesh.jsonl"), "--target", "cpu,cpu,cpu,cpu", "--pipeline", "4",
		"--mesh", "stage=2,data=2", "--json")
	var rep trainReport
	if err := json.Unmarshal([]byte(out), &rep); err != nil || rep.Pipeline == nil || rep.Pipeline.Steps != 9 ||
		len(rep.Pipeline.Stages) != 2 ||
		rep.Pipeline.Predicted != 0.2 || rep.Pipeline.Stages[0].Spans != nil {
		t.Errorf("%v: on a mesh: %s", err, out)
	}
	for i, loss := range losses("mesh.jsonl") {
		if math.Abs(one[i]-loss) > 1e-5*one[i] {
			t.Errorf("loss %d is %v, on a mesh of stages and data %v", i, one[i], loss)
		}
	}
	clitest.Bad(t, clitest.FusecRun(t, "train", "digits-mlp", "--pipeline", "4"), cli.ExitFailure, "at least 2 stages")
	clitest.Bad(t, clitest.FusecRun(t, "train", "digits-mlp", "--pipeline", "5", "--target", "cpu,cpu"), cli.ExitFailure,
		"5 microbatches")
	clitest.Bad(t, clitest.FusecRun(t, "train", "digits-mlp", "--pipeline", "x"), cli.ExitUsage, "--pipeline")
	clitest.Bad(t, clitest.FusecRun(t, "train", "karate", "--devices", "0"), cli.ExitUsage, "--devices")
}
