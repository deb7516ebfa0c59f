package vec

import "fusec/graph"

// The number of words of a block of the generator, and of a group of blocks, the least that the assembly makes at once.
const blockWords, groupWords = 4, 16

// A stream is the words of [graph.Philox] with a seed, or with seven rounds those of [graph.Philox7]: word i is word i mod 4 of
// block i div 4, on every processor.
type stream struct {
	seed   uint64
	rounds int // 10 or 7
}

// Words sets dst to consecutive random words of [graph.Philox] from number first on. It allocates nothing.
func Words(dst []uint32, seed, first uint64) { stream{seed, 10}.words(dst, first) }

// words sets dst to consecutive words from number first on.
func (s stream) words(dst []uint32, first uint64) {
	block := first / blockWords
	if skip := int(first % blockWords); skip > 0 {
		var room [groupWords]uint32
		head := room[:min(skip+len(dst), groupWords)]
		s.blocks(head, block)
		dst = dst[copy(dst, head[skip:]):]
		block += groupWords / blockWords
	}
	s.blocks(dst, block)
}

// rows sets dst to rows of n words each; row i has the words from number first + i·step on.
func (s stream) rows(dst []uint32, n int, first, step uint64) {
	if len(dst) > 0 && n%blockWords == 0 && first%blockWords == 0 && step%blockWords == 0 {
		done := s.groupedRows(dst, n/blockWords, first/blockWords, step/blockWords)
		dst = dst[done:]
		first += uint64(done/n) * step
	}
	for ; len(dst) > 0; dst = dst[n:] {
		s.words(dst[:n], first)
		first += step
	}
}

// groupedRows sets as many of some rows of blocks as fill groups, where a group has whole rows, and returns how many words that
// are.
func (s stream) groupedRows(dst []uint32, blocks int, block, step uint64) (done int) {
	group := groupOf(len(dst))
	if group == 0 || group/blockWords%blocks != 0 {
		return 0
	}
	rows := group / blockWords / blocks // of a group
	var counters [maxGroup / blockWords]uint64
	for i := range group / blockWords {
		counters[i] = block + uint64(i/blocks)*step + uint64(i%blocks)
	}
	s.groups(dst, group, &counters, step*uint64(rows))
	return len(dst) / group * group
}

// consecutiveGroups sets as many whole groups as fit into dst, from a block on, and returns how many words that are.
func (s stream) consecutiveGroups(dst []uint32, block uint64) (done int) {
	for {
		group := groupOf(len(dst) - done)
		if group == 0 {
			return done
		}
		var counters [maxGroup / blockWords]uint64
		for i := range counters {
			counters[i] = block + uint64(done/blockWords+i)
		}
		s.groups(dst[done:], group, &counters, uint64(group/blockWords))
		done = len(dst) - (len(dst)-done)%group
	}
}

// blocks sets dst to consecutive words from the first word of a block on.
func (s stream) blocks(dst []uint32, block uint64) {
	done := s.consecutiveGroups(dst, block)
	if dst = dst[done:]; len(dst) == 0 {
		return
	}
	var last [groupWords]uint32
	block += uint64(done / blockWords)
	if s.consecutiveGroups(last[:], block) == 0 {
		for at := 0; at < len(dst); at += blockWords {
			words := s.block(block + uint64(at/blockWords))
			copy(dst[at:], words[:])
		}
		return
	}
	copy(dst, last[:])
}

func (s stream) block(counter uint64) [blockWords]uint32 {
	if s.rounds == 7 {
		return graph.Philox7(s.seed, counter)
	}
	return graph.Philox(s.seed, counter)
}

