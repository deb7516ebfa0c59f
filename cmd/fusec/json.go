package main

import (
	"encoding/json"
	"io"
	"math"
	"strconv"
	"strings"

	"fusec/graph"
)

// writeJSON prints a report, indented and with a line end.
func writeJSON(w io.Writer, v any) error {
	j := json.NewEncoder(w)
	j.SetEscapeHTML(false)
	j.SetIndent("", " ")
	return j.Encode(v)
}

// number is a float64 that JSON can hold: infinities and NaN become the strings "inf", "-inf" and "nan".
type number float64

// MarshalJSON implements json.Marshaler.
func (n number) MarshalJSON() ([]byte, error) {
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
func (n *number) UnmarshalJSON(src []byte) error {
	f, err := strconv.ParseFloat(strings.Trim(string(src), `"`), 64)
	*n = number(f)
	return err
}

// value is an element of a tensor in JSON: an integer exactly, anything else as a [number].
type value struct {
	number
	whole string // the digits of an integer, or empty
}

func valueOf(t *graph.Tensor, i int) value {
	v := value{number: number(t.Float(i))}
	if t.Type.DType.IsInt() {
		v.whole = strconv.FormatInt(t.Int(i), 10)
	}
	return v
}

// MarshalJSON implements json.Marshaler.
func (v value) MarshalJSON() ([]byte, error) {
	if v.whole != "" {
		return []byte(v.whole), nil
	}
	return v.number.MarshalJSON()
}

// short prints a value with five digits, an integer with all.
func (v value) short() string {
	if v.whole != "" {
		return v.whole
	}
	return short(v.number)
}

// origin is one of the user's nodes.
type origin struct {
	Name string `json:"name,omitempty"`
	Pos  string `json:"pos,omitempty"`
}

func originsJSON(list []graph.Origin) []origin {
	j := []origin{}
	for _, o := range list {
		j = append(j, origin(o))
	}
	return j
}
