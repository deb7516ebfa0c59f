package cuda

import (
	"fmt"
	"slices"
	"strings"

	"fusec/graph"
	"fusec/graph/body"
)

// backward writes the steps of a gradient, which follow count and list; see mixture. The hidden values are computed again, unless
// the mixture has kept them. With da = gate·dy·w2ᵀ, and du and dv its products with the derivatives of h = act(u) ⊙ v, which
// are 0 where a function is flat, even if da is not finite, the steps are
//
//	gate, linear       u = x·w1 + b1 and, if gated, v = x·w3 + b3
//	hidden             da, and of it gate·h, du, dv, and h⊙(dy·w2ᵀ), the sums of its pieces
//	inner, second      a row du·w1ᵀ, plus dv·w3ᵀ, for each slot
//	sum                dx, the rows of each token, in the order of experts
//	gates              the gradients of the gates, sums of these, plus dy·b2
//	dw1, dw3, dw2      products over the slots of each expert
//	db1, db3, db2      sums over them
func (x *mixture) backward() error {
	results, err := x.gradients()
	if err != nil {
		return err
	}
	in, gates, dy, weights := x.operands.x, x.operands.gates, x.operands.dy, x.operands.weights
	d := x.dims
	acc, elem, mid := lane(x.acc), ctype(x.elem), ctype(x.mid)
	u, h := x.shared(mid, "u", x.at.u), x.scratch(elem, "h", x.at.h)
	rowType, sums := x.acc, !x.mid.Is16()
	if x.async && !x.op.Gated {
		rowType = x.elem
	}
	du, rows := x.scratch(elem, "du", x.at.du), x.scratch(ctype(rowType), "rows", x.at.out)
	v, dv := "", ""
	if x.op.Gated {
		v, dv = x.shared(mid, "v", x.at.v), x.scratch(elem, "dv", x.at.dv)
	}
	read := func(r rowsView) (factor, string) {
		f := factor{arg: r.arg, dtype: x.elem, outer: r.row, k: r.col, offset: r.offset}
		return f, fmt.Sprintf("%s + %d", x.arg(r.arg), r.offset)
	}
	xf, xs := read(in)
	df, ds := read(dy)
	token := "fixed_at(p.order, m)"
	gate := func(token string) string {
		return fmt.Sprintf("fixed_at(%s, %s * i64(%d) + e * i64(%d))", x.gates, token, gates.row, gates.col)
	}
	dyRow, row := fmt.Sprintf("%s + read.token * i64(%d)", ds, dy.row), fmt.Sprintf("i64(m - p.wave * %d)", x.capacity)
	if x.async {
		dyRow = fmt.Sprintf("%s + %s * %d", x.scratch(elem, "dys", x.at.dy), row, d.Result)
	}
	// Of the gradients of gates, the sum of each piece of a row.
	terms, pieces := x.scratch(acc, "terms", x.at.terms), 0

	turned := func(w weightView) weightView { w.row, w.col = w.col, w.row; return w }
	own := factor{arg: -1, dtype: x.elem, outer: d.Hidden, k: 1}
	products := []groupedProduct{
		{"gate", xf, xs, x.sharedAt(x.at.x), weights[graph.MoEW1], d.Hidden, d.Width, sums, func(w int) (string, error) {
			return x.biased(weights[graph.MoEB1]) + x.keep(x.mid, w, u, "value"), nil
		}},
		{"hidden", df, ds, Scratch(x.at.dy), turned(weights[graph.MoEW2]), d.Hidden, d.Result, sums, func(w int) (string, error) {
			wrt, text := []string{"u"}, ""
			if x.op.Gated {
				wrt = append(wrt, "v")
			}
			for _, name := range wrt { // kept as it is read, so that nothing waits for it before
				text += fmt.Sprintf("    const auto %s = op::cast<%s>(read.%s);\n", name, acc, name)
			}
			lines, made, err := x.elementwise(append(wrt, "da"), true)
			if err != nil {
				return "", err
			}
			w2 := weights[graph.MoEW2]
			scaled := func(what, factor string) string {
				return fmt.Sprintf("%s<%d, %d, %d, %d>(%s, acc, dy, w2)", what, d.Result, dy.col, w2.row, w2.col, factor)
			}
			text += fmt.Sprintf("    const %s *const dy = %s;\n", elem, dyRow)
			text += fmt.Sprintf("    const %s *const w2 = %s[e] + n * i64(%d);\n    const auto da = %s;\n", elem, w2.name, w2.row,
				scaled("scaled", "splat<W>(read.gate)")) + lines
			text += x.keep(x.elem, w, h, fmt.Sprintf("op::mul(%s, read.gate)", made[0]))
			for i, to := range []string{du, dv}[:len(made)-1] {
				text += x.keep(x.elem, w, to, made[1+i])
			}
			pieces = d.Hidden / w
			return text + fmt.Sprintf("    %s[at / W] = %s;\n", terms, scaled("scaled_total", made[0])), nil
		}},
		{"inner", own, du, Scratch(x.at.du), turned(weights[graph.MoEW1]), d.Width, d.Hidden, !rowType.Is16(), func(w int) (
			string, error) {
			return x.keep(rowType, w, rows, "acc"), nil
		}},
	}
	vec := fmt.Sprintf("Vec<%s, W>", mid)
	value := func(name, from string, byte int64) aheadField {
		f := aheadField{typ: vec, name: name, read: fmt.Sprintf("load<%s, W, 1, 16>(fixed(%s + at))", mid, from)}
		if x.brings() {
			f.tensor = x.field(Param{Kind: MapParam, Map: x.operandTile(x.sharedAt(byte), d.Hidden)}, "TensorMap ", name+"_tile")
		}
		return f
	}
	fields := []aheadField{{typ: "i32", name: "token", read: token}, {typ: acc, name: "gate", read: gate("token")}}
	if x.async { // gather has put the gates in the order of slots, and the rows of dy
		slotGate := fmt.Sprintf("fixed_at(%s, %s)", x.scratch(acc, "weights", x.at.weights), row)
		fields = []aheadField{{typ: acc, name: "gate", read: slotGate}}
	}
	fields = append(fields, value("u", u, x.at.u))
	if x.op.Gated {
		fields = append(fields, value("v", v, x.at.v))
	}
	ahead := map[string][]aheadField{"hidden": fields}
	if x.op.Gated {
		w3 := weights[graph.MoEW3]
		linear := groupedProduct{"linear", xf, xs, x.sharedAt(x.at.x), w3, d.Hidden, d.Width, sums, func(w int) (string, error) {
			return x.biased(weights[graph.MoEB3]) + x.keep(x.mid, w, v, "value"), nil
		}}
		w3 = turned(w3)
		second := groupedProduct{"second", own, dv, Scratch(x.at.dv), w3, d.Width, d.Hidden, true, func(w int) (string, error) {
			return x.kept("had", x.acc, w, rows+" + at") + x.keep(x.acc, w, rows, "op::add(had, acc)"), nil
		}}
		products = []groupedProduct{products[0], linear, products[1], products[2], second}
	}
	if x.finds() {
		products = slices.DeleteFunc(products, func(p groupedProduct) bool { return p.name == "gate" || p.name == "linear" })
	}
	for _, p := range products {
		if err := x.grouped(p, ahead[p.name]...); err != nil {
			return err
		}
	}
	x.sum(results[0].result, results[0].rows, rows, rowType.Size(), d.Width, false)
	if r := results[1]; r.result >= 0 && d.Tokens > 0 {
		b2 := "nullptr"
		if x.op.Bias {
			b2 = weights[graph.MoEB2].name
		}
		x.printf("KERNEL(gates, 128, 1) {\n  gate_gradients<Mixture, %d, %d, %d, %d, %v, %d, %d, %d>(", pieces, d.Result, dy.row,
			dy.col, x.op.Bias, weights[graph.MoEB2].col, r.rows.row, r.rows.col)
		x.printf("%s + %d, %s, %s, %s, %s, %s, p.wave);\n}\n\n", x.result(r.result), r.rows.offset, terms, ds, b2, x.gates,
			x.shared("i32", "place", x.at.place))
		x.step(Step{Entry: "gates", Grid: [3]int{d.Tokens, 1, 1}, Block: 128}, true)
	}
	across := func(f factor) factor { f.outer, f.k = f.k, f.outer; return f }
	for _, w := range x.op.Weights() {
		wanted := results[x.op.Weight(w, 0)].weight
		if wanted == nil {
			continue
		}
		value, at := du, Scratch(x.at.du)
		switch w {
		case graph.MoEW3, graph.MoEB3:
			value, at = dv, Scratch(x.at.dv)
		case graph.MoEW2:
			value, at = h, Scratch(x.at.h)
		}
		switch {
		case w == graph.MoEB2:
			at := fmt.Sprintf("(%s)[%s * i64(%d) + n * i64(%d)]", ds, token, dy.row, dy.col)
			x.biasGradient(w, *wanted, d.Result, fmt.Sprintf("%s * convert<%s>(%s)", gate(token), acc, at))
		case w.Bias():
			at := fmt.Sprintf("%s[i64(m - p.wave * %d) * %d + n]", value, x.capacity, d.Hidden)
			x.biasGradient(w, *wanted, d.Hidden, fmt.Sprintf("convert<%s>(%s)", acc, at))
		case x.async && w == graph.MoEW2:
			err = x.weightGradientAsync(w, d.Hidden, d.Result, at, Scratch(x.at.dy), *wanted)
		case x.async:
			err = x.weightGradientAsync(w, d.Width, d.Hidden, x.sharedAt(x.at.x), at, *wanted)
		case w == graph.MoEW2:
			x.weightGradient(w, across(df), ds, value, turned(*wanted), d.Result)
		default:
			x.weightGradient(w, across(xf), xs, value, *wanted, d.Width)
		}
		if err != nil {
			return err
		}
	}
	x.finish()
	return nil
}

