package model

import (
	"fmt"

	"fusec/fpga/isa"
)

// Step executes one command, without waiting, and returns its accesses. The error is its isa.Fault, its Misuse or a
// Race with itself. The machine has then done nothing, or, for an error in a row of a list, only the rows before.
func (m *Machine) Step(c isa.Command) ([]Access, error) {
	if f := m.cfg.Verify(c, m.end()); f != nil {
		return nil, f
	}
	e, ok := isa.EngineOf(c.Op())
	if !ok {
		return nil, nil
	}
	t := &tracker{m: m, segments: make([]segment, 1), holding: m.steps.holding, open: m.steps.open}
	t.begin(entry{0, c}, e)
	m.touch(t, c)
	if t.misuse != nil {
		return nil, t.misuse
	}
	if err := t.overwrites(); err != nil {
		return nil, err
	}
	m.steps.holding, m.steps.open = t.holding, t.open
	if code := m.do(t, c); code != isa.ErrNone {
		return nil, &isa.Fault{Code: code, Field: "a row of a list"}
	}
	return t.accesses, nil
}

// String describes the access.
func (a Access) String() string {
	verb := "reads"
	if a.Writes {
		verb = "writes"
	}
	return fmt.Sprintf("%s %d from %s", verb, a.N, fmt.Sprintf(memoryNames[a.Memory], a.At))
}
