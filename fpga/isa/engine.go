package isa

// Engine is a part of the machine that executes its descriptors in order, concurrently with the other engines.
type Engine int

// The engines.
const (
	EngineLoad Engine = iota
	EngineExec
	EngineStore
	Engines
)

var engineNames = [...]string{"LOAD", "EXEC", "STORE"}

// String gives the engine's name.
func (e Engine) String() string { return engineNames[e] }

// EngineOf is the engine of an operation; fetch itself does Barrier and End, for which ok is false.
func EngineOf(o Op) (e Engine, ok bool) {
	switch o {
	case OpLoad:
		return EngineLoad, true
	case OpStore, OpStamp:
		return EngineStore, true
	case OpEnd, OpBarrier:
		return 0, false
	}
	return EngineExec, true
}

// SemaphoreOf is the semaphore that fusec's programs let one engine post for another: one for each ordered pair that
// can meet, so that the n-th taking belongs to the n-th post. LOAD and STORE meet in external memory, EXEC meets all,
// itself among them. Semaphore 7 is free. To the machine all are alike.
func SemaphoreOf(from, to Engine) uint8 {
	return [Engines][Engines]uint8{EngineLoad: {EngineExec: 0, EngineStore: 5},
		EngineExec:  {EngineLoad: 1, EngineExec: 6, EngineStore: 2},
		EngineStore: {EngineLoad: 4, EngineExec: 3}}[from][to]
}
