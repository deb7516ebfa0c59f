// Package training is `fusec train` and `fusec generate`.
package training

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"fusec"
	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/launching"
	"fusec/cmd/internal/modelio"
	"fusec/examples"
	"fusec/examples/train"
	"fusec/graph"
	"fusec/graph/atomicfile"
	"fusec/graph/checkpoint"
	"fusec/graph/dot"
	"fusec/graph/report/live"
	"fusec/kernels/group"
)

// Command is fusec train.
var Command = &cli.Command{
	Name:    "train",
	Args:    "[flags] EXAMPLE|MODEL",
	Summary: "train one of the examples, or a model",
	Doc: `
Trains one of the networks of the package examples on data that comes with fusec, as one compiled program for the cost,
its gradients and the optimiser's step. Without a name it lists the examples and their scores. On a terminal a bar
shows the loss, the speed and the time left; the lines that are printed now and then have the mean loss since the line
before, and the scores on data that is not trained on.

A model of your own is a .graph or .onnx file with one output of a single number, the cost. --data NAME=FILE says where each
of its inputs comes from; the first axis of an input counts the samples of a step. FILE is an .npy file, a safetensors file
(FILE#TENSOR if it has several), or bare little-endian numbers: of the input's own type, u16 for an input of integers, or of
another, as in tokens=corpus.bin:i32. With --data NAME,NEXT=FILE the input NEXT gets what is one element further, as a language
model's targets are. Each epoch has the samples in another order. They are read ahead while steps run, and a GPU is given those
of the next step beside each step; the result says for what part of the time steps waited for them. Weights come from the file
beside the model, and without one are drawn at random.

What a run computes is decided by --seed, --steps, --batch and --lr, to the bit and for any number of --threads.

--checkpoint DIR saves all that the run needs to go on, every N steps, at the end, and when it is interrupted with
Ctrl-C. With --resume the run goes on from the newest checkpoint that is intact, with the settings of that run, and
comes to the same bits as one that was not interrupted. Without a checkpoint it begins at step 0.

--tensorboard DIR writes an event file with the loss, the learning rate, the steps that were skipped since a gradient was
not finite, and the time of each step; and when the model is evaluated, its scores and the load of each expert, which is 1
if all experts of a layer get as many tokens.

With --devices N the run is that of N processes, each with its part of every batch, or with --pipeline a stage of the network
or model, and with a GPU of its own on target cuda. Started by torchrun, mpirun or srun, fusec train is one of the processes
that these have started. The first one evaluates the model, prints, and writes files. The result differs from that of one
process by the order of sums. Of a pipeline it says for what each stage has waited, and --report draws the last step.`,
	Examples: []cli.Example{
		{"fusec train", "what there is to train"},
		{"fusec train digits-vit", "a vision transformer"},
		{"fusec train resnet --report resnet.html", "a residual network, and each of its launches"},
		{"fusec train language --save novel.graph && fusec generate novel.graph", "a language model, and text that it generates"},
		{"fusec train language --checkpoint run --resume", "with checkpoints; the same command resumes the run after an interruption"},
		{"fusec train digits-vit --target cuda --devices 2", "on two GPUs"},
		{"fusec train model.graph --data tokens,labels=corpus.bin --epochs 2 --save trained.graph",
			"a language model of your own, on a file of tokens"},
		{"fusec train digits-mlp --pipeline 4 --devices 2", "a stage on each of two processes, and batches of 4 microbatches"},
		{"fusec train karate --metrics karate.jsonl --curve karate.svg --draw step.svg --report step.html",
			"all that can be seen of it"},
	},
	Names: func(*cli.Env) []string { return exampleNames() },
	Setup: func(f *cli.FlagSet) cli.Action {
		t := &trainer{}
		f.Count(&t.set.Steps, "steps", 1, "do `N` steps (default: the example's)")
		f.Count(&t.epochs, "epochs", 1, "do as many steps as see each sample `N` times")
		f.Count(&t.set.Batch, "batch", 1, "put `N` samples in a step (default: the example's)")
		f.Func("lr", "the learning rate's maximum is `R` (default: the example's)", func(s string) error {
			v, err := strconv.ParseFloat(s, 64)
			if err != nil || !(v > 0) || math.IsInf(v, 0) {
				return errors.New("want a positive number")
			}
			t.set.Rate = v
			return nil
		})
		f.Func("data", "`NAME=FILE` says that the model's input NAME comes from FILE; may be repeated", t.own.addData)
		f.StringVar(&t.own.optimizer, "optimizer", "", "train the model by `RULE`, such as adamw or sgd,clip=1 (default adamw)")
		t.own.shapes.Declare(f, "")
		t.seeded = f.Seed(&t.set.Seed, "`N` decides the first weights and the batches (default 1)")
		f.Count(&t.devices, "devices", 1, "train on `N` devices of this host")
		modelio.Pipeline(f, func(microbatches int, ends []string) {
			t.set.Microbatches, t.set.Ends = microbatches, strings.Join(ends, ",")
		})
		f.StringVar(&t.set.Mesh, "mesh", "",
			"arrange the participants on `AXES`, such as stage=2,data=2 for --pipeline (default: one axis)")
		f.Threads(&t.set.Workers, "all")
		f.Target(&t.set.Target)
		f.Precision(&t.set.Precision)
		f.StringVar(&t.metrics, "metrics", "", "write a line of JSON for each step to `FILE`")
		f.StringVar(&t.curve, "curve", "", "draw the loss and the scores into `FILE`.svg or .png")
		f.StringVar(&t.tensorboard, "tensorboard", "", "write an event file for TensorBoard into the folder `DIR`")
		f.StringVar(&t.checkpoint, "checkpoint", "", "save checkpoints in the folder `DIR`")
		f.Count(&t.every, "every", 1, "save a checkpoint every `N` steps (default: a tenth of the run)")
		f.BoolVar(&t.resume, "resume", false, "go on from the newest checkpoint")
		f.StringVar(&t.save, "save", "", "save the trained model as `FILE`.graph, for fusec dump, run, explain and generate")
		f.StringVar(&t.draw, "draw", "", "draw the compiled training step into `FILE`.svg, .png or .dot")
		f.StringVar(&t.report, "report", "", "write a page on the training step, with the times of its launches, as `FILE`.html")
		f.StringVar(&t.listen, "listen", "",
			"serve the page while the run goes on, at `ADDRESS`/debug/fusec, with pprof beside it: localhost:6060")
		f.BoolVar(&t.json, "json", false, "print the result as JSON, and nothing else")
		return t.run
	},
}

