package cuda

import (
	"fmt"
	"slices"

	"fusec/graph/body"
)

// findMoments finds the variances of columns that with their means are computed in one pass; see [body.Program.Moments].
func (r *rows) findMoments() {
	stores := func(s body.Store) bool { return !s.PerRow }
	if r.across && len(r.sums) == 0 && !slices.ContainsFunc(r.p.Stores, stores) {
		r.moments = r.p.Moments()
	}
}

// reduceWarps writes how the threads of a cluster combine a reduction, i, called name, of numbers that they have joined in acc. It
// reports whether that is all. Of a mean, for which there is a variance, a warp finds that of its own elements, and then the sum of
// the squares of their differences from it, so that one exchange is enough for both.
func (r *rows) reduceWarps(i int, name, f, acc, typ string) bool {
	units := fmt.Sprintf("%d, W", elemsOf(r.inner)/r.w)
	for mean, variance := range r.warps {
		switch i {
		case mean:
			r.after("const auto %s = cluster.mean<%s>(joined<Sum>(%s));", name, units, acc)
		case variance:
			r.after("const auto %s = cluster.moments<%s>(%s, joined<Sum>(%s));", name, units, r.b.values[mean].expr, acc)
		default:
			continue
		}
		r.b.define(i, value{kind: scalar, expr: name, lane: typ, fixed: true})
		return true
	}
	r.after("const auto %s_ = cluster.reduce<%s>(joined<%s>(%s));", name, f, f, acc)
	return false
}

// defineWarps gives means and variances what reads them of the moments. Of other values only those from before are left: what was
// computed of means of warps is computed again of those of rows.
func (r *rows) defineWarps(before []value) {
	for mean, variance := range r.warps {
		m := r.b.values[variance]
		before[mean] = value{kind: scalar, expr: m.expr + ".mean", lane: m.lane, fixed: true}
		before[variance] = value{kind: scalar, expr: m.expr + ".variance()", lane: m.lane, fixed: true}
	}
	r.b.values = before
}

// levels is how many stages end with reductions.
func (r *rows) levels() int {
	if r.moments != nil {
		return 1
	}
	return r.p.Levels
}

// storeLevel is the stage in which a store can run.
func (r *rows) storeLevel(s *body.Store) int {
	if r.moments != nil {
		return 1
	}
	if level := r.p.StoreLevel(s); level != 1 || r.warps == nil {
		return level
	}
	return 2 // means are those of warps before
}

// reduceMoments writes the sums of mean i and its variance.
func (r *rows) reduceMoments(i int) error {
	b, n := r.b, r.p.Values[i].Node
	v, err := b.operand(r.p.Values[i].Args[0])
	if err != nil {
		return err
	}
	typ, name := lane(n.Type.DType), fmt.Sprintf("r%d", b.next)
	acc := fmt.Sprintf("x%d", b.next)
	b.next++
	r.before("MomentSum<%s, W> %s;", typ, acc)
	b.line(v, "%s.add(widen<W>(%s));", acc, v.expr)
	r.shared = max(r.shared, r.block*r.w*momentNumbers*laneBytes(typ))
	r.after("const auto %s = column_reduce<Moments, %d, %d>(%s.get(), reinterpret_cast<Vec<Moment<%s>, W> *>(shared));", name,
		r.columns, r.threads, acc, typ)
	if r.parts > 1 {
		p := partial{value: i, node: n, at: r.reserve(r.parts * elemsOf(r.kept) * momentNumbers * n.Type.DType.Size())}
		field := fmt.Sprintf("partial%d", len(r.partial))
		r.partial = append(r.partial, p)
		r.after("if (writes) store_moments(%s + i64(part) * %d + index * W, %s);",
			r.u.scratch("Moment<"+typ+">", field, p.at), elemsOf(r.kept), name)
		return nil
	}
	r.defineMoments(b, i, vector, name, typ)
	return nil
}

// momentNumbers is how many numbers a Moment has.
const momentNumbers = 3

// defineMoments gives mean i and its variance what reads them of the moments.
func (r *rows) defineMoments(b *printer, i int, kind valueKind, name, typ string) {
	mean, variance := fmt.Sprintf("means(%s)", name), fmt.Sprintf("variances(%s)", name)
	if kind == scalar {
		mean, variance = name+".mean", name+".variance()"
	}
	b.define(i, value{kind: kind, expr: mean, lane: typ, fixed: true})
	b.define(r.moments[i], value{kind: kind, expr: variance, lane: typ, fixed: true})
}

// gatherMoments writes the combination of the parts of partial number k, of mean i.
func (r *rows) gatherMoments(b *printer, k, i, n int, shape, typ string) {
	r.u.printf("  const Moment<%s> m%d = gather_parts<Moments, %s>(p.partial%d, %d, index, live, reinterpret_cast<Moment<%s> "+
		"*>(shared));\n",
		typ, k, shape, k, n, typ)
	r.defineMoments(b, i, scalar, fmt.Sprintf("m%d", k), typ)
}
