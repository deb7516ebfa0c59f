package onnx

import (
	"fmt"
	"maps"
	"slices"
)

// An operatorKey finds the row of an operator.
type operatorKey struct{ domain, name string }

// An operator is a row of the table.
type operator struct {
	domain, name string
	min, max     int // operands; max −1: any number
	attrs        []attr
	build        func(c *call) []*value
	exact        bool   // build takes operands of 16 bits as they are; else they are widened to f32, and results are rounded
	unsigned     bool   // build takes weights of type UINT4, as values have them
	refused      string // why it is not supported; there is no build then
}

// An attr is an attribute of an operator and its default. The type of def is that of the attribute: int64, float64,
// string, []int64, []float64, []string, tensorAttr or graphAttr. An attribute whose default differs by opset has several
// entries, of which the first that holds at the model's opset counts; none has a default that is required.
type attr struct {
	name        string
	def         any
	from, until int // opsets in which the entry holds; 0: no bound
}

// Types of attributes without a default value.
type (
	tensorAttr struct{}
	graphAttr  struct{}
	required   struct{ of any } // an attribute of of's type that has to be given
)

// holds reports whether the entry is for an opset.
func (a attr) holds(opset int) bool { return opset >= a.from && (a.until == 0 || opset <= a.until) }

// operators are all rows.
var operators = map[operatorKey]*operator{}

// declare adds a family's rows to the table.
func declare(rows ...operator) {
	for _, r := range rows {
		key := operatorKey{r.domain, r.name}
		if operators[key] != nil || (r.build == nil) == (r.refused == "") {
			panic(fmt.Sprintf("onnx: the row of %s %s is there twice, or has not one of a builder and a reason", r.domain, r.name))
		}
		operators[key] = &r
	}
}

// Operators lists the names of the operators that are read, by domain, sorted.
func Operators() map[string][]string {
	all := map[string][]string{}
	for key, r := range operators {
		if r.refused == "" {
			all[key.domain] = append(all[key.domain], key.name)
		}
	}
	for _, names := range maps.All(all) {
		slices.Sort(names)
	}
	return all
}

// Frequent attributes.
func intAttr(name string, def int64) attr { return attr{name: name, def: def} }

func floatAttr(name string, def float64) attr { return attr{name: name, def: def} }
