package cuda

import (
	"embed"
	"fmt"
	"strings"

	"fusec/graph"
)

//go:embed src/*.cuh
var sources embed.FS

// include returns a template's text.
func include(name string) string {
	text, err := sources.ReadFile("src/" + name + ".cuh")
	if err != nil {
		panic(err) // the name is a constant of this package
	}
	return string(text)
}

// field is a field of the parameter. Two fields may have one value, as the parts of scratch memory of which one is empty.
type field struct {
	Param
	name string
}

// A unit is a translation unit in the making: the text, and the fields of the parameter that its entries share.
type unit struct {
	args, results []Operand
	text          strings.Builder
	fields        []Param
	decls         []string // of the fields
	names         map[field]string
	prefix        string           // of what reads a field
	customs       []graph.CustomFn // that the text calls, in the order of their first use
}

func newUnit(args, results []Operand) *unit {
	return &unit{args: args, results: results, names: map[field]string{}, prefix: "p."}
}

// ctype is the C++ type that holds an element in memory.
func ctype(d graph.DType) string {
	switch d {
	case graph.F32:
		return "float"
	case graph.F64:
		return "double"
	case graph.I4, graph.F8E4M3, graph.F8E5M2:
		return "u8" // their bytes
	}
	return d.String()
}

// lane is the C++ type that an element is computed in.
func lane(d graph.DType) string {
	if d.Is16() {
		return "float"
	}
	return ctype(d)
}

// arg is the field that points to an argument's buffer; result to a result's. What a launch writes is never const.
func (u *unit) arg(i int) string {
	return u.field(Arg(i, 0), "const "+ctype(u.args[i].DType)+" *", fmt.Sprintf("a%d", i))
}

func (u *unit) result(i int) string {
	return u.field(Result(i, 0), ctype(u.results[i].DType)+" *", fmt.Sprintf("r%d", i))
}

// scratch is the field that points to the scratch memory from a byte on.
func (u *unit) scratch(typ, name string, byte int64) string {
	return u.field(Scratch(byte), typ+" *", name)
}

func (u *unit) status() string { return u.field(Param{Kind: StatusPtr}, "Status *", "status") }

// field declares a field once and returns what reads it in an entry.
func (u *unit) field(p Param, typ, name string) string {
	key := field{p, name}
	if had, ok := u.names[key]; ok {
		return had
	}
	u.fields = append(u.fields, p)
	u.decls = append(u.decls, typ+name+";")
	u.names[key] = u.prefix + name
	return u.names[key]
}

// printf appends to the text.
func (u *unit) printf(format string, args ...any) { fmt.Fprintf(&u.text, format, args...) }

// ownText begins what is generated in a translation unit, after the prelude and the templates.
const ownText = "// ---- generated ----\n\n"

// Generated is the part of the source that was generated for this launch: without the prelude and the templates.
func (k *Kernel) Generated() string {
	_, own := Parts(k.Source)
	return own
}

// Parts are the two parts of a source: the prelude and the templates, which kernels have in common, and what was generated for this
// launch. A source of another form is all the latter.
func Parts(source string) (common, generated string) {
	if common, own, ok := strings.Cut(source, ownText); ok {
		return common, own
	}
	return "", source
}

// preamble is the prelude and templates.
func preamble(templates ...string) string {
	var b strings.Builder
	for _, t := range append([]string{"prelude", "ops"}, templates...) {
		b.WriteString(include(t))
		b.WriteByte('\n')
	}
	b.WriteString(ownText)
	return b.String()
}

// source puts the unit together: prelude, templates, Params, text.
func (u *unit) source(templates ...string) string {
	var b strings.Builder
	b.WriteString(preamble(templates...))
	b.WriteString(customText(u.customs))
	b.WriteString("struct Params {\n")
	for _, d := range u.decls {
		b.WriteString("  " + d + "\n")
	}
	b.WriteString("};\n\n")
	b.WriteString(u.text.String())
	return b.String()
}

// remark is what a comment says of a node: the user's name and place.
func remark(n *graph.Node) string {
	var parts []string
	if n.Name != "" {
		parts = append(parts, fmt.Sprintf("%q", n.Name))
	}
	for _, o := range n.Origin {
		if o.Pos != "" {
			parts = append(parts, o.Pos)
			break
		}
	}
	if len(parts) == 0 {
		return ""
	}
	text := strings.Map(func(r rune) rune {
		if r < ' ' || r == '\\' || r == 0x7f {
			return ' ' // a backslash at the end of a line would continue the comment
		}
		return r
	}, strings.Join(parts, " "))
	return "  // " + text
}

// Prelude is the text that every translation unit begins with.
func Prelude() string { return include("prelude") + "\n" + include("ops") }

// An aheadField is what a body reads ahead: its type, its name, and the text that reads it. What the copy engine may bring instead
// has the field of Params that tells where it is, else that is empty.
type aheadField struct{ typ, name, read, tensor string }

// openAhead prints what a body reads ahead, and begins the function that is called with it. Both begin with lines, which declare
// what they need of the coordinates: batch, m and n.
func (u *unit) openAhead(batch, acc, lines string, fields []aheadField) {
	u.printf("  template <int W> struct Ahead {\n")
	for _, f := range fields {
		u.printf("    %s %s;\n", f.typ, f.name)
	}
	u.printf("  };\n  template <int W> DEVICE Ahead<W> ahead(int %s, int m, int n) const {\n%s", batch, lines)
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.name
		u.printf("    const auto %s = %s;\n", f.name, f.read)
	}
	u.printf("    return {%s};\n  }\n", strings.Join(names, ", "))
	call := fmt.Sprintf("  template <int W>\n  DEVICE void operator()(int %s, int m, int n, const Vec<%s, W> &acc, Vec<Sum, W> *sums",
		batch, acc)
	u.printf("%s) const {\n    (*this)(%s, m, n, acc, sums, ahead<W>(%s, m, n));\n  }\n", call, batch, batch)
	u.printf("%s,\n                         const Ahead<W> &read) const {\n%s", call, lines)
}
