package cuda

import (
	"fmt"
	"strconv"
	"strings"

	"fusec/graph"
	"fusec/graph/precision"
)

// A Kernel is what one launch of a program becomes: CUDA C++ and how to start it. It is plain data, made without a GPU.
type Kernel struct {
	// Source is one translation unit, complete: NVRTC compiles it with no file beside it.
	Source string
	// Steps are executed in order, one after another.
	Steps []Step
	// Last are the results that the last step makes from the scratch memory alone, and no other step; it makes nothing else. Nil
	// says nothing about it.
	Last []int
	// Ahead is how many of the first steps may run before other launches, which make none of the arguments: they write the scratch
	// memory and what is kept alone. Those of a mixture are the ones up to the hidden values.
	Ahead int
	// Way is how a product is computed, where a [Tuning] says so.
	Way string
	// Joined is how many launches behind this one the kernel computes, too: their arguments and results follow the launch's own.
	Joined int
	// Time is what a product on Hopper's own instructions should take on the chip, in ns. It is 0 for other kernels.
	Time int
	// Scratch is how many bytes of memory the steps share. What is in it before the first step is undefined.
	Scratch int64
	// Late are the arguments that no step reads before it has waited as [Config.Awaits] tells, if it does. Only products of few rows
	// have any: what their bodies alone read.
	Late []int
	// Zeroed is how many bytes of memory the steps have besides that are 0 before a run of the program, and that no other launch
	// has.
	Zeroed int64
	// Resets says that the steps leave that memory 0, too.
	Resets bool
	// Kept is how many bytes of memory the steps have besides that no other launch has, so that what they write there is there at
	// the end of the run. The gradient of a mixture has those of the mixture, see [Config.KeepHidden].
	Kept int64
}

// A Step is one start of a __global__ function, a fill of memory, or an exchange with other participants.
type Step struct {
	Entry  string // the function's name; empty for a fill or an exchange
	Grid   [3]int
	Block  int // threads
	Shared int // bytes of dynamic shared memory
	// Params are the fields of the function's one parameter, a struct, in order, each aligned to its size (a tensor map to
	// 64 bytes). For a fill, Params[0] is where it begins.
	Params []Param
	// Early says that the function may begin before the steps before it have ended: it waits for them itself, with
	// griddepcontrol.wait, before it reads what they write and before it writes, except to the status and to memory of its own.
	Early bool
	// Beside says that the step may run beside the one before it: they need only the steps before those, and write different memory.
	Beside bool
	// Together says that all blocks run at the same time, and wait for one another.
	Together bool
	// Rounds says that a block goes over what other blocks leave: a launch needs no more of them than run at the same time.
	Rounds bool
	Bytes  int64 // of a fill: how many
	Value  byte  // of a fill: with what
	// Exchange is what is exchanged; nil of other steps.
	Exchange *Exchange
}

// A Param is one field of a function's parameter.
type Param struct {
	Kind  ParamKind
	Index int    // of the argument or result
	Byte  int64  // offset from the start of the buffer or the scratch memory
	Bits  uint64 // of a number
	Map   *TensorMap
}

// ParamKind says what a field holds.
type ParamKind uint8

// The kinds of fields. Pointers take 8 bytes.
const (
	ArgPtr     ParamKind = iota // the address of argument Index
	ResultPtr                   // the address of result Index
	ScratchPtr                  // an address in the scratch memory
	ZeroedPtr                   // an address in the memory that is 0 before each run
	KeptPtr                     // an address in the memory that is kept until the end of the run
	StatusPtr                   // the address of the program's [Status]
	Int32                       // Bits, 4 bytes
	Int64                       // Bits, 8 bytes
	Float32                     // Bits, 4 bytes
	MapParam                    // a tensor map of 128 bytes, of the buffer that Map names
)

// Arg, Result and Scratch make the fields that are addresses, byte bytes into the buffer.
func Arg(i int, byte int64) Param    { return Param{Kind: ArgPtr, Index: i, Byte: byte} }
func Result(i int, byte int64) Param { return Param{Kind: ResultPtr, Index: i, Byte: byte} }
func Scratch(byte int64) Param       { return Param{Kind: ScratchPtr, Byte: byte} }

