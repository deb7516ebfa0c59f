package optim

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"fusec/graph"
)

// rules are the rules that a file can name.
var rules = map[string]Rule{"sgd": SGD{}, "momentum": Momentum{}, "adam": Adam{}, "adamw": AdamW{}}

// The settings of a file that are for all rules. Those of a rule are its fields in lower case.
const (
	settingRate       = "rate" // the learning rate, constant
	settingClip       = "clip"
	settingAccumulate = "accumulate"
	settingScale      = "loss_scale"
	settingGrow       = "grow_after"
)

// RuleName is the name of a rule in files and drawings, such as "adamw": of one that is not of this package, its type.
func RuleName(r Rule) string {
	for name, known := range rules {
		if reflect.TypeOf(known) == reflect.TypeOf(r) {
			return name
		}
	}
	return fmt.Sprintf("%T", r)
}

// Training describes the optimiser for a file, without steps: its rule and everything that is not zero. A schedule is
// code and cannot be written; in its place is the given learning rate. A rule that is not of this package is an error.
func (o *Optimizer) Training(rate float64) (*graph.Training, error) {
	t := &graph.Training{Rule: RuleName(o.Rule)}
	if rules[t.Rule] == nil {
		return nil, fmt.Errorf("the optimiser's rule is %T: a file can name %s", o.Rule,
			strings.Join(slices.Sorted(maps.Keys(rules)), ", "))
	}
	put := func(name string, v float64) {
		if v != 0 {
			t.Settings = append(t.Settings, graph.Attr{Name: name, Value: strconv.FormatFloat(v, 'g', -1, 64)})
		}
	}
	rule := reflect.ValueOf(o.Rule)
	for i := range rule.NumField() {
		name := strings.ToLower(rule.Type().Field(i).Name)
		switch f := rule.Field(i); f.Kind() {
		case reflect.Float64:
			put(name, f.Float())
		case reflect.Bool:
			if f.Bool() {
				put(name, 1)
			}
		}
	}
	put(settingRate, rate)
	put(settingClip, o.Clip)
	put(settingAccumulate, float64(o.Accumulate))
	put(settingScale, o.LossScale.Initial)
	put(settingGrow, float64(o.LossScale.GrowAfter))
	return t, nil
}

// AtRate is the same training with another learning rate, which is constant.
func AtRate(t *graph.Training, rate float64) *graph.Training {
	other := *t
	other.Settings = slices.DeleteFunc(slices.Clone(t.Settings), func(a graph.Attr) bool { return a.Name == settingRate })
	other.Settings = append(other.Settings, graph.Attr{Name: settingRate, Value: strconv.FormatFloat(rate, 'g', -1, 64)})
	return &other
}

// FromTraining is the optimiser of a file. Parameters without a step are frozen. Errors name the line of the file.
func FromTraining(t *graph.Training) (*Optimizer, error) {
	fail := func(format string, a ...any) (*Optimizer, error) {
		err := fmt.Errorf("optimiser %s: "+format, append([]any{t.Rule}, a...)...)
		if t.Pos != "" {
			err = fmt.Errorf("%s: %w", t.Pos, err)
		}
		return nil, err
	}
	known := rules[t.Rule]
	if known == nil {
		return fail("the rule is not known; there are %s", strings.Join(slices.Sorted(maps.Keys(rules)), ", "))
	}
	rule := reflect.New(reflect.TypeOf(known)).Elem()
	o, rate := &Optimizer{}, 0.0
	for _, s := range t.Settings {
		v, err := strconv.ParseFloat(s.Value, 64)
		if err != nil {
			return fail("%s=%s is not a number", s.Name, s.Value)
		}
		whole := func(to *int) error {
			if *to = int(v); float64(*to) != v || v > 1<<31 {
				return fmt.Errorf("%s=%s is not a whole number, or too large", s.Name, s.Value)
			}
			return nil
		}
		switch s.Name {
		case settingRate:
			rate = v
		case settingClip:
			o.Clip = v
		case settingAccumulate:
			err = whole(&o.Accumulate)
		case settingScale:
			o.LossScale.Initial = v
		case settingGrow:
			err = whole(&o.LossScale.GrowAfter)
		default:
			f := rule.FieldByNameFunc(func(name string) bool { return strings.ToLower(name) == s.Name })
			switch {
			case !f.IsValid():
				return fail("there is no setting %q", s.Name)
			case f.Kind() == reflect.Bool:
				f.SetBool(v != 0)
			default:
				f.SetFloat(v)
			}
		}
		if err != nil {
			return fail("%w", err)
		}
	}
	if len(t.Steps) == 0 {
		return fail("no step follows it")
	}
	groups := map[string]Group{}
	for _, s := range t.Steps {
		groups[s.Param.Name] = Group{Rate: s.Rate, NoDecay: s.NoDecay}
	}
	o.Rule, o.Rate = rule.Interface().(Rule), Constant(rate)
	o.Group = func(name string, _ graph.Type) Group {
		g, ok := groups[name]
		g.Frozen = !ok
		return g
	}
	if err := o.Check(); err != nil {
		return fail("%s", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	if _, err := o.RateAt(0); err != nil {
		return fail("%w", err)
	}
	return o, nil
}
