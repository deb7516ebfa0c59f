package optim_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/graph/optim"
)

// TestTraining checks that an optimiser comes back from a file as it was, with a constant rate and groups by name.
func TestTraining(t *testing.T) {
	g := graphtest.Built(t, func(b *graph.Builder) {
		w := b.Param("w", graph.TypeOf(graph.F32, 2))
		b.Param("frozen", graph.TypeOf(graph.F32, 2))
		b.Output("y", b.Unary(graph.Exp, w))
	})
	for _, o := range []*optim.Optimizer{
		{Rule: optim.SGD{}},
		{Rule: optim.SGD{Decay: 0.1}, Clip: 0.5},
		{Rule: optim.Momentum{Mu: 0.8, Nesterov: true}, Accumulate: 3},
		{Rule: optim.Adam{Beta1: 0.5, Beta2: 0.75, Eps: 1e-6}, LossScale: optim.LossScale{Initial: 1024}},
		{Rule: optim.AdamW{Decay: 1e-300}, LossScale: optim.LossScale{Initial: 1. / 3, GrowAfter: 7}},
	} {
		file, err := o.Training(0.1)
		if err != nil {
			t.Fatal(err)
		}
		w, frozen := g.Lookup("w"), g.Lookup("frozen")
		file.Steps = []graph.Step{{Param: w, Rate: 0.5, NoDecay: true}}
		g.Training = file
		again, err := graph.Parse("m.graph", []byte(strings.Replace(graph.Print(g), "step w", "step w = w", 1)), nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := optim.FromTraining(again.Training)
		if err != nil {
			t.Fatal(err)
		}
		if got.Rate(0) != 0.1 || got.Rate(1e6) != 0.1 {
			t.Errorf("%+v: rates %v, %v", o, got.Rate(0), got.Rate(1e6))
		}
		if k := got.Group("w", w.Type); k != (optim.Group{Rate: 0.5, NoDecay: true}) {
			t.Errorf("%+v: group %+v", o, k)
		}
		if k := got.Group("frozen", frozen.Type); !k.Frozen {
			t.Errorf("%+v: a parameter without a step is in the group %+v", o, k)
		}
		got.Rate, got.Group = nil, nil
		if !reflect.DeepEqual(got, o) {
			t.Errorf("%+v came back as %+v", o, got)
		}
	}
	if _, err := (&optim.Optimizer{Rule: ownRule{}}).Training(1); err == nil ||
		!strings.Contains(err.Error(), "the optimiser's rule is optim_test.ownRule: a file can name adam, adamw, momentum, sgd") {
		t.Errorf("a rule of the user's: %v", err)
	}
}

type ownRule struct{ optim.SGD }

func TestTrainingRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"sgdd":                                 "m.graph:3: optimiser sgdd: the rule is not known; there are adam, adamw, momentum, sgd",
		"sgd[rate=fast]":                       "m.graph:3: optimiser sgd: rate=fast is not a number",
		"sgd[rate=-1]":                         "the schedule gives the learning rate -1",
		"sgd[rate=nan]":                        "the schedule gives the learning rate NaN",
		"sgd[nesterov=1]":                      `m.graph:3: optimiser sgd: there is no setting "nesterov"`,
		"sgd[Decay=1]":                         `there is no setting "Decay"`,
		"momentum[mu=2]":                       "momentum is 2",
		"adam[clip=-1]":                        "clipping norm -1",
		"adam[clip=-1 beta1=2]":                "not a positive number; ",
		"adam[accumulate=1.5]":                 "accumulate=1.5 is not a whole number",
		"adam[grow_after=1e300 loss_scale=1]":  "grow_after=1e300 is not a whole number, or too large",
		"adam[grow_after=-1 loss_scale=1]":     "loss scale is 1, growing after -1 steps",
		"adam[loss_scale=inf]":                 "loss scale is +Inf",
		"momentum[nesterov=1 mu=0.5 rate=0.1]": "",
	} {
		g, err := graph.Parse("m.graph",
			fmt.Appendf(nil, "fusec graph 2 {\n w = param : f32\n optimiser %s\n step w = w\n output w = w\n}", text), nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = optim.FromTraining(g.Training)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}
