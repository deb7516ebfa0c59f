// Tensor-core products of a warp, the loads that feed them, and asynchronous copies to shared memory: features of sm_80
// and later chips. See the PTX ISA. On the emulator, functions of the same names come from host.h.
//
// A fragment is a thread's part of a small matrix. With g = lane/4 and t = lane%4, and two 16-bit elements or one of 32
// bits to a register, elements being [row][column]:
//
//	a, 16×16 of 16 bits:  a0 = [g][2t, 2t+1]  a1 = [g+8][2t, 2t+1]  a2 = [g][2t+8, 2t+9]  a3 = [g+8][2t+8, 2t+9]
//	b, 16×8 of 16 bits:   b0 = [2t, 2t+1][g]  b1 = [2t+8, 2t+9][g]
//	a, 16×8 of tf32:      a0 = [g][t]  a1 = [g+8][t]  a2 = [g][t+4]  a3 = [g+8][t+4]
//	b, 8×8 of tf32:       b0 = [t][g]  b1 = [t+4][g]
//	d, 16×8 of f32:       d0, d1 = [g][2t, 2t+1]  d2, d3 = [g+8][2t, 2t+1]

#ifndef FUSEC_HOST

// Copies 4, 8 or 16 aligned bytes to shared memory, asynchronously; zeros if they do not exist. They have no cache hint: ptxas 13.0
// encodes a copy with one to an address in a uniform register as an illegal instruction.
template <int BYTES> DEVICE void copy_async(void *to, const void *from, bool there) {
  const u32 at = u32(__cvta_generic_to_shared(to));
  if constexpr (BYTES == 16) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(there ? 16 : 0)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(at), "l"(from), "n"(BYTES),
                 "r"(there ? BYTES : 0) : "memory");
  }
}
// Ends a group of copies of this thread.
DEVICE void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most N of this thread's groups are under way.
template <int N> DEVICE void copy_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

// Reads four matrices of eight rows of 16 bytes; lane i names row i%8 of matrix i/8. A thread gets of matrix j the word
// [g][t]; with TRANS, which needs elements of 16 bits, the elements [2t, 2t+1][g].
template <bool TRANS> DEVICE void load_matrices(u32 (&r)[4], const void *row) {
  const u32 at = u32(__cvta_generic_to_shared(row));
  if constexpr (TRANS) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
  }
}

// d += a·b. The first operand names the element type; float stands for tf32, of which the tensor core reads the upper
// 19 bits of a word.
DEVICE void mma(bf16, float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
               "{%0, %1, %2, %3};" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
DEVICE void mma(f16, float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
               "{%0, %1, %2, %3};" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// The same of integers: a 16×32 and b 32×8 of i8, d 16×8 of i32. A register has four elements of a row or a column where it has
// two of 16 bits.
DEVICE void mma_integers(int (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
DEVICE void mma(float, float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
               "{%0, %1, %2, %3};" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// The nearest number of tf32, ties away from zero, as the bits of a float.
DEVICE u32 to_tf32(u32 x) {
  u32 y;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(bits_to_float(x)));
  return y;
}

#endif