// trainer is fusec train with its flags. Settings that are not given are zero, and the seed is not seeded.
type trainer struct {
	set    train.Settings
	seeded *bool
	epochs int

	devices int  // to start a process for each
	joint   bool // the first participant writes checkpoints

	own   ownFlags
	model *model // of the user's own, or nil

	metrics, curve   string
	tensorboard      string
	checkpoint       string
	every            int
	resume           bool
	save, draw       string
	report           string
	listen           string
	live             *live.Run         // served at listen
	steps            [][]time.Duration // times of the launches of the last steps, for the report
	json             bool
	curveTo, drawTo  dot.Format
	example          *examples.Example
	task             *train.Task
	last             train.Record
	history          []train.Record
	sum              float64 // of losses since the last line
	counted, resumed int
}

func (t *trainer) run(e *cli.Env, args []string) (err error) {
	if len(args) == 0 {
		return t.list(e)
	}
	if err := t.check(e, args); err != nil {
		return err
	}
	if t.model != nil {
		defer t.model.close()
	}
	place, launched, err := group.Launched(os.Getenv)
	if err != nil {
		return err
	}
	if t.devices > 1 && !launched {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		return launching.Run(e, t.devices, append([]string{self}, os.Args[1:]...))
	}
	from, err := t.settle(e)
	if err != nil {
		return err
	}
	if t.set.Group, place, err = launching.Join(0); err != nil {
		return err
	}
	if g := t.set.Group; g != nil {
		if kind, _ := fusec.TargetNamed(t.set.Target); kind.Device != "" && kind.Name == t.set.Target {
			t.set.Target = fmt.Sprintf("%s:%d", kind.Name, max(place.Local, 0))
		}
		defer func() {
			if err != nil && !errors.Is(err, context.Canceled) {
				g.Abort(err)
			}
			err = errors.Join(err, g.Close())
		}()
		if g.Rank() > 0 {
			e = t.follow(e)
		}
	}
	if err := t.places(); err != nil {
		return err
	}
	r, err := t.start()
	if err != nil {
		return fmt.Errorf("%s: %w", t.example.Name, err)
	}
	defer func() { err = errors.Join(err, r.Close(), t.task.Close()) }()
	if from != nil {
		if err := r.Restore(from.State); err != nil {
			return fmt.Errorf("%s: %w", from.Path, err)
		}
		t.resumed = r.Step()
	}
	if err := t.drawing(r.Machine()); err != nil {
		return err
	}
	stop, err := t.serve(e, r.Machine())
	if err != nil {
		return err
	}
	defer stop()
	return t.train(e, r)
}

