package dot

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"

	"fusec/graph"
)

// opName is the operation's name for readers: the function of an elementwise operation, the kind of a fusion.
func opName(op graph.Op) string { return clean(graph.Verb(op)) }

// attribute is one attribute of an operation.
type attribute struct {
	key   string
	value any // a bool, int, float64, string, graph.Ints, graph.Shape or graph.Type
}

// attributes lists an operation's attributes in the order of their declaration, without bodies, tensors and code.
func attributes(op graph.Op) []attribute {
	v := reflect.ValueOf(op)
	var list []attribute
	for _, f := range reflect.VisibleFields(v.Type()) {
		if f.Anonymous {
			continue // its fields follow
		}
		key := graph.AttrName(f.Name)
		switch x := v.FieldByIndex(f.Index).Interface().(type) {
		case *graph.Tensor, *graph.Graph, graph.HostImpl, nil:
		case bool, int, float64, string, graph.Ints, graph.Shape, graph.Type:
			list = append(list, attribute{key, x})
		case fmt.Stringer: // enumerations
			list = append(list, attribute{key, x.String()})
		}
	}
	return list
}

// attrWords writes the attributes that a label does not show otherwise: all except the function, types and shapes, and
// those that are as usual, or zeros that mean "no".
func attrWords(n *graph.Node) []string {
	switch n.Op.(type) {
	case graph.Const, graph.Host, graph.Reshape, graph.Broadcast, graph.Fusion:
		return nil
	}
	if isDepthwise(n) {
		return append([]string{"depthwise"}, otherWords(n, "groups")...)
	}
	return otherWords(n, "")
}

// otherWords is attrWords without one attribute.
func otherWords(n *graph.Node, without string) []string {
	var words []string
	var usual []attribute
	if op := graph.Usual(n); op != nil {
		usual = attributes(op)
	}
	for i, a := range attributes(n.Op) {
		if a.key == without || usual != nil && isAlike(a.value, usual[i].value) {
			continue
		}
		switch v := a.value.(type) {
		case bool:
			if v {
				words = append(words, a.key)
			}
		case float64:
			if v != 0 {
				words = append(words, a.key+" "+number(v))
			}
		case int:
			words = append(words, fmt.Sprintf("%s %d", a.key, v))
		case graph.Ints:
			if list := v.Slice(); len(list) > 1 && len(slices.Compact(list)) == 1 && a.key != "axes" {
				words = append(words, fmt.Sprintf("%s %d", a.key, list[0])) // the same on all sides
			} else {
				words = append(words, a.key+" "+v.String())
			}
		case string:
			if a.key == "dist" || a.key == "to" || a.key == "layout" {
				words = append(words, v)
			}
		}
	}
	return words
}

// isAlike reports whether two values of an attribute are the same, but for the rounding of numbers to f32.
func isAlike(a, b any) bool {
	x, ok := a.(float64)
	if !ok {
		return a == b
	}
	return math.Abs(x-b.(float64)) <= 1e-6*math.Abs(x)
}

// isDepthwise reports whether n convolves each channel by itself.
func isDepthwise(n *graph.Node) bool {
	channels := func(groups int, l graph.ImageLayout, filters graph.Shape) bool {
		_, perGroup, _, _ := l.FilterDims(filters)
		return groups > 1 && perGroup == 1
	}
	switch op := n.Op.(type) {
	case graph.Conv2D:
		return channels(op.Groups, op.Layout, n.Args[1].Type.Shape)
	case graph.Conv2DTranspose:
		return channels(op.Groups, op.Layout, n.Args[1].Type.Shape)
	case graph.Conv2DFilterGrad:
		return channels(op.Groups, op.Layout, n.Type.Shape)
	}
	return false
}

// folds holds the constants that are written into the labels of their readers, with the value of their elements as a scalar.
type folds map[*graph.Node]*graph.Tensor

// foldable finds the constants of a graph whose elements are all equal, and the views of them.
func foldable(g *graph.Graph) folds {
	f := make(folds)
	escapes := g.Escapes()
	for _, n := range g.Nodes {
		if escapes[n] {
			continue
		}
		switch n.Op.(type) {
		case graph.Const:
			if v, ok := n.Uniform(); ok {
				f[n] = v
			}
		case graph.Reshape, graph.Broadcast, graph.Cast:
			if v, ok := f[n.Args[0]]; ok {
				f[n] = v
			}
		}
	}
	return f
}

// opLabel is the operation with its attributes and with constant operands written out.
func opLabel(n *graph.Node, consts folds) string {
	name := opName(n.Op)
	switch op := n.Op.(type) {
	case graph.Binary:
		x, constX := consts[n.Args[0]]
		y, constY := consts[n.Args[1]]
		switch {
		case constY:
			return infix(op.Fn, "x", scalar(y))
		case constX:
			return infix(op.Fn, scalar(x), "x")
		}
		return name
	case graph.Slice:
		if start, ok := consts[n.Args[1]]; ok {
			label := fmt.Sprintf("slice axis %d from %s", op.Axis, scalar(start))
			if op.Step != 1 {
				label += fmt.Sprintf(" step %d", op.Step)
			}
			return label
		}
	case graph.Select:
		var args [3]string
		for i := range args {
			args[i] = [3]string{"c", "a", "b"}[i]
			if v, ok := consts[n.Args[i]]; ok {
				args[i] = scalar(v)
			}
		}
		return fmt.Sprintf("where(%s, %s, %s)", args[0], args[1], args[2])
	case graph.Reduce:
		words := "over " + op.Axes.String()
		if op.Keep {
			words += ", keep"
		}
		return name + " " + words
	}
	if words := attrWords(n); len(words) > 0 {
		return name + " " + strings.Join(words, ", ")
	}
	return name
}

// infix writes f of two operands.
func infix(f graph.BinaryFn, x, y string) string {
	form := f.Info().Form
	if form.Bind == graph.BindLoose {
		return form.Sign + "(" + x + ", " + y + ")"
	}
	return x + " " + form.Sign + " " + y
}
