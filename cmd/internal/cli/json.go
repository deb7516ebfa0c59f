package cli

import (
	"encoding/json"
	"io"
	"math"
	"strconv"
	"strings"

	"fusec/graph"
)

// WriteJSON prints a report, indented and with a line end.
func WriteJSON(w io.Writer, v any) error {
	j := json.NewEncoder(w)
	j.SetEscapeHTML(false)
	j.SetIndent("", " ")
	return j.Encode(v)
}

// Number is a float64 that JSON can hold: infinities and NaN become the strings "inf", "-inf" and "nan".
type Number float64

// MarshalJSON implements json.Marshaler.
func (n Number) MarshalJSON() ([]byte, error) {
	switch f := float64(n); {
	case math.IsNaN(f):
		return []byte(`"nan"`), nil
	case math.IsInf(f, 1):
		return []byte(`"inf"`), nil
	case math.IsInf(f, -1):
		return []byte(`"-inf"`), nil
	}
	return json.Marshal(float64(n))
}

// UnmarshalJSON implements json.Unmarshaler.
func (n *Number) UnmarshalJSON(src []byte) error {
	f, err := strconv.ParseFloat(strings.Trim(string(src), `"`), 64)
	*n = Number(f)
	return err
}

// Value is an element of a tensor in JSON: an integer exactly, anything else as a [number].
type Value struct {
	Number
	Whole string // the digits of an integer, or empty
}

func ValueOf(t *graph.Tensor, i int) Value {
	v := Value{Number: Number(t.Float(i))}
	if t.Type.DType.IsInt() {
		v.Whole = t.Whole(i)
	}
	return v
}

// MarshalJSON implements json.Marshaler.
func (v Value) MarshalJSON() ([]byte, error) {
	if v.Whole != "" {
		return []byte(v.Whole), nil
	}
	return v.Number.MarshalJSON()
}

// Short prints a value with five digits, an integer with all.
func (v Value) Short() string {
	if v.Whole != "" {
		return v.Whole
	}
	return short(v.Number)
}

// Origin is one of the user's nodes.
type Origin struct {
	Name string `json:"name,omitempty"`
	Pos  string `json:"pos,omitempty"`
}

func OriginsJSON(list []graph.Origin) []Origin {
	j := []Origin{}
	for _, o := range list {
		j = append(j, Origin(o))
	}
	return j
}

// short prints a value with five digits.
func short(v Number) string { return strconv.FormatFloat(float64(v), 'g', 5, 64) }
