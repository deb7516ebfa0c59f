package isa

// A Fault is an error of a descriptor: the machine's error code and the field.
type Fault struct {
	Code  Error
	Field string
}

// Error implements error.
func (f *Fault) Error() string { return f.Field + ": " + f.Code.Error() }

// Unwrap gives the code.
func (f *Fault) Unwrap() error { return f.Code }

// verifier looks for the first fault of a descriptor.
type verifier struct {
	Config
	fault *Fault
}

func (v *verifier) want(ok bool, code Error, field string) {
	if !ok && v.fault == nil {
		v.fault = &Fault{code, field}
	}
}

// Verify returns the first error of a descriptor on this overlay, or nil; limit is the first address after the
// program's memory. The number and the places of a list's rows are known only to the machine.
//
// The machine stops by the same rules: an operation or a flag that the configuration lacks is ErrOp; a count of zero or
// beyond what the configuration holds state for is ErrCount; a space that an operation cannot use, and words, records,
// tables, lists and tokens that do not exist are ErrScratch; memory beyond the limit and unaligned addresses are
// ErrMemory. The machine does not check two more rules: a table for Wide results, and residuals of a product or a sum
// of experts, which are ErrOp. Without Patches it ignores the fields of a Load that need them.
func (c Config) Verify(cmd Command, limit int64) *Fault {
	v := &verifier{Config: c}
	switch d := cmd.(type) {
	case *Load:
		v.load(d, limit)
	case *Store:
		v.want(d.Space == SpaceY || d.Space == SpaceX, ErrScratch, "Space")
		v.want(!d.Scatter || c.Router(), ErrOp, "Scatter")
		v.want(d.Rows > 0, ErrCount, "Rows")
		v.want(d.Words > 0, ErrCount, "Words")
		v.want(!d.Scatter || d.TopK > 0 && int(d.TopK) <= c.TopK, ErrCount, "TopK")
		v.want(!d.Scatter || int(d.List) < c.Experts, ErrScratch, "List")
		if !d.Scatter && v.fault == nil {
			v.panels(d.Space, int(d.Base), int(d.Panel), (int(d.Rows)-1)/v.Rows+1, int(d.Words), "Base")
		}
		v.memory(d.Addr, d.Stride, int(d.Rows), int(d.Words), d.Scatter, limit)
	case *Stamp:
		v.memory(d.Addr, 0, 1, 16/c.WordBytes, false, limit)
	case *Gemm:
		v.gemm(d)
	case *Attention:
		v.attention(d)
	case *Vector:
		v.vector(d)
	case *Route:
		v.route(d)
	}
	return v.fault
}

func (v *verifier) load(d *Load, limit int64) {
	v.want(d.Space <= SpaceTables, ErrScratch, "Space")
	v.want(!d.Gather || v.Router(), ErrOp, "Gather")
	v.want(!d.Skip || v.Router(), ErrOp, "Skip")
	v.want(d.Rows > 0, ErrCount, "Rows")
	v.want(d.Words > 0, ErrCount, "Words")
	v.want(!d.Gather && !d.Skip || int(d.List) < v.Experts, ErrScratch, "List")
	plain := d.Lane == 0 && d.Taps <= 1 && d.WordStep <= 1
	v.want(plain || v.Patches && !d.Gather && !d.Skip, ErrOp, "Taps")
	v.want(plain || d.Space != SpaceParams && d.Space != SpaceTables, ErrOp, "Taps")
	v.want(d.Space > SpaceW || int(d.Lane) < v.Lanes(d.Space), ErrScratch, "Lane")
	v.want(!v.Patches || int(d.TapStride)%v.WordBytes == 0, ErrMemory, "TapStride")
	switch d.Space {
	case SpaceParams:
		v.want(d.Rows == 1, ErrCount, "Rows")
		v.want(int(d.Base)*RecordBytes%v.WordBytes == 0, ErrScratch, "Base")
		v.want(int(d.Base)*RecordBytes+int(d.Words)*v.WordBytes <= v.Params*RecordBytes, ErrScratch, "Base")
	case SpaceTables:
		v.want(d.Rows == 1, ErrCount, "Rows")
		v.want(int(d.Words)*v.WordBytes == 256, ErrCount, "Words")
		v.want(int(d.Base) < v.Tables, ErrScratch, "Base")
	default:
		if !d.Gather && !d.Skip && v.fault == nil {
			v.panels(d.Space, int(d.Base), int(d.Panel), d.Panels(v.Lanes(d.Space)), d.Span(), "Base")
		}
	}
	v.memory(d.Addr, d.Stride, int(d.Rows), int(d.Words), d.Gather || d.Skip, limit-int64(d.Segments()-1)*int64(d.TapStride))
}

// Lanes is how many lanes a scratchpad has, Words the words of each.
func (c Config) Lanes(s Space) int {
	if s == SpaceW {
		return c.Cols
	}
	return c.Rows
}

// Words is how many words each lane of a scratchpad has.
func (c Config) Words(s Space) int {
	switch s {
	case SpaceX:
		return c.XWords
	case SpaceW:
		return c.WWords
	}
	return c.YWords
}

// panels requires n panels of words, step words apart from base on, to be inside a scratchpad.
func (v *verifier) panels(s Space, base, step, n, words int, field string) {
	v.want(base+(n-1)*step+words <= v.Words(s), ErrScratch, field)
}

// memory requires rows of words to be aligned and, unless they come from a list, below the limit.
func (v *verifier) memory(addr, stride uint32, rows, words int, listed bool, limit int64) {
	v.want(int(addr)%v.WordBytes == 0, ErrMemory, "Addr")
	v.want(int(stride)%v.WordBytes == 0, ErrMemory, "Stride")
	v.want(listed || int64(addr)+int64(rows-1)*int64(stride)+int64(words*v.WordBytes) <= limit, ErrMemory, "Addr")
}

