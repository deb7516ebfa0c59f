package onnx

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"fusec"
	"fusec/graph"
	"fusec/graph/onnx/internal/pb"
)

var only = flag.String("only", "", "the conformance cases to run: a pattern of their names")

// casesFolder is where make onnx-cases writes the conformance cases of the onnx package.
func casesFolder(t *testing.T) string {
	dir := os.Getenv("FUSEC_ONNX_CASES")
	if dir == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			t.Fatal(err)
		}
		dir = filepath.Join(cache, "fusec-onnx", "cases")
	}
	if _, err := os.Stat(dir); err != nil {
		if os.Getenv("FUSEC_REQUIRE") != "" {
			t.Fatalf("%v: make onnx-cases installs the cases", err)
		}
		t.Skip("the conformance cases are not installed: make onnx-cases does that")
	}
	return dir
}

// An outcome is what became of a case.
type outcome struct {
	left    string // why it is left out, or empty
	refused error
	wrong   error
}

func (o outcome) passed() bool { return o.left == "" && o.refused == nil && o.wrong == nil }

// TestConformance runs the cases of the onnx package. None may give a wrong result; what is refused is in docs/onnx.md.
func TestConformance(t *testing.T) {
	dir := casesFolder(t)
	models, err := filepath.Glob(filepath.Join(dir, "*", "*", "model.onnx"))
	if err != nil || len(models) == 0 {
		t.Fatalf("%s has no cases: %v", dir, err)
	}
	var passed, counted int
	rows := map[string]*tally{}
	for _, path := range models {
		folder := filepath.Dir(path)
		name := filepath.Base(filepath.Dir(folder)) + "/" + filepath.Base(folder)
		if ok, _ := filepath.Match(*only, filepath.Base(folder)); *only != "" && !ok {
			continue
		}
		o, operator := runCase(t, path)
		if o.left != "" {
			continue
		}
		if rows[operator] == nil {
			rows[operator] = &tally{refused: map[string]int{}}
		}
		rows[operator].add(o)
		counted++
		switch {
		case o.passed():
			passed++
		case o.wrong != nil:
			t.Errorf("%s: %v", name, o.wrong)
		default:
			t.Logf("refused: %s: %v", name, o.refused)
		}
	}
	t.Logf("%d of %d cases pass", passed, counted)
	if *only == "" {
		page(t, fmt.Sprintf("%d of %d cases pass, %.1f %%; none gives a wrong result.\n\n", passed, counted,
			100*float64(passed)/float64(counted))+table(rows))
	}
}

// A tally counts the cases of an operator.
type tally struct {
	passed  int
	refused map[string]int // by reason
}

func (r *tally) add(o outcome) {
	if o.passed() {
		r.passed++
		return
	}
	if o.refused != nil {
		r.refused[reason(o.refused)]++
	}
}

// quoted are files, names and numbers in a reason, which differ by case.
var quoted = regexp.MustCompile(`^.*?\): |^\S*\.onnx: |^tensor ".*?": `)

// reason is an error without the node's name.
func reason(err error) string {
	s := err.Error()
	if _, after, ok := strings.Cut(s, "compile: "); ok {
		_, s, _ = strings.Cut(after, "): ")
		return s
	}
	s, _, _ = strings.Cut(s, "\n")
	return quoted.ReplaceAllString(s, "")
}

// table is the tallies as Markdown.
func table(rows map[string]*tally) string {
	var b strings.Builder
	b.WriteString("| operator | pass | refused |\n| --- | --: | --- |\n")
	for _, name := range slices.Sorted(maps.Keys(rows)) {
		var why []string
		for _, s := range slices.Sorted(maps.Keys(rows[name].refused)) {
			why = append(why, fmt.Sprintf("%d: %s", rows[name].refused[s], strings.ReplaceAll(s, "|", "\\|")))
		}
		fmt.Fprintf(&b, "| %s | %d | %s |\n", name, rows[name].passed, strings.Join(why, "; "))
	}
	return b.String()
}

