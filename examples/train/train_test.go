package train_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"fusec"
	"fusec/examples/train"
	"fusec/graph/checkpoint"
	_ "fusec/graph/graphtest/untuned"
	"fusec/graph/nn"
	"fusec/graph/optim"
	"fusec/kernels/group"
)

const rows, features = 6, 4

// model is a linear layer with dropout whose cost is the mean square of what it gives.
func model(t testing.TB) *train.Model {
	t.Helper()
	g := gorgonia.NewGraph()
	x := gorgonia.NewMatrix(g, tensor.Float32, gorgonia.WithShape(rows, features), gorgonia.WithName("x"))
	first := make([]float32, features*features)
	for i := range first {
		first[i] = float32(i%5) - 2
	}
	w := gorgonia.NewMatrix(g, tensor.Float32, gorgonia.WithShape(features, features), gorgonia.WithName("w"),
		gorgonia.WithValue(tensor.New(tensor.WithShape(features, features), tensor.WithBacking(first))))
	y, err := nn.Dropout(gorgonia.Must(gorgonia.Mul(x, w)), 0.3, nn.NewSeeds(g, 5).Next())
	if err != nil {
		t.Fatal(err)
	}
	cost := gorgonia.Must(gorgonia.Mean(gorgonia.Must(gorgonia.Square(y))))
	return &train.Model{Graph: g, Inputs: gorgonia.Nodes{x}, Output: y, Cost: cost, Learnables: gorgonia.Nodes{w}}
}

// task is to make the model give zeros for random inputs.
func task(t testing.TB) *train.Task {
	t.Helper()
	m := model(t)
	x, err := train.Zeroed(m.Inputs[0])
	if err != nil {
		t.Fatal(err)
	}
	return &train.Task{
		Model:     m,
		Optimizer: &optim.Optimizer{Rule: optim.AdamW{}, Rate: optim.Warmup(3, optim.Constant(0.1)), Clip: 1},
		Fill: func(step int) error {
			r := rand.New(rand.NewPCG(9, uint64(step)))
			for i := range x.Float32s() {
				x.Float32s()[i] = float32(r.NormFloat64())
			}
			return nil
		},
		Evaluate: func() ([]train.Score, error) {
			return []train.Score{{Name: "first weight", Value: float64(weights(m)[0])}}, nil
		},
	}
}

func weights(m *train.Model) []float32 { return m.Learnables[0].Value().Data().([]float32) }

var settings = train.Settings{Steps: 20, Batch: rows, Rate: 0.1, Seed: 3, Workers: 1}

