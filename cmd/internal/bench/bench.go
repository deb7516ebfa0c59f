// Package bench is `fusec bench` and `fusec tune`: workloads, races against rivals, variants of kernels that are compared
// with one another, and baselines.
package bench

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"fusec"
	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/modelio"
	"fusec/cmd/internal/plotting"
)

// Command is fusec bench.
var Command = &cli.Command{
	Name: "bench",
	Args: "[flags] model.graph | all [model.graph...] | matmul | attention | moe | loader [FILE] | gpu [WORKLOAD...] | " +
		"group [WORKLOAD...] | report FILE | --peer-protocol WORKLOAD THREADS SECONDS",
	Summary: "time a model against Gorgonia, kernels, the loader, a GPU, or all; keep figures and tell what changed",
	Doc: `
fusec bench model.graph times the model and Gorgonia's TapeMachine on the same graph, in this process, in turn, and
prints medians, their spread over the rounds and the ratio. Gradients that the file asks for are made by gorgonia.Grad for
the TapeMachine, and the optimiser's steps are those of Gorgonia's solver. Then follow the time, arithmetic and traffic of
each launch, without those that frozen weights determine and that run once. On a GPU it tells also what part each launch reaches of
what a copy and a matrix product were measured to reach, once for each chip; registers, shared memory and occupancy of
each kernel; the copies between host and device; what a run takes beside its launches; and the memory by the driver's
account. --trace FILE writes one run as a timeline that chrome://tracing and Perfetto show. With --target fpga the
cycles of each launch are counted in one run, and one table has the model's time on the overlay, at the clock that --mhz
gives, beside those of the targets that this machine has.

fusec bench model.graph --levels times the model in five ways, side by side: op by op as Gorgonia runs it, if Gorgonia
can; op by op with fusec's kernels; with elementwise work fused; with all fused, which is the default; and tuned, where
fusec tune has kept something. The table has launches, memory traffic and memory of each, and on an overlay
cycles; -o FILE draws it. The outputs of all levels are compared, and the exit code is 1 if fusec's own differ by more
than rounding.

fusec bench matmul times the product of square or other matrices in float32 against gonum, which is what Gorgonia
multiplies with. With --ladder it times every variant, from the definition to fusec's own.

fusec bench attention times attention in float32, --heads heads of --dim for sequences of each length in --seq, and in
the same rounds a matrix product of 1024×1024×1024, of whose speed it should reach a good part; then its scratch. FLOPs
are those of the two products. With --ladder it times every variant, from the definition to pages of keys.

fusec bench moe times mixtures of experts in float32 whose tokens go to --top-k experts each, chosen evenly, for each
number of experts in --experts; in the same rounds the dense form of 8 experts, where every expert computes every token,
and plain matrix products of as many FLOPs as the mixtures need. The time should grow with --top-k and not with the
number of experts, which --plot FILE draws.

fusec bench loader times how fast mini-batches come from a file: read in order and shuffled, against a plain loop of
reads of the same file from the page cache, and past the page cache against the disk. FILE is an .npy file, a
safetensors file of one tensor, or any other of 4-byte elements; without it one of --size is made among the temporary
files (see TMPDIR) and removed afterwards.

With --target cuda the ladders are those of the GPU: the product in each precision, a linear layer and its gradient, and
attention, with registers, shared memory and occupancy of each variant, and the bytes that have to be moved.

fusec bench gpu times fusec on the workloads on which peers gpu times its rivals, under the same names: products, attention,
mixtures of experts, what is bound by memory, and steps of training. Each result is compared first, on sampled rows, with what it
should be. Times are medians by the GPU's clock with all values on the GPU; then those of the host's clock, with the
copies of inputs and outputs. WORKLOAD is memory_bound, linear, shapes, attention, moe, conv, decode, layer, training or a part of
a workload's name. A step of decoding of a whole model with the sizes of Llama 3 8B, which takes up to 85 GB of the GPU's memory, is
measured only when model, or a name that begins so, is named.
With --json there is a line of JSON for each; --no-copies leaves the times with copies out. With --prepare the kernels are
compiled into the cache, and nothing is measured.

fusec bench group times the participants of a group, which a launcher starts, on a GPU each, in bf16: steps of training, data
parallel, with gradients in bf16, and fully sharded, with as many samples for each participant as for one alone; layers of
the sizes of Llama 3 8B and 70B on 8,192 tokens, and decoding by 8 layers, tensor parallel; and a mixture, expert parallel.
What they compute is compared with what one computes alone, if it has the memory. Scaling is the part of the ideal speed,
planned what fusec plan predicts by what one takes alone. WORKLOAD is a part of a workload's name.

fusec bench all measures all that there is to measure on this machine, in about ten minutes, or with --quick in one:
networks of Gorgonia and steps of training, products, attention, mixtures of experts, the loader, and the workloads of a
GPU if there is one; and the models that are named. --only picks suites.

--history FILE appends a line of JSON for each figure, with the commit, the machine, its load, and the spread of the
rounds; fusec bench all appends those of each suite when it ends. fusec bench report FILE tells what has changed by more
than noise and between which commits; -o draws it as .svg or .html. Noise is what the rounds of a run show, or, of four
runs on, what successive runs differ by if that is more. A change is one where the medians of the runs before and after
it differ by more than four standard errors, and by at least 10 %, or 5 % for a ratio to a rival in the same rounds.

--baseline FILE is a gate for speed. It keeps, for each thing measured, how many times as fast as its rival it was:
both slow down on a slow machine, so the ratio stays. When FILE has a ratio already, the new one is compared, and the
exit code is 1 if it is lower by more than the two measurements' noise allows: three times the standard error, which the
rounds show, at least 5 % and at most 20 %; 50 % where the kept ratio is from another processor with the same kernels. A
ratio is that of fast runs, which other programs disturb least. More rounds make a finer gate. fusec bench all allows at
least 15 %, and measures what is lower twice again before it says so. With --threads 1 --cpu-time the gate holds on a
busy machine as well. --update keeps the new ratios instead.

--peer-protocol makes fusec a contestant of the program peers, which times it beside other libraries.`,
	Examples: []cli.Example{
		{"fusec bench model.graph", "against the TapeMachine"},
		{"fusec bench model.graph --threads 1 --rounds 15 --json", "on one core, more rounds, for programs"},
		{"fusec bench model.graph --target cuda --precision bf16 --trace run.json", "on a GPU, and the timeline of a run"},
		{"fusec bench model.graph --target fpga --overlay sim16",
			"cycles of each launch on an overlay, and its time beside the CPU's"},
		{"fusec bench model.graph --levels -o levels.svg", "what each level of fusion is worth, and a drawing of it"},
		{"fusec bench matmul --ladder --sizes 256,1024", "GFLOP/s of each variant"},
		{"fusec bench matmul --sizes 512x768x3072", "other than square: M×K by K×N"},
		{"fusec bench attention --seq 1024,4096 --causal", "time, GFLOP/s, share of the matrix product's speed, scratch"},
		{"fusec bench attention --ladder", "GFLOP/s of each variant"},
		{"fusec bench moe --plot moe.svg", "mixtures of 4 to 64 experts, and the curve of their times"},
		{"fusec bench loader --size 4GiB", "GB/s of mini-batches from a file of 4 GiB"},
		{"fusec bench matmul --target cuda --ladder", "from a thread for each element to the copy engine's tiles"},
		{"fusec bench gpu linear --json", "products of each precision on the GPU, lines of JSON"},
		{"fusec launch --devices 2 -- fusec bench group", "training, layers, decoding and a mixture on two GPUs, and on one"},
		{"fusec bench all --history speed.jsonl", "ten minutes, and a line for each figure"},
		{"fusec bench report speed.jsonl -o speed.html", "what has changed since, and the curves"},
		{"fusec bench model.graph --baseline speed.json", "keep the ratio in speed.json, or fail if it has fallen"},
		{"peers run --with 'fusec bench --peer-protocol'", "beside OpenBLAS, ONNX Runtime, PyTorch and JAX"},
	},
	Setup: func(f *cli.FlagSet) cli.Action {
		b := &bencher{mhz: 100, exchangeBlocks: -1, spare: -1}
		f.Func("dim", "attention: heads of depth `N` (default 64); a model: a size that an ONNX model leaves open, as NAME=SIZE",
			func(s string) (err error) {
				if strings.Contains(s, "=") {
					return b.compile.Shapes.Set(s)
				}
				b.attends.dim, err = cli.WholeNumber(s, 1)
				return err
			})
		b.compile.Declare(f)
		b.values.Declare(f)
		f.Count(&b.rounds, "rounds", 3, "take turns in `N` rounds (default 7; all: 15, or 5 with --quick)")
		f.Seconds(&b.seconds, "seconds", "measure each contestant for `S` seconds in all (default 2; all: 10, or 0.7 with --quick)")
		f.BoolVar(&b.alone, "no-gorgonia", false, "measure fusec alone")
		f.BoolVar(&b.json, "json", false, "print the report as JSON")
		f.StringVar(&b.baseline, "baseline", "", "compare the ratios with those kept in `FILE`; keep them there if it has none")
		f.BoolVar(&b.update, "update", false, "keep the ratios in the baseline even if they have fallen")
		f.BoolVar(&b.cpuTime, "cpu-time", false,
			"measure the time that the processor works, which other programs disturb less; with --threads 1")
		f.BoolVar(&b.quick, "quick", false, "all: smaller sizes, in about a minute")
		f.Names(&b.only, "only", "suite", suiteNames,
			"all: only the suite `NAME`: "+strings.Join(suiteNames(), ", ")+"; may be repeated")
		f.StringVar(&b.history, "history", "", "append each figure as a line of JSON to `FILE`")
		f.StringVar(&b.commit, "commit", "", "history: what is measured is the commit `NAME` (default: the one that the build tells)")
		f.StringVar(&b.trace, "trace", "", "a model: write the timeline of a run to `FILE`, in Chrome's trace format")
		f.BoolVar(&b.ladder, "ladder", false, "matmul, attention: every variant")
		f.BoolVar(&b.level, "levels", false, "a model: as Gorgonia runs it, op by op, elementwise fused, all fused, and tuned")
		f.Output(&b.output, "levels: draw them into `FILE`, .svg or .png; report: .svg or .html")
		f.Func("sizes", "matmul: `SIZES` such as 256,512 or 512x768x3072 (default 256,512,1024,2048)", func(s string) (err error) {
			b.sizes, err = parseSizes(s)
			return err
		})
		f.Func("seq", "attention: `LENGTHS` of the sequences (default 512,1024,2048,4096)", func(s string) (err error) {
			b.attends.seqs, err = parseNumbers(s, "length of a sequence", MaxSeq)
			return err
		})
		f.Count(&b.attends.heads, "heads", 1, "attention: `N` heads (default 8)")
		f.BoolVar(&b.attends.causal, "causal", false, "attention: queries attend keys up to their own")
		b.mixes.declare(f)
		f.Func("size", "loader: make a file of `SIZE` such as 512MiB or 4GiB (default 512MiB)", func(s string) (err error) {
			b.size, err = cli.ParseBytes(s)
			return err
		})
		f.Func("mhz", "target fpga: the overlay's clock, `N` MHz (default 100)", func(s string) (err error) {
			if b.mhz, err = strconv.ParseFloat(s, 64); err != nil || !(b.mhz > 0) {
				return errors.New("want a positive number of MHz")
			}
			return nil
		})
		f.Func("bucket", "group: collective operations are put together to exchanges of `SIZE`, such as 4MiB",
			func(s string) (err error) {
				b.bucket, err = cli.ParseBytes(s)
				return err
			})
		f.Func("exchange-blocks", "group: an exchange takes `N` blocks of threads; 0 leaves the number to NCCL",
			func(s string) (err error) {
				b.exchangeBlocks, err = cli.WholeNumber(s, 0)
				return err
			})
		f.Func("spare", "group: launches beside an exchange leave it `N` multiprocessors (default: one for each block)",
			func(s string) (err error) {
				b.spare, err = cli.WholeNumber(s, 0)
				return err
			})
		f.BoolVar(&b.small, "small", false, "gpu: workloads of a few numbers, which try all paths")
		f.BoolVar(&b.prepare, "prepare", false, "gpu: only compile, all at the same time, for a later run that measures")
		f.BoolVar(&b.noCopies, "no-copies", false, "gpu: only times by the GPU's clock, with all values on the GPU")
		f.BoolVar(&b.protocol, "peer-protocol", false, "speak the protocol of the program peers")
		return b.run
	},
}