// start compiles the step.
func (t *trainer) start() (*train.Run, error) {
	if t.model != nil {
		r, err := t.model.start(t.set)
		if err == nil {
			t.task = t.model.task()
		}
		return r, err
	}
	var err error
	if t.task, err = t.example.Open(t.set); err != nil {
		return nil, err
	}
	if g := t.set.Group; g != nil && g.Rank() > 0 && t.task.Evaluate != nil {
		t.task.Evaluate = func() ([]train.Score, error) { return nil, nil }
	}
	r, err := train.Start(t.task, t.set)
	if err != nil {
		return nil, errors.Join(err, t.task.Close())
	}
	return r, nil
}

// follow makes a participant that is not the first silent: it writes nothing, and is interrupted when the first one leaves.
func (t *trainer) follow(e *cli.Env) *cli.Env {
	t.joint = t.checkpoint != ""
	t.metrics, t.curve, t.tensorboard, t.checkpoint, t.save, t.draw, t.report, t.listen, t.json = "", "", "", "", "", "", "", "", false
	quiet := *e
	quiet.Ctx, quiet.Out, quiet.Stderr = context.WithoutCancel(e.Ctx), bufio.NewWriter(io.Discard), io.Discard
	return &quiet
}

// list prints the examples.
func (t *trainer) list(e *cli.Env) error {
	if t.json {
		return cli.Usage("--json is for the result of an example: which?")
	}
	tab := cli.NewTable("example", "what it is", ">steps", ">batch", ">lr", "what it reaches")
	for _, x := range examples.All() {
		d := x.Defaults
		tab.Row(x.Name, x.Summary, strconv.Itoa(d.Steps), strconv.Itoa(d.Batch), strconv.FormatFloat(d.Rate, 'g', -1, 64),
			x.Reaches)
	}
	fmt.Fprintf(e.Out, "%s\nfusec train EXAMPLE trains one of them.\n", tab)
	return nil
}

func exampleNames() (names []string) {
	for _, x := range examples.All() {
		names = append(names, x.Name)
	}
	return names
}

