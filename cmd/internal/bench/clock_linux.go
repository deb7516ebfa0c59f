package bench

import (
	"time"

	"golang.org/x/sys/unix"
)

// processorTime is how long the processors have worked for this process.
func processorTime() (time.Duration, error) {
	var t unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t)
	return time.Duration(t.Nano()), err
}
