package cuda

import (
	"slices"

	kernels "fusec/kernels/cuda"
	"fusec/lowering"
)

// generateAll makes the kernels of all launches. On chips whose launches begin early, neighbours that use nothing of one another
// run at the same time, such as the queries, keys and values of an attention. Programs that train have branches instead.
func (d *Device) generateAll(p *lowering.Program) []generated {
	list := make([]generated, len(p.Launches))
	beside := beside(p)
	var fixed map[int]bool // none in the prepared part
	kernel := func(i int, cfg kernels.Config) {
		list[i].kernel, list[i].err = d.kernel(p, &p.Launches[i], cfg, beside[i], fixed)
	}
	for i := range p.Launches {
		if i == p.Prepared {
			fixed = fixedBuffers(p)
		}
		kernel(i, d.cfg)
	}
	d.keepHidden(p, list, func(i int) generated {
		cfg := d.cfg
		cfg.KeepHidden = true
		k, err := d.kernel(p, &p.Launches[i], cfg, beside[i], fixed)
		return generated{kernel: k, err: err}
	})
	if p.Trains() && d.branching() > 0 || slices.ContainsFunc(joins(p), func(at int) bool { return at > 0 }) {
		return list
	}
	may := func(i int) bool {
		g := list[i]
		return g.err == nil && g.kernel.MayRunBeside() && !updates(p, &p.Launches[i])
	}
	for first := p.Prepared; first < len(list); {
		end := first + 1
		for may(first) && end < len(list) && may(end) && independentOfAll(p, first, end) {
			end++
		}
		for i := first; i < end && end > first+1; i++ {
			cfg := d.cfg
			cfg.Leads, cfg.Beside = i == first, i > first
			kernel(i, cfg)
		}
		first = end
	}
	return list
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
