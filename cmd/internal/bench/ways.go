package bench

import (
	"fmt"
	"slices"
	"strconv"

	"fusec/cmd/internal/cli"
)

// A way is a way to compute something, a row of a table.
type way struct {
	name, doc string
	threads   int
	rate      float64 // FLOP/s in the last column
}

func (w *way) row() *way { return w }

// slowest is the time in seconds above which a way is not measured.
const slowest = 1.0

// A speed is what a way has reached in a column of the table.
type speed struct {
	way, column    string
	gflops, spread float64
}

// speedTable prints ways: a row for each, a column for each problem.
func speedTable[W interface{ row() *way }](ways []W, speeds []speed) string {
	var columns []string
	cells := map[[2]string]string{}
	for _, s := range speeds {
		if !slices.Contains(columns, s.column) {
			columns = append(columns, s.column)
		}
		cells[[2]string{s.way, s.column}] = fmt.Sprintf("%s ±%.0f%%", cli.Digits(s.gflops), 50*s.spread)
	}
	head := []string{"GFLOP/s", ">threads"}
	for _, c := range columns {
		head = append(head, ">"+c)
	}
	t := cli.NewTable(append(head, "what it does")...)
	left := ""
	for _, w := range ways {
		w := w.row()
		row := []string{w.name, strconv.Itoa(w.threads)}
		for _, c := range columns {
			cell, ok := cells[[2]string{w.name, c}]
			if !ok {
				cell, left = "–", fmt.Sprintf("\n– would take more than %.0f s each\n", slowest)
			}
			row = append(row, cell)
		}
		t.Row(append(row, w.doc)...)
	}
	return t.String() + left
}
