package lowering_test

import (
	"errors"
	"testing"

	"fusec/graph"
	"fusec/lowering"
)

// TestDefaults holds what a device promises that embeds the defaults: it runs all by itself, at once, and adds nothing.
func TestDefaults(t *testing.T) {
	var d lowering.Defaults
	p := &lowering.Program{}
	d.Place(p)
	d.Describe(nil, p)
	if len(p.Launches) > 0 || d.Lowering() != nil || d.Shared() != nil || d.Close() != nil {
		t.Error("a device by default adds something")
	}
	var e lowering.ExecutableDefaults
	copied, err := e.Prefetch(0, nil)
	bound, err2 := e.BindOutput(0, nil)
	taken, err3 := e.TakeState(0, nil, 0)
	if copied || bound || taken || errors.Join(err, err2, err3, e.Wait()) != nil {
		t.Error("an executable by default has memory of its own")
	}
	if times, err := e.Measure(3); times != nil || !errors.Is(err, lowering.ErrNoClock) {
		t.Errorf("Measure: %v, %v", times, err)
	}
	inspection, err := e.Inspect()
	if step, lo, hi := e.Rounded(0); inspection != nil || err != nil || e.Timeline() != nil || e.Counts().Launches != nil ||
		e.Spare() != nil || step != 0 || lo != 0 || hi != 0 {
		t.Error("an executable by default counts something")
	}
	m := lowering.Memory{Arena: 1, Outputs: 2, Scratch: 4, Kernels: 8, Prepared: 16}
	if m.Bytes() != 31 {
		t.Errorf("%d bytes", m.Bytes())
	}
}

// TestLaunchError names the launch, counted from 1, and the user's node.
func TestLaunchError(t *testing.T) {
	why := errors.New("why")
	var err error = &lowering.LaunchError{Launch: 2, Node: &graph.Node{Op: graph.Copy{}, Name: "mine"}, Err: why}
	if got, want := err.Error(), `launch 3, copy "mine": why`; got != want || !errors.Is(err, why) {
		t.Errorf("%q, want %q", got, want)
	}
}
