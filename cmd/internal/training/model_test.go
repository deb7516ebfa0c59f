package training

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/clitest"
	"fusec/examples/train"
	"fusec/graph"
	"fusec/graph/npy"
)

// words is the size of the vocabulary of bigrams.
const words = 11

// bigrams writes a model that predicts the next token from the last one, and a corpus in which it follows by a rule.
func bigrams(t *testing.T, dir string) (model, corpus string) {
	t.Helper()
	b := graph.NewBuilder("bigrams")
	tokens, labels := b.Input("tokens", graph.TypeOf(graph.I64, 4, 6)), b.Input("labels", graph.TypeOf(graph.I64, 4, 6))
	of, next := b.Param("of", graph.TypeOf(graph.F32, words, 8)), b.Param("next", graph.TypeOf(graph.F32, words, 8))
	gain, bias := b.Param("gain", graph.TypeOf(graph.F32, 8)), b.Param("bias", graph.TypeOf(graph.F32, 1, 8))
	x := b.Add(graph.Gather{}, of, tokens)
	x = b.Binary(graph.Mul, x, b.Broadcast(gain, x.Type.Shape))
	x = b.Binary(graph.Add, x, b.Broadcast(b.Reshape(bias, 8), x.Type.Shape))
	logits := b.Reshape(b.MatMul(b.Reshape(x, 24, 8), next, false, true), 4, 6, words)
	picked := b.Reduce(graph.Sum, b.Binary(graph.Mul, x, b.Add(graph.Gather{}, next, labels)), false, 2)
	all := b.Unary(graph.Log, b.Reduce(graph.Sum, b.Unary(graph.Exp, logits), false, 2))
	b.Output("cost", b.Reduce(graph.Mean, b.Binary(graph.Sub, all, picked), false, 0, 1))
	b.Output("logits", logits)
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	model, corpus = filepath.Join(dir, "bigrams.graph"), filepath.Join(dir, "corpus.bin")
	if err := os.WriteFile(model, []byte(graph.Print(g)), 0o666); err != nil {
		t.Fatal(err)
	}
	var file []byte
	token := 1
	for range 2001 {
		file = binary.LittleEndian.AppendUint16(file, uint16(token))
		token = (token*2 + 1) % words
	}
	if err := os.WriteFile(corpus, file, 0o666); err != nil {
		t.Fatal(err)
	}
	return model, corpus
}

// result is what fusec train --json prints.
func result(t *testing.T, args ...string) (r trainReport) {
	t.Helper()
	if err := json.Unmarshal([]byte(clitest.Good(t, append([]string{"train"}, append(args, "--json")...)...)), &r); err != nil {
		t.Fatal(err)
	}
	return r
}

