package lowering

import "time"

// Inspection is what a program takes of a device.
type Inspection struct {
	Device   string
	Used     int64 // bytes that the program's own account has of the device's memory
	Taken    int64 // bytes by which what the driver had left fell since the program was made: with code and rounding
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
	Spilled   int     // bytes of a thread's variables that are in memory, for want of registers or being indexed
	Shared    int     // bytes of a block
	Resident  int     // blocks that run on a multiprocessor at once
	Occupancy float64 // their threads, as a part of the most that a multiprocessor runs
}

// A Span is a stretch of time of a run, from the run's begin on the device's clock.
type Span struct {
	What   SpanKind
	Launch int // of SpanLaunch
	Start  time.Duration
	Length time.Duration
}

// SpanKind says what a span was spent on.
type SpanKind uint8

// The kinds of spans.
const (
	SpanCopyIn  SpanKind = iota // copies of inputs, and what prepares the run
	SpanLaunch                  // a launch on the device
	SpanHost                    // a launch on the processor, with the copies of its operands
	SpanCopyOut                 // updates that are copied, and copies of outputs
)
