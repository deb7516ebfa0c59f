package cuda

import (
	"slices"

	kernels "fusec/kernels/cuda"
	"fusec/lowering"
)

// chain is one kernel of products of few rows, from launch first on, of which some use what others make. It is nil where there is
// none, and where the program trains.
func (d *Device) chain(p *lowering.Program, list []generated, first int, held heldBuffers) *kernels.Kernel {
	if p.Trains() || !d.joins {
		return nil
	}
	var links []kernels.Link
	since := first // what comes before has ended when a link begins
	for i := first; i < len(list); i++ {
		l := &p.Launches[i]
		if list[i].err != nil || !list[i].kernel.MayRunBeside() || updates(p, l) {
			break
		}
		args, results := operands(p, l, held)
		link := kernels.Link{Launch: kernels.Launch{Op: l.Op, Args: args, Results: results}}
		if kernels.Chains(link.Launch, d.cfg) != nil {
			break
		}
		for _, v := range l.Args {
			link.Values = append(link.Values, v.Buffer)
		}
		for _, v := range l.Results {
			link.Makes = append(link.Makes, v.Buffer)
		}
		if !independentOfAll(p, since, i) {
			if link.After, link.Arg, link.Result = usesOne(p, since, i); link.After == 0 {
				link.Waits, since = true, i
			} else {
				link.After -= first
			}
		}
		links = append(links, link)
	}
	if !slices.ContainsFunc(links, func(l kernels.Link) bool { return l.Waits }) {
		return nil
	}
	for i := range links {
		links[i].Free = true
		for j := range links {
			if i != j && !independent(p, first+i, first+j) {
				links[i].Free = false
			}
		}
	}
	k, err := kernels.Chain(links, d.cfg)
	if err != nil {
		return nil
	}
	k.Joined = len(links) - 1
	return k
}

// usesOne finds the launch, plus 1, of those from first on before launch i of which it uses one result, once, and nothing else,
// with the numbers of the argument and the result. It is 0 if there is none.
func usesOne(p *lowering.Program, first, i int) (after, arg, result int) {
	l := &p.Launches[i]
	for j := first; j < i; j++ {
		m := &p.Launches[j]
		if independent(p, j, i) {
			continue
		}
		if after > 0 || overlap(p, l.Results, append(slices.Clip(m.Args), m.Results...)) {
			return 0, 0, 0
		}
		for a, v := range l.Args {
			if !overlap(p, []lowering.View{v}, m.Results) {
				continue
			}
			r := slices.IndexFunc(m.Results, func(w lowering.View) bool { return w == v })
			if after > 0 || r < 0 {
				return 0, 0, 0
			}
			after, arg, result = j+1, a, r
		}
	}
	return after, arg, result
}
