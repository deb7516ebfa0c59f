// The simulator as a process of its own: requests on standard input, answers on standard output (PROTOCOL.md).
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <string>
#include <vector>

#include "overlay.h"

namespace {
constexpr uint64_t kMost = uint64_t(1) << 30;  // bytes of one request
enum : uint32_t { kHello = 1, kReadReg, kWriteReg, kRead, kWrite, kRun, kSetMemory, kCycles };

struct Request {
  uint32_t op, address;
  uint64_t value;
};
struct Answer {
  uint32_t code, bytes;
  uint64_t value;
};
static_assert(sizeof(Request) == 16 && sizeof(Answer) == 16, "frames have 16 bytes");

void answer(uint32_t code, uint64_t value, const void *data, size_t n) {
  const Answer a{code, uint32_t(n), value};
  if (fwrite(&a, sizeof a, 1, stdout) != 1 || fwrite(data, 1, n, stdout) != n || fflush(stdout) != 0) exit(1);
}
void well(uint64_t value) { answer(0, value, "", 0); }
void refuse(const std::string &why) { answer(1, 0, why.data(), why.size()); }

// The bytes that follow a request; false at the end of the input.
bool body(std::vector<uint8_t> &to, uint64_t n) {
  to.resize(n);
  return fread(to.data(), 1, n, stdin) == n;
}

// The argument of an option: a whole number.
bool number(const char *text, uint64_t &to) {
  char *end;
  to = text ? strtoull(text, &end, 0) : 0;
  return text && *text && !*end;
}
}  // namespace

int main(int argc, char **argv) {
  uint64_t memory = 0, seed = 1;
  for (int i = 1; i < argc; i += 2) {
    uint64_t *to = !strcmp(argv[i], "-memory") ? &memory : !strcmp(argv[i], "-seed") ? &seed : nullptr;
    if (to == nullptr || !number(argv[i + 1], *to)) {
      fprintf(stderr, "usage: simulator [-memory BYTES] [-seed N]\n");
      return 2;
    }
  }
  fx_sim *s = fx_sim_open(memory, uint32_t(seed));
  if (s == nullptr) {
    fprintf(stderr, "simulator: no memory for %llu bytes\n", (unsigned long long)memory);
    return 1;
  }
  std::vector<uint8_t> data;
  Request q;
  while (fread(&q, sizeof q, 1, stdin) == 1) {
    switch (q.op) {
      case kHello: {
        const char name[] = "fusec-overlay 1";
        answer(0, fx_sim_memory_bytes(s), name, sizeof name - 1);
        break;
      }
      case kReadReg: well(fx_sim_read_reg(s, q.address)); break;
      case kWriteReg:
        fx_sim_write_reg(s, q.address, uint32_t(q.value));
        well(0);
        break;
      case kRead:
        if (q.value > kMost) {
          refuse("more than 2^30 bytes");
          break;
        }
        data.resize(q.value);
        if (fx_sim_read(s, q.address, data.data(), q.value) != 0)
          refuse("behind the end of memory");
        else
          answer(0, 0, data.data(), data.size());
        break;
      case kWrite:
        if (q.value > kMost) {
          fprintf(stderr, "simulator: a write of more than 2^30 bytes\n");
          return 1;
        }
        if (!body(data, q.value)) return 0;
        if (fx_sim_write(s, q.address, data.data(), q.value) != 0)
          refuse("behind the end of memory");
        else
          well(0);
        break;
      case kRun: well(fx_sim_run(s, q.value)); break;
      case kSetMemory: {
        if (q.value != 32) {
          fprintf(stderr, "simulator: a memory model has 32 bytes\n");
          return 1;
        }
        if (!body(data, q.value)) return 0;
        uint32_t model[8];
        memcpy(model, data.data(), sizeof model);
        if (fx_sim_set_memory(s, model) != 0)
          refuse("not a memory model");
        else
          well(0);
        break;
      }
      case kCycles: well(fx_sim_cycles(s)); break;
      default: fprintf(stderr, "simulator: no operation %u\n", q.op); return 1;
    }
  }
  fx_sim_close(s);
  return 0;
}