// TestTrainModel trains a model of the user's own on tokens, and goes on from a checkpoint to the same bits.
func TestTrainModel(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "my models")
	if err := os.Mkdir(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	file := func(name string) string { return filepath.Join(dir, name) }
	model, corpus := bigrams(t, dir)
	data := "tokens,labels=" + corpus
	run := func(args ...string) trainReport {
		return result(t, append([]string{model, "--data", data, "--lr", "0.1", "--epochs", "2"}, args...)...)
	}
	resume := func() trainReport {
		return result(t, model, "--data", data, "--checkpoint", file("run"), "--resume", "--save", file("again.graph"))
	}
	r := run("--save", file("whole.graph"), "--metrics", file("m.jsonl"), "--curve", file("c.svg"), "--draw", file("d.svg"),
		"--report", file("r.html"))
	if r.Steps != 2*83 || r.Batch != 4 || r.Parameters != 2*8*words+2*8 || r.Waited == nil || !(*r.Waited > 0) || r.DataBytes == 0 {
		t.Errorf("%+v", r)
	}
	if float64(*r.Loss) > 0.1 {
		t.Errorf("a loss of %v after learning, and ln %d = %.2f before", *r.Loss, words, math.Log(words))
	}
	// A run that is done has nothing left to do.
	run("--checkpoint", file("run"), "--every", "50")
	resumed := resume()
	if resumed.Resumed != r.Steps {
		t.Errorf("resumed after step %d", resumed.Resumed)
	}
	for i := range 2 { // without its last two checkpoints, the rest of the run is done again
		names := clitest.FileNames(t, file("run"))
		if err := os.RemoveAll(filepath.Join(file("run"), names[len(names)-1])); err != nil {
			t.Fatal(i, err)
		}
	}
	resumed = resume()
	if resumed.Resumed == 0 || resumed.Resumed >= r.Steps {
		t.Errorf("resumed after step %d", resumed.Resumed)
	}
	whole, err := os.ReadFile(file("whole.safetensors"))
	again, err2 := os.ReadFile(file("again.safetensors"))
	if err != nil || err2 != nil || !bytes.Equal(whole, again) {
		t.Errorf("the weights differ after a resumed run (%v, %v)", err, err2)
	}
	// The saved model is one, with its weights.
	if got := clitest.Good(t, "run", file("whole.graph"), "--json"); !strings.Contains(got, `"f32[4,6,11]"`) {
		t.Errorf("the saved model gives %s", got)
	}
	for _, name := range []string{"m.jsonl", "c.svg", "d.svg", "r.html"} {
		if i, err := os.Stat(file(name)); err != nil || i.Size() == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Where it is interrupted it says what goes on.
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	var out, errs bytes.Buffer
	cli.RunCommandLine(ctx, clitest.TestedCommands, []string{"train", model, "--data", data, "--optimizer", "sgd", "--checkpoint",
		file("other"), "--save", "s.graph", "--curve", "c.svg"}, strings.NewReader(""), &out, &errs)
	want := "this goes on:\n  fusec train '" + model + "' --data '" + data + "' --optimizer sgd --checkpoint '" + file("other") +
		"' --resume --curve c.svg --save s.graph\n"
	if !strings.Contains(errs.String(), want) {
		t.Errorf("%q, want %q", errs.String(), want)
	}
	var own ownFlags
	for _, s := range []string{"tokens=4", "batch=2"} {
		if err := own.shapes.Set(s); err != nil {
			t.Fatal(err)
		}
	}
	if got := own.words(); !slices.Equal(got, []string{"--dim", "batch=2", "--dim", "tokens=4"}) {
		t.Errorf("sizes of an ONNX model are given as %q", got)
	}
	staged := trainer{devices: 2, set: train.Settings{Target: "cuda", Microbatches: 4, Ends: "block1", Mesh: "stage=2", Workers: 3}}
	if got := cli.Shell(staged.arrangement()...); got != "--devices 2 --target cuda --pipeline 4:block1 --mesh stage=2 --threads 3" {
		t.Errorf("a pipeline is given as %q", got)
	}
	// It goes on from weights of a file, on the text form.
	text := clitest.Good(t, "train", file("whole.graph"), "--data", data+":u16", "--steps", "10", "--optimizer", "sgd,clip=1")
	for _, want := range []string{"step 10 of 10: loss 0.", "whole: loss 0.", "data: ", " % of the time waited for it",
		"192 parameters"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

// TestTrainModelArrays trains on .npy files, and by the graph's own optimiser.
func TestTrainModelArrays(t *testing.T) {
	dir := t.TempDir()
	b := graph.NewBuilder("line")
	x, y := b.Input("x", graph.TypeOf(graph.F32, 8, 3)), b.Input("y", graph.TypeOf(graph.F32, 8, 1))
	w := b.Param("w", graph.TypeOf(graph.F32, 3, 1))
	kept := b.Param("kept", graph.TypeOf(graph.F32, 8, 1)) // no step changes it
	d := b.Binary(graph.Sub, b.Binary(graph.Add, b.MatMul(x, w, false, false), kept), y)
	cost := b.Reduce(graph.Mean, b.Binary(graph.Mul, d, d), false, 0, 1)
	b.Output("cost", cost)
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	g.Training = &graph.Training{Rule: "sgd", Settings: []graph.Attr{{Name: "rate", Value: "0.1"}},
		Steps: []graph.Step{{Param: w, Cost: cost}}}
	model := filepath.Join(dir, "line.graph")
	if err := graph.Save(model, g, map[string]*graph.Tensor{"w": graph.NewTensor(w.Type),
		"kept": graph.NewTensor(kept.Type)}); err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	xs, ys := graph.NewTensor(graph.TypeOf(graph.F64, 160, 3)), graph.NewTensor(graph.TypeOf(graph.F32, 160, 1))
	for i := range 160 {
		sum := 0.0
		for j := range 3 {
			v := r.NormFloat64()
			xs.SetFloat(3*i+j, v)
			sum += v * float64(j+1)
		}
		ys.SetFloat(i, sum)
	}
	data := []string{"--data", "x=" + filepath.Join(dir, "x.npy"), "--data", "y=" + filepath.Join(dir, "y.f32")}
	if err := npy.WriteFile(filepath.Join(dir, "x.npy"), xs); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "y.f32"), ys.Bytes(), 0o666); err != nil {
		t.Fatal(err)
	}
	saved := filepath.Join(dir, "saved.graph")
	for _, more := range [][]string{{"--epochs", "5"}, {"--epochs", "5", "--lr", "0.05"}, {"--epochs", "5", "--save", saved}} {
		got := result(t, append(append([]string{model}, data...), more...)...)
		if float64(*got.Loss) > 1e-2 || got.Steps != 100 {
			t.Errorf("%v: a loss of %v after %d steps", more, *got.Loss, got.Steps)
		}
	}
	g, weights, err := graph.Load(saved)
	if err != nil || g.Training == nil || len(g.Training.Steps) != 1 {
		t.Fatalf("the optimiser of the saved model is %+v, %v", g.Training, err)
	}
	for i, v := range weights.Tensors["kept"].Floats() {
		if v != 0 {
			t.Errorf("element %d of a parameter that no step changes is %v", i, v)
		}
	}
	bad := func(code int, words string, args ...string) {
		t.Helper()
		clitest.Bad(t, clitest.FusecRun(t, append([]string{"train"}, args...)...), code, words)
	}
	bad(cli.ExitUsage, "trains by sgd already", append(data, model, "--optimizer", "adamw")...)
	bad(cli.ExitUsage, "the model's inputs say how many", append(data, model, "--batch", "4")...)
	bad(cli.ExitUsage, `want --data y=FILE for "y"`, append(data[:2:2], model)...)
	bad(cli.ExitUsage, "is given twice", append(data, "--data", "x=a.npy", model)...)
	bad(cli.ExitUsage, `input "z"`, "--data", "z=a.npy", model)
	bad(cli.ExitUsage, "want NAME=FILE", "--data", "x", model)
	bad(cli.ExitUsage, "want two of [samples, length]", "--data", "x,y="+data[1][2:], model)
	bad(cli.ExitUsage, "are for models of your own", "karate", "--data", "x=a.npy")
	bad(cli.ExitUsage, "a model of your own is a .graph", "nothing")
	bad(cli.ExitFailure, "no such file", "--data", "x=no.npy", "--data", data[3], model)
	bad(cli.ExitFailure, "the model takes f32[8,1]", "--data", data[1], "--data", "y="+data[1][2:], model)
	bad(cli.ExitFailure, "not a whole number of rows", "--data", data[3], "--data", "x="+data[3][2:]+":f64", model)
}

// TestTrainAhead: a device is given a batch that has been read while it computes the step before, and comes to the same weights. A
// batch that cannot be made is an error of its own step.
func TestTrainAhead(t *testing.T) {
	clitest.Emulated(t)
	dir := t.TempDir()
	path, corpus := bigrams(t, dir)
	const steps = 12
	open := func(corpus, target string) (*model, *train.Run) {
		var own ownFlags
		if err := own.addData("tokens,labels=" + corpus); err != nil {
			t.Fatal(err)
		}
		m, err := own.open(&cli.Env{}, path)
		if err != nil {
			t.Fatal(err)
		}
		r, err := m.start(train.Settings{Steps: steps, Batch: m.batch, Rate: 0.1, Seed: 7, Target: target})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := errors.Join(r.Close(), m.close()); err != nil {
				t.Error(err)
			}
		})
		return m, r
	}
	weights := func(beside bool) map[string]*graph.Tensor {
		m, r := open(corpus, "cuda")
		if !m.beside {
			t.Fatal("no batch is given beside a step of a device")
		}
		m.beside = beside
		for i := range steps {
			if err := m.fill(i); err != nil {
				t.Fatal(err)
			}
			for deadline := time.Now().Add(30 * time.Second); !m.data.Ready(); time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("batch %d is not read after 30 s", i+1)
				}
			}
			if err := r.Machine().RunAll(); err != nil {
				t.Fatal(err)
			}
			want := 0
			if beside {
				want = min(i+1, steps-1)
			}
			if m.given != want {
				t.Errorf("beside %v: the batch of step %d was given beside step %d, want %d", beside, m.given, i, want)
			}
		}
		w, err := r.Machine().Weights()
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	want := weights(false)
	for name, w := range weights(true) {
		if !bytes.Equal(w.Bytes(), want[name].Bytes()) {
			t.Errorf("%s differs", name)
		}
	}
	if m, _ := open(corpus, "cpu"); m.beside {
		t.Error("batches are copied for the processor")
	}
	// A token in the middle of the file that the table does not have.
	text, err := os.ReadFile(corpus)
	if err != nil {
		t.Fatal(err)
	}
	text[len(text)/2&^1] = 99
	bad := filepath.Join(dir, "bad.bin")
	if err := os.WriteFile(bad, text, 0o666); err != nil {
		t.Fatal(err)
	}
	var failed [2]string
	for i, target := range []string{"cpu", "cuda"} {
		r := clitest.FusecRun(t, "train", path, "--data", "tokens,labels="+bad, "--target", target)
		clitest.Bad(t, r, cli.ExitFailure, "does not fit into [0,11)")
		failed[i] = r.Stderr
	}
	if !strings.Contains(failed[0], "the batch of step ") || failed[0] != failed[1] {
		t.Errorf("%q on the processor, %q on a device", failed[0], failed[1])
	}
}

