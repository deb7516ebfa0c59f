package fpgatest

import (
	"context"
	"fmt"

	"fusec/fpga/isa"
	"fusec/fpga/link"
)

// Raw runs descriptors that no driver would let through.
type Raw struct {
	At          uint32
	Descriptors []byte
	Limit       uint32
	Watchdog    uint32
}

// Stop is how a run ended: with a code, isa.ErrNone for well, at a descriptor.
type Stop struct {
	Code   isa.Error
	Number uint32
}

// Encode appends commands to what is run, End behind them if there is none.
func (r *Raw) Encode(commands ...isa.Command) error {
	for _, c := range commands {
		var err error
		if r.Descriptors, err = isa.Encode(r.Descriptors, c); err != nil {
			return err
		}
	}
	return nil
}

// Run resets the overlay and runs the descriptors.
func (r *Raw) Run(ctx context.Context, l link.Link) (Stop, error) {
	if err := l.Write(r.At, r.Descriptors); err != nil {
		return Stop{}, err
	}
	return r.start(ctx, l)
}

// start is Run with the descriptors that are there.
func (r *Raw) start(ctx context.Context, l link.Link) (s Stop, err error) {
	for _, w := range [...]struct{ at, value uint32 }{
		{isa.RegControl, isa.ControlReset}, {isa.RegProgram, r.At}, {isa.RegLimit, r.Limit}, {isa.RegWatchdog,
			r.Watchdog},
		{isa.RegControl, isa.ControlStart},
	} {
		if err := l.WriteReg(w.at, w.value); err != nil {
			return s, err
		}
	}
	status, err := l.Wait(ctx)
	if err != nil {
		return s, err
	}
	code, err := l.ReadReg(isa.RegError)
	if err != nil {
		return s, err
	}
	s.Code = isa.Error(code)
	if s.Number, err = l.ReadReg(isa.RegErrorAt); err != nil {
		return s, err
	}
	if want := map[bool]uint32{true: isa.StatusDone, false: isa.StatusError}[code == 0]; status != want {
		return s, fmt.Errorf("%s: status %#x with error code %d, want %#x", l.Name(), status, code, want)
	}
	return s, nil
}