// page compares the table with that of the documentation, which begins at a marker.
func page(t *testing.T, table string) {
	t.Helper()
	const path, marker = "../../docs/onnx.md", "<!-- go test ./graph/onnx -run TestConformance -update writes what follows. -->\n"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, after, ok := strings.Cut(string(text), marker)
	if !ok {
		t.Fatalf("%s has no marker", path)
	}
	want := "\n" + table
	if *update && after != want {
		if err := os.WriteFile(path, []byte(before+marker+want), 0o666); err != nil {
			t.Fatal(err)
		}
	} else if after != want {
		t.Errorf("%s has another table (go test -update writes it):\n%s", path, table)
	}
}

// runCase runs one case, and names its operator.
func runCase(t *testing.T, path string) (o outcome, operator string) {
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var p pb.ModelProto
	if err := proto.Unmarshal(data, &p); err != nil {
		t.Fatal(err)
	}
	operator = "several, or parts of functions"
	if nodes := p.GetGraph().GetNode(); len(nodes) == 1 {
		operator = nodes[0].GetOpType()
	}
	if o.left = leftOut(&p); o.left != "" {
		return o, operator
	}
	for i := 0; ; i++ {
		set := filepath.Join(filepath.Dir(path), fmt.Sprintf("test_data_set_%d", i))
		if _, err := os.Stat(set); err != nil {
			return o, operator
		}
		in, inErr := values(set, "input", dataInputs(p.GetGraph()))
		var outputs []string
		for _, o := range p.GetGraph().GetOutput() {
			outputs = append(outputs, o.GetName())
		}
		want, outErr := values(set, "output", outputs)
		if err := errors.Join(inErr, outErr); err != nil {
			o.refused = err
			return o, operator
		}
		got, err := runModel(path, data, in)
		if err != nil {
			o.refused = err
			return o, operator
		}
		for _, name := range outputs {
			if err := near(got[name], want[name]); err != nil {
				o.wrong = fmt.Errorf("output %q: %w", name, err)
				return o, operator
			}
		}
	}
}

func runModel(path string, data []byte, in map[string]*graph.Tensor) (map[string]*graph.Tensor, error) {
	m, err := Read(path, data, Options{Inputs: in})
	if err != nil {
		return nil, err
	}
	p, err := fusec.Compile(m.Graph)
	if err != nil {
		return nil, fmt.Errorf("compile: %w", err)
	}
	defer p.Close()
	for name, t := range m.Weights {
		if err := p.Set(name, t); err != nil {
			return nil, err
		}
	}
	for name, t := range in {
		if err := p.Set(name, t); err != nil {
			return nil, err
		}
	}
	if err := p.Exec(); err != nil {
		return nil, fmt.Errorf("run: %w", err)
	}
	got := map[string]*graph.Tensor{}
	for _, o := range m.Graph.Outputs {
		y, err := p.Output(o.Name)
		if err != nil {
			return nil, err
		}
		got[o.Name] = y.Clone()
	}
	return got, nil
}

// dataInputs are the inputs that have no initializer.
func dataInputs(g *pb.GraphProto) (names []string) {
	for _, in := range g.GetInput() {
		if !slices.ContainsFunc(g.GetInitializer(), func(t *pb.TensorProto) bool { return t.GetName() == in.GetName() }) {
			names = append(names, in.GetName())
		}
	}
	return names
}

