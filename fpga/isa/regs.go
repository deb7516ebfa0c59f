package isa

import (
	"fmt"
	"strings"
)

// The registers, 32 bits each, at these byte addresses.
const (
	RegID      = 0x00 // ID
	RegVersion = 0x04 // Version
	RegControl = 0x08 // write: ControlStart, ControlReset
	RegStatus  = 0x0c // StatusBusy and its like; writing StatusDone clears it
	RegError   = 0x10 // the error's code, 0: none
	RegErrorAt = 0x14 // the number of the descriptor that it belongs to; of the last one fetched, for ErrWatchdog
	RegProgram = 0x18 // address of the first descriptor, a multiple of DescBytes
	// the first address behind the program's memory, 0: there is no limit; of both, one above AddrBits reads with all bits above set
	RegLimit    = 0x1c
	RegWatchdog = 0x20 // cycles without progress after which the machine stops, 0: never. After reset: 1<<20
	RegExpert   = 0x24 // selects the list that RegCount shows
	RegCount    = 0x28 // entries of the selected list
	RegDropped  = 0x2c // tokens dropped by full lists since a Route with First

	// The configuration, as far as the driver needs it: see [Shape].
	RegShape0 = 0x30
	RegShape1 = 0x34
	RegShape2 = 0x38
	RegShape3 = 0x3c

	// Counters of 64 bits, the low half first. Reading the low half keeps the high half for the read that follows. Start clears them.
	// A board with a serial line alone counts in 32 bits: the high half reads zero.
	RegCounters = 0x40
)

// ID is the value of RegID, "fxo1", and Version the version of this specification.
const (
	ID      = 0x66786f31
	Version = 1
)

// Bits of RegControl and RegStatus.
const (
	ControlStart = 1 << 0
	ControlReset = 1 << 1 // everything but memory and the contents of scratchpads
	StatusBusy   = 1 << 0
	StatusDone   = 1 << 1
	StatusError  = 1 << 2
)

// Counter names a counter, at RegCounters + 8·Counter.
type Counter int

// The counters, in cycles unless said otherwise.
const (
	CountCycles      Counter = iota // from start to done
	CountMultiply                   // the array got operands
	CountExec                       // EXEC had a descriptor under way
	CountExecWaits                  // EXEC held a descriptor that waited for a semaphore
	CountLoad                       // LOAD had a descriptor under way
	CountLoadStalls                 // … and waited for memory
	CountStore                      // STORE had a descriptor under way
	CountStoreStalls                // … and waited for memory
	CountReadBeats                  // beats read, descriptors among them
	CountWriteBeats                 // beats written
	CountDescriptors                // descriptors fetched
	Counters
)

var counterNames = [...]string{"cycles", "multiply", "exec", "exec waits", "load", "load stalls", "store", "store stalls",
	"read beats", "write beats", "descriptors"}

// String gives the counter's name.
func (c Counter) String() string { return counterNames[c] }

// Error is an error code of the machine.
type Error uint32

// The errors.
const (
	ErrNone      Error = iota
	ErrOp              // no such operation, or the configuration lacks it
	ErrCount           // a count that must not be zero is zero, or one is too large
	ErrScratch         // an address behind the end of a scratchpad, parameter memory or list
	ErrMemory          // an address of memory behind the limit, or not a multiple of WordBytes
	ErrSemaphore       // a semaphore posted beyond SemaphoreMax
	ErrWatchdog        // no progress
)

var errorTexts = [...]string{"no error", "the operation is not one of this overlay's", "a count is zero or too large",
	"an address lies behind the end of a scratchpad", "an address lies outside the program's memory or is not aligned",
	"a semaphore was posted too often", "no progress: a semaphore that nothing posts, or memory that does not answer"}

// Error implements error.
func (e Error) Error() string {
	if int(e) < len(errorTexts) {
		return errorTexts[e]
	}
	return fmt.Sprintf("error %d", uint32(e))
}

// Kept is the value of RegProgram and RegLimit after writing v: the bits above AddrBits are kept as one bit.
func (c Config) Kept(v uint32) uint32 {
	if v>>c.AddrBits != 0 {
		return v | ^uint32(0)<<c.AddrBits
	}
	return v
}

