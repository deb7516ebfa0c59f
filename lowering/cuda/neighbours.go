package cuda

import (
	"slices"

	"fusec/graph/trace"
	kernels "fusec/kernels/cuda"
	"fusec/lowering"
)

// generateAll makes the kernels of all launches. On chips whose launches begin early, neighbours that use nothing of one another
// run at the same time, such as the queries, keys and values of an attention, and so does one that can await what it uses of them.
// Products of many rows become one kernel for that, and products of one row with weights of i4 one in which some use what others
// make. Programs that train have branches instead, and there all launches begin early.
func (d *Device) generateAll(p *lowering.Program) []generated {
	list := make([]generated, len(p.Launches))
	branches := p.Trains() && d.branching() > 0
	common := d.cfg
	common.EarlyLarge = branches
	beside := beside(p)
	var held heldBuffers // none in the prepared part
	kernel := func(i int, cfg kernels.Config) {
		list[i].kernel, list[i].err = d.kernel(p, &p.Launches[i], cfg, beside[i], held)
	}
	for i := range p.Launches {
		if i == p.Prepared {
			held = heldBuffersOf(p)
		}
		kernel(i, common)
	}
	d.keepHidden(p, list, func(i int) generated {
		cfg := common
		cfg.KeepHidden = true
		k, err := d.kernel(p, &p.Launches[i], cfg, beside[i], held)
		return generated{kernel: k, err: err}
	})
	if branches || slices.ContainsFunc(joins(p), func(at int) bool { return at > 0 }) {
		return list
	}
	may := func(i int) bool {
		g := list[i]
		return g.err == nil && g.kernel.MayRunBeside() && !updates(p, &p.Launches[i])
	}
	for first := p.Prepared; first < len(list); {
		k := d.joined(p, list, first, held)
		if k == nil {
			k = d.chain(p, list, first, held)
		}
		if k != nil {
			list[first].kernel = k
			for i := range k.Joined {
				list[first+1+i] = generated{kernel: &kernels.Kernel{}, Company: trace.Company{Beside: first + 1, Joined: true}}
			}
			first += together(k)
			continue
		}
		end := first + 1
		awaits := map[int]bool{}
		for may(first) && end < len(list) && may(end) {
			if !independentOfAll(p, first, end) {
				if awaits[end] = awaitsBody(p, list[end].kernel, first, end); !awaits[end] {
					break
				}
			}
			end++
		}
		for i := first; i < end && end > first+1; i++ {
			cfg := common
			cfg.Leads, cfg.Beside, cfg.Awaits = i == first, i > first, awaits[i]
			if kernel(i, cfg); cfg.Beside && list[i].err == nil {
				list[i].Beside = first + 1
			}
		}
		first = end
	}
	return list
}

// joined is one kernel of products on Hopper's own instructions, from launch first on, that use nothing of one another. It is nil
// where that should take no less time than one after another, and where the program trains, whose products have not been timed so.
func (d *Device) joined(p *lowering.Program, list []generated, first int, held heldBuffers) *kernels.Kernel {
	if p.Trains() || !d.joins {
		return nil
	}
	var launches []kernels.Launch
	time := 0
	for i := first; i < len(list); i++ {
		l, k := &p.Launches[i], list[i].kernel
		if list[i].err != nil || k.Time == 0 || updates(p, l) || !independentOfAll(p, first, i) {
			break
		}
		args, results := operands(p, l, held)
		launches = append(launches, kernels.Launch{Op: l.Op, Args: args, Results: results})
		time += k.Time
	}
	if len(launches) < 2 {
		return nil
	}
	k, err := kernels.Join(launches, d.cfg)
	if err != nil || k.Time >= time {
		return nil
	}
	k.Joined = len(launches) - 1
	return k
}

// together is how many launches a kernel computes, with the one that it is of.
func together(k *kernels.Kernel) int {
	if k == nil {
		return 1
	}
	return 1 + k.Joined
}

// independentOfAll reports whether launch i is independent of all from first on that come before it.
func independentOfAll(p *lowering.Program, first, i int) bool {
	for j := first; j < i; j++ {
		if !independent(p, j, i) {
			return false
		}
	}
	return true
}

// awaitsBody reports whether launch i may run beside those from first on that come before it, if it waits for their ends before it
// reads what is late and before it writes: none of them writes what it reads before that. Those before first have ended when it
// begins, since first lets it begin only then.
func awaitsBody(p *lowering.Program, k *kernels.Kernel, first, i int) bool {
	var early []lowering.View
	for n, v := range p.Launches[i].Args {
		if !slices.Contains(k.Late, n) {
			early = append(early, v)
		}
	}
	for j := first; j < i; j++ {
		if overlap(p, early, p.Launches[j].Results) {
			return false
		}
	}
	return len(k.Late) > 0
}