// values reads the files of a data set.
func values(set, word string, names []string) (map[string]*graph.Tensor, error) {
	r := map[string]*graph.Tensor{}
	for i, name := range names {
		data, err := os.ReadFile(filepath.Join(set, fmt.Sprintf("%s_%d.pb", word, i)))
		if errors.Is(err, fs.ErrNotExist) {
			continue // left out
		}
		if err != nil {
			return nil, err
		}
		var p pb.TensorProto
		if err := proto.Unmarshal(data, &p); err != nil {
			return nil, err
		}
		if r[name], err = new(folder).tensor(&p); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// near compares as the onnx package's runner does, which allows bf16 two units in the last place; here f16 has them, too. As
// expected values may be sums in f32 that nearly cancel, it allows also a difference of 10⁻⁷ of the largest of them.
func near(got, want *graph.Tensor) error {
	const rtol, atol = 1e-3, 1e-7
	largest := 1.
	if want != nil {
		for i := range want.Type.Shape.Elems() {
			if v := math.Abs(want.Float(i)); !math.IsInf(v, 0) && v > largest {
				largest = v
			}
		}
	}
	return nearBy(got, want, rtol, atol*largest)
}

// nearBy allows for what is not of 16 bits differences of rtol of a number and of atol.
func nearBy(got, want *graph.Tensor, rtol, atol float64) error {
	const bf16, f16 = 1. / 64, 1. / 512
	if got == nil || want == nil {
		return fmt.Errorf("is %v, want %v", got, want)
	}
	if got.Type != want.Type {
		return fmt.Errorf("is %v, want %v", got.Type, want.Type)
	}
	r := rtol
	switch got.Type.DType {
	case graph.BF16:
		r = bf16
	case graph.F16:
		r = f16
	}
	for i := range want.Type.Shape.Elems() {
		x, y := got.Float(i), want.Float(i)
		if x == y || math.IsNaN(x) && math.IsNaN(y) || math.Abs(x-y) <= atol+r*math.Abs(y) && !math.IsInf(y, 0) {
			continue
		}
		return fmt.Errorf("element %d of %v is %v, want %v", i, want.Type, x, y)
	}
	return nil
}

// Operators that cases are left out for, with the reason.
var outside = map[string]string{
	"RandomNormal": "random", "RandomNormalLike": "random", "RandomUniform": "random", "RandomUniformLike": "random",
	"Bernoulli": "random", "Multinomial": "random",
	"NonZero": "shape of data", "Unique": "shape of data", "Compress": "shape of data", "NonMaxSuppression": "shape of data",
	"StringNormalizer": "strings", "StringSplit": "strings", "StringConcat": "strings", "RegexFullMatch": "strings",
	"LabelEncoder": "strings",
	"ImageDecoder": "strings of bytes",
}

// leftOut tells why a model does not count: it has other values than tensors of the types that the table has, or its
// results are random, or their shapes depend on data.
func leftOut(p *pb.ModelProto) string {
	for _, id := range p.GetOpsetImport() {
		if d := domainOf(id.GetDomain()); strings.HasPrefix(d, "ai.onnx.") {
			return "domain " + d
		}
	}
	g := p.GetGraph()
	infos := slices.Concat(g.GetInput(), g.GetOutput())
	for _, v := range infos {
		t := v.GetType().GetTensorType()
		if t == nil {
			return "no tensor"
		}
		if why := outsideType(t.GetElemType()); why != "" {
			return why
		}
	}
	return leftOutNodes(g)
}

func leftOutNodes(g *pb.GraphProto) string {
	for _, n := range g.GetNode() {
		if why := outside[n.GetOpType()]; why != "" {
			return why
		}
		if strings.Contains(n.GetOpType(), "Sequence") && n.GetOpType() != "ReverseSequence" ||
			strings.HasPrefix(n.GetOpType(), "Optional") {
			return "sequences and optionals"
		}
		for _, a := range n.GetAttribute() {
			if n.GetOpType() == "Cast" && a.GetName() == "to" {
				if why := outsideType(int32(a.GetI())); why != "" {
					return why
				}
			}
			if a.GetG() != nil {
				if why := leftOutNodes(a.GetG()); why != "" {
					return why
				}
			}
		}
		if n.GetOpType() == "Dropout" && len(n.GetInput()) > 2 && strings.Contains(g.GetName(), "training") {
			return "random"
		}
	}
	return ""
}

func outsideType(k int32) string {
	switch name := typeName(pb.TensorProto_DataType(k)); {
	case name == "STRING":
		return "strings"
	case strings.Contains(name, "FLOAT8"), strings.Contains(name, "INT4"), strings.Contains(name, "INT2"),
		strings.Contains(name, "FLOAT4"), strings.Contains(name, "FLOAT6"), strings.HasPrefix(name, "COMPLEX"):
		return "types of few bits"
	}
	return ""
}
