package llama

import (
	"errors"
	"fmt"
	"strings"

	"fusec"
	"fusec/graph"
	"fusec/graph/gguf"
	"fusec/graph/safetensors"
)

// A matrix in blocks of few bits is two parameters of a graph, whose values are made when a program asks for them: the integers,
// i8 or i4 [rows, columns], and the scales, f16 [rows, columns ÷ 32]. Rows that are looked up, such as embeddings, come from a
// third, the blocks as the file has them: their bytes are taken apart in the graph.
const (
	integersEnding = ".quantised"
	scalesEnding   = ".scale"
	blocksEnding   = ".blocks"
	halvesName     = "f16" // all numbers of f16, by their bits
)

var integerTypes = map[gguf.Type]graph.DType{gguf.Q8_0: graph.I8, gguf.Q4_0: graph.I4}

// Value is the value of a parameter of the graphs of a checkpoint. What is made of blocks is made again by each call.
func (c *Checkpoint) Value(param string) (*graph.Tensor, error) {
	if t := c.Weights[param]; t != nil {
		return t, nil
	}
	if param == halvesName {
		t := graph.NewTensor(graph.TypeOf(graph.F32, 1<<16))
		for i, v := 0, t.Data.([]float32); i < len(v); i++ {
			v[i] = safetensors.Float16(uint16(i))
		}
		return t, nil
	}
	for _, ending := range []string{integersEnding, scalesEnding, blocksEnding} {
		name, ok := strings.CutSuffix(param, ending)
		t := c.blocks[name]
		if !ok || t == nil {
			continue
		}
		switch ending {
		case integersEnding:
			q := graph.NewTensor(integersType(t))
			return q, t.Codes(q.Bytes(), nil)
		case scalesEnding:
			scale := graph.NewTensor(scalesType(t))
			return scale, t.Codes(nil, scale.Data.([]uint16))
		}
		return tensorAt(t.Data, blocksType(t)), nil
	}
	return nil, fmt.Errorf("the checkpoint has no tensor %q", param)
}

func integersType(t *gguf.Tensor) graph.Type { return graph.TypeOf(integerTypes[t.Type], t.Shape...) }

func scalesType(t *gguf.Tensor) graph.Type {
	return graph.TypeOf(graph.F16, t.Shape[0], t.Shape[1]/gguf.BlockElems)
}

func blocksType(t *gguf.Tensor) graph.Type {
	return graph.TypeOf(graph.U8, t.Shape[0], t.Shape[1]/gguf.BlockElems, t.Type.BlockBytes())
}

// give gives a program the parameters of its graph, and prepares them. It shares what another program of the checkpoint has
// prepared, if that is not nil.
func (c *Checkpoint) give(p, other *fusec.Program, g *graph.Graph) error {
	var err error
	set := func(name string) {
		t, failed := c.Value(name)
		if failed == nil {
			failed = p.Set(name, t)
		}
		err = errors.Join(err, failed)
	}
	if other != nil {
		for _, name := range p.SharePrepared(other) {
			set(name)
		}
	} else {
		for _, s := range g.Sources() {
			if _, ok := s.Op.(graph.Param); ok {
				set(s.Name)
			}
		}
	}
	if err == nil {
		err = p.Prepare()
	}
	return err
}

// inBlocks is the matrix of a name, if the checkpoint has it in blocks, or nil.
func (d *decoder) inBlocks(name string, dims ...int) *gguf.Tensor {
	t := d.blocks[name]
	if t == nil {
		return nil
	}
	if have, want := graph.ShapeOf(t.Shape...), graph.ShapeOf(dims...); have != want {
		d.b.Fail(fmt.Errorf("tensor %q has the shape %v; with this configuration it is %v", name, have, want))
		return nil
	}
	d.read[name] = true
	return t
}

// dequantised is a matrix in blocks as numbers.
func (d *decoder) dequantised(name string, t *gguf.Tensor) *graph.Node {
	if d.params[name] == nil {
		b := d.b
		q := b.Param(name+integersEnding, integersType(t))
		scale := b.CastTo(graph.F32, b.Param(name+scalesEnding, scalesType(t)))
		d.params[name] = b.Add(graph.Dequantize{Axis: 1, Block: gguf.BlockElems}, q, scale)
	}
	return d.params[name]
}

// rows are some rows of a matrix of n rows.
func (d *decoder) rows(name string, n, size int, at *graph.Node) *graph.Node {
	b := d.b
	t := d.inBlocks(name, n, size)
	if t == nil {
		return b.Add(graph.Gather{}, d.weight(name, n, size), at)
	}
	if d.halves == nil {
		d.halves = b.Param(halvesName, graph.TypeOf(graph.F32, 1<<16))
	}
	blocks := b.Add(graph.Gather{}, b.Param(name+blocksEnding, blocksType(t)), at)
	if b.Err() != nil {
		return at
	}
	bytes := func(d graph.DType, from, size int) *graph.Node { return b.CastTo(d, b.Slice(blocks, 2, from, size, 1)) }
	bits := b.Binary(graph.Add, bytes(graph.I64, 0, 1), b.BinaryScalar(graph.Mul, bytes(graph.I64, 1, 1), 256))
	scale := b.Add(graph.Gather{}, d.halves, bits)
	q := bytes(graph.F32, 2, t.Type.BlockBytes()-2)
	high := func(of float64) *graph.Node { return b.Unary(graph.Floor, b.BinaryScalar(graph.Mul, q, 1/of)) }
	if t.Type == gguf.Q8_0 { // from two's complement
		q = b.Binary(graph.Sub, q, b.BinaryScalar(graph.Mul, high(128), 256))
	} else {
		upper := high(16)
		q = b.Add(graph.Concat{Axis: 2}, b.Binary(graph.Sub, q, b.BinaryScalar(graph.Mul, upper, 16)), upper)
		q = b.BinaryScalar(graph.Sub, q, 8)
	}
	if b.Err() != nil {
		return at
	}
	return b.Reshape(b.Binary(graph.Mul, q, b.Broadcast(scale, q.Type.Shape)), append(at.Type.Shape.Slice(), size)...)
}

// checkActivations gives the type of activations that an option asks for.
func checkActivations(d graph.DType) (graph.DType, error) {
	switch d {
	case graph.Invalid, graph.F32:
		return graph.F32, nil
	case graph.I8:
		return d, nil
	}
	return d, fmt.Errorf("activations of %v: want f32 or i8", d)
}

// operand is what a product with weights multiplies: x, rounded to 8 bits where that is asked for and the weights are in blocks.
func (d *decoder) operand(x *graph.Node, weights string) *graph.Node {
	if d.activations != graph.I8 || d.blocks[weights] == nil || d.b.Err() != nil {
		return x
	}
	if d.rounded[x] == nil {
		d.rounded[x] = d.b.RoundRows(x, gguf.BlockElems)
	}
	return d.rounded[x]
}