// bencher is fusec bench with its flags.
type bencher struct {
	compile modelio.CompileFlags
	values  modelio.ValueFlags

	rounds      int
	seconds     float64
	alone, json bool
	baseline    string
	update      bool
	cpuTime     bool
	quick       bool     // all suites, smaller
	only        []string // of all suites; nil for each
	history     string
	commit      string
	ladder      bool
	level       bool   // a model at each level
	output      string // file of a drawing
	sizes       []size
	attends     attentionShape
	mixes       mixtureShape
	size        int64 // of the loader's file
	trace       string
	mhz         float64 // of an overlay's clock
	small       bool    // of the GPU's workloads
	prepare     bool    // the GPU's workloads are only compiled
	noCopies    bool    // and are not timed with copies from and to the host
	// of a group's exchanges: the bytes of a bucket, or 0; the blocks of threads, or -1
	bucket         int64
	exchangeBlocks int
	spare          int // multiprocessors, or -1
	protocol       bool
	suite          string // what the progress begins with
}

// The arguments that ask for matrix multiplication, attention, mixtures of experts and the workloads on a GPU.
const matmulName, attentionName, moeName, gpuName, groupName = "matmul", "attention", "moe", "gpu", "group"

func (b *bencher) run(e *cli.Env, args []string) error {
	if b.protocol {
		return peerProtocol(e, args)
	}
	noModel := []string{allName, gpuName, groupName, matmulName, attentionName, moeName, loaderName, reportName}
	if len(args) > 0 && slices.Contains(noModel, args[0]) {
		if err := b.compile.Check(); err != nil {
			return err
		}
	}
	if len(args) > 0 && args[0] == groupName {
		return b.group(e, args[1:])
	}
	if len(args) > 0 && args[0] == gpuName {
		if b.baseline != "" || b.ladder || b.trace != "" || b.history != "" {
			return cli.Usage("--baseline, --ladder, --trace and --history are not for fusec bench gpu; fusec bench all --only gpu " +
				"--history FILE keeps its figures")
		}
		return b.gpu(e, args[1:])
	}
	var more []string // arguments behind the first
	if len(args) > 1 && (args[0] == allName || args[0] == loaderName || args[0] == reportName) {
		more, args = args[1:], args[:1]
	}
	if len(more) > 1 && args[0] != allName {
		return cli.Usage("fusec bench %s takes one file, not %d: %s", args[0], len(more), strings.Join(more, ", "))
	}
	path, err := modelio.ModelArgument(args)
	if err != nil {
		return err
	}
	if _, missing := os.Stat(path); missing != nil && !strings.Contains(path, ".") && cli.Suggest(path, noModel) != "" &&
		!slices.Contains(noModel, path) {
		return cli.Usage("%s", cli.Unknown("benchmark", path, append([]string{"model.graph"}, noModel...)))
	}
	switch {
	case path == reportName && len(more) == 0:
		return cli.Usage("which history? Give the file that --history has written")
	case path != allName && (b.quick || b.only != nil):
		return cli.Usage("--quick and --only are for fusec bench all")
	case path == reportName && (b.history != "" || b.baseline != ""):
		return cli.Usage("--history and --baseline are not for fusec bench report")
	case b.commit != "" && b.history == "":
		return cli.Usage("--commit is for --history")
	case path != loaderName && b.size != 0:
		return cli.Usage("--size is for fusec bench loader")
	case path != matmulName && b.sizes != nil:
		return cli.Usage("--sizes is for fusec bench matmul")
	case path != attentionName && b.attends.given():
		return cli.Usage("--seq, --heads, --dim and --causal are for fusec bench attention")
	case path != moeName && b.mixes.given():
		return cli.Usage("--experts, --tokens, --d-model, --hidden, --top-k and --plot are for fusec bench moe")
	case b.trace != "" && slices.Contains(noModel, path):
		return cli.Usage("--trace is for models")
	case b.level && slices.Contains(noModel, path):
		return cli.Usage("--levels is for models")
	case b.level && (b.baseline != "" || b.trace != ""):
		return cli.Usage("--baseline and --trace are not for --levels")
	case b.output != "" && !b.level && path != reportName:
		return cli.Usage("--output is for --levels and fusec bench report")
	case b.small, b.prepare, b.noCopies:
		return cli.Usage("--small, --prepare and --no-copies are for fusec bench gpu")
	case path != matmulName && path != attentionName && b.ladder:
		return cli.Usage("--ladder is for fusec bench matmul and fusec bench attention")
	}
	if b.update && b.baseline == "" {
		return cli.Usage("--update needs --baseline FILE")
	}
	if b.baseline != "" && b.alone {
		return cli.Usage("--baseline needs a rival: it contradicts --no-gorgonia")
	}
	if b.output != "" {
		formats := plotting.Formats
		if path == reportName {
			formats = reportFormats
		}
		if err := plotting.CheckName(b.output, formats); err != nil {
			return cli.Usage("--output %s: %v", b.output, err)
		}
		if err := cli.CanWrite(b.output); err != nil {
			return err
		}
	}
	if path == reportName {
		found, err := b.report(more[0])
		if err != nil {
			return err
		}
		return b.print(e, found)
	}
	b.pace(path == allName)
	if path == allName {
		if err := haveModels(more); err != nil {
			return err
		}
	}
	if b.compile.Threads == 0 {
		b.compile.Threads = runtime.GOMAXPROCS(0)
	}
	// What is wrong with the baseline is said before minutes of measuring.
	var gate *gate
	if b.baseline != "" {
		if gate, err = openGate(b.baseline, b.update); err != nil {
			return err
		}
	}
	onGPU := b.compile.OnGPU()
	if b.cpuTime {
		if b.compile.Threads != 1 || onGPU || b.compile.Kind().Cycles != "" {
			return cli.Usage("--cpu-time requires --threads 1, and is for the CPU: cores that wait for each other may work while they wait")
		}
		restore, err := byProcessors()
		if err != nil {
			return err
		}
		defer restore()
	}
	var kept *historian
	if b.history != "" {
		if kept, err = b.openHistory(); err != nil {
			return err
		}
	}
	// Gorgonia and gonum use as many cores as Go does.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(b.compile.Threads))
	switch {
	case b.compile.Target != fusec.Targets()[0] && !onGPU && slices.Contains(noModel, path):
		return cli.Usage("fusec bench %s is not for target %s; fusec bench model.graph --target %[2]s times a model on it",
			path, b.compile.Target)
	case onGPU && (path == matmulName || path == attentionName) && !b.ladder:
		return cli.Usage("on a GPU fusec bench %s has a --ladder; fusec bench gpu times the rest", path)
	case onGPU && (path == moeName || path == loaderName):
		return cli.Usage("fusec bench %s is for the CPU; fusec bench gpu times mixtures of experts on a GPU", path)
	case onGPU && path == allName:
		return cli.Usage("fusec bench all times the CPU, and by itself a GPU where there is one: leave out --target")
	case onGPU && b.ladder && gate != nil:
		return cli.Usage("--baseline is not for a ladder on a GPU")
	}
	var found *outcome
	switch {
	case onGPU && path == matmulName:
		found, err = b.matmulLadderGPU(e)
	case onGPU && path == attentionName:
		found, err = b.attentionLadderGPU(e)
	case path == allName:
		found, err = b.all(e, more, gate, kept)
	case path == matmulName:
		found, err = b.matmul(e)
	case path == attentionName:
		found, err = b.attention(e)
	case path == moeName:
		found, err = b.moe(e)
	case path == loaderName:
		found, err = b.loader(e, strings.Join(more, ""))
	default:
		found, err = b.model(e, path)
	}
	if err != nil {
		return err
	}
	err = b.print(e, found)
	if kept != nil && path != allName && err == nil {
		err = kept.add(found.gpu, found.all())
	}
	if err = errors.Join(err, found.wrong); err != nil || gate == nil {
		return err
	}
	return b.judge(e, gate, found.entries)
}