// A gradient is where the gradient of an operand goes: result −1 if it is not wanted.
type gradient struct {
	result int
	rows   rowsView    // of x and gates
	weight *weightView // of a weight, at its first expert
}

// gradients finds the results, by operand of the mixture.
func (x *mixture) gradients() ([]gradient, error) {
	list := make([]gradient, len(x.anchor.Args)-1)
	layouts := make([]graph.Layout, len(list))
	for i := range list {
		list[i].result = -1
	}
	for i := range x.p.Stores {
		s := &x.p.Stores[i]
		which, cast := x.p.ResultOf(s)
		if cast != nil {
			return nil, fmt.Errorf("%s: CUDA stores the results of %s as they are", cast.Where(), x.anchor.Where())
		}
		list[which].result, layouts[which] = i, s.Layout
		if which < 2 {
			var err error
			if list[which].rows, err = rowsOf(s.Layout); err != nil {
				return nil, fmt.Errorf("%s: %w", s.Node.Where(), err)
			}
		}
	}
	for _, w := range x.op.Weights() {
		v := weightView{name: "p.d" + w.String()}
		var fields []Param
		wanted, places := 0, 0
		for e := range x.op.Experts {
			i := x.op.Weight(w, e)
			if list[i].result < 0 {
				fields = append(fields, Param{Kind: Int64}) // no address
				continue
			}
			of, row, col := body.Expert(x.op, layouts[i], e)
			d := x.results[list[i].result].DType
			first := Result(list[i].result, int64(of.Offset)*int64(d.Size()))
			places |= of.Offset | row
			if wanted++; wanted == 1 {
				v.row, v.col = row, col
				if x.op.Stacked {
					v.arg, v.offset, v.expert = list[i].result, of.Offset, layouts[i].Stride[0]
					places |= layouts[i].Stride[0]
					x.stacked("d"+w.String(), ctype(d), layouts[i].Stride[0], first)
					break
				}
				x.decls = append(x.decls, fmt.Sprintf("%s *d%v[%d];", ctype(d), w, x.op.Experts))
			} else if row != v.row || col != v.col {
				return nil, fmt.Errorf("%s: the gradient of %v of expert %d lies in another order than that of an earlier one",
					x.anchor.Where(), w, e)
			}
			fields = append(fields, first)
		}
		if wanted > 0 {
			if !x.op.Stacked {
				x.fields = append(x.fields, fields...)
				v.some = wanted < x.op.Experts
			}
			v.bytes = x.acc.Size()
			for v.bytes < 16 && places*x.acc.Size()%(2*v.bytes) == 0 {
				v.bytes *= 2
			}
			list[x.op.Weight(w, 0)].weight = &v
		}
	}
	return list, nil
}