// A TensorMap describes a tensor to the copy engine of Hopper and later chips; see cuTensorMapEncodeTiled and, for a map with
// Windows, cuTensorMapEncodeIm2col. Dims, Strides and Box count from the innermost axis, as there.
type TensorMap struct {
	Base    Param // ArgPtr, ResultPtr or ScratchPtr; 16-byte aligned
	DType   graph.DType
	Dims    []uint64
	Strides []uint64 // bytes, of axes 1 and further; multiples of 16
	Box     []uint32
	Swizzle int // bytes: 0, 32, 64 or 128
	// Windows makes a box some channels of patches at consecutive positions of a window: the tensor is images with axes for
	// channels, columns, rows and images, and Box is channels and positions.
	Windows *Windows
	// Round makes the copy engine round f32 to tf32, to the nearest and ties to even, as it loads: wgmma by itself cuts
	// bits off, which is twice as far and always towards zero. Values beyond the largest of tf32 become infinite.
	Round bool
	// Lines has the L2 cache fetch lines of 128 bytes by themselves, where it else fetches pairs of them. It is for what is read once
	// from one end to the other: on an H200 memory is read faster so.
	Lines bool
}

// Windows are the positions of a window on an image, each array for columns and then rows: from First on, Count of them,
// which are Step apart. First is at least −128, Step at most 8.
type Windows struct {
	First, Count, Step [2]int
}

// Upper gives how far the last position is from the image's last column and row.
func (w *Windows) Upper(dims []uint64) (upper [2]int) {
	for i := range upper {
		upper[i] = w.First[i] + (w.Count[i]-1)*w.Step[i] - int(dims[1+i]) + 1
	}
	return upper
}

// Valid reports whether the copy engine takes the windows on images of these dims.
func (w *Windows) Valid(dims []uint64) bool {
	upper := w.Upper(dims)
	for i := range upper {
		if min(w.First[i], upper[i]) < -128 || max(w.First[i], upper[i]) > 127 || w.Count[i] < 1 || w.Step[i] < 1 || w.Step[i] > 8 {
			return false
		}
	}
	return true
}

// Size and Align are the field's size and alignment in bytes.
func (p Param) Size() int {
	switch p.Kind {
	case Int32, Float32:
		return 4
	case MapParam:
		return 128
	}
	return 8
}

func (p Param) Align() int { return min(p.Size(), 64) }

// Offsets gives the place of each field in the parameter, and the parameter's size.
func (s *Step) Offsets() (at []int, size int) {
	align := 1
	for _, p := range s.Params {
		size = roundUp(size, p.Align())
		at = append(at, size)
		size += p.Size()
		align = max(align, p.Align())
	}
	return at, roundUp(size, align)
}

func roundUp[N int | int64](n, to N) N { return (n + to - 1) / to * to }

// MaxParams is the size of the largest parameter, in bytes.
const MaxParams = 4096

// A Status is what the steps of a program's run report, in device memory: all zero if nothing went wrong. The first step
// that finds something sets it; steps that write to State or Param check it first and do nothing if it is set.
type Status struct {
	Code   int32 // a [StatusCode]
	Launch int32 // the number of the launch, once the reports have been collected
	Where  int64 // which element of the indices, for example
	Value  int64 // what was found there
	Limit  int64 // and what it should have been below
}

// StatusCode says what went wrong.
type StatusCode = int32

// The codes.
const (
	StatusOK       StatusCode = iota
	StatusIndex               // an index outside 0..Limit-1
	StatusStart               // a start of a slice from which Limit elements do not fit
	StatusLength              // a number of valid keys outside 0..Limit
	StatusDivision            // an integer by zero
)

// Operand describes an argument or a result. Buffers begin at multiples of 64 bytes. The step that makes a result which
// is an Update checks the [Status] first.
type Operand = graph.Operand

// Precision is what the contractions of f32 values may be rounded to. Types of 16 bits are what they are.
type Precision = precision.Precision

// The precisions. With F16 and BF16 pass precision has made casts of 16 bits; what f32 is left was to stay so.
const (
	F32  = precision.F32
	TF32 = precision.TF32 // operands rounded to 10 bits after the point, sums in f32
	BF16 = precision.BF16
	F16  = precision.F16
)

// A Chip is what kernels are made for.
type Chip struct {
	Name   string
	Arch   int // compute capability, 10·major + minor
	SMs    int
	Shared int // bytes of shared memory that a block can have at most
	L2     int // bytes
}

// H200 is the chip that plans without a GPU are made for.
var H200 = Chip{Name: "NVIDIA H200", Arch: 90, SMs: 132, Shared: 232448, L2: 60 << 20}

