package lowering

import "time"

// Inspection is a program's use of a device.
type Inspection struct {
	Device   string
	Used     int64 // bytes of the device's memory, as counted by the program
	Taken    int64 // bytes by which the driver's free memory fell since the program was made: with code and rounding
	Pinned   int64 // bytes of host memory that the device copies from and to
	CopiesIn int64 // bytes copied to the device in each run
	// CopiesOut are the bytes copied to the host in each run.
	CopiesOut int64
	Kernels   [][]KernelUse // of each launch; none if it runs on the processor
}

// KernelUse is one kernel of a launch.
type KernelUse struct {
	Entry     string
	Blocks    int
	Threads   int     // of a block
	Registers int     // of a thread
	Spilled   int     // bytes of a thread's variables in memory, because registers are lacking or they are indexed
	Shared    int     // bytes of a block
	Resident  int     // blocks that run on a multiprocessor at the same time
	Occupancy float64 // their threads over the maximum of a multiprocessor
}

// A Span is an interval of a run, from the run's start, by the device's clock.
type Span struct {
	What   SpanKind
	Launch int // of SpanLaunch, SpanHost and SpanExchange
	Start  time.Duration
	Length time.Duration
}

// SpanKind is the activity of a span.
type SpanKind uint8

// The kinds of spans.
const (
	SpanCopyIn   SpanKind = iota // copies of inputs, and preparation of the run
	SpanLaunch                   // a launch on the device
	SpanHost                     // a launch on the processor, with the copies of its operands
	SpanCopyOut                  // updates that are copied, and copies of outputs
	SpanExchange                 // a launch that exchanges something with other participants, beside others
)