// TestTrainModelRefused names what is wrong with a model.
func TestTrainModelRefused(t *testing.T) {
	dir := t.TempDir()
	model, corpus := bigrams(t, dir)
	data := "tokens,labels=" + corpus
	train := func(code int, words string, args ...string) {
		t.Helper()
		clitest.Bad(t, clitest.FusecRun(t, append([]string{"train"}, args...)...), code, words)
	}
	train(cli.ExitUsage, "the rule is not known", model, "--data", data, "--optimizer", "magic")
	train(cli.ExitUsage, "--lr is the learning rate", model, "--data", data, "--optimizer", "sgd,rate=1")
	text, err := os.ReadFile(model)
	if err != nil {
		t.Fatal(err)
	}
	write := func(text string) string {
		path := filepath.Join(dir, "other.graph")
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		return path
	}
	lines := strings.Split(string(text), "\n")
	var without, twice []string
	for _, l := range lines {
		if !strings.HasPrefix(strings.TrimSpace(l), "output cost") {
			without = append(without, l)
		} else {
			_, cost, _ := strings.Cut(l, " = ")
			twice = append(twice, "  other = unary[fn=neg] "+cost+" : f32[]", "  output other = other")
		}
		twice = append(twice, l)
	}
	train(cli.ExitFailure, "the model has no scalar output", write(strings.Join(without, "\n")), "--data", data)
	train(cli.ExitFailure, "the cost must be the only one", write(strings.Join(twice, "\n")), "--data", data)
	// A file whose own optimiser goes by a cost that is no output.
	var hidden []string
	for _, l := range lines {
		if _, cost, ok := strings.Cut(l, "output cost = "); ok {
			l = "  optimiser sgd[rate=1]\n  step of = " + cost
		}
		l = strings.Replace(l, "fusec graph 1", "fusec graph 2", 1)
		hidden = append(hidden, l)
	}
	train(cli.ExitFailure, "is no output", write(strings.Join(hidden, "\n")), "--data", data)
	// Tokens that the table does not have, and a file that is too short.
	for name, tokens := range map[string][]byte{"outside": bytes.Repeat([]byte{99, 0}, 200), "too few": {1, 0, 2, 0}} {
		path := filepath.Join(dir, name+".bin")
		if err := os.WriteFile(path, tokens, 0o666); err != nil {
			t.Fatal(err)
		}
		train(cli.ExitFailure, name+".bin", model, "--data", "tokens,labels="+path)
	}
}

