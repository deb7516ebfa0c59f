package demo

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"fusec"
	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/clitest"
	"fusec/graph"
	"fusec/graph/graphtest"
)

// small are sizes at which a demo takes no time.
var small = strings.Fields("demo --batch-size 2 --seq-len 24 --d-model 32 --heads 2 --num-experts 4 --seconds 0.003")

func runSmall(t *testing.T, args ...string) string {
	t.Helper()
	return clitest.Good(t, append(slices.Clone(small), args...)...)
}

func smallDemo(t *testing.T, args ...string) *demoReport {
	t.Helper()
	rep := &demoReport{}
	if err := json.Unmarshal([]byte(runSmall(t, append(args, "--json")...)), rep); err != nil {
		t.Fatal(err)
	}
	return rep
}

func TestDemoJSON(t *testing.T) {
	for _, line := range []string{"", "--causal --threads 1", "--ffn --profile-memory", "--capacity 0.5 --top-k 1",
		"--capacity 0 --heads 32", "--num-experts 1 --top-k 1 --seq-len 1 --batch-size 1"} {
		t.Run(line, func(t *testing.T) {
			rep := smallDemo(t, strings.Fields(line)...)
			if rep.Schema != "fusec.demo/1" || rep.Device != "cpu" || rep.Threads < 1 || rep.Machine.CPU == "" ||
				rep.Blocks.Asked || rep.Blocks.Queries < 1 || rep.Blocks.Keys < 1 || rep.Shape.Hidden != 128 ||
				len(rep.Sections) != 3 {
				t.Fatalf("%+v", rep)
			}
			for _, s := range rep.Sections {
				u, f := s.Unfused, s.Fused
				if f.Launches >= u.Launches || f.Traffic <= 0 || f.Traffic >= u.Traffic || f.FLOPs > u.FLOPs ||
					f.Memory.Values >= u.Memory.Values || f.Memory.Inputs != u.Memory.Inputs || f.Memory.peak() <= 0 {
					t.Errorf("%s: unfused %+v, fused %+v", s.Name, u, f)
				}
				if r := s.Ratio; r.Time <= 0 || r.Traffic <= 1 || r.Memory <= 0 ||
					r.Launches != float64(u.Launches)/float64(f.Launches) {
					t.Errorf("%s: ratio %+v", s.Name, r)
				}
				for _, side := range []demoSide{u, f} {
					if side.MedianNS <= 0 || side.BestNS <= 0 || side.BestNS > side.MedianNS {
						t.Errorf("%s: %+v", s.Name, side)
					}
					if listed := strings.Contains(line, "profile") && side.Memory.Values > 0; (side.Largest != nil) != listed {
						t.Errorf("%s: the largest values are %+v", s.Name, side.Largest)
					}
				}
				kinds := 0
				for _, k := range s.Kinds {
					kinds += k.Launches
				}
				if kinds != f.Launches || s.Rerouted != 0 || !(s.Difference < 1e-5) {
					t.Errorf("%s: %+v", s.Name, s)
				}
			}
			checkRouting(t, rep)
			if text := kindsText(rep.Sections[0].Kinds); text != "attention" {
				t.Errorf("the attention became %s", text)
			}
			if text := kindsText(rep.Sections[1].Kinds); strings.HasSuffix(text, "moe") != (rep.Shape.Experts > 1) {
				t.Errorf("the mixture became %s", text)
			}
		})
	}
}

// checkRouting checks that choices add up, that no expert takes more than it may, and the range of the losses.
func checkRouting(t *testing.T, rep *demoReport) {
	t.Helper()
	r, s := rep.Sections[1].Routing, rep.Shape
	if r == nil || rep.Sections[0].Routing != nil || len(r.Loads) != s.Experts || len(r.Dropped) != s.Experts {
		t.Fatalf("routing %+v", r)
	}
	choices := 0
	for e, n := range r.Loads {
		choices += n + r.Dropped[e]
		if s.Capacity == 0 && r.Dropped[e] != 0 || s.Capacity > 0 && (n > s.Capacity || r.Dropped[e] > 0 && n < s.Capacity) {
			t.Errorf("expert %d takes %d and drops %d of a capacity of %d", e, n, r.Dropped[e], s.Capacity)
		}
	}
	if choices != s.tokens()*s.TopK {
		t.Errorf("%d choices of %d tokens", choices, s.tokens())
	}
	if !(r.Balance > 0.5 && float64(r.Balance) <= float64(s.Experts)+1e-5) || !(r.Z >= 0) {
		t.Errorf("losses %v and %v", r.Balance, r.Z)
	}
}