// weightGradient writes the product over the slots of each expert, Σ a[m, token]·value[slot, n], as the gradient of w;
// to is where its elements [m, n] go.
func (x *mixture) weightGradient(w graph.MoEWeight, a factor, source, value string, to weightView, rows int) {
	name := "d" + w.String()
	title := strings.ToUpper(name)
	d := x.dims
	p := &product{name: title + "Problem", batch: x.op.Experts, m: rows, n: d.Hidden, k: max(x.capacity/x.op.Experts, 1),
		a: a, b: factor{arg: -1, dtype: x.elem, outer: 1, k: d.Hidden}, acc: x.acc}
	p.a.listed = kAxis
	p.columns(min(16/x.acc.Size(), simtColumns))
	m := &matmul{unit: x.unit, product: p, cfg: x.cfg, whole: true}
	c := m.cut()
	x.use(c.source)
	p.write(x.unit)
	x.weightGradientBody(title, to)
	x.printf("KERNEL(%s, %d, %d) {\n", name, c.threads, c.blocks)
	x.printf("  const Spot spot = spot_of<%s, %d, %d, 1>(blockIdx.x);\n  int first;\n", p.name, c.bm, c.bn)
	x.unlessWanted(to, "spot.batch")
	x.printf("  const int count = slots_of<Mixture>(p.counts, p.starts, spot.batch, p.wave, first);\n")
	x.printf("  if (count == 0 && p.wave > 0) return;\n")
	x.printf("  const Piece<%s> piece = {%s + spot.m * i64(%d), ", p.name, source, a.outer)
	x.printf("%s + i64(first - p.wave * %d) * %d + spot.n,\n    %d - spot.m, %d - spot.n, count, p.order + first};\n  ", value,
		x.capacity, d.Hidden, rows, d.Hidden)
	x.printf(c.call+";\n}\n\n", title+"Body", title+"Body{p}", "piece", "(float *)nullptr")
	grid := x.op.Experts * ceilDiv(rows, c.bm) * ceilDiv(d.Hidden, c.bn)
	x.step(Step{Entry: name, Grid: [3]int{grid, 1, 1}, Block: c.threads, Shared: c.shared}, true)
}

