package attention

import (
	"unsafe"

	"fusec/graph"
	"fusec/kernels/cpu/gemm"
)

// Pages turns each head of a configuration from [Rows] into a sequence whose keys are in pages, with lengths and a
// table. Its Op has the size of a page, which divides the keys.
func Pages(cfg Config) (Config, Args[float32]) {
	d := &cfg.Dims
	d.Batch, d.Heads = graph.ShapeOf(d.Heads), 1
	sequences := d.Batch.At(0)
	args := Args[float32]{Lengths: make([]int, sequences), Table: make([]int, sequences*d.Keys/cfg.Op.Page)}
	for i := range args.Lengths {
		args.Lengths[i] = d.Keys
	}
	for i := range args.Table {
		args.Table[i] = i
	}
	for _, l := range []*gemm.Layout{&cfg.K, &cfg.V, &cfg.KeyScale, &cfg.ValueScale} {
		l.Offsets = make([]int, sequences)
	}
	cfg.KPages, cfg.VPages = cfg.Op.Page*d.Depth, cfg.Op.Page*d.Width
	cfg.KeyScalePages, cfg.ValueScalePages = cfg.Op.Page, cfg.Op.Page
	return cfg, args
}

// ScaledRows is [Rows] with a column of scales for the keys, and one for the values, of each head.
func ScaledRows(op graph.Attention, heads, queries, keys, depth int) Config {
	cfg := Rows(op, heads, queries, keys, depth)
	for _, l := range []*gemm.Layout{&cfg.KeyScale, &cfg.ValueScale} {
		*l = gemm.RowMajor(1)
		l.Offsets = make([]int, heads)
		for h := range l.Offsets {
			l.Offsets[h] = h * keys
		}
	}
	return cfg
}

// Rows is the configuration of contiguous heads, each with its own keys and values, row-major.
func Rows(op graph.Attention, heads, queries, keys, depth int) Config {
	layout := func(rows int) gemm.Layout {
		l := gemm.RowMajor(depth)
		l.Offsets = make([]int, heads)
		for h := range l.Offsets {
			l.Offsets[h] = h * rows * depth
		}
		return l
	}
	d := graph.AttentionDims{Heads: heads, Group: 1, Queries: queries, Keys: keys, Depth: depth, Width: depth}
	return Config{Op: op, Dims: d, Q: layout(queries), K: layout(keys), V: layout(keys), Out: layout(queries)}
}

// Scratch makes the scratch that a plan needs to run on some workers.
func Scratch[T Float](plan *Plan[T], workers int) [][]T { return scratch[T](plan.Room(), workers) }

// scratch is memory for each worker, aligned to cache lines.
func scratch[T Float](room, workers int) [][]T {
	s := make([][]T, workers)
	line := 64 / int(unsafe.Sizeof(*new(T)))
	for i := range s {
		x := make([]T, room+line)
		skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(x)))%64) * line / 64
		s[i] = x[skip:][:room]
	}
	return s
}
