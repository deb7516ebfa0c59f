package moe

// fewMax is the largest number of tokens for which an expert's cost is that of reading its weights: they are streamed
// once, without packing.
const fewMax = 4

// isFew reports whether the tokens of a segment are few, and its weights have a stride of 1.
func (k *Plan[T]) isFew(s *segment) bool {
	if s.n > fewMax {
		return false
	}
	for i := range k.operands {
		o := &k.operands[i]
		if len(k.Weights[o.weight]) == 0 {
			continue
		}
		if ks, ns := k.strides(o, s.expert); ks != 1 && ns != 1 {
			return false
		}
	}
	return true
}

// stream sets c to the product of rows, lda elements apart, with kc steps from k0, columns from to end, of an operand,
// or adds it. A column is a dot product if the operand is contiguous along the reduction; else rows of it are added up.
func (b *block[T]) stream(c []T, ldc int, a []T, lda int, o *operand, k0, kc, from, end int, add bool) {
	n := end - from
	if !add {
		for r := range b.rows {
			clear(c[r*ldc:][:n])
		}
	}
	if n == 0 || kc == 0 {
		return
	}
	ks, ns := b.strides(o, b.s.expert)
	w := b.args.Weights[o.weight][b.s.expert][k0*ks+from*ns:]
	if ns != 1 {
		for j := range n {
			for r := range b.rows {
				c[r*ldc+j] += b.micro.Dot(kc, &a[r*lda], &w[j*ns])
			}
		}
		return
	}
	k := 0
	for ; k+4 <= kc; k += 4 {
		for r := range b.rows {
			b.micro.Axpy4(n, &a[r*lda+k], &w[k*ks], ks, &c[r*ldc])
		}
	}
	for ; k < kc; k++ {
		for r := range b.rows {
			b.code.Axpy(c[r*ldc:][:n], w[k*ks:][:n], a[r*lda+k])
		}
	}
}
