package lowering

import (
	"cmp"
	"slices"

	"fusec/graph"
)

// Parameters that participants keep in parts are gathered ahead: those that launches read next are on their way while launches
// read the ones before. Small ones are gathered together. The first buckets are small, as nothing hides them, and each has up to
// twice as many bytes as the one before it.
const (
	firstGathered = 1 << 20
	mostGathered  = 64 << 20
)

// gatherAhead moves the launches that gather parameters, with those that make what is gathered of parameters alone, such as a
// rounding: each bucket of gathers comes directly before the first launch that reads one of the bucket before. So at most two
// buckets are in memory before they are read.
func (p *Program) gatherAhead() {
	gathers := p.gathered()
	if len(gathers) == 0 {
		return
	}
	before := make([][]gathering, len(p.Launches)) // by launch: the buckets that come before it
	at, limit := p.Prepared, int64(firstGathered)
	for number := 1; len(gathers) > 0; number++ {
		n, bytes := 0, int64(0)
		for n < len(gathers) && (n == 0 || bytes+gathers[n].bytes <= limit) {
			p.Launches[gathers[n].launch].Ahead = number
			bytes += gathers[n].bytes
			n++
		}
		before[at] = append(before[at], gathers[:n]...)
		at, limit = gathers[0].reader, min(2*limit, mostGathered)
		gathers = gathers[n:]
	}
	later := p.later(before)
	launches := make([]Launch, 0, len(p.Launches))
	moved := make([]bool, len(p.Launches))
	move := func(i int) {
		if !moved[i] {
			moved[i] = true
			launches = append(launches, p.Launches[i])
		}
	}
	for i := range p.Launches {
		for _, g := range before[i] {
			for _, j := range g.makers {
				move(j)
			}
		}
		for _, g := range before[i] {
			move(g.launch)
		}
		if !later[i] {
			move(i)
		}
	}
	p.Launches = launches
}

// later marks the gathers, and the launches that only they read: these come with their bucket, even if they could come sooner.
func (p *Program) later(buckets [][]gathering) []bool {
	later := make([]bool, len(p.Launches))
	makes := make([]bool, len(p.Launches))
	for _, list := range buckets {
		for _, g := range list {
			later[g.launch] = true
			for _, j := range g.makers {
				makes[j] = true
			}
		}
	}
	read := make([]bool, len(p.Buffers)) // by a launch that stays
	for i := len(p.Launches) - 1; i >= 0; i-- {
		l := &p.Launches[i]
		later[i] = later[i] || makes[i] && !slices.ContainsFunc(l.Results, func(v View) bool { return read[v.Buffer] })
		if !later[i] {
			for _, v := range l.Args {
				read[v.Buffer] = true
			}
		}
	}
	return later
}

// A gathering is a launch that gathers a parameter.
type gathering struct {
	launch int
	makers []int // the launches that make what is gathered
	reader int   // the first launch that reads the result
	bytes  int64
}

// gathered are the launches that gather parameters, in the order in which they are read.
func (p *Program) gathered() (list []gathering) {
	if len(p.Mesh) == 0 {
		return nil
	}
	const never, often = -1, -2
	writer := slices.Repeat([]int{never}, len(p.Buffers)) // by buffer: the launch that writes it
	for i := range p.Launches {
		for _, v := range p.Launches[i].Results {
			if writer[v.Buffer] == never {
				writer[v.Buffer] = i
			} else {
				writer[v.Buffer] = often
			}
		}
	}
	makers := make([][]int, len(p.Launches)) // of launches that depend on parameters alone, with themselves
	until := make([]int, len(p.Launches))    // of these: the first launch that writes such a parameter
	for i := p.Prepared; i < len(p.Launches); i++ {
		l := &p.Launches[i]
		_, host := l.Op.(graph.Host)
		alone := !host && !slices.ContainsFunc(l.Results, func(v View) bool {
			return p.Buffers[v.Buffer].Role != Temp || writer[v.Buffer] != i
		})
		var from []int
		until[i] = len(p.Launches)
		for _, v := range l.Args {
			w := writer[v.Buffer]
			switch role := p.Buffers[v.Buffer].Role; {
			case role == Const, role == Prepared, role == Param && w == never:
			case role == Param && w > i:
				until[i] = min(until[i], w)
			case role == Temp && w >= 0 && makers[w] != nil:
				from, until[i] = append(from, makers[w]...), min(until[i], until[w])
			default:
				alone = false
			}
		}
		if alone {
			makers[i] = append(from, i)
		}
	}
	for i := range p.Launches {
		op, ok := p.Launches[i].Op.(graph.AllGather)
		if !ok || makers[i] == nil || op.Parts < 2 {
			continue
		}
		result := p.Launches[i].Results[0].Buffer
		reader := i + 1 + slices.IndexFunc(p.Launches[i+1:], func(l Launch) bool {
			return slices.ContainsFunc(l.Args, func(v View) bool { return v.Buffer == result })
		})
		if i < reader && reader < until[i] {
			list = append(list, gathering{i, makers[i][:len(makers[i])-1], reader, p.Buffers[result].Type.Bytes()})
		}
	}
	slices.SortStableFunc(list, func(a, b gathering) int { return cmp.Compare(a.reader, b.reader) })
	return list
}
