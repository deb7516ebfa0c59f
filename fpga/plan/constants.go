package plan

// Cycles that the structure of fpga/rtl fixes, path by path, from the cycle in which the first thing happens to that in which
// the second does. A change of the hardware's stages is followed here and nowhere else; TestPredictProducts and
// TestEstimates print what comes of it beside what simulation counts.
const (
	// fx_regs, fx_fetch, fx_arbiter.
	startCycles   = 1 // from the start bit to the first descriptor's request
	requestCycles = 1 // from a reader's request to memory: the register of fx_arbiter
	fetchCycles   = 2 // from a descriptor's last beat to the last put into its queue: fx_fifo

	// fx_queues, fx_issue, fx_semaphores. A descriptor takes as many cycles more as it has beats.
	moveCycles      = 3 // from the last put, or from the register being free, to asking for semaphores
	spareCycles     = 1 // EXEC's more, by way of the spare register
	reissueCycles   = 2 // of EXEC, from a descriptor's being taken to the next one's asking, which stood in the spare register
	semaphoreCycles = 1 // from done, which posts, to what waits for it; also to fx_issue's taking one more
	issueCycles     = 1 // from the semaphores' being taken to the engine

	// fx_fetch.
	idleCycles = 2 // from the last done to a Barrier's or End's asking for its semaphores
	endCycles  = 2 // from there to the machine's being done

	// fx_rows, fx_load.
	rowCycles     = 2 // from the engine's having a command to its first row
	listCycles    = 2 // more where a list is looked at
	numberCycles  = 1 // more of a row that a list names, beside one for each bit of its number
	pendingCycles = 3 // from a row to when its beats can come: fx_fifo
	loadCycles    = 1 // from the last beat to done

	// fx_store, fx_exec's words for STORE.
	wordCycles   = 5 // from the read of a scratchpad to the write's offer
	settleCycles = 2 // from the last beat taken to done, beside the memory's latency
	reopenCycles = 1 // from there to the next command's first beat
	stampCycles  = 2 // from a Stamp's row to its counters' being read
	writeCycles  = 1 // from there to the first beat

	// fx_exec, fx_gemm.
	switchCycles = 2 // from done to another sequencer's taking a command
	gemmCycles   = 1 // from a command's being taken to its first slot
	panelsCycles = 3 // more where a list tells the panels
	outCycles    = 2 // from the last result to the last slot of a tile whose Out differs
	recordCycles = 3 // beside one for each row: the records of a panel's rows

	// fx_exec, fx_lane_control, fx_lane: the localparams RES, PV and DONE_LATENCY.
	operandCycles = 5  // from a tile's last slot to its first result, beside its word
	scaleCycles   = 13 // from a result's entering the scale path to its word: PV + 10
	serialScale   = 27 // where multipliers work bit by bit
	serialStep    = 17 // between results there
	resultStep    = 2  // elsewhere

	// fx_vector, fx_norm.
	vectorCycles  = 3  // between panels
	normCycles    = 71 // of a panel's statistics: root and division
	vectorLatency = 8  // from an element to its result, where there are norms
	vectorDone    = 4  // from the last result's word to done

	// fx_attention, fx_softmax.
	firstItemCycles = 7  // from a command's being taken to its first item
	itemCycles      = 2  // from one to the next
	scoreCycles     = 12 // from a score's entering the scale path to the exponentials of its item: T_LAT
	expCycles       = 9  // from there to the values' first slot
	restCycles      = 12 // of an item's exponentials, beside one for each key
	sumCycles       = 8  // from the last result of a panel to done, where it is not finished
	divideCycles    = 28 // from there to the first result's being given, where it is
	giveCycles      = 6  // from the last one's entering the scale path to done, beside its way through

	// fx_route.
	clearCycles  = 2  // of all lists, beside one for each
	passCycles   = 3  // of a panel's words
	commitCycles = 8  // from there to the first token
	returnCycles = 6  // of a token's logits that come back
	leaveCycles  = 3  // of a token, beside one for each expert
	slotCycles   = 32 // that a slot is a token's, beside two for each expert
	routeCycles  = 5  // from the last slot's being free to done
)

// What waits in the hardware: parameters of fx_overlay, which the board of an HX8K has smaller.
const (
	readAhead  = 4  // AHEAD: descriptors
	underWay   = 4  // UNDER: descriptors of an engine
	loadBursts = 16 // LOAD_BURSTS: reads, beside the one whose beats come
	storeWords = 16 // STORE_DEPTH: words
	aheadItems = 4  // of fx_attention: items
	routeSlots = 4  // SLOTS of fx_route
	maxBurst   = 256
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