// Kept sets dst to bits that tell which of rows of n elements dropout keeps; row i has the elements from number first + i·step on.
// The bit of the j-th element is [graph.DropoutBit] of j in word j/32, as [Kernels.Keep] reads it; bits beyond the last are of no
// meaning.
func Kept(dst []uint32, rows, n int, rule graph.DropoutRule, seed, first, step uint64) {
	s := stream{seed, 7}
	if n%32 == 0 && first%32 == 0 && (rows == 1 || step%32 == 0) {
		s.kept(dst[:rows*(n/32)], n/32, rule, first/32, step/32)
		return
	}
	to := bitWriter{dst: dst}
	var room [64]uint32
	for rows > 0 {
		skip := int(first % 32)
		across, down := (skip+n+31)/32, 1 // groups that a row touches, and rows at a time
		if step%32 == 0 {
			down = max(min(rows, len(room)/across), 1)
		}
		if across <= len(room) {
			groups := room[:down*across]
			s.kept(groups, across, rule, first/32, step/32)
			to.write(groups, across, skip, n)
		} else {
			for at := 0; at < n; {
				count := min(n-at, 32*len(room)-skip)
				groups := room[:(skip+count+31)/32]
				s.kept(groups, len(groups), rule, (first+uint64(at))/32, 0)
				to.write(groups, len(groups), skip, count)
				at, skip = at+count, 0
			}
		}
		rows -= down
		first += uint64(down) * step
	}
	to.flush()
}

// kept sets dst to [graph.DropoutRule.KeptWord] of rows of n groups; row i has those from number first + i·step on.
func (s stream) kept(dst []uint32, n int, rule graph.DropoutRule, first, step uint64) {
	bits := rule.Bits
	if bits == 1 && rule.Threshold == 1 {
		s.rows(dst, n, first, step)
		return
	}
	var room [256]uint32
	most := len(room) / bits // groups at a time
	for len(dst) > 0 {
		count := min(len(dst), most/n*n)
		if n > most {
			count = n
		}
		for at := 0; at < count; {
			part := dst[at:min(count, at+most)]
			words := room[:len(part)*bits]
			s.rows(words, min(n, len(part))*bits, (first+uint64(at))*uint64(bits), step*uint64(bits))
			compare(part, words, rule)
			at += len(part)
		}
		dst = dst[count:]
		first += uint64(count/n) * step
	}
}

// compare sets the bits of the elements of groups whose numbers, in words, are at least the threshold.
func compare(dst, words []uint32, rule graph.DropoutRule) {
	// The complement of the bits is at hand where the threshold's bit is 0, so that the operation is always AND.
	var change [32]uint32
	last := uint32(0)
	for i := range rule.Bits {
		zero := rule.Threshold>>i&1 - 1
		change[i] = zero ^ last
		last = zero
	}
	bits := rule.Bits
	for i := range dst {
		kept, w := ^uint32(0), words[i*bits:][:bits]
		for j := 0; len(w) >= 4; j, w = j+4, w[4:] {
			x, c := (*[4]uint32)(w), (*[4]uint32)(change[j:])
			kept = (kept ^ c[0]) & x[0]
			kept = (kept ^ c[1]) & x[1]
			kept = (kept ^ c[2]) & x[2]
			kept = (kept ^ c[3]) & x[3]
		}
		for j, x := range w {
			kept = (kept ^ change[j&31]) & x
		}
		dst[i] = kept ^ last
	}
}

// A bitWriter appends bits of elements.
type bitWriter struct {
	dst  []uint32
	bits uint64 // that are not in dst, in the order of the elements
	n    int    // how many, less than 32
}

// write appends the bits of n elements of each row of so many groups, of which the first skip elements precede them.
func (w *bitWriter) write(rows []uint32, groups, skip, n int) {
	dst, bits, have := w.dst, w.bits, w.n // in registers
	for ; len(rows) > 0; rows = rows[groups:] {
		skip, left := skip, n
		for _, x := range rows[:groups] {
			count := min(32-skip, left)
			bits |= uint64(inOrder(x)>>(skip&31)) & (1<<(count&63) - 1) << (have & 31)
			if have += count; have >= 32 {
				dst[0] = inOrder(uint32(bits))
				dst, bits, have = dst[1:], bits>>32, have-32
			}
			left -= count
			skip = 0
		}
	}
	w.dst, w.bits, w.n = dst, bits, have
}

