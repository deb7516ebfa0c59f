package cuda

import (
	"errors"
	"fmt"

	"fusec/graph"
)

// A Rung is one way to compute what [Compile] makes kernels for.
type Rung struct {
	Name string
	Doc  string // what it does that the rung below does not
	// Compile is Compile in this way. It refuses what the way is not for.
	Compile func(op graph.Op, args, results []Operand, cfg Config) (*Kernel, error)
}

// MatMulLadder climbs from the definition of the product to the kernels that programs use, so that each step's worth can
// be measured. The rungs below the tensor cores take f32 and no column sums.
func MatMulLadder() []Rung {
	return []Rung{
		{"naive", "The definition: a thread for each element, its row and column read from memory.",
			ladderRung("naive", 16, 0)},
		{"tiled", "Tiles of both operands in shared memory, each element read once for 32 products.",
			ladderRung("tiled", 32, 2*32*32*4)},
		{"vectorised", "Blocks of 8×8 in each thread's registers, 16 bytes at a time, the next tile under way.",
			vectorised},
		{"tensor core", "Products of 16×8 by each warp's tensor core, asynchronous copies in several stages.", Portably},
		{"fusec", "As every compiled model multiplies: on Hopper tiles by the copy engine, blocks that stay.", Compile},
	}
}

// Portably is [Compile] without what only Hopper has.
func Portably(op graph.Op, args, results []Operand, cfg Config) (*Kernel, error) {
	cfg.Portable = true
	return Compile(op, args, results, cfg)
}

// vectorised is [Compile] as for chips without tensor cores.
func vectorised(op graph.Op, args, results []Operand, cfg Config) (*Kernel, error) {
	cfg.Chip.Arch = leastArch
	return Compile(op, args, results, cfg)
}

// ladderRung makes the function of a rung that has a template of its own, in which a thread computes an element of a
// square tile.
func ladderRung(name string, side, shared int) func(op graph.Op, args, results []Operand, cfg Config) (*Kernel, error) {
	return func(op graph.Op, args, results []Operand, cfg Config) (*Kernel, error) {
		f, ok := op.(graph.Fusion)
		if !ok || f.Anchor != graph.AnchorMatMul {
			return nil, fmt.Errorf("the rung %s is for matrix products", name)
		}
		m, err := lowerMatMul(f, args, results, cfg)
		if err != nil {
			return nil, err
		}
		m.columns(1)
		if err := m.writeBody(); err != nil {
			return nil, err
		}
		if m.a.dtype != graph.F32 || m.b.dtype != graph.F32 || len(m.sums) > 0 {
			return nil, errors.New("the rung " + name + " is for f32, without column sums")
		}
		m.rung = &cut{bm: side, bn: side, bk: side, splits: 1, threads: side * side, blocks: 1, shared: shared,
			source: []string{"ladder_matmul"}, call: fmt.Sprintf("ladder_%s<%s, %%s>(%%s, %%s, spot, %%s)", name, m.name)}
		return m.kernel(), nil
	}
}