// check reads the example's name and compares the flags with each other.
func (t *trainer) check(e *cli.Env, args []string) error {
	if len(args) > 1 {
		return cli.Usage("one example at a time, not %d: %s", len(args), strings.Join(args, ", "))
	}
	for _, x := range examples.All() {
		if x.Name == args[0] {
			t.example = x
		}
	}
	var err1, err2 error
	if t.curve != "" {
		t.curveTo, err1 = pictureFormat("--curve", t.curve, dot.FormatSVG, dot.FormatPNG)
	}
	if t.draw != "" {
		t.drawTo, err2 = pictureFormat("--draw", t.draw, dot.FormatSVG, dot.FormatPNG, dot.FormatDOT)
	}
	own := t.example == nil && modelio.IsModel(args[0])
	switch {
	case t.example == nil && !own:
		return cli.Usage("%s; a model of your own is a .graph or .onnx file", cli.Unknown("example", args[0], exampleNames()))
	case !own && (len(t.own.data) > 0 || t.own.optimizer != ""):
		return cli.Usage("--data and --optimizer are for models of your own; %s has its own", args[0])
	case own && t.set.Batch > 0:
		return cli.Usage("--batch: the model's inputs say how many samples a step has")
	case t.epochs > 0 && t.set.Steps > 0:
		return cli.Usage("--steps and --epochs contradict each other")
	case t.resume && t.checkpoint == "":
		return cli.Usage("--resume needs the folder of the checkpoints: --checkpoint DIR")
	case t.every > 0 && t.checkpoint == "":
		return cli.Usage("--every needs the folder of the checkpoints: --checkpoint DIR")
	case err1 != nil:
		return err1
	}
	if ext := filepath.Ext(t.report); t.report != "" && ext != ".html" && ext != ".htm" {
		return cli.Usage("--report %s: want a file that ends in .html", t.report)
	}
	if err2 != nil || !own {
		return err2
	}
	var err error
	if t.model, err = t.own.open(e, args[0]); err != nil {
		return err
	}
	t.example = t.model.example()
	if t.save != "" && t.model.file != nil {
		return modelio.CheckReplaced(t.model.path, t.save, t.model.file)
	}
	return nil
}

// pictureFormat is the format of a file by its extension, if it is one of those.
func pictureFormat(flag, path string, formats ...dot.Format) (dot.Format, error) {
	var ends []string
	for _, f := range formats {
		if strings.HasSuffix(path, f.Ext()) {
			return f, nil
		}
		ends = append(ends, f.Ext())
	}
	return "", cli.Usage("%s %s: want a file that ends in %s", flag, path, strings.Join(ends, " or "))
}

// settle fills in the settings that were not given: from the checkpoint that the run goes on from, which it returns, or
// from the example.
func (t *trainer) settle(e *cli.Env) (*checkpoint.Found, error) {
	from, err := t.latest(e)
	if err != nil {
		return nil, err
	}
	defaults := t.example.Defaults
	if from != nil {
		var name string
		if name, defaults, err = train.SettingsOf(from.State); err != nil {
			return nil, fmt.Errorf("%s: %w", from.Path, err)
		}
		if name != t.example.Name {
			return nil, fmt.Errorf("%s is a checkpoint of %s", from.Path, name)
		}
		if t.epochs > 0 {
			return nil, fmt.Errorf("%s has %d steps to do: leave out --epochs", from.Path, defaults.Steps)
		}
	}
	given := t.set
	if t.set.Batch == 0 {
		t.set.Batch = defaults.Batch
	}
	if t.epochs > 0 {
		each := max(t.example.Samples/t.set.Batch, 1)
		if t.epochs > math.MaxInt/each {
			return nil, cli.Usage("--epochs %d: that many epochs of %d steps cannot be counted", t.epochs, each)
		}
		t.set.Steps = t.epochs * each
	}
	if t.set.Steps == 0 {
		t.set.Steps = defaults.Steps
	}
	if t.set.Rate == 0 {
		t.set.Rate = defaults.Rate
	}
	if !*t.seeded {
		t.set.Seed = defaults.Seed
	}
	if t.set.Precision == fusec.F32 {
		t.set.Precision = defaults.Precision
	}
	defaults.Workers, defaults.Target = given.Workers, given.Target
	defaults.Microbatches, defaults.Ends, defaults.Mesh = given.Microbatches, given.Ends, given.Mesh
	if from != nil && t.set != defaults {
		flags := fmt.Sprintf("--steps %d --batch %d --lr %v --seed %d", defaults.Steps, defaults.Batch, defaults.Rate,
			defaults.Seed)
		if p := defaults.Precision; p != fusec.F32 {
			flags += fmt.Sprintf(" --precision %v", p)
		}
		return nil, fmt.Errorf("%s was made with %s: leave these flags out", from.Path, flags)
	}
	return from, nil
}

