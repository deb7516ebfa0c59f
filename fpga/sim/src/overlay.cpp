// The verilated overlay with its external memory, clocked as the host asks.
#include "overlay.h"

#include <new>

#include "Vfx_overlay.h"
#include "memory.h"
#include "verilated.h"

namespace {
constexpr unsigned kWord = FX_WORD_BYTES;
constexpr uint32_t kStatus = 0x0c;
uint64_t default_bytes() { return uint64_t(1) << (FX_ADDR_BITS < 30 ? FX_ADDR_BITS : 30); }
}  // namespace

struct fx_sim {
  VerilatedContext context;
  Vfx_overlay top{&context};
  Memory memory;
  uint64_t cycles = 0;

  explicit fx_sim(uint64_t bytes) : memory(bytes, kWord) {}

  void tick() {
    memory.offer(cycles, top.m_aw_valid);
    top.m_ar_ready = memory.ar_ready;
    top.m_r_valid = memory.r_valid;
    top.m_aw_ready = memory.aw_ready;
    top.m_w_idle = memory.w_idle;
    memcpy(&top.m_r_data, memory.r_data, kWord);
    top.clk = 0;
    top.eval();
    if (top.m_ar_valid && top.m_ar_ready) memory.request(top.m_ar_addr, top.m_ar_len + 1u);
    if (top.m_r_valid && top.m_r_ready) memory.take();
    if (top.m_aw_valid && top.m_aw_ready) memory.write(top.m_aw_addr, &top.m_aw_data);
    top.clk = 1;
    top.eval();
    cycles++;
  }
  uint32_t look(uint32_t address) {
    top.r_addr = address;
    tick();
    return top.r_rdata;
  }
};

extern "C" {

fx_sim *fx_sim_open(uint64_t memory_bytes, uint32_t seed) {
  fx_sim *s = new (std::nothrow) fx_sim(memory_bytes ? memory_bytes : default_bytes());
  if (s == nullptr || !s->memory.good()) {
    delete s;
    return nullptr;
  }
  s->context.randReset(2);
  s->context.randSeed(int(seed & 0x7fffffff) | 1);
  s->top.rst = 1;
  for (int i = 0; i < 4; i++) s->tick();
  s->top.rst = 0;
  s->tick();
  return s;
}

void fx_sim_close(fx_sim *s) {
  s->top.final();
  delete s;
}

uint64_t fx_sim_memory_bytes(fx_sim *s) { return s->memory.size(); }

uint32_t fx_sim_read_reg(fx_sim *s, uint32_t address) {
  const uint32_t value = s->look(address);
  s->top.r_re = 1;
  s->tick();
  s->top.r_re = 0;
  return value;
}

void fx_sim_write_reg(fx_sim *s, uint32_t address, uint32_t value) {
  s->top.r_addr = address;
  s->top.r_wdata = value;
  s->top.r_we = 1;
  s->tick();
  s->top.r_we = 0;
  s->tick();  // no bus is faster, and RegCount follows RegExpert a cycle later
}

int fx_sim_read(fx_sim *s, uint32_t address, void *to, uint64_t n) {
  const uint8_t *p = s->memory.at(address, n);
  if (p == nullptr) return -1;
  memcpy(to, p, n);
  return 0;
}

int fx_sim_write(fx_sim *s, uint32_t address, const void *from, uint64_t n) {
  uint8_t *p = s->memory.at(address, n);
  if (p == nullptr) return -1;
  memcpy(p, from, n);
  return 0;
}

uint32_t fx_sim_run(fx_sim *s, uint64_t cycles) {
  for (; cycles > 0 && !s->top.irq; cycles--) s->tick();
  return s->look(kStatus);
}

int fx_sim_set_memory(fx_sim *s, const uint32_t model[8]) { return s->memory.set(model) ? 0 : -1; }

uint64_t fx_sim_cycles(fx_sim *s) { return s->cycles; }
}
