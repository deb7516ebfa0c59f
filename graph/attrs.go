package graph

import (
	"encoding"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// Attr is an attribute of an operation as the text form writes it.
type Attr struct {
	Name  string // in snake_case
	Value string
}

// Attrs lists the attributes of op in the order of its fields. An attribute that is false, 0.0 or "" is left out, and
// so is 0 if the field's tag says attr:"optional". All others are always written, even if they are zero, so that axis=0
// and fn=neg are visible. These are not attributes: the Type of a source, Random or Host, which is the node's type; the
// Body of a Fusion; the Impl of a Host; and the Value of a Const of more than [MaxInline] elements.
func Attrs(op Op) []Attr {
	if c, ok := op.(Const); ok {
		if c.Value == nil || c.Value.Type.Shape.Elems() > MaxInline {
			return nil
		}
		return []Attr{{attrValue, formatTensor(c.Value)}}
	}
	v := reflect.ValueOf(op)
	var attrs []Attr
	for _, f := range attrFields(v.Type()) {
		x := v.FieldByIndex(f.index)
		if f.optional && isZero(x) {
			continue
		}
		attrs = append(attrs, Attr{f.name, formatAttr(x)})
	}
	return attrs
}

// attrField is a field of an operation that is an attribute.
type attrField struct {
	name     string
	index    []int
	optional bool // absent means the zero value
}

// attrFields lists the attributes of an operation's type. Those of an embedded operation are its own.
func attrFields(t reflect.Type) []attrField {
	var fields []attrField
	for _, f := range reflect.VisibleFields(t) {
		if f.Anonymous {
			continue
		}
		switch f.Type {
		case reflect.TypeFor[Type](), reflect.TypeFor[*Graph](), reflect.TypeFor[*Tensor](), reflect.TypeFor[HostImpl]():
			continue
		}
		k := f.Type.Kind()
		fields = append(fields, attrField{
			name:     AttrName(f.Name),
			index:    f.Index,
			optional: k == reflect.Bool || k == reflect.Float64 || k == reflect.String || f.Tag.Get("attr") == "optional",
		})
	}
	return fields
}

// isZero is true of -0 as little as of any other value that reads back as something else.
func isZero(v reflect.Value) bool {
	if v.Kind() == reflect.Float64 {
		return math.Float64bits(v.Float()) == 0
	}
	return v.IsZero()
}

// AttrName is the attribute that a field of an operation is: CountPad becomes count_pad, and KH becomes kh.
func AttrName(s string) string {
	var b strings.Builder
	lower := false // the rune before
	for _, r := range s {
		if unicode.IsUpper(r) && lower {
			b.WriteByte('_')
		}
		lower = unicode.IsLower(r)
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

func formatAttr(v reflect.Value) string {
	switch v.Kind() {
	case reflect.Bool:
		return strconv.FormatBool(v.Bool())
	case reflect.Int:
		return strconv.FormatInt(v.Int(), 10)
	case reflect.Float64:
		return formatFloat(v.Float())
	case reflect.String:
		return quoteName(v.String())
	}
	return v.Interface().(fmt.Stringer).String() // enumerations, DType, Ints, Shape
}

// makeOp is the inverse of [Attrs]: the operation of info's row with the given attributes. Its field Type, if it has
// one, becomes t. The error comes with the index of the attribute at fault, or -1.
func makeOp(info *OpInfo, t Type, attrs []Attr) (Op, int, error) {
	v := reflect.New(reflect.TypeOf(info.Proto)).Elem()
	fields := attrFields(v.Type())
	given := make(map[string]bool, len(attrs))
	for i, a := range attrs {
		at := slices.IndexFunc(fields, func(f attrField) bool { return f.name == a.Name })
		switch {
		case at < 0:
			return nil, i, fmt.Errorf("%s has no attribute %q%s", info.Name, a.Name, listFields(fields))
		case given[a.Name]:
			return nil, i, fmt.Errorf("attribute %q is given twice", a.Name)
		}
		given[a.Name] = true
		if err := parseAttr(v.FieldByIndex(fields[at].index), a.Value); err != nil {
			return nil, i, fmt.Errorf("attribute %q of %s: %w", a.Name, info.Name, err)
		}
	}
	for _, f := range fields {
		if !f.optional && !given[f.name] {
			return nil, -1, fmt.Errorf("%s needs the attribute %q", info.Name, f.name)
		}
	}
	if f := v.FieldByName("Type"); f.IsValid() {
		f.Set(reflect.ValueOf(t))
	}
	return v.Interface().(Op), -1, nil
}

func listFields(fields []attrField) string {
	if len(fields) == 0 {
		return " and takes none"
	}
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.name
	}
	return " (it has " + strings.Join(names, ", ") + ")"
}

// parseAttr stores the value that s writes in the field v.
func parseAttr(v reflect.Value, s string) error {
	switch p := v.Addr().Interface().(type) {
	case encoding.TextUnmarshaler: // enumerations and DType
		return p.UnmarshalText([]byte(s))
	case *Ints:
		l, err := parseInts(s)
		*p = l
		return err
	case *Shape:
		l, err := parseInts(s)
		*p = Shape{l}
		return err
	case *bool:
		switch s {
		case "true", "false":
			*p = s == "true"
			return nil
		}
		return fmt.Errorf("expected true or false, found %s", s)
	case *int:
		n, err := strconv.Atoi(s)
		if err != nil {
			return fmt.Errorf("expected an integer, found %s", s)
		}
		*p = n
	case *float64:
		f, err := parseFloat(s)
		*p = f
		return err
	case *string:
		if !strings.HasPrefix(s, `"`) {
			*p = s
			return nil
		}
		u, err := strconv.Unquote(s)
		*p = u
		return err
	default:
		panic(fmt.Sprintf("graph: attribute of type %v", v.Type()))
	}
	return nil
}

// parseInts reads [1,2].
func parseInts(s string) (Ints, error) {
	elems, err := splitList(s)
	if err != nil {
		return Ints{}, err
	}
	if len(elems) > MaxRank {
		return Ints{}, fmt.Errorf("a list of %d values: there are at most %d axes", len(elems), MaxRank)
	}
	var l Ints
	for _, e := range elems {
		n, err := strconv.Atoi(e)
		if err != nil {
			return Ints{}, fmt.Errorf("expected an integer, found %s", e)
		}
		l.v[l.n] = n
		l.n++
	}
	return l, nil
}

// splitList splits [a,b] into its elements.
func splitList(s string) ([]string, error) {
	if len(s) < 2 || s[0] != '[' || s[len(s)-1] != ']' {
		return nil, fmt.Errorf("expected a list such as [1,2], found %s", s)
	}
	if s == "[]" {
		return nil, nil
	}
	return strings.Split(s[1:len(s)-1], ","), nil
}

// formatFloat returns the shortest text that reads back as v, with inf, -inf and nan. A NaN with unusual bits is
// written with them, as nan.7ff8000000000002.
func formatFloat(v float64) string {
	b := math.Float64bits(v)
	if math.IsNaN(v) && b != math.Float64bits(math.NaN()) {
		return fmt.Sprintf("nan.%016x", b)
	}
	return formatBits(v, 64)
}

func formatFloat32(v float32) string {
	b := math.Float32bits(v)
	if v != v && b != math.Float32bits(float32(math.NaN())) {
		return fmt.Sprintf("nan.%08x", b)
	}
	return formatBits(float64(v), 32)
}

func formatBits(v float64, size int) string {
	switch {
	case math.IsNaN(v):
		return "nan"
	case math.IsInf(v, 1):
		return "inf"
	case math.IsInf(v, -1):
		return "-inf"
	}
	return strconv.FormatFloat(v, 'g', -1, size)
}

// parseFloat is the inverse of formatFloat.
func parseFloat(s string) (float64, error) {
	if hex, ok := strings.CutPrefix(s, "nan."); ok {
		b, err := strconv.ParseUint(hex, 16, 64)
		if v := math.Float64frombits(b); err == nil && math.IsNaN(v) {
			return v, nil
		}
		return 0, fmt.Errorf("expected the bits of a NaN, found %s", s)
	}
	return parseNumber(s, 64)
}

// parseFloat32 is the inverse of formatFloat32.
func parseFloat32(s string) (float32, error) {
	if hex, ok := strings.CutPrefix(s, "nan."); ok {
		b, err := strconv.ParseUint(hex, 16, 32)
		if v := math.Float32frombits(uint32(b)); err == nil && v != v {
			return v, nil
		}
		return 0, fmt.Errorf("expected the bits of a NaN, found %s", s)
	}
	v, err := parseNumber(s, 32)
	return float32(v), err
}

// format16 writes an element of a 16-bit type as the shortest number that is distinct in f32.
func format16(d DType, bits uint16) string {
	v := d.From16(bits)
	if v != v && bits != d.Bits16(math.NaN()) {
		return fmt.Sprintf("nan.%04x", bits)
	}
	return formatBits(float64(v), 32)
}

// parse16 is the inverse of format16; a number with more digits is rounded.
func parse16(d DType, s string) (uint16, error) {
	if hex, ok := strings.CutPrefix(s, "nan."); ok {
		b, err := strconv.ParseUint(hex, 16, 16)
		if v := d.From16(uint16(b)); err == nil && v != v {
			return uint16(b), nil
		}
		return 0, fmt.Errorf("expected the bits of a NaN, found %s", s)
	}
	v, err := parseNumber(s, 64)
	return d.Bits16(v), err
}

func parseNumber(s string, size int) (float64, error) {
	v, err := strconv.ParseFloat(s, size)
	switch {
	case err == nil:
		return v, nil
	case math.IsInf(v, 0):
		return 0, fmt.Errorf("%s is too large for f%d", s, size)
	}
	return 0, fmt.Errorf("expected a number, found %s", s)
}

// MaxInline is how many elements a constant may have to be written in the text form; larger ones are kept with the
// weights.
const MaxInline = 16

// formatTensor writes a tensor's elements in row-major order: a number, or for rank 1 and more a flat list.
func formatTensor(t *Tensor) string {
	var elems []string
	switch d := t.Data.(type) {
	case []float32:
		elems = formatAll(d, formatFloat32)
	case []float64:
		elems = formatAll(d, formatFloat)
	case []bool:
		elems = formatAll(d, strconv.FormatBool)
	default:
		for i := range t.Type.Shape.Elems() {
			switch {
			case t.Type.DType.IsInt():
				elems = append(elems, t.Whole(i))
			case t.Type.DType.IsStored():
				elems = append(elems, formatStored(t, i))
			default:
				elems = append(elems, format16(t.Type.DType, d.([]uint16)[i]))
			}
		}
	}
	if t.Type.Shape.Rank() == 0 && len(elems) == 1 {
		return elems[0]
	}
	return "[" + strings.Join(elems, ",") + "]"
}

func formatAll[T any](d []T, format func(T) string) []string {
	s := make([]string, len(d))
	for i, v := range d {
		s[i] = format(v)
	}
	return s
}

// parseTensor is the inverse of formatTensor. It allocates at most as many elements as s has.
func parseTensor(t Type, s string) (*Tensor, error) {
	elems := []string{s}
	if t.Shape.Rank() > 0 {
		var err error
		if elems, err = splitList(s); err != nil {
			return nil, err
		}
	}
	if len(elems) != t.Shape.Elems() {
		return nil, fmt.Errorf("%d values for a constant of type %v", len(elems), t)
	}
	r := NewTensor(t)
	var err error
	switch d := r.Data.(type) {
	case []float32:
		err = parseAll(d, elems, parseFloat32)
	case []float64:
		err = parseAll(d, elems, parseFloat)
	case []bool:
		err = parseAll(d, elems, func(s string) (b bool, err error) {
			return b, parseAttr(reflect.ValueOf(&b).Elem(), s)
		})
	default:
		if t.DType.IsStored() {
			for i, s := range elems {
				if err := parseStored(r, i, s); err != nil {
					return r, err
				}
			}
			return r, nil
		}
		if !t.DType.IsInt() {
			return r, parseAll(d.([]uint16), elems, func(s string) (uint16, error) { return parse16(t.DType, s) })
		}
		for i, s := range elems {
			v, err := parseInteger(s, t.DType)
			if err != nil {
				return r, err
			}
			r.SetInt(i, v)
		}
	}
	return r, err
}

// parseInteger reads an integer of type d; of U64 it returns the int64 with the same bits.
func parseInteger(s string, d DType) (n int64, err error) {
	if bits := 8 * d.Size(); d.IsUnsigned() {
		var u uint64
		u, err = strconv.ParseUint(s, 10, bits)
		n = int64(u)
	} else {
		n, err = strconv.ParseInt(s, 10, bits)
	}
	if err != nil {
		return 0, fmt.Errorf("expected a number of %v, found %s", d, s)
	}
	return n, nil
}

func parseAll[T any](d []T, elems []string, parse func(string) (T, error)) error {
	for i, e := range elems {
		v, err := parse(e)
		if err != nil {
			return err
		}
		d[i] = v
	}
	return nil
}

// quoteName writes a name without quotes if it is one word, and else quoted as in Go.
func quoteName(s string) string {
	if isBareName(s) && s != keywordOutput && s != keywordUpdate && s != keywordFor {
		return s
	}
	return strconv.Quote(s)
}

// isBareName reports whether s is a letter or underscore followed by letters, digits and any of _ . / -.
func isBareName(s string) bool {
	for i, r := range s {
		if !isWordRune(r) || r == '+' || i == 0 && !(r == '_' || unicode.IsLetter(r)) {
			return false
		}
	}
	return s != ""
}

// isWordRune reports whether r may be part of a name or a number.
func isWordRune(r rune) bool {
	switch r {
	case '_', '.', '/', '-', '+':
		return true
	case unicode.ReplacementChar:
		return false
	}
	return unicode.IsLetter(r) || unicode.IsDigit(r)
}
