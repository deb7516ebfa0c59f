package pipeline_test

import (
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"fusec"
	"fusec/graph/trace"
	"fusec/kernels/group"
)

// order is what a stage does, one after another.
func order(s *trace.StageRun) (list []string) {
	for _, x := range s.Spans {
		name := string(x.What)
		if x.Microbatch > 0 {
			name = fmt.Sprint(name, " ", x.Microbatch)
		}
		list = append(list, name)
	}
	return list
}

// measured checks what is true of any run of 3 stages with 4 microbatches, and gives what its stages did.
func measured(t *testing.T, run *trace.PipelineRun, steps int) (all [][]string) {
	t.Helper()
	if run == nil || run.Steps != steps || len(run.Stages) != 3 || !(run.Waited > 0 && run.Waited < 1) {
		t.Fatalf("%+v", run)
	}
	waited := 0.0
	for i := range run.Stages {
		s := &run.Stages[i]
		at, first := s.Spans[0].Start, s.Spans[0].Start
		for _, x := range s.Spans {
			if x.Start < at || x.Length < 0 {
				t.Errorf("stage %d: %s begins at %v, before %v", i+1, x.What, x.Start, at)
			}
			at = x.Start + x.Length
		}
		if spent := s.Passes + s.Update + s.Previous + s.Next + s.All; s.Passes <= 0 || s.Update <= 0 || s.All <= 0 || spent > s.Step ||
			first < 0 || (s.Previous > 0) != (i > 0) || (s.Next > 0) != (i < 2) {
			t.Errorf("stage %d: %+v", i+1, s)
		}
		waited += s.Waited() / 3
		all = append(all, order(s))
	}
	if waited != run.Waited {
		t.Errorf("stages wait for %v of a step, and all for %v", waited, run.Waited)
	}
	return all
}

// TestMeasured compares what stages are measured to do with the schedule, in one process and in a group.
func TestMeasured(t *testing.T) {
	g := network(t)
	p, err := fusec.Compile(g, adam(), devices(3), fusec.WithPipeline(4))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if run, err := p.PipelineRun(); run != nil || err != nil {
		t.Errorf("before the first run: %+v, %v", run, err)
	}
	for i, steps := range []int{1, 1, 2} { // the first of several is not counted
		if _, err := train(g, p, 1); err != nil {
			t.Fatal(err)
		}
		run, err := p.PipelineRun()
		if err != nil {
			t.Fatal(err)
		}
		all := measured(t, run, steps)
		want := []string{
			"forward 1, wait for next 1, forward 2, wait for next 2, forward 3, wait for next 1, backward 1, " +
				"forward 4, wait for next 2, backward 2, wait for next 3, backward 3, wait for next 4, backward 4, " +
				"update, wait for all, update, wait for all",
			"wait for previous 1, forward 1, wait for next 1, wait for previous 2, forward 2, wait for next 1, backward 1, " +
				"wait for previous 3, forward 3, wait for next 2, backward 2, wait for previous 4, forward 4, wait for next 3, backward 3, " +
				"wait for previous 3, wait for next 4, backward 4, wait for previous 4, update, wait for all, update, wait for all",
			"wait for previous 1, forward 1, backward 1, wait for previous 2, forward 2, backward 2, wait for previous 3, " +
				"forward 3, backward 3, wait for previous 4, forward 4, backward 4, wait for previous 4, " +
				"update, wait for all, update, wait for all",
		}
		for s := range all {
			if got := strings.Join(all[s], ", "); got != want[s] {
				t.Errorf("run %d, stage %d:\n%s, want\n%s", i+1, s+1, got, want[s])
			}
		}
	}
	runs := make([]*trace.PipelineRun, 3)
	var wait sync.WaitGroup
	for r, transport := range group.Local(3, 2*time.Minute) {
		wait.Go(func() {
			p, err := fusec.Compile(g, adam(), fusec.WithPipeline(4), fusec.CompileOption(fusec.WithGroup(group.New(transport))),
				fusec.CompileOption(fusec.WithWorkers(1)))
			if err != nil {
				t.Error(err)
				return
			}
			defer p.Close()
			if _, err = train(g, p, 2); err == nil {
				runs[r], err = p.PipelineRun()
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	for r, run := range runs {
		if measured(t, run, 1); !reflect.DeepEqual(run, runs[0]) {
			t.Errorf("participant %d is told %+v, and the first %+v", r, run, runs[0])
		}
	}
	one, err := fusec.Compile(g, adam())
	if err != nil {
		t.Fatal(err)
	}
	defer one.Close()
	if run, err := one.PipelineRun(); run != nil || err != nil {
		t.Errorf("of one device: %+v, %v", run, err)
	}
}

// TestMeasuredLost: one that does not come is an error.
func TestMeasuredLost(t *testing.T) {
	g := network(t)
	errs := make([]error, 2)
	var wait sync.WaitGroup
	for r, transport := range group.Local(2, 2*time.Minute) {
		wait.Go(func() {
			of := group.New(transport)
			p, err := fusec.Compile(g, adam(), fusec.WithPipeline(4), fusec.CompileOption(fusec.WithGroup(of)))
			if err != nil {
				t.Error(err)
				return
			}
			defer p.Close()
			if _, err = train(g, p, 1); err != nil {
				t.Error(err)
			}
			if r == 1 {
				of.Abort(fmt.Errorf("it has enough"))
				return
			}
			_, errs[r] = p.PipelineRun()
		})
	}
	wait.Wait()
	if errs[0] == nil || !strings.Contains(errs[0].Error(), "bringing the times of stages") {
		t.Error(errs[0])
	}
}
