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

// Multipliers of 18 × 18 bits and cells by what a configuration has, as yosys counted them.
const (
	laneMultipliers    = 2
	normMultipliers    = 2
	combineMultipliers = 1

	shellCells   = 2500
	elementCells = 90
	columnCells  = 30
	laneCells    = 450
	softmaxCells = 700
	normCells    = 400
	routeCells   = 300
	routerCells  = 1000
)