// Shape is the values of the registers RegShape0 to RegShape3 for a configuration.
func (c Config) Shape() (regs [4]uint32) {
	lg := func(n int) (l uint32) {
		for 1<<l < n {
			l++
		}
		return
	}
	regs[0] = lg(c.Rows) | lg(c.Cols)<<4 | lg(c.WordBytes)<<8 | uint32(c.Tables)<<12 | uint32(bit(c.AccBits == 32))<<16 |
		uint32(bit(c.SerialMul))<<17 | uint32(bit(c.Attention()))<<18 | uint32(bit(c.Norms))<<19 | uint32(bit(c.Router()))<<20 |
		uint32(bit(c.Patches))<<21
	regs[1] = lg(c.XWords) | lg(c.WWords)<<5 | lg(c.YWords)<<10 | lg(c.Params)<<15 | uint32(c.AddrBits)<<20
	if c.Attention() {
		regs[2] = lg(c.KeyBlock) | lg(c.HeadDim)<<4 | lg(c.QPanels)<<8
	}
	if c.Router() {
		regs[3] = lg(c.Experts) | lg(c.ListLen)<<4 | lg(c.Tokens)<<9 | uint32(c.TopK)<<14
	}
	return
}

// FromShape is the configuration for the values of these registers.
func FromShape(r [4]uint32) (Config, error) {
	f := func(reg, low, width int) int { return int(r[reg] >> low & (1<<width - 1)) }
	c := Config{Rows: 1 << f(0, 0, 4), Cols: 1 << f(0, 4, 4), WordBytes: 1 << f(0, 8, 4), Tables: f(0, 12, 4),
		AccBits:   24 + 8*f(0, 16, 1),
		SerialMul: f(0, 17, 1) == 1, Norms: f(0, 19, 1) == 1, Patches: f(0, 21, 1) == 1,
		XWords: 1 << f(1, 0, 5), WWords: 1 << f(1, 5, 5), YWords: 1 << f(1, 10, 5), Params: 1 << f(1, 15, 5), AddrBits: f(1, 20, 6)}
	if f(0, 18, 1) == 1 {
		c.KeyBlock, c.HeadDim, c.QPanels = 1<<f(2, 0, 4), 1<<f(2, 4, 4), 1<<f(2, 8, 4)
	}
	if f(0, 20, 1) == 1 {
		c.Experts, c.ListLen, c.Tokens, c.TopK = 1<<f(3, 0, 4), 1<<f(3, 4, 5), 1<<f(3, 9, 5), f(3, 14, 3)
	}
	return c, c.Check()
}

// header writes the macros of this package: of field Addr of a Load, FX_LOAD_ADDR, the bits of the descriptor.
func header(def func(name string, v any)) {
	shape := func(name string, v uint32) { def(name, fmt.Sprintf("32'h%08x", v)) }
	shape("ID", ID)
	shape("VERSION", Version)
	for o, fs := range layouts {
		def("OP_"+strings.ToUpper(Op(o).String()), fmt.Sprintf("4'd%d", o))
		for _, f := range fs {
			low := 32*f.word + f.low
			def(strings.ToUpper(Op(o).String()+"_"+f.name), fmt.Sprintf("%d:%d", low+f.width-1, low))
		}
	}
	for s, name := range spaceNames {
		def("SPACE_"+strings.ToUpper(name), fmt.Sprintf("3'd%d", s))
	}
	for o, name := range vectorNames {
		def("VECTOR_"+strings.ToUpper(name), fmt.Sprintf("3'd%d", o))
	}
	for i, name := range counterNames {
		def("COUNT_"+strings.ToUpper(strings.ReplaceAll(name, " ", "_")), i)
	}
	def("COUNTERS", int(Counters))
	for i, name := range [...]string{"NONE", "OP", "COUNT", "SCRATCH", "MEMORY", "SEMAPHORE", "WATCHDOG"} {
		def("ERR_"+name, fmt.Sprintf("4'd%d", i))
	}
	for _, r := range []struct {
		name string
		at   int
	}{{"ID", RegID}, {"VERSION", RegVersion}, {"CONTROL", RegControl}, {"STATUS", RegStatus}, {"ERROR", RegError}, {"ERROR_AT",
		RegErrorAt},
		{"PROGRAM", RegProgram}, {"LIMIT", RegLimit}, {"WATCHDOG", RegWatchdog}, {"EXPERT", RegExpert}, {"COUNT", RegCount},
		{"DROPPED", RegDropped}, {"SHAPE0", RegShape0}, {"SHAPE1", RegShape1}, {"SHAPE2", RegShape2}, {"SHAPE3", RegShape3},
		{"COUNTERS", RegCounters}} {
		def("REG_"+r.name, fmt.Sprintf("8'h%02x", r.at))
	}
}
