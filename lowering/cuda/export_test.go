package cuda

import (
	"fmt"

	"fusec/lowering"
)

// CheckBranches finds tasks of a program that do not wait for one on which they depend. It returns how many tasks are whole
// launches in a branch beside the main one, and how many are some steps there.
func CheckBranches(d *Device, p *lowering.Program) (whole, some int, err error) {
	e := &executable{p: p}
	e.cutParts()
	s := newSchedule(p, e.parts, d.Kernels(p), d.branching())
	if s == nil {
		return 0, 0, nil
	}
	update := firstUpdate(p)
	for _, tasks := range s.parts {
		before := make([][]bool, len(tasks)) // by task: what has ended when it begins
		for i := range tasks {
			t := &tasks[i]
			before[i] = make([]bool, len(tasks))
			add := func(j int) {
				before[i][j] = true
				for k, b := range before[j] {
					before[i][k] = before[i][k] || b
				}
			}
			for j := i - 1; j >= 0; j-- {
				if tasks[j].branch == t.branch {
					add(j)
					break
				}
			}
			for _, j := range t.waits {
				add(j)
			}
			for j := range i {
				u := &tasks[j]
				if !before[i][j] && (u.launch != t.launch && depends(p, t, u) || t.launch == update) {
					return whole, some, fmt.Errorf("task %d, of launch %d, does not wait for task %d, of launch %d", i, t.launch, j, u.launch)
				}
			}
			switch {
			case t.branch > 0 && s.apart[t.launch]:
				some++
			case t.branch > 0:
				whole++
			}
		}
	}
	return whole, some, nil
}

// Own says which arguments of a launch no other one writes.
func Own(p *lowering.Program, launch int) (own []bool) {
	args, _ := operands(p, &p.Launches[launch], heldBuffersOf(p))
	for _, a := range args {
		own = append(own, a.Own)
	}
	return own
}