// TestFirstWeights draws filters by the number of inputs that they sum up, however a convolution has them, and no filter or weight
// as if it was a bias.
func TestFirstWeights(t *testing.T) {
	b := graph.NewBuilder("nets")
	inputs := map[string]float64{} // of filters
	image := func(dims ...int) *graph.Node {
		return b.Input(fmt.Sprint("x", len(inputs)), graph.TypeOf(graph.F32, dims...))
	}
	param := func(name string, of float64, dims ...int) *graph.Node {
		inputs[name] = of
		return b.Param(name, graph.TypeOf(graph.F32, dims...))
	}
	used := func(y *graph.Node) { b.Output(fmt.Sprint("y", len(inputs)), y) }
	used(b.Convolve(image(2, 3, 40), param("one axis", 3*9, 64, 3, 9), graph.Window{}, 1))
	used(b.Convolve(image(2, 1, 40), param("one filter", 40, 1, 1, 40), graph.Window{}, 1))
	used(b.Convolve(image(2, 8, 9, 9), param("groups", 2*9, 64, 2, 3, 3), graph.Window{}, 4))
	used(b.Convolve(image(2, 4, 5, 6, 7), param("three axes", 4*27, 32, 4, 3, 3, 3), graph.Window{}, 1))
	used(b.Convolve(image(2, 4, 5, 6, 7), param("three axes in groups", 2*27, 32, 2, 3, 3, 3), graph.Window{}, 2))
	used(b.Convolve(image(2, 4, 5, 6, 7), param("depth", 4*3, 64, 4, 3, 1, 1), graph.Window{}, 1))
	used(b.ConvolveTransposed(image(2, 6, 9), param("one axis back", 6*4/2, 6, 40, 4), graph.Window{Stride: []int{2}}, 1, nil))
	used(b.ConvolveTransposed(image(2, 6, 9, 9), param("back", 3*16/4, 6, 40, 4, 4), graph.Window{Stride: []int{2, 2}}, 2, nil))
	used(b.ConvolveTransposed(image(2, 6, 9, 9), param("gaps", 6, 6, 400, 1, 1), graph.Window{Stride: []int{2, 2}}, 1, nil))
	used(b.ConvolveTransposed(image(2, 6, 3, 4, 5), param("three axes back", 6*4*9/2, 6, 10, 4, 3, 3),
		graph.Window{Stride: []int{2, 1, 1}}, 1, nil))
	nhwc := graph.Conv2D{Stride: graph.IntsOf(1, 1), Dilation: graph.IntsOf(1, 1), Pad: graph.IntsOf(0, 0, 0, 0), Groups: 1,
		Layout: graph.NHWC}
	used(b.Add(nhwc, image(2, 9, 9, 5), param("nhwc", 9*5, 3, 3, 5, 64)))
	used(b.MatMul(b.Reshape(image(4, 50), 1, 4, 50), param("stack", 50+30, 1, 50, 30), false, false))
	used(b.MatMul(image(4, 900), b.Transpose(param("row", 900+1, 1, 900), 1, 0), false, false))
	used(b.Convolve(image(2, 0, 9), param("empty", 0, 4, 0, 3), graph.Window{}, 1))
	bias, gain := param("bias", 0, 1, 8), param("gain", 1, 8)
	x := image(4, 8)
	used(b.Binary(graph.Add, b.Binary(graph.Mul, x, b.Broadcast(gain, x.Type.Shape)), b.Broadcast(bias, x.Type.Shape)))
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	weights := firstWeights(g, 1)
	for name, of := range inputs {
		w := weights[name].Floats()
		sum := 0.0
		for _, v := range w {
			sum += v * v
		}
		want := of // the mean square
		if of > 1 {
			want = 2 / of
		}
		if got := sum / float64(max(len(w), 1)); math.Abs(got-want) > want*6/math.Sqrt(float64(max(len(w), 1))) {
			t.Errorf("%s: a mean square of %v for %d values, want %v", name, got, len(w), want)
		}
	}
}
