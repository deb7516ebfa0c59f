package plan

// Cycles that the structure of fpga/rtl determines, each on a path from one signal to another. When the hardware's
// stages change, only these constants change. TestPredictProducts, TestPredictRoutes and TestEstimates (cmd/fusec)
// print the predictions next to the counts of simulation.
const (
	// Descriptors: fx_fetch, fx_arbiter, fx_queues, fx_semaphores, fx_issue.
	startCycles     = 4 // start → ar_valid of fx_fetch
	againCycles     = 3 // ar_ready of fx_fetch → ar_valid for the next descriptor
	requestCycles   = 1 // ar_valid of fx_fetch or fx_load → m_ar_valid: the register of fx_arbiter
	fetchCycles     = 4 // a descriptor's last r_valid → its last pop: the queue `ahead`, the states LOOK, ROOM and PASS
	passCycles      = 5 // that pop → that of the next one, plus a cycle for each beat
	freeCycles      = 2 // that pop → ar_valid of fx_fetch
	lookCycles      = 5 // that pop → ended of fx_fetch, if the next is End
	commitCycles    = 4 // that pop → commit: fx_check
	ownCycles       = 5 // that pop → want of fx_fetch, for Barrier and End: the state QUIET
	moveCycles      = 3 // commit, or cmd_ready of the descriptor before, → want of fx_issue, plus a cycle for each beat
	spareCycles     = 1 // more for EXEC: the spare register
	reissueCycles   = 2 // cmd_ready of EXEC → want, if the next descriptor is in the spare register
	semaphoreCycles = 4 // done → take of who waits for it: posted, value, may and take of fx_semaphores
	wantCycles      = 2 // want → take, if nothing is waited for: may and take
	takeCycles      = 3 // from a take to the next one
	underCycles     = 1 // done → want of the fourth descriptor after it
	issueCycles     = 1 // take → cmd_valid
	idleCycles      = 3 // the last done → want of fx_fetch, for Barrier and End
	endCycles       = 4 // take of End → finished

	// Rows: fx_rows, fx_load, fx_store.
	rowCycles     = 4 // cmd_valid → row_good: the states ENDS, COMPARE and GIVE
	rowPeriod     = 3 // row_good → that of the next row, if it is taken at once
	rowFree       = 2 // row_done → row_good of the next row
	pieceCycles   = 2 // ar_ready → that of a row's next piece: the register of fx_arbiter is free every second cycle
	listCycles    = 2 // more where a list is read: the states LOOK and TAKE
	numberCycles  = 1 // more of a row that a list names, plus a cycle for each bit of its number: the state MULTIPLY
	pendingCycles = 3 // row_good → moves of fx_load: the queue `pending`
	loadCycles    = 1 // the last beat → done of fx_load
	enterCycles   = 1 // row_good → st_valid: entered
	wordCycles    = 5 // st_valid → w_valid: fx_exec's ST_LATENCY and the queue `data_queue`
	settleCycles  = 2 // the last beat → done of fx_store, plus the memory's latency
	reopenCycles  = 1 // done of fx_store → w_valid of the next command
	stampCycles   = 3 // row_good of a Stamp → loads, which reads the counters: the queue `go`
	writeCycles   = 1 // loads → w_valid
	stampPace     = 2 // a beat of a Stamp, which is shifted
	goCycles      = 2 // row_good → go_take of fx_store, and go_take → row_good's entering `go` where that was full

	// Sequencers: fx_exec, fx_gemm.
	switchCycles = 2 // the last done → cmd_ready of another sequencer: who and turn
	doneCycles   = 1 // done of a sequencer → done of fx_exec
	gemmCycles   = 1 // cmd_ready → fd_valid
	panelsCycles = 3 // more of a Listed Gemm, which counts its panels
	outCycles    = 2 // the last result's word → fd_valid of a tile's last slot, if Out is another
	recordCycles = 3 // the same for a panel that brings records of its rows, plus a cycle for each row

	// fx_exec, fx_lane_control, fx_lane: the localparams RES, PV and DONE_LATENCY.
	operandCycles = 5  // from a tile's last slot to its first result, plus its word
	scaleCycles   = 13 // from a result's entering the scale path to its word: PV + 10
	serialScale   = 27 // where multipliers work bit by bit
	serialStep    = 17 // between results there
	resultStep    = 2  // elsewhere

	// fx_vector, fx_norm.
	vectorCycles  = 3  // between panels
	normCycles    = 71 // of a panel's statistics: root and division
	vectorLatency = 8  // from an element to its result, where there are norms
	vectorSerial  = 10 // where multipliers work bit by bit
	vectorPlain   = 5  // elsewhere
	segmentCycles = 2  // from a panel's first result to the next panel's first word, plus the way through scaling
	vectorDone    = 4  // from the last result's word to done

	// fx_attention, fx_softmax.
	firstItemCycles = 7  // from a command's being taken to its first item
	itemCycles      = 2  // from one to the next
	scoreCycles     = 12 // from a score's entering the scale path to the exponentials of its item: T_LAT
	expCycles       = 9  // from there to the values' first slot
	restCycles      = 12 // of an item's exponentials, plus one for each key
	sumCycles       = 8  // from the last result of a panel to done, where it is not finished
	divideCycles    = 28 // from there to the first result's being given, where it is
	giveCycles      = 6  // from the last one's entering the scale path to done, plus its way through

	// fx_route.
	clearCycles  = 2  // of all lists, plus one for each
	panelCycles  = 3  // of a panel's words
	tokenCycles  = 8  // from there to the first token
	returnCycles = 6  // of a token's logits that come back
	leaveCycles  = 3  // of a token, plus one for each expert
	slotCycles   = 32 // that a slot is a token's, plus two for each expert
	routeCycles  = 6  // from the last slot's being free to done
)

// What waits in the hardware: parameters of fx_overlay, which the board of an HX8K has smaller.
const (
	readAhead  = 4  // AHEAD: descriptors
	underWay   = 4  // UNDER: descriptors of an engine
	loadBursts = 16 // LOAD_BURSTS: reads, in addition to the one whose beats arrive
	storeWords = 16 // STORE_DEPTH: words
	storeRows  = 4  // of the queue `go` of fx_store: rows
	aheadItems = 4  // of fx_attention: items
	routeSlots = 4  // SLOTS of fx_route
	maxBurst   = 256
	stampBytes = 16
)

// What yosys 0.23 counts for ECP5. Multipliers are of 18 × 18 bits. Cells are look-up tables of four inputs and carries, two a
// CCU2C: overlays of 4 × 4 and 8 × 8 multipliers with attention and norms take 20,748 and 40,021, the lane's parts were counted
// alone, and the rest follows.
const (
	laneMultipliers   = 3 // scale and residual
	normMultipliers   = 2 // of a lane that has norms
	routerMultipliers = 1

	shellCells   = 4400 // with the sequencers
	elementCells = 83   // of the array, in addition to its multiplier
	laneCells    = 1050
	normCells    = 730
	softmaxCells = 1970
	routeCells   = 130
	routerCells  = 2680
)