// A capacity of half an even share drops at least half of the choices, and the chart shows it.
func TestDemoText(t *testing.T) {
	out := runSmall(t, "--capacity", "0.5", "--block-size", "16", "--profile-memory")
	for _, want := range []string{"2 × 24 tokens of 32 numbers", "1. attention: full attention of 2 heads, 16 wide",
		"keys, asked for", "unfused ÷ fused", "fused launches: attention\n", "█", "░", "3. transformer block", "where memory is",
		"2. mixture of experts: 4 experts 128 wide, 2 for each token", "capacity 12, 0.50 times an even share: ",
		"load-balance loss 1.", "router z-loss", "sum: peak memory", "probabilities", "expert0.hidden", "·██",
		"fused: no value is stored between launches"} {
		if !strings.Contains(out, want) {
			t.Errorf("lacks %q:\n%s", want, out)
		}
	}
	for line := range strings.Lines(out) {
		if utf8.RuneCountInString(line) > 101 && !strings.HasPrefix(line, "fusion on") {
			t.Errorf("a line of more than 100 columns: %s", line)
		}
	}
	out = runSmall(t, "--capacity", "0", "--ffn", "--causal")
	for _, want := range []string{"no capacity: none of 96 choices dropped",
		"causal attention of 2 heads, 16 wide; feed-forward network"} {
		if !strings.Contains(out, want) {
			t.Errorf("lacks %q:\n%s", want, out)
		}
	}
	if strings.Contains(out, "where memory is") {
		t.Errorf("memory, unasked for:\n%s", out)
	}
}

// Of many experts the chart shows the busiest.
func TestDemoBars(t *testing.T) {
	r := &demoRouting{Loads: make([]int, 40), Dropped: make([]int, 40)}
	for e := range r.Loads {
		r.Loads[e] = e
	}
	r.Dropped[7] = 100
	out := r.text(&demoShape{Batch: 1, Seq: 1000, Capacity: 39, Factor: 1})
	lines := strings.Split(out, "\n")
	if !strings.HasPrefix(lines[1], "     7 ") || !strings.HasPrefix(lines[2], "    39 ") ||
		!strings.Contains(out, "and 8 experts less busy\n") || !strings.Contains(out, "100 of 880 choices dropped (11.4 %)") {
		t.Errorf("%s", out)
	}
}

// Programs that compute different things are found out, and so are different routes.
func TestDemoDisagrees(t *testing.T) {
	program := func(scale float64) (*graph.Graph, *fusec.Program) {
		b := graph.NewBuilder("g")
		x := b.Input("x", graph.TypeOf(graph.F32, 2, 3))
		y := b.BinaryScalar(graph.Mul, x, scale)
		b.Output(demoRoutes, b.Binary(graph.Gt, y, b.Broadcast(b.Scalar(graph.F32, 4), y.Type.Shape)))
		b.Output(demoY, y)
		g := graphtest.Graph(t, b)
		p, err := fusec.Compile(g)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Close() })
		v, err := graph.TensorOf([]float32{1, 2, 3, 1, 1, 1}, 2, 3)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Run(map[string]*graph.Tensor{"x": v}); err != nil {
			t.Fatal(err)
		}
		return g, p
	}
	g, one := program(1)
	for _, c := range []struct {
		scale    float64
		rerouted int
		far      float64
		want     string
	}{
		{1, 0, 0, ""},
		{1.25, 0, 0.2, "differ by 2.0e-01 of the largest value"},
		{2, 1, 0.5, "send 1 of 2 tokens to different experts"},
	} {
		_, other := program(c.scale)
		s := &demoSection{Name: "it"}
		if err := s.agree(g, one, other); err != nil {
			t.Fatal(err)
		}
		if s.Rerouted != c.rerouted || math.Abs(float64(s.Difference)-c.far) > 1e-6 {
			t.Errorf("scale %v: %d rerouted, difference %v", c.scale, s.Rerouted, s.Difference)
		}
		if err := s.wrong(2); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("scale %v: %v", c.scale, err)
		}
	}
	if (&demoSection{Difference: cli.Number(math.NaN())}).wrong(2) == nil {
		t.Error("NaN agrees")
	}
	if err := (&demoSection{Rerouted: 1}).wrong(100); err != nil {
		t.Errorf("one token in a hundred: %v", err)
	}
}

func TestLifetime(t *testing.T) {
	for _, c := range []struct {
		b    demoBuffer
		want string
	}{
		{demoBuffer{First: 1, Last: 1, Of: 1}, "█"},
		{demoBuffer{First: 2, Last: 3, Of: 4}, "·██·"},
		{demoBuffer{First: 48, Last: 48, Of: 48}, strings.Repeat("·", 23) + "█"},
		{demoBuffer{First: 1, Last: 48, Of: 48}, strings.Repeat("█", 24)},
	} {
		if got := c.b.lifetime(); got != c.want {
			t.Errorf("%+v: %s", c.b, got)
		}
	}
}
