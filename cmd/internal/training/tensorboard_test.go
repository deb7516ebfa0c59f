package training

import (
	"encoding/json"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/clitest"
	"fusec/examples/train"
)

// readEvents is a program in Python that prints the scalars of a folder as TensorBoard has them.
const readEvents = `
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
a = EventAccumulator(sys.argv[1])
a.Reload()
print(json.dumps({tag: {s.step: s.value for s in a.Scalars(tag)} for tag in a.Tags()["scalars"]}))
`

// scalarsOf are the scalars of event files, by tag and step. make tensorboard installs what it needs.
func scalarsOf(t *testing.T, dir string) map[string]map[int]float64 {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(clitest.Tool(t, "python3"), "-c", readEvents, dir)
	cmd.Env = append(os.Environ(), "PYTHONPATH="+filepath.Join(cache, "fusec-tensorboard"))
	out, err := cmd.Output()
	if exit, ok := err.(*exec.ExitError); ok {
		missing := strings.Contains(string(exit.Stderr), "No module named")
		if missing && os.Getenv("FUSEC_REQUIRE") == "" {
			t.Skip("TensorBoard is not installed: make tensorboard does that")
		}
		t.Fatalf("%v\n%s", err, exit.Stderr)
	}
	var m map[string]map[int]float64
	if err := json.Unmarshal(out, &m); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return m
}

func TestTensorBoard(t *testing.T) {
	dir, metrics := filepath.Join(t.TempDir(), "board"), filepath.Join(t.TempDir(), "m.jsonl")
	clitest.Good(t, "train", "moe", "--steps", "3", "--batch", "2", "--tensorboard", dir, "--metrics", metrics)
	_, records, err := train.OpenJournal(metrics, 3)
	if err != nil {
		t.Fatal(err)
	}
	got := scalarsOf(t, dir)
	check := func(tag string, step int, want float64) {
		t.Helper()
		if v, ok := got[tag][step]; !ok || math.Abs(v-want) > 1e-6*math.Abs(want) {
			t.Errorf("%s of step %d is %v (there: %v), want %v", tag, step, v, ok, want)
		}
	}
	for _, x := range records {
		check("train/loss", x.Step, x.Loss)
		check("train/learning_rate", x.Step, x.Rate)
		check("train/skipped_steps", x.Step, 0)
		check("train/step_seconds", x.Step, 2/x.Speed)
		for _, s := range x.Scores {
			check("eval/"+s.Name, x.Step, s.Value)
		}
		if len(x.Loads) != 2 || len(x.Loads[0].Tokens) != 8 {
			t.Fatalf("step %d: loads %v, want two layers of eight experts", x.Step, x.Loads)
		}
		tokens, sum := 0, 0.0
		for _, n := range x.Loads[0].Tokens {
			tokens += n
		}
		if tokens != 2*128*2 { // samples, characters, experts of each
			t.Errorf("step %d: %d choices", x.Step, tokens)
		}
		for i := range 8 {
			sum += got["experts/layer0.feed/"+string(rune('0'+i))][x.Step]
		}
		if math.Abs(sum-8) > 1e-5 {
			t.Errorf("step %d: the loads sum up to %v, not to the number of experts", x.Step, sum)
		}
	}
	if len(records) != 3 || len(got["train/loss"]) != 3 {
		t.Errorf("%d records, losses %v", len(records), got["train/loss"])
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	clitest.Bad(t, clitest.FusecRun(t, "train", "karate", "--tensorboard", file), cli.ExitFailure,
		"--tensorboard: making the folder "+file)
}

// A run that is resumed replaces the steps after its checkpoint.
func TestTensorBoardResumed(t *testing.T) {
	dir := t.TempDir()
	write := func(done, last int, loss float64) {
		w, err := openEvents(dir, done)
		if err != nil {
			t.Fatal(err)
		}
		for step := done + 1; step <= last; step++ {
			if err := w.write(train.Record{Step: step, Loss: loss, Speed: 1}, 1, 0); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	write(0, 5, 1)
	write(3, 4, 2)
	got := scalarsOf(t, dir)["train/loss"]
	if len(got) != 4 || got[3] != 1 || got[4] != 2 {
		t.Errorf("the losses are %v, want those of the first run up to step 3, and of the second at step 4", got)
	}
}
