package fpgatest

import (
	"testing"

	"fusec/fpga/link"
	"fusec/fpga/model"
)

// TestModel runs the suite over the model itself.
func TestModel(t *testing.T) {
	for _, c := range configs {
		t.Run(c.Name, func(t *testing.T) {
			Suite{Config: c, Programs: 3, Open: func(t testing.TB) link.Link {
				m, err := model.New(c, model.Options{Memory: int64(min(1<<c.AddrBits, 1<<20))})
				if err != nil {
					t.Fatal(err)
				}
				return m
			}}.Run(t)
		})
	}
}