// out checks where results go: n panels of rows of cols elements, with residuals or factors from Y if reads.
func (v *verifier) out(o *Out, reads bool, n, cols int) {
	v.want(o.Space <= SpaceW && (o.Space != SpaceW || v.Rows == v.Cols), ErrScratch, "Space")
	v.want(o.Table == 0 || !o.Wide, ErrOp, "Table")
	v.want(int(o.Table) <= v.Tables, ErrScratch, "Table")
	v.panels(o.Space, int(o.Base), int(o.Panel), n, cols<<bit(o.Wide)/v.WordBytes, "Base")
	if reads {
		v.panels(SpaceY, int(o.Res), int(o.ResPanel), n, cols/v.WordBytes, "Res")
	}
}

func (v *verifier) gemm(d *Gemm) {
	v.want(d.Words > 0, ErrCount, "Words")
	v.want(d.Panels > 0, ErrCount, "Panels")
	v.want(d.Tiles > 0, ErrCount, "Tiles")
	v.want(!d.Listed || v.Router(), ErrOp, "Listed")
	v.want(!d.Listed || int(d.List) < v.Experts, ErrScratch, "List")
	v.want(!d.More && !d.Hold || d.Panels == 1, ErrCount, "Panels")
	v.want(!d.More && !d.Hold || d.Tiles == 1, ErrCount, "Tiles")
	v.panels(SpaceX, int(d.X), int(d.XPanel), int(d.Panels), int(d.Words), "X")
	v.panels(SpaceW, int(d.W), int(d.WPanel), int(d.Tiles), int(d.Words), "W")
	if d.Hold {
		return
	}
	v.out(&d.Out, d.Residual, int(d.Panels), int(d.Tiles)*v.Cols)
	records := int(d.Tiles) * v.Cols
	if d.RowParam {
		records = int(d.Panels) * v.Rows
	}
	v.want(int(d.Param)+records <= v.Params, ErrScratch, "Param")
}

func (v *verifier) attention(d *Attention) {
	v.want(v.Attention(), ErrOp, "Attention")
	if v.fault != nil {
		return
	}
	dim := int(d.Dim) * v.WordBytes
	v.want(d.Space <= SpaceW, ErrScratch, "Space")
	v.want(dim > 0 && dim%v.Cols == 0 && dim <= v.HeadDim, ErrCount, "Dim")
	v.want(d.QPanels > 0 && int(d.QPanels) <= v.Config.QPanels, ErrCount, "QPanels")
	v.want(d.Keys > 0, ErrCount, "Keys")
	v.want(d.ScoreMul <= 1<<15-1, ErrCount, "ScoreMul")
	v.panels(SpaceX, int(d.X), int(d.QPanel), int(d.QPanels), int(d.Dim), "X")
	v.panels(SpaceW, int(d.K), int(d.Dim), (int(d.Keys)-1)/v.Cols+1, int(d.Dim), "K")
	v.panels(SpaceW, int(d.V), int(d.VPanel), dim/v.Cols, (int(d.Keys)-1)/v.WordBytes+1, "V")
	if d.Last {
		v.panels(d.Space, int(d.Base), int(d.Panel), int(d.QPanels), dim<<bit(d.Wide)/v.WordBytes, "Base")
	}
}

func (v *verifier) vector(d *Vector) {
	norm := d.Kind == VectorLayerNorm || d.Kind == VectorRMSNorm
	combine := d.Kind == VectorCombine
	v.want(d.Kind <= VectorCombine && (!norm || v.Norms) && (!combine || v.Router()), ErrOp, "Kind")
	v.want(!d.Residual || !combine && d.Kind != VectorMul, ErrOp, "Residual")
	v.want(d.Words > 0, ErrCount, "Words")
	v.want(d.Panels > 0, ErrCount, "Panels")
	cols, slots := int(d.Words)*v.WordBytes, int(d.Panels)
	v.want(!norm || d.Count > 0 && int(d.Count) <= min(cols, MaxNorm), ErrCount, "Count")
	if combine {
		v.want(d.TopK > 0 && int(d.TopK) <= v.TopK, ErrCount, "TopK")
		v.want(int(d.Count)+int(d.Panels)*v.Rows <= v.Tokens, ErrScratch, "Count")
		slots *= int(d.TopK)
	}
	v.panels(SpaceX, int(d.X), int(d.XPanel), slots, int(d.Words), "X")
	v.out(&d.Out, d.Residual || d.Kind == VectorMul, int(d.Panels), cols)
	records := cols
	if d.OneParam {
		records = 1
	}
	v.want(int(d.Param)+records <= v.Params, ErrScratch, "Param")
}

func (v *verifier) route(d *Route) {
	v.want(v.Router(), ErrOp, "Route")
	if v.fault != nil {
		return
	}
	v.want(d.Rows > 0, ErrCount, "Rows")
	v.want(d.Experts > 0 && int(d.Experts) <= v.Config.Experts, ErrCount, "Experts")
	v.want(d.TopK > 0 && int(d.TopK) <= v.TopK && uint16(d.TopK) <= d.Experts, ErrCount, "TopK")
	v.want(int(d.Token)+int(d.Rows) <= v.Tokens, ErrScratch, "Token")
	v.panels(SpaceX, int(d.X), int(d.XPanel), (int(d.Rows)-1)/v.Config.Rows+1, (2*int(d.Experts)-1)/v.WordBytes+1, "X")
}
