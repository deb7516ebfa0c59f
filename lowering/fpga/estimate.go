package fpga

import (
	"fusec/fpga/isa"
	"fusec/fpga/plan"
)

// descriptorCycles is the approximate overhead of EXEC for a descriptor.
const descriptorCycles = 6

// commands are the steps' descriptors.
func commands(steps []Step) []isa.Command {
	list := make([]isa.Command, len(steps))
	for i, s := range steps {
		list[i] = s.Cmd
	}
	return list
}

// Predict estimates the time of a sequence of descriptors on an overlay with this memory.
func Predict(c isa.Config, memory plan.Memory, steps []Step) (*plan.Timing, error) {
	loads := plan.Loads{}
	for i, s := range steps {
		if s.Loads != nil {
			loads[i] = s.Loads
		}
	}
	return plan.Predict(c, memory, commands(steps), loads)
}

// estimate is the number of cycles of each launch of a part on an overlay with this memory: from the last stamp to its
// own, so that overlapping work of launches is counted once.
func (l *laid) estimate(p part, steps []Step, memory plan.Memory) ([]int64, error) {
	t, err := Predict(l.cfg, memory, steps)
	if err != nil {
		return nil, err
	}
	cycles := make([]int64, p.to-p.from)
	last := 0.0
	for i, at := range t.Stamps {
		cycles[i], last = int64(at-last), at
	}
	return cycles, nil
}

// ideal is how many cycles the products of a launch take if every multiplier works in each.
func (l *laid) ideal(launch int) int64 {
	var n int64
	for _, t := range l.launches[launch].tasks {
		n += t.products()
	}
	return n / int64(l.cfg.Rows*l.cfg.Cols)
}