// latest finds the checkpoint to go on from, if one is wanted and there is one.
func (t *trainer) latest(e *cli.Env) (*checkpoint.Found, error) {
	if t.checkpoint == "" {
		return nil, nil
	}
	found, err := checkpoint.Dir{Path: t.checkpoint}.Latest()
	switch {
	case errors.Is(err, checkpoint.ErrNone):
		return nil, nil
	case err != nil && !errors.Is(err, checkpoint.ErrDamaged):
		return nil, fmt.Errorf("--checkpoint %s: %w", t.checkpoint, atomicfile.Cause(t.checkpoint, err))
	case !t.resume:
		return nil, fmt.Errorf("%s has the checkpoints of another run: --resume goes on with it, or name another folder",
			t.checkpoint)
	case err != nil:
		return nil, err
	}
	for _, err := range found.Skipped {
		e.Note("%v", err)
	}
	return found, nil
}

// places reports an output that could not be written, before time is spent on what would be lost.
func (t *trainer) places() error {
	if t.save != "" && t.save == graph.WeightsPath(t.save) {
		return cli.Usage("--save %s: that is the name of a weights file; a graph is named like model.graph", t.save)
	}
	var files []string
	if t.save != "" {
		files = append(files, t.save, graph.WeightsPath(t.save))
	}
	for _, path := range append(files, t.curve, t.report) {
		if path == "" {
			continue
		}
		if err := cli.CanWrite(path); err != nil {
			return err
		}
	}
	for flag, dir := range map[string]string{"checkpoint": t.checkpoint, "tensorboard": t.tensorboard} {
		if dir == "" {
			continue
		}
		if err := os.MkdirAll(dir, 0o777); err != nil {
			return fmt.Errorf("--%s: making the folder %s: %w", flag, dir, cli.Cause(err))
		}
		if err := cli.CanWrite(filepath.Join(dir, "file")); err != nil {
			return fmt.Errorf("--%s: %w", flag, err)
		}
	}
	return nil
}

// drawing draws the compiled step if asked to.
func (t *trainer) drawing(vm train.Machine) error {
	if t.draw == "" {
		return nil
	}
	tr := vm.Trace()
	var b bytes.Buffer
	if err := dot.Stage(&b, tr, len(tr.Stages)-1, dot.Options{Format: t.drawTo, Title: t.example.Name}); err != nil {
		return err
	}
	return cli.WriteFile(t.draw, b.Bytes())
}

// train does the steps, and writes their records where they are wanted.
func (t *trainer) train(e *cli.Env, r *train.Run) (err error) {
	write := func(train.Record) error { return nil }
	if t.metrics != "" {
		journal, kept, failed := train.OpenJournal(t.metrics, r.Step())
		if failed != nil {
			return failed
		}
		defer func() { err = errors.Join(err, journal.Close()) }()
		t.history, write = kept, journal.Write
	}
	if t.tensorboard != "" {
		board, failed := openEvents(t.tensorboard, r.Step())
		if failed != nil {
			return failed
		}
		defer func() { err = errors.Join(err, board.Close()) }()
		journal := write
		write = func(x train.Record) error {
			return errors.Join(journal(x), board.write(x, t.set.Batch, r.Machine().StepStats().Skipped))
		}
	}
	return t.loop(e, r, write)
}

// redraw is how often the bar changes.
const redraw = 100 * time.Millisecond

// Lines of a run, and checkpoints if --every does not say.
const perRun = 10

// checkpointsKept is how many checkpoints stay.
const checkpointsKept = 3

