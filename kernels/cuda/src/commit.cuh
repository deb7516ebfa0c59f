// The end of a run: the reports of the launches are collected. If there is none, updates that were computed in other memory
// are copied to their targets; else what was written in place is taken back.

// collect finds the first of n launches that reported something, and writes its report to all[0], with the number of
// the launch in the free field. The reports of the launches follow all[0]. One warp reads them in parallel.
DEVICE void collect_status(Status *all, int n) {
  const int lane = threadIdx.x;
  for (int first = 1; first <= n; first += 32) {
    const int i = first + lane;
    const u32 found = __ballot_sync(0xffffffffu, i <= n && all[i].code != 0);
    if (found != 0) {
      if (lane == 0) {
        const int which = first + __ffs(int(found)) - 1;
        all[0] = all[which];
        all[0].unused = which - 1;
      }
      return;
    }
  }
  if (lane == 0) all[0].code = 0;
}

// commit_copy copies bytes, 16 at a time if the alignment of both ends allows it.
DEVICE void commit_copy(u8 *to, const u8 *from, i64 bytes, i64 thread, i64 threads) {
  const bool aligned = ((reinterpret_cast<u64>(to) | reinterpret_cast<u64>(from)) & 15) == 0;
  const i64 words = aligned ? bytes / 16 : 0;
  for (i64 i = thread; i < words; i += threads)
    reinterpret_cast<uint4 *>(to)[i] = reinterpret_cast<const uint4 *>(from)[i];
  for (i64 i = words * 16 + thread; i < bytes; i += threads) to[i] = from[i];
}

// What an UpdateSlice has overwritten of a value; see Overwrite and Restore of commit.go.
struct Overwrite {
  u8 *to;
  const u8 *kept;
  const i64 *started;  // 1 more than the start, or 0
  i64 outer, stride, size, row;
};

// restore_part takes it back. All threads of the one block call it.
DEVICE void restore_part(const Overwrite &o) {
  if (o.started == nullptr || *o.started == 0) return;
  u8 *const to = o.to + (*o.started - 1) * o.row;
  for (i64 i = threadIdx.x; i < o.outer * o.size; i += blockDim.x) to[i / o.size * o.stride + i % o.size] = o.kept[i];
  __syncthreads();
}
