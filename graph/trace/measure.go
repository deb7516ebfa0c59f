package trace

import (
	"fmt"
	"math"
	"strings"
)

// A Measure is a number that a target states of a launch or of a run, such as the cycles that it takes. The target chooses
// which there are. Drawings and reports print them by their names and units.
type Measure struct {
	Name  string  `json:"name"`           // such as "cycles"
	Unit  string  `json:"unit,omitempty"` // such as "cycles" or "%"; empty for a plain number
	Value float64 `json:"value"`
}

// Measures is a list of measures with different names, the most telling first: drawings have room for two.
type Measures []Measure

// Get is the value of the measure of that name, 0 if there is none.
func (l Measures) Get(name string) float64 {
	for _, m := range l {
		if m.Name == name {
			return m.Value
		}
	}
	return 0
}

// Number is the value without its unit: whole numbers with all digits, others with three.
func (m Measure) Number() string {
	if m.Value == math.Trunc(m.Value) && math.Abs(m.Value) < 1<<53 {
		return fmt.Sprintf("%.0f", m.Value)
	}
	return fmt.Sprintf("%.3g", m.Value)
}

// Column is the heading of a column of such measures.
func (m Measure) Column() string {
	if m.Unit == "" || strings.Contains(m.Name, m.Unit) {
		return m.Name
	}
	return m.Name + ", " + m.Unit
}

// Columns are the measures of several lists by name, each once, in the order in which they appear.
func Columns(lists ...Measures) (all Measures) {
	seen := map[string]bool{}
	for _, l := range lists {
		for _, m := range l {
			if !seen[m.Name] {
				seen[m.Name] = true
				all = append(all, m)
			}
		}
	}
	return all
}

// Row has the numbers of l in the order of columns; it is empty where l has none.
func (l Measures) Row(columns Measures) []string {
	row := make([]string, len(columns))
	for i, c := range columns {
		for _, m := range l {
			if m.Name == c.Name {
				row[i] = m.Number()
			}
		}
	}
	return row
}