func (t *trainer) loop(e *cli.Env, r *train.Run, write func(train.Record) error) error {
	bar := cli.NewProgress(e.Stderr)
	start, shown := time.Now(), time.Time{}
	tenth := max(t.set.Steps/perRun, 1)
	if t.every == 0 {
		t.every = tenth
	}
	plan := train.Plan{Name: t.example.Name, Evaluate: tenth,
		Checkpoints: checkpoint.Dir{Path: t.checkpoint, Keep: checkpointsKept, Every: int64(t.every)}, Joint: t.joint,
		Each: func(x train.Record) error {
			t.last, t.sum, t.counted = x, t.sum+x.Loss, t.counted+1
			t.keepTimes(r.Machine().Program())
			t.tell(x, r.Machine())
			t.history = append(t.history, x)
			left := time.Duration(float64(time.Since(start)) / float64(r.Step()-t.resumed) * float64(t.set.Steps-r.Step()))
			if now := time.Now(); now.Sub(shown) >= redraw {
				bar.Show("%s", t.bar(x, left, bar.Columns()))
				shown = now
			}
			if x.Scores != nil && !t.json {
				bar.Done()
				fmt.Fprintln(e.Out, t.line(x, left))
				if err := e.Out.Flush(); err != nil {
					return err
				}
				t.sum, t.counted = 0, 0
			}
			return write(x)
		},
	}
	r.Machine().Program().Profile(t.report != "")
	err := r.Loop(e.Ctx, plan)
	bar.Done()
	if errors.Is(err, context.Canceled) {
		t.stopped(e, r)
	}
	if err != nil {
		return err
	}
	return t.finish(e, r, time.Since(start))
}

// bar is the line of a terminal that changes. In a line of a limited number of columns the bar takes what the numbers
// leave.
func (t *trainer) bar(x train.Record, left time.Duration, columns int) string {
	numbers := fmt.Sprintf(" %d of %d  loss %.4f  %s samples/s  %s left", x.Step, t.set.Steps, x.Loss, cli.Digits(x.Speed),
		seconds(left))
	width := 24
	if columns > 0 {
		width = max(min(width, columns-len(t.example.Name)-1-len(numbers)), 4)
	}
	full := width * x.Step / t.set.Steps
	return t.example.Name + " " + strings.Repeat("█", full) + strings.Repeat("░", width-full) + numbers
}

// line is printed when the model has been evaluated.
func (t *trainer) line(x train.Record, left time.Duration) string {
	scores := scoresText(x.Scores)
	if scores != "" {
		scores += ", "
	}
	return fmt.Sprintf("step %*d of %d: loss %.4f, %s%s left", len(strconv.Itoa(t.set.Steps)), x.Step, t.set.Steps,
		t.sum/float64(t.counted), scores, seconds(left))
}

// seconds is a duration to be read at a glance.
func seconds(d time.Duration) string { return d.Round(time.Second).String() }

// stopped says how to go on.
func (t *trainer) stopped(e *cli.Env, r *train.Run) {
	if t.checkpoint == "" {
		e.Note("stopped after step %d of %d; --checkpoint DIR would have kept what was learnt", r.Step(), t.set.Steps)
		return
	}
	again := []string{"fusec", "train", t.example.Name}
	if t.model != nil {
		again = append([]string{"fusec", "train", t.model.path}, t.own.words()...)
	}
	again = append(append(again, t.arrangement()...), "--checkpoint", t.checkpoint, "--resume")
	for _, f := range []struct{ flag, path string }{{"metrics", t.metrics}, {"curve", t.curve}, {"tensorboard", t.tensorboard},
		{"save", t.save}, {"report", t.report}} { // what is still to be written
		if f.path != "" {
			again = append(again, "--"+f.flag, f.path)
		}
	}
	e.NoteCommand(fmt.Sprintf("stopped after step %d of %d; this goes on", r.Step(), t.set.Steps), again...)
}

// arrangement is the flags that say what a run computes on, which a checkpoint does not.
func (t *trainer) arrangement() (words []string) {
	if t.devices > 1 {
		words = append(words, "--devices", strconv.Itoa(t.devices))
	}
	if t.set.Target != "" {
		words = append(words, "--target", t.set.Target)
	}
	if t.set.Microbatches > 0 {
		stages := strconv.Itoa(t.set.Microbatches)
		if t.set.Ends != "" {
			stages += ":" + t.set.Ends
		}
		words = append(words, "--pipeline", stages)
	}
	if t.set.Mesh != "" {
		words = append(words, "--mesh", t.set.Mesh)
	}
	if t.set.Workers > 0 {
		words = append(words, "--threads", strconv.Itoa(t.set.Workers))
	}
	return words
}
