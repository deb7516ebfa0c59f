package lowering

import "errors"

// A QueuedRun is a run in memory of the caller's, in the order of a stream of the caller's on the device.
type QueuedRun struct {
	Stream  uintptr   // the handle that the device's driver has of it, such as a CUstream; 0 is the default stream
	Scratch uintptr   // where [Queuer.QueueBytes] bytes begin, which are the run's until it has ended
	At      []uintptr // by buffer: where the Inputs and Outputs are; what is there of other buffers is not read
}

// QueueAlign is what divides the addresses of a [QueuedRun].
const QueueAlign = 64

// A Queuer is an executable whose runs are queued, and take the caller's memory. Inputs and outputs have no tensors. Parameters
// are bound as usual.
type Queuer interface {
	Executable
	// QueueBytes is the size of the memory that a run needs for temporary values.
	QueueBytes() int64
	// Queue queues a run, and returns before it has ended. Runs must not overlap: who queues them in several streams has one
	// wait for another. What a launch reports, such as an index that is out of range, is the error of a later Queue or of
	// Wait, which waits for all runs.
	Queue(r *QueuedRun) error
}

// ErrQueued is returned for runs that are not queued by an executable whose runs have to be.
var ErrQueued = errors.New("the program runs in the caller's memory: its runs are queued")

// QueuerOf is the executable, or the one that it owns, if its runs are queued.
func QueuerOf(e Executable) (Queuer, bool) {
	q, ok := Unowned(e).(Queuer)
	return q, ok
}