func start(t testing.TB, k *train.Task, s train.Settings) *train.Run {
	t.Helper()
	r, err := train.Start(k, s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// TestResume: a run that is stopped after any step and resumed from its checkpoint, with new objects otherwise and
// another number of workers, gives the bits and the losses of one that was not.
func TestResume(t *testing.T) {
	whole := task(t)
	var losses []float64
	plan := train.Plan{Name: "tiny", Evaluate: 6, Each: func(r train.Record) error {
		losses = append(losses, r.Loss)
		if want := r.Step%6 == 0 || r.Step == settings.Steps; (r.Scores != nil) != want {
			t.Errorf("step %d has the scores %v", r.Step, r.Scores)
		}
		return nil
	}}
	if err := start(t, whole, settings).Loop(context.Background(), plan); err != nil {
		t.Fatal(err)
	}
	if len(losses) != settings.Steps || losses[settings.Steps-1] >= losses[0]/2 {
		t.Errorf("the losses are %v", losses)
	}
	for _, stop := range []int{1, 2, 11, 19} {
		dir := checkpoint.Dir{Path: filepath.Join(t.TempDir(), "run"), Keep: 1}
		ctx, cancel := context.WithCancel(context.Background())
		each := func(r train.Record) error {
			if r.Step == stop {
				cancel()
			}
			return nil
		}
		err := start(t, task(t), settings).Loop(ctx, train.Plan{Name: "tiny", Checkpoints: dir, Each: each})
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("error %v", err)
		}
		found, err := dir.Latest()
		if err != nil {
			t.Fatal(err)
		}
		name, s, err := train.SettingsOf(found.State)
		if err != nil || name != "tiny" {
			t.Fatalf("%q, %v", name, err)
		}
		if s.Workers = settings.Workers; s != settings {
			t.Errorf("the settings are %+v", s)
		}
		s.Workers = 2
		k := task(t)
		r := start(t, k, s)
		if err := r.Restore(found.State); err != nil {
			t.Fatal(err)
		}
		if r.Step() != stop {
			t.Errorf("stopped after step %d, not %d", r.Step(), stop)
		}
		var rest []float64
		err = r.Loop(context.Background(), train.Plan{Name: "tiny", Checkpoints: dir, Each: func(r train.Record) error {
			rest = append(rest, r.Loss)
			return nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		for i, l := range rest {
			if l != losses[stop+i] {
				t.Errorf("stopped after %d: step %d has the loss %v, want %v", stop, stop+i+1, l, losses[stop+i])
			}
		}
		for i, w := range weights(k.Model) {
			if want := weights(whole.Model)[i]; math.Float32bits(w) != math.Float32bits(want) {
				t.Errorf("stopped after %d: weight %d is %v, want %v", stop, i, w, want)
			}
		}
		if found, err = dir.Latest(); err != nil || found.Step != int64(settings.Steps) {
			t.Errorf("the last checkpoint is %+v, %v", found, err)
		}
	}
}

// TestRestoreRefuses: a checkpoint that does not fit changes nothing.
func TestRestoreRefuses(t *testing.T) {
	k := task(t)
	r := start(t, k, settings)
	c, err := r.Checkpoint("tiny")
	if err != nil {
		t.Fatal(err)
	}
	before := append([]float32(nil), weights(k.Model)...)
	c.Params["v"] = c.Params["w"]
	if err := r.Restore(c); err == nil || !strings.Contains(err.Error(), `parameter "v"`) {
		t.Errorf("error %v", err)
	}
	for i, w := range weights(k.Model) {
		if w != before[i] {
			t.Error("a weight was changed")
		}
	}
	c.Meta = map[string]string{"steps": "many"}
	if _, _, err := train.SettingsOf(c); err == nil || !strings.Contains(err.Error(), "not a checkpoint of a training run") {
		t.Errorf("error %v", err)
	}
}

// A step that makes no sense changes no weight, and its record can be written.
func TestNotFinite(t *testing.T) {
	k := task(t)
	fill := k.Fill
	k.Fill = func(step int) error {
		err := fill(step)
		if step == 1 {
			k.Model.Inputs[0].Value().Data().([]float32)[0] = float32(math.NaN())
		}
		return err
	}
	r := start(t, k, settings)
	if _, err := r.Next(); err != nil {
		t.Fatal(err)
	}
	before := append([]float32(nil), weights(k.Model)...)
	x, err := r.Next()
	if err != nil || !math.IsNaN(x.Loss) {
		t.Fatalf("%+v, %v", x, err)
	}
	for i, w := range weights(k.Model) {
		if w != before[i] {
			t.Error("a weight was changed")
		}
	}
	if n := r.Machine().StepStats().Skipped; n != 1 {
		t.Errorf("%d steps were skipped", n)
	}
}

func TestStartRefuses(t *testing.T) {
	for _, c := range []struct {
		change func(*train.Task, *train.Settings)
		want   string
	}{
		{func(_ *train.Task, s *train.Settings) { s.Steps = 0 }, "0 steps"},
		{func(_ *train.Task, s *train.Settings) { s.Batch = -1 }, "batches of -1 samples"},
		{func(_ *train.Task, s *train.Settings) { s.Rate = math.NaN() }, "a learning rate of NaN"},
		{func(_ *train.Task, s *train.Settings) { s.Workers = -1 }, "-1 workers"},
		{func(k *train.Task, _ *train.Settings) { k.Fill = nil }, "Fill is nil"},
		{func(k *train.Task, _ *train.Settings) { k.Model.Cost = nil }, "no model with a cost"},
		{func(k *train.Task, _ *train.Settings) { k.Optimizer = &optim.Optimizer{} }, "no rule"},
	} {
		k, s := task(t), settings
		c.change(k, &s)
		if _, err := train.Start(k, s); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want one with %q", err, c.want)
		}
	}
	k := task(t)
	k.Fill = func(int) error { return errors.New("no luck") }
	if _, err := start(t, k, settings).Next(); err == nil || err.Error() != "the batch of step 1: no luck" {
		t.Errorf("error %v", err)
	}
}

func TestShare(t *testing.T) {
	from, to := model(t), model(t)
	if err := to.Share(from); err != nil {
		t.Fatal(err)
	}
	weights(from)[3] = 42
	if weights(to)[3] != 42 {
		t.Error("the values are not shared")
	}
	if to.Parameters() != features*features {
		t.Errorf("%d parameters", to.Parameters())
	}
	other := &train.Model{Learnables: gorgonia.Nodes{gorgonia.NewVector(gorgonia.NewGraph(), tensor.Float32,
		gorgonia.WithShape(2), gorgonia.WithName("w"), gorgonia.WithInit(gorgonia.Zeroes()))}}
	if err := other.Share(from); err == nil || !strings.Contains(err.Error(), `"w" is float32 (2)`) {
		t.Errorf("error %v", err)
	}
	if err := to.Share(&train.Model{}); err == nil || !strings.Contains(err.Error(), `no value of "w"`) {
		t.Errorf("error %v", err)
	}
}

func TestJournal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.jsonl")
	all := []train.Record{
		{Step: 1, Loss: math.NaN(), Rate: 0.5},
		{Step: 2, Loss: 3, Speed: 7, Scores: []train.Score{{Name: "a", Value: 1}}},
		{Step: 3},
	}
	j, kept, err := train.OpenJournal(path, 0)
	if err != nil || kept != nil {
		t.Fatal(kept, err)
	}
	for _, r := range all {
		if err := j.Write(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	text, _ := os.ReadFile(path)
	first, _, _ := strings.Cut(string(text), "\n")
	if first != `{"step":1,"loss":null,"lr":0.5,"samples_per_s":0,"time_s":0}` {
		t.Errorf("the first line is %s", first)
	}
	if err := os.WriteFile(path, append(text, `{"step":4,"lo`...), 0o666); err != nil { // cut off
		t.Fatal(err)
	}
	if _, kept, err = train.OpenJournal(path, 9); err != nil || len(kept) != 3 {
		t.Errorf("kept %v, %v", kept, err)
	}
	j, kept, err = train.OpenJournal(path, 2)
	if err != nil || len(kept) != 2 || !math.IsNaN(kept[0].Loss) || kept[1].Scores[0] != all[1].Scores[0] {
		t.Fatalf("kept %v, %v", kept, err)
	}
	if err := errors.Join(j.Write(all[2]), j.Close()); err != nil {
		t.Fatal(err)
	}
	if again, _ := os.ReadFile(path); string(again) != string(text) {
		t.Errorf("the file is now\n%s", again)
	}
	for text, line := range map[string]int{first + "\n[]\n": 2, "{}\n": 1, "notes\n": 1, "notes": 1} {
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf("%s:%d: this is no record of a step", path, line)
		for _, steps := range []int{0, 1} {
			if steps < line-1 {
				continue // it ends before that line
			}
			if _, _, err := train.OpenJournal(path, steps); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%q: error %v", text, err)
			}
		}
		if now, _ := os.ReadFile(path); string(now) != text {
			t.Errorf("%q became %q", text, now)
		}
	}
	if _, kept, err = train.OpenJournal(filepath.Join(t.TempDir(), "new"), 5); err != nil || kept != nil {
		t.Errorf("kept %v, %v", kept, err)
	}
	if _, _, err := train.OpenJournal(filepath.Join(t.TempDir(), "no", "m"), 0); err == nil {
		t.Error("a journal in a folder that is not there")
	}
}

// A run that is stopped says so if its checkpoint could not be saved.
func TestStopWithoutRoom(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	err := start(t, task(t), settings).Loop(ctx, train.Plan{Checkpoints: checkpoint.Dir{Path: file}})
	if err == nil || errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "the checkpoint after step 0: ") {
		t.Errorf("error %v", err)
	}
}

// Each step's error ends the loop.
func TestEachFails(t *testing.T) {
	want := errors.New("no luck")
	r := start(t, task(t), settings)
	err := r.Loop(context.Background(), train.Plan{Each: func(train.Record) error { return want }})
	if !errors.Is(err, want) || r.Step() != 1 {
		t.Errorf("error %v after step %d", err, r.Step())
	}
}

// TestPrecisionOfSettings is kept with a checkpoint, and refused where it is none.
func TestPrecisionOfSettings(t *testing.T) {
	meta := map[string]string{"example": "tiny", "steps": "3", "batch": "2", "lr": "0.1", "precision": "bf16"}
	_, s, err := train.SettingsOf(&checkpoint.State{Meta: meta})
	if err != nil || s.Precision != fusec.BF16 {
		t.Errorf("%+v, %v", s, err)
	}
	meta["precision"] = "f8"
	if _, _, err := train.SettingsOf(&checkpoint.State{Meta: meta}); err == nil ||
		!strings.Contains(err.Error(), `precision "f8" is not known`) {
		t.Errorf("error %v", err)
	}
	if _, err := train.Start(task(t), train.Settings{Steps: 1, Batch: 1, Rate: 1, Precision: fusec.TF32}); err == nil ||
		!strings.Contains(err.Error(), "precision tf32 requires another target") {
		t.Errorf("error %v", err)
	}
	if _, err := train.Start(task(t), train.Settings{Steps: 1, Batch: 1, Rate: 1, Target: "none"}); err == nil ||
		!strings.Contains(err.Error(), `target "none" is not known`) {
		t.Errorf("error %v", err)
	}
}

// layered is to make two layers give zeros for random inputs, of which that of the step of a number holds NaN.
func layered(t testing.TB, bad int) *train.Task {
	t.Helper()
	g := gorgonia.NewGraph()
	x := gorgonia.NewMatrix(g, tensor.Float32, gorgonia.WithShape(rows, features), gorgonia.WithName("x"))
	h := x
	var weights gorgonia.Nodes
	for i := range 2 {
		first := make([]float32, features*features)
		for j := range first {
			first[j] = float32((i+j)%5) - 2
		}
		w := gorgonia.NewMatrix(g, tensor.Float32, gorgonia.WithShape(features, features), gorgonia.WithName(fmt.Sprint("w", i)),
			gorgonia.WithValue(tensor.New(tensor.WithShape(features, features), tensor.WithBacking(first))))
		h = gorgonia.Must(gorgonia.Tanh(gorgonia.Must(gorgonia.Mul(h, w))))
		gorgonia.WithName(fmt.Sprint("h", i))(h)
		weights = append(weights, w)
	}
	cost := gorgonia.Must(gorgonia.Mean(gorgonia.Must(gorgonia.Square(h))))
	values := tensor.New(tensor.WithShape(rows, features), tensor.Of(tensor.Float32))
	return &train.Task{
		Model:     &train.Model{Graph: g, Inputs: gorgonia.Nodes{x}, Output: h, Cost: cost, Learnables: weights},
		Optimizer: &optim.Optimizer{Rule: optim.AdamW{}, Rate: optim.Warmup(3, optim.Constant(0.1)), Clip: 1},
		Fill: func(step int) error {
			r := rand.New(rand.NewPCG(9, uint64(step)))
			for i := range values.Float32s() {
				values.Float32s()[i] = float32(r.NormFloat64())
			}
			if step == bad {
				values.Float32s()[0] = float32(math.NaN())
			}
			return gorgonia.Let(x, values) // which has no value before, so that it is an input
		},
	}
}

// TestPipeline trains in two stages of a group: to the same bits again, whether or not the run is interrupted, and from its
// checkpoint on one device as well. A batch with NaN is a step that both leave out. What cannot be divided is refused.
func TestPipeline(t *testing.T) {
	const steps, bad = 12, 4
	// run does steps on all participants, from checkpoints in a folder if there are any, until the first is interrupted.
	run := func(dir string, until int, s train.Settings, n int) []*checkpoint.State {
		t.Helper()
		tasks := make([]*train.Task, n)
		for i := range tasks {
			tasks[i] = layered(t, bad)
		}
		ends, errs := make([]*checkpoint.State, n), make([]error, n)
		var all sync.WaitGroup
		for i, transport := range group.Local(n, 10*time.Second) {
			all.Go(func() {
				errs[i] = func() error {
					own := s
					own.Steps = steps
					ctx, cancel := context.WithCancel(context.Background())
					defer cancel()
					if n > 1 {
						own.Group = group.New(transport)
					}
					r, err := train.Start(tasks[i], own)
					if err != nil {
						return err
					}
					defer r.Close()
					from, err := checkpoint.Dir{Path: dir}.Latest()
					if err == nil {
						err = r.Restore(from.State)
					} else if errors.Is(err, checkpoint.ErrNone) {
						err = nil
					}
					if err != nil {
						return err
					}
					p := train.Plan{Name: "layered", Joint: true, Checkpoints: checkpoint.Dir{Every: 5}, Each: func(x train.Record) error {
						if i == 0 && x.Step == until {
							cancel()
						}
						return nil
					}}
					if i == 0 {
						p.Checkpoints.Path = dir
					}
					if err := r.Loop(ctx, p); err != nil && !errors.Is(err, context.Canceled) {
						return err
					}
					if stats := r.Machine().StepStats(); until < 0 && stats.Skipped != 1 {
						return fmt.Errorf("%d steps are left out, want one", stats.Skipped)
					}
					ends[i], err = r.Checkpoint("layered")
					return err
				}()
			})
		}
		all.Wait()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		return ends
	}
	same := func(what string, got, want *checkpoint.State, within float64) {
		t.Helper()
		if got.Step != want.Step || len(got.State) != len(want.State) || len(got.Params) != 2 {
			t.Fatalf("%s: step %d with %d states, want %d with %d", what, got.Step, len(got.State), want.Step, len(want.State))
		}
		for name, w := range want.Params {
			for i := range w.Type.Shape.Elems() {
				if x := got.Params[name].Float(i); math.Abs(x-w.Float(i)) > within {
					t.Fatalf("%s: element %d of %s is %v, want %v", what, i, name, x, w.Float(i))
				}
			}
		}
	}
	staged := train.Settings{Batch: rows, Rate: 0.1, Seed: 3, Workers: 1, Microbatches: 3, Ends: "h0"}
	one := staged
	one.Microbatches = 0
	want := run(t.TempDir(), -1, staged, 2)
	same("the other stage", want[1], want[0], 0)
	same("one device", run(t.TempDir(), -1, one, 1)[0], want[0], 1e-5)
	dir := t.TempDir()
	run(dir, 7, staged, 2)
	if from, err := (checkpoint.Dir{Path: dir}).Latest(); err != nil || from.Step != 7 {
		t.Fatalf("the checkpoint of the run that was interrupted: %+v, %v", from, err)
	}
	other := t.TempDir()
	if err := os.CopyFS(other, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	same("goes on", run(dir, 0, staged, 2)[0], want[0], 0)
	same("goes on on one device", run(other, 0, one, 1)[0], want[0], 1e-5)
	staged.Microbatches = 4
	if err := staged.Check(); err == nil || !strings.Contains(err.Error(), "0 steps") {
		t.Errorf("error %v", err)
	}
	staged.Steps = 1
	if err := staged.Check(); err == nil || !strings.Contains(err.Error(), "cannot be divided into 4 microbatches") {
		t.Errorf("error %v", err)
	}
}
