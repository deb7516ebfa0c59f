// Package isa specifies fusec's overlay: its configuration, memories, descriptors, registers and arithmetic. It is the
// only interface between the hardware (fpga/rtl), the model in Go (fpga/model), the links to boards and simulators
// (fpga/link) and the compiler (lowering/fpga).
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
// j element k of its row of W, so that Y[i,j] = Σ_k X[i,k]·W[j,k]: both operands are stored row by row along the
// contraction, like a linear layer's weights, [out, in]. Each row of the array is followed by a lane. Results leave the
// array column by column, one per lane and cycle; the lane scales them and writes them to its part of a scratchpad. The
// values of a row (a softmax's maximum and sum, a norm's statistics) therefore never move between lanes.
//
// # Scratchpads
//
// X and Y have one lane for each row of the array, W one for each column. A lane is a memory of words of WordBytes
// bytes. Elements of a row are contiguous: int8 element k is byte k%WordBytes of word k/WordBytes; int16 takes two
// bytes, the low one first. A panel is Rows (in W: Cols) rows, one a lane, at the same addresses. External memory holds
// matrices row by row, each row starting at a multiple of WordBytes.
//
// The bytes after the end of a row, up to a whole word or a whole tile, are arbitrary in X. In the weights of W they
// must be zero, because the array multiplies whole words.
//
// # Descriptors
//
// A program is a list of descriptors of 32 bytes in external memory, ended by End. Fetch reads them in order and puts
// each into the queue of its engine (of QueueDepth descriptors); when a queue is full, fetch waits. Each engine takes
// descriptors from its queue in order. A descriptor starts when every semaphore in its Wait mask is above zero, and
// takes one from each at that moment; when all its writes are visible, each semaphore in its Post mask is incremented.
// Nothing else orders the engines: two descriptors of different engines that touch the same words need a semaphore
// between them. EXEC starts a descriptor while the one before still drains; if a descriptor of EXEC reads the result of
// an earlier one of EXEC, they need a semaphore, too. Barrier holds fetch until all engines are idle, then takes the
// semaphores that it waits for, then posts; End does so, too, and then raises Done. A start begins with all semaphores
// at zero. A descriptor that waits for its semaphores is one of those that its queue holds.
//
// An invalid descriptor (an engine that the configuration lacks, a count of zero, an address beyond the end of a
// scratchpad or of memory) stops the machine with an error code and the descriptor's number, counted from 0. A machine
// that makes no progress for the number of cycles in the watchdog register stops with ErrWatchdog. After an error only
// a reset continues.
package isa
