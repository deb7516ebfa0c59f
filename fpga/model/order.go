package model

import "fusec/fpga/isa"

// Orderer places semaphores in a list of commands, so that the engines may run ahead of one another and still leave
// what the commands leave one after the other. Each ordered pair of engines has a semaphore of its own, so that its
// n-th taking belongs to its n-th post.
type Orderer struct {
	// Late chooses, from the places of an engine's commands at least the first, which posts what another waits for;
	// nil: the first, whose end comes soonest.
	Late func(first, last int) int

	shadow   shadow
	commands [isa.Engines][]ordered
	known    [isa.Engines][isa.Engines]int // commands of the second engine that are complete when the first begins its next
}

// ordered is a command, and what is known to be complete when it begins.
type ordered struct {
	cmd   isa.Command
	clock [isa.Engines]int
}

// Add takes the next command and what it touches (see [Machine.Step]), sets its Wait, and Posts of commands before it.
// Semaphore counts stay below isa.SemaphoreMax in programs of up to so many commands between barriers.
func (o *Orderer) Add(c isa.Command, touched []Access) {
	e, ok := isa.EngineOf(c.Op())
	if !ok {
		for i := range o.known {
			for j := range o.commands {
				o.known[i][j] = len(o.commands[j])
			}
		}
		return
	}
	if o.shadow == nil {
		o.shadow = shadow{}
	}
	var need [isa.Engines]int
	for _, a := range touched {
		o.shadow.touch(a, int32(len(o.commands[e])+1), e, func(c conflict) bool {
			need[c.engine] = max(need[c.engine], int(c.earlier))
			return true
		})
	}
	known := &o.known[e]
	for from, n := range need {
		if n <= known[from] {
			continue
		}
		if o.Late != nil {
			n = o.Late(n, len(o.commands[from]))
		}
		s := isa.SemaphoreOf(isa.Engine(from), e)
		poster := &o.commands[from][n-1]
		poster.cmd.Syncs().Post |= 1 << s
		c.Syncs().Wait |= 1 << s
		for i, k := range poster.clock {
			known[i] = max(known[i], k)
		}
		known[from] = n
	}
	o.commands[e] = append(o.commands[e], ordered{c, *known})
}
