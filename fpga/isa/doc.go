// Package isa is the contract of fusec's overlay: what its configuration, its memories, its descriptors, its registers
// and its arithmetic are. The hardware (fpga/rtl), the model in Go (fpga/model), the links to boards and simulators
// (fpga/link) and the compiler (lowering/fpga) know each other by this package alone.
//
// # The machine
//
//	    registers ──► fetch ──► semaphores                external memory, WordBytes a beat
//	                    │            ▲                     │ read          ▲ write
//	     ┌──────────────┼────────────┼───────────┐         ▼               │
//	     ▼              ▼            │           ▼         │               │
//	   LOAD ◄──────── EXEC ──────────┴──────── STORE ──────┼───────────────┘
//	     │               │                       ▲         │
//	     ▼               ▼                       │
//	X scratch ─► rows ┌──────────┐ ► lanes ► Y scratch
//	W scratch ─► cols │  array   │   scale, softmax, norm, table
//	parameters, tables└──────────┘   router: lists, gates
//
// The array is output-stationary: Rows × Cols multipliers; in cycle k row i gets element k of its row of X, and column
// j element k of its row of W, so that Y[i,j] = Σ_k X[i,k]·W[j,k]: both operands lie row by row along the contraction,
// as a linear layer keeps its weights, [out, in]. Behind each row of the array stands a lane. Results leave the array
// column by column, one per lane and cycle; the lane scales them and puts them into its part of a scratchpad. What
// belongs to a row (a softmax's maximum and sum, a norm's statistics) therefore never crosses from one lane to another.
//
// # Scratchpads
//
// X and Y have one lane for each row of the array, W one for each column. A lane is a memory of words of WordBytes
// bytes. Elements of a row lie one after the other: int8 element k is byte k%WordBytes of word k/WordBytes; int16 takes two bytes,
// the low one first. A panel is Rows (in W: Cols) rows, one a lane, at the same addresses. External memory holds
// matrices row by row, each row starting at a multiple of WordBytes.
//
// What lies behind the end of a row, up to a whole word or a whole tile, may be anything in X; in the weights of
// W it has to be zero, since the array multiplies whole words.
//
// # Descriptors
//
// A program is a list of descriptors of 32 bytes in external memory, ended by End. Fetch reads them in order and hands
// each to the queue of its engine (QueueDepth of them wait there); when a queue is full, fetch waits. Each engine takes its own in order.
// A descriptor starts when every semaphore in its Wait mask is above zero, and takes one from each at that moment;
// when all that it wrote is there to be seen, each semaphore in its Post mask gets one more. Nothing else orders the engines: two descriptors
// of different engines that touch the same words need a semaphore between them. EXEC starts a descriptor while the one
// before still drains; that a descriptor of EXEC reads what an earlier one of EXEC wrote has to be said with a semaphore, too.
// Barrier holds fetch until all engines are idle, then takes the semaphores that it waits for, then posts; End does so, too, and then
// raises Done. A start begins with all semaphores at zero. A descriptor that waits for its semaphores is one of those that its queue holds.
//
// A descriptor that is wrong (an engine that the configuration lacks, a count of zero, an address behind the end of a
// scratchpad or of memory) stops the machine with an error code and the descriptor's number, counted from 0. A machine that makes no progress for as many
// cycles as the watchdog register says stops with ErrWatchdog. After an error only a reset goes on.
package isa