func (w *bitWriter) flush() {
	if w.n > 0 {
		w.dst[0] = inOrder(uint32(w.bits))
	}
}

// inOrder moves bits from [graph.DropoutBit] of elements to the elements' order, and back.
func inOrder(x uint32) uint32 {
	t := (x ^ x>>12) & 0xf0f0
	x ^= t ^ t<<12
	t = (x ^ x>>6) & 0xcc00cc
	return x ^ t ^ t<<6
}

// KeptColumns turns rows of n groups of 32 elements each, at most 32 rows, into columns: dst has the bits of all rows' first
// element, of the second and so on, in the order of [Kept].
func KeptColumns(dst, src []uint32, rows, n int) {
	pair := func(row, group int) uint64 {
		x := uint64(src[row*n+group])
		if row+1 < rows {
			x |= uint64(src[(row+1)*n+group]) << 32
		}
		return x
	}
	if rows%8 != 0 || 32%rows != 0 {
		bits, have := uint64(0), 0
		for group := range n {
			var square [16]uint64
			for i := 0; i < rows; i += 2 {
				square[i/2] = pair(i, group)
			}
			transposeBits(&square)
			for i := range 32 {
				bits |= square[placeOfPair(i/2)] >> (i % 2 * 32) & (1<<rows - 1) << have
				if have += rows; have >= 32 {
					dst[0] = inOrder(uint32(bits))
					dst, bits, have = dst[1:], bits>>32, have-32
				}
			}
		}
		if have > 0 {
			dst[0] = inOrder(uint32(bits))
		}
		return
	}
	// A square has several groups, and a word of dst several columns, which then take a part of each byte.
	several, mask := 32/rows, uint64(0x0101010101010101)*(1<<(rows/4)-1)
	for group := 0; group < n; group += several {
		var square [16]uint64
		together := min(several, n-group)
		for i := range together {
			for row := 0; row < rows; row += 2 {
				square[placeOfPair((i*rows+row)/2)] = pair(row, group+i)
			}
		}
		transposeBits(&square)
		for i := range together {
			to := dst[(group+i)*rows:][:rows]
			for q := range 16 {
				x := square[placeOfPair(q)] >> (i * rows / 4 & 63) & mask
				even, odd := uint32(x), uint32(x>>32)
				switch several {
				case 1:
					to[2*q], to[2*q+1] = even, odd
				case 2:
					to[q] = even | odd<<4
				case 4:
					word := even | odd<<2
					if q%2 == 1 {
						word = to[q/2] | word<<4
					}
					to[q/2] = word
				}
			}
		}
	}
}

// placeOfPair is half of [graph.DropoutBit] of elements 2i and 2i+1 of a group.
func placeOfPair(i int) int { return i&3<<2 | i>>2&3 }

// transposeBits exchanges bit j of row i and bit i of row j of 32; rows 2i and 2i+1 are x[i], the first in the low half.
func transposeBits(x *[16]uint64) {
	for n, low := 16, uint64(0xffff); n > 1; n, low = n/2, low^low<<(n/2) {
		half, both := n/2, low|low<<32
		for i := 0; i < 16; i = (i + half + 1) &^ half {
			t := (x[i&15]>>(n&63) ^ x[(i|half)&15]) & both
			x[i&15] ^= t << (n & 63)
			x[(i|half)&15] ^= t
		}
	}
	for i, u := range x {
		t := (u>>1 ^ u>>32) & 0x55555555
		x[i] = u ^ t<<1 ^ t<<32
	}
}

// keep is the portable [Kernels.Keep].
func keep[T Float](dst, x []T, kept []uint32, scale T) {
	dst, x = cut1(dst, x)
	for i, v := range x {
		choice := [2]T{0, v * scale} // avoids an unpredictable branch
		dst[i] = choice[kept[i/32]>>graph.DropoutBit(uint64(i))&1]
	}
}
