package graph

import (
	"strings"
	"testing"
)

// TestAnswers checks that a target that forgets an operation, answers twice or names none is refused by name.
func TestAnswers(t *testing.T) {
	// whole has a kernel for each operation that may be launched, but for one.
	whole := func(but string) *Answers[int] {
		a := NewAnswers[int]("the target")
		a.RefuseNotLaunched()
		for i := range opTable {
			if name := opTable[i].Name; a.refused[name] == "" && name != but {
				a.Add(name, i)
			}
		}
		return a
	}
	for want, a := range map[string]*Answers[int]{
		"":                                    whole(""),
		"neither a kernel for rms_norm nor":   whole("rms_norm"),
		"two kernels for rms_norm":            whole("").Add("rms_norm", 0),
		"kernel for input and a reason":       whole("").Add("input", 0),
		"kernel for rms, which is no":         whole("").Add("rms", 0),
		"refuses result_of, which is no oper": func() *Answers[int] { a := whole(""); a.Refuse("it is", "result_of"); return a }(),
	} {
		switch err := a.Check(); {
		case want == "" && err != nil:
			t.Error(err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%v, want %q", err, want)
		}
	}
	a := whole("recurrence")
	if err := a.Check(); err != nil {
		t.Error(err)
	}
	if k, err := a.Of(MatMul{}); err != nil || opTable[k].Name != "matmul" {
		t.Errorf("matmul has kernel %d: %v", k, err)
	}
	rest := NewAnswers[int]("the target")
	rest.Rest("it has no multiplier")
	rest.AddBodies(-1)
	if err := rest.Check(); err != nil {
		t.Error(err)
	}
	for _, op := range []Op{Unary{}, RMSNorm{}} {
		if k, err := rest.Of(op); err != nil || k != -1 {
			t.Errorf("%s has kernel %d: %v", op.OpName(), k, err)
		}
	}
	for _, c := range []struct {
		answers *Answers[int]
		op      Op
		reason  string
	}{
		{a, Transpose{}, "it is a view, which its readers take by strides"},
		{a, Recurrence{}, "its decomposition takes its place"},
		{rest, MatMul{}, "it has no multiplier"},
	} {
		if _, err := c.answers.Of(c.op); err == nil || err.Error() != "the target does not compute "+c.op.OpName()+": "+c.reason {
			t.Errorf("%s: %v", c.op.OpName(), err)
		}
	}
}
