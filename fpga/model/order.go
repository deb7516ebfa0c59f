package model

import "fusec/fpga/isa"

// Orderer places semaphores in a list of commands, so that the engines may overlap and the result is still that of
// sequential execution. Each ordered pair of engines has its own semaphore, so that its n-th wait belongs to its n-th
// post.
type Orderer struct {
	// Late chooses which command of an engine, among those from first to last, posts the semaphore for which another
	// engine waits; nil for the first, which ends earliest.
	Late func(first, last int) int

	shadow   shadow
	commands [isa.Engines][]ordered
	known    [isa.Engines][isa.Engines]int // commands of the second engine that are complete when the first begins its next
}

// ordered is a command, with the commands that are known to be complete when it starts.
type ordered struct {
	cmd   isa.Command
	clock [isa.Engines]int
}

// Add appends the next command with its accesses (see [Machine.Step]), and sets its Wait and the Posts of earlier
// commands. Semaphore counts stay below isa.SemaphoreMax in programs of up to that many commands between barriers.
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
