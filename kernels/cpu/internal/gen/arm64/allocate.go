package arm64

import (
	"fmt"

	"github.com/mmcloughlin/avo/reg"
)

// Registers that functions may use. R16 to R18 and R26 to R30 are those of the linker, the platform and Go.
var (
	generalRegisters = []uint32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 19, 20, 21, 22, 23, 24, 25}
	vectorRegisters  = func() []uint32 {
		r := make([]uint32, 32)
		for i := range r {
			r[i] = uint32(i)
		}
		return r
	}()
)

type set map[reg.ID]bool

// allocate assigns a register to each virtual one: in the order of their first instruction, the first that no register has
// which is alive at the same time. Nothing is spilled: a function that needs more registers is an error.
func (f *Func) allocate() map[reg.ID]uint32 {
	live := f.liveAfter()
	apart := map[reg.ID]set{}
	wish := map[reg.ID][]reg.ID{}
	edge := func(a, b reg.ID) {
		for _, p := range [][2]reg.ID{{a, b}, {b, a}} {
			if apart[p[0]] == nil {
				apart[p[0]] = set{}
			}
			apart[p[0]][p[1]] = true
		}
	}
	kinds := map[reg.ID]reg.Kind{}
	for i, in := range f.code {
		for _, r := range in.registers {
			kinds[r.ID()] = r.Kind()
		}
		if in.move {
			d, n := in.registers[0].ID(), in.registers[1].ID()
			wish[d], wish[n] = append(wish[d], n), append(wish[n], d)
		}
		for _, d := range in.defs {
			for id := range live[i] {
				if id != d.ID() && !(in.move && id == in.registers[1].ID()) {
					edge(d.ID(), id)
				}
			}
			for _, other := range in.defs {
				if other.ID() != d.ID() {
					edge(d.ID(), other.ID())
				}
			}
		}
	}
	assigned := map[reg.ID]uint32{}
	for _, in := range f.code {
		for _, r := range in.registers {
			id := r.ID()
			if _, ok := assigned[id]; ok {
				continue
			}
			free := generalRegisters
			if kinds[id] == reg.KindVector {
				free = vectorRegisters
			}
			taken := map[uint32]bool{}
			for other := range apart[id] {
				if n, ok := assigned[other]; ok && kinds[other] == kinds[id] {
					taken[n] = true
				}
			}
			choice, found := uint32(0), false
			for _, w := range wish[id] {
				if n, ok := assigned[w]; ok && !taken[n] && !found {
					choice, found = n, true
				}
			}
			for _, n := range free {
				if !found && !taken[n] {
					choice, found = n, true
				}
			}
			if !found {
				panic(fmt.Sprintf("arm64: %s needs more than %d registers of a kind", f.name, len(free)))
			}
			assigned[id] = choice
		}
	}
	return assigned
}

// liveAfter returns the registers that are needed after each instruction.
func (f *Func) liveAfter() []set {
	labels := map[string]int{}
	for i, in := range f.code {
		if in.label != "" {
			if _, twice := labels[in.label]; twice {
				panic(fmt.Sprintf("arm64: %s has label %s twice", f.name, in.label))
			}
			labels[in.label] = i
		}
	}
	before, after := make([]set, len(f.code)), make([]set, len(f.code))
	for i := range f.code {
		before[i], after[i] = set{}, set{}
	}
	for changed := true; changed; {
		changed = false
		for i := len(f.code) - 1; i >= 0; i-- {
			in := &f.code[i]
			var next []int
			if !in.always {
				next = append(next, i+1)
			}
			if in.target != "" {
				at, ok := labels[in.target]
				if !ok {
					panic(fmt.Sprintf("arm64: %s has no label %s", f.name, in.target))
				}
				next = append(next, at)
			}
			size := len(before[i])
			for _, j := range next {
				if j < len(f.code) {
					for id := range before[j] {
						after[i][id] = true
					}
				}
			}
			written := set{}
			for _, d := range in.defs {
				written[d.ID()] = true
			}
			for id := range after[i] {
				if !written[id] {
					before[i][id] = true
				}
			}
			for _, u := range in.uses {
				before[i][u.ID()] = true
			}
			changed = changed || len(before[i]) != size
		}
	}
	for id := range before[0] {
		panic(fmt.Sprintf("arm64: %s reads register %v, which is not set on every way", f.name, id))
	}
	return after
}
