package cuda

import (
	"fmt"

	"fusec/graph"
)

// normedRows is how many rows a product that norms its rows has at most.
const normedRows = 8

// NormsRows reports, as an error that carries the reason, that f, a fusion of an RMS norm and a product, is not known to be faster
// than a launch for each. On an H200 a decoder layer with one row takes 62 instead of 65 µs with weights of i8, 108 instead of 109
// with bf16, and 70 instead of 68 with f8. More rows have not been timed. Unless gemm_panels multiplies, each of many blocks would
// read all of the row in f32, which those of a chain do anyway.
func NormsRows(f graph.Fusion, args, results []Operand, cfg Config) error {
	m, err := newMatMul(f, args, results, cfg)
	switch {
	case err != nil:
		return err
	case m.checkChained() == nil:
		return nil
	case m.panelStream() == nil:
		return fmt.Errorf("each of many blocks would norm all of the row")
	case m.m > 1, m.panels.dtype != graph.I8 && !m.panels.dtype.Is16():
		return fmt.Errorf("a product of %d rows with weights of %v is not faster if it norms them", m.m, m.panels.dtype)
	}
	return nil
}

// checkNorm refuses a product with a norm unless blocks read all of a row of A anyway, once: then they norm the rows as they stage
// them (NormedRows of src/gemm_few.cuh). Rows that the copy engine brings to wgmma are normed by a launch before.
func (m *matmul) checkNorm() error {
	if m.norm == nil {
		return nil
	}
	inner, vec := m.pieces(m.a, m.m)
	form, tile, few := m.few()
	gamma := m.norm.Layout
	switch {
	case !m.cfg.hopper():
		return fmt.Errorf("%s has no kernel for norms of operands", m.cfg.Chip.Target())
	case m.a.dtype != graph.BF16: // without its factor, a row may be more than f16 represents
		return fmt.Errorf("an operand of %v that is normed", m.a.dtype)
	case m.args[m.a.arg].DType != graph.F32 || m.args[m.norm.Arg].DType != graph.F32:
		return fmt.Errorf("a norm of %v by %v", m.args[m.a.arg].DType, m.args[m.norm.Arg].DType)
	case !few || m.stream() != nil || m.m > normedRows || m.batch != 1:
		return fmt.Errorf("a product of %d matrices of %d rows with a norm", m.batch, m.m)
	case !inner || vec < 8 || gamma.Stride[0] != 1 || gamma.Offset%4 != 0:
		return fmt.Errorf("eight elements of a row to be normed are not read at once")
	}
	// Whether gemm_panels or gemm_few multiplies depends on what runs beside the launch.
	if each := ceilDiv(ceilDiv(m.k, form.k*tile.wk), tile.s); each > tile.phase {
		return fmt.Errorf("rows of %d elements to be normed, %d at once", m.k, tile.phase*tile.wk*form.k)
	}
	return nil
}

// rowsOf is the C++ expression of the rows of operand A.
func (m *matmul) rowsOf() string {
	if m.norm == nil {
		return fmt.Sprintf("StoredRows<%s>{%s}", m.name, m.pointer(m.a))
	}
	return fmt.Sprintf("NormedRows<%s>{%s, %s + %d, %s}", m.name, m.arg(m.a.arg), m.arg(m.norm.Arg), m.norm.Layout.Offset,
		literal(graph.F32, m.norm.Node.Op.(graph.RMSNorm).Eps, nil))
}
