package plan

// Cycles that the structure of fpga/rtl fixes, as its simulation counts them.
const (
	fetchCycles       = 8  // from start to the first descriptor's request and from its last beat to its queue
	queueCycles       = 2  // through a queue
	semaphoreCycles   = 2  // from a post to the start of what waits for it
	barrierCycles     = 3  // until fetch sees that all is idle
	endCycles         = 2  // from there to done
	loadCycles        = 6  // of LOAD around a transfer
	storeCycles       = 6  // of STORE
	execCycles        = 4  // of EXEC between descriptors
	finishCycles      = 14 // through scale, finish and packing
	drainCycles       = 2  // of the result registers beside a tile's columns
	vectorCycles      = 3  // between panels of Vector
	normCycles        = 71 // of a panel's statistics: root and division
	vectorDrain       = 26 // through a lane of Vector, scale, finish and packing
	softmaxCycles     = 12 // of the exp pass
	finishPanelCycles = 44 // of a panel's reciprocal
	routeDrain        = 60 // until the lists of the last tokens are written
	serialStep        = 17 // of a result, where multipliers work bit by bit

	maxBurst   = 256 // beats
	stampBytes = 16
)

// What yosys 0.23 counts for ECP5. Multipliers are of 18 × 18 bits. Cells are look-up tables of four inputs and carries, two a CCU2C:
// overlays of 4 × 4 and 8 × 8 multipliers with attention and norms take 20,748 and 40,021, the lane's parts were counted
// alone, and the rest follows.
const (
	laneMultipliers   = 3 // scale and residual
	normMultipliers   = 2 // of a lane that has norms
	routerMultipliers = 1

	shellCells   = 4400 // with the sequencers
	elementCells = 83   // of the array, beside its multiplier
	laneCells    = 1050
	normCells    = 730
	softmaxCells = 1970
	routeCells   = 130
	routerCells  = 2680
)