// print prints what was found.
func (b *bencher) print(e *cli.Env, found *outcome) error {
	if b.json {
		return cli.WriteJSON(e.Out, found.report)
	}
	return e.Print(found.text)
}

// pace fills in how long to measure, unless flags said so.
func (b *bencher) pace(all bool) {
	rounds, seconds := 7, 2.0
	switch {
	case all && b.quick:
		rounds, seconds = quickRounds, quickSeconds
	case all:
		rounds, seconds = allRounds, allSeconds
	}
	if b.rounds == 0 {
		b.rounds = rounds
	}
	if b.seconds == 0 {
		b.seconds = seconds
	}
}

// outcome is what a benchmark found.
type outcome struct {
	report  any // printed with --json
	text    string
	entries []entry  // of a baseline
	figures []figure // that a history keeps, besides those of the entries
	gpu     string   // on which they were measured, or empty
	wrong   error    // what was found to be wrong; nil if nothing
}

// progress shows how far the benchmark has come.
func (b *bencher) progress(e *cli.Env) *cli.Progress {
	show := cli.NewProgress(e.Stderr)
	show.Prefix = b.suite
	return show
}

// sweep measures each of a list in turn.
func sweep[T any](show *cli.Progress, list []T, measure func(x T, show *cli.Progress) (entry, error)) ([]entry, error) {
	defer show.Done()
	var entries []entry
	for _, x := range list {
		entry, err := measure(x, show)
		if err != nil {
			return nil, err
		}
		entries = append(entries, entry)
	}
	return entries, nil
}

// judge compares new ratios with the baseline and brings it up to date.
func (b *bencher) judge(e *cli.Env, g *gate, now []entry) error {
	verdicts, err := g.judge(now)
	if err != nil {
		return err
	}
	var lost []string
	for _, v := range verdicts {
		if b.json {
			e.Note("%v", v)
		} else {
			fmt.Fprintln(e.Out, v)
		}
		if v.state == lower {
			lost = append(lost, v.String())
		}
	}
	if len(lost) > 0 {
		return fmt.Errorf("slower than the baseline %s:\n%s", b.baseline, strings.Join(lost, "\n"))
	}
	return nil
}