// ChipOf is a chip of the architecture, for compiling where there is none.
func ChipOf(arch int) Chip {
	c := H200
	switch {
	case arch == c.Arch:
	case Chip{Arch: arch}.tensorMemory():
		c = Chip{Name: fmt.Sprintf("sm_%d", arch), Arch: arch, SMs: 148, Shared: 232448, L2: 126 << 20}
	default:
		c = Chip{Name: fmt.Sprintf("sm_%d", arch), Arch: arch, SMs: 108, Shared: 101376, L2: 40 << 20}
	}
	switch { // all later ones have at least 99 KiB
	case arch < 75:
		c.Shared = 96 << 10
	case arch == 75:
		c.Shared = 64 << 10
	}
	return c
}

// ChipNamed is the chip of an architecture's name, such as sm_80 or sm_90a.
func ChipNamed(name string) (Chip, error) {
	digits := strings.TrimSuffix(strings.TrimPrefix(name, "sm_"), "a")
	arch, err := strconv.Atoi(digits)
	if err != nil || !strings.HasPrefix(name, "sm_") || arch < leastArch || arch > 1000 {
		return Chip{}, fmt.Errorf("%q is no architecture: want sm_%d or later, such as sm_80 or sm_90a", name, leastArch)
	}
	return ChipOf(arch), nil
}

// tensorMemory reports whether the chip has tcgen05.
func (c Chip) tensorMemory() bool { return c.Arch == 100 || c.Arch == 103 }

// leastArch is the oldest architecture that kernels are made for.
const leastArch = 70

// Target is the chip's name to a compiler: sm_90a for Hopper, whose own instructions need the a.
func (c Chip) Target() string {
	if c.Arch >= 90 {
		return fmt.Sprintf("sm_%da", c.Arch)
	}
	return fmt.Sprintf("sm_%d", c.Arch)
}

// Threads is how many threads a multiprocessor runs at most.
func (c Chip) Threads() int {
	switch c.Arch {
	case 75:
		return 1024
	case 86, 87, 89, 120, 121:
		return 1536
	}
	return 2048
}

// Config says what kernels are made for.
type Config struct {
	Chip      Chip
	Precision Precision
	// Portable leaves out what only Hopper has, to test the other path on it.
	Portable bool
	// TensorMemory lets products and attention use the instructions of sm_100a and sm_103a that keep sums in tensor memory
	// (tcgen05). No such chip has run them: they compile, and compute what they should in the emulator.
	TensorMemory bool
	// Tuning holds choices that were measured; where it has none, and if nil, the choice goes by rules.
	Tuning *Tuning
	// Leads says that the next launch runs beside this one: it begins once all before this one have ended. Beside says that this
	// is such a next launch, which reads nothing that those it runs beside write, and writes nothing that they use. Both kernels
	// are of those that [Kernel.MayRunBeside].
	Leads, Beside bool
	// Awaits says of a launch Beside others that it waits for the end of all before it, those that it runs beside too, before it
	// reads what is [Kernel.Late] and before it writes.
	Awaits bool
	// Chained says of a product that it is one of a chain; see [Chain].
	Chained bool
	// EarlyLarge lets launches whose blocks have a multiprocessor each begin early, too. Chains of short ones would take longer.
	EarlyLarge bool
	// KeepHidden has a mixture of experts keep its hidden values before the activation, with the lists of slots and their rows of x,
	// in the memory [Kernel.Kept], and its gradient find them there instead of computing them again. A kernel that cannot has
	// no such memory. Where those of a mixture and of its gradient have as much, they agree about what is in it.
	KeepHidden bool
	// Mesh is that of the participants that run the program, and Rank the one that the kernels are for.
	Mesh graph.Mesh
	Rank int
}

// strict reports whether products of f32 are to be as accurate as f32.
func (c *Config) strict() bool { return c.Precision != TF32 }

// hopper reports whether TMA and wgmma may be used.
func (c *Config) hopper() bool { return c.Chip.Arch == 90 && !c.Portable }

// tensorMemory reports whether TMA and tcgen05 may be used.
func (c *Config) tensorMemory() bool { return c.Chip.tensorMemory() && c.TensorMemory && !c.Portable }

// asynchronous reports whether there are products whose operands the copy engine brings to shared memory.
func (c *Config) asynchronous() bool { return c.hopper() || c.tensorMemory() }
