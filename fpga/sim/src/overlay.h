// The simulated overlay and its external memory, as a C interface: see PROTOCOL.md. One thread uses a simulator at a
// time.
#pragma once
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
typedef struct fx_sim fx_sim;
fx_sim *fx_sim_open(uint64_t memory_bytes, uint32_t seed);
void fx_sim_close(fx_sim *);
uint64_t fx_sim_memory_bytes(fx_sim *);
uint32_t fx_sim_read_reg(fx_sim *, uint32_t address);
void fx_sim_write_reg(fx_sim *, uint32_t address, uint32_t value);
int fx_sim_read(fx_sim *, uint32_t address, void *to, uint64_t n);
int fx_sim_write(fx_sim *, uint32_t address, const void *from, uint64_t n);
uint32_t fx_sim_run(fx_sim *, uint64_t cycles);
int fx_sim_set_memory(fx_sim *, const uint32_t model[8]);
uint64_t fx_sim_cycles(fx_sim *);
#ifdef __cplusplus
}
#endif