// weightGradientBody writes the body of such a product: it stores sums, or adds them to those of earlier waves.
func (x *mixture) weightGradientBody(title string, to weightView) {
	x.openBody(title)
	x.printf("    auto *const at = %s[e] + m * i64(%d) + n * i64(%d);\n", to.name, to.row, to.col)
	x.printf("    if (p.wave == 0) {\n      store<%d, %d>(at, acc);\n    } else {\n", to.col, to.bytes)
	x.printf("      store<%d, %d>(at, op::add(load<%s, W, %d, %d>(at), acc));\n    }\n  }\n};\n\n", to.col, to.bytes,
		lane(x.acc), to.col, to.bytes)
}

// biasGradient writes the sum over the slots of each expert of a value, which the text makes of e, the slot m and n.
func (x *mixture) biasGradient(w graph.MoEWeight, to weightView, n int, value string) {
	name := "d" + w.String()
	x.printf("KERNEL(%s, 256, 1) {\n", name)
	x.unlessWanted(to, fmt.Sprintf("blockIdx.x / %d", ceilDiv(n, 32)))
	x.printf("  bias_gradients<Mixture, %d, %d>(%s, p.counts, p.starts, p.wave,\n", n, to.col, to.name)
	x.printf("    [&](int e, int m, int n) { return %s; });\n}\n\n", value)
	grid := [3]int{x.op.Experts * ceilDiv(n, 32), 1, 1}
	x.step(Step{Entry: name, Grid: grid, Block: 256, Shared: 256 * x.acc.Size()}, true)
}

// unlessWanted writes that a block whose expert's gradient is not asked for has nothing to do.
func (x *mixture) unlessWanted(to weightView, expert string) {
	if to.some {
		x.printf("  if (!%s[%s]) return;\n", to.name, expert)
	}
}
