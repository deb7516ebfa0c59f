package fusec

import (
	"fmt"
	"time"

	"fusec/lowering"
)

// Measure runs the program n times on the values that its device holds since the last [Program.Exec], without copies
// from and to the host, and returns the time of each run by the device's own clock. Parameters and state change as in
// other runs; the learning rate stays that of the last Exec. Devices without memory of their own, such as the CPU, are
// timed by Exec.
func (p *Program) Measure(n int) ([]time.Duration, error) {
	m, ok := p.exe.(lowering.Measurer)
	if !ok {
		return nil, fmt.Errorf("target %q has no clock of its own; time Exec", p.cfg.target)
	}
	return m.Measure(n)
}
