//go:build !linux

package bench

import (
	"errors"
	"time"
)

// processorTime is how long the processors have worked for this process.
func processorTime() (time.Duration, error) {
	return 0, errors.New("--cpu-time is for Linux")
}
