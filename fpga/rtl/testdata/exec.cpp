// Plays a script to fx_exec alone, line by line from standard input; what it reads goes to standard output.
//
//   l SPACE LANE ADDR HEX   LOAD writes a word, lowest byte first
//   c HEX                   a descriptor for the queue
//   n SEED LIMIT            from now on noise: gaps between descriptors, and traffic of LOAD and STORE at addresses from LIMIT on
//                           (LIMIT 0: none)
//   w                       runs until all descriptors are done: "done CYCLES MULTIPLY", CYCLES without the last descriptor's way
//                           through the lanes, or "error CODE DONE"; "stuck" if nothing comes
//   s SPACE LANE ADDR       STORE reads a word: its bytes in hex
//   r                       reset
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "Vfx_exec.h"
#include "verilated.h"

double sc_time_stamp() { return 0; }

static Vfx_exec *top;
static uint64_t noise_state;
static unsigned noise_limit;
static uint64_t cycles, multiplies, last_multiply;
static unsigned done_count;

static uint32_t noise() {
  noise_state = noise_state * 6364136223846793005u + 1442695040888963407u;
  return uint32_t(noise_state >> 33);
}

// What STORE has read: the word, and what the noise expected of it.
static std::vector<std::vector<uint8_t>> words;

static void tick() {
  top->eval();
  if (top->done) done_count++;
  cycles++;
  if (top->multiply) multiplies++, last_multiply = cycles;
  bool read = top->st_rvalid;
  std::vector<uint8_t> w(WORD_BYTES);
  if (read) memcpy(w.data(), &top->st_rdata, WORD_BYTES);
  top->clk = 1, top->eval();
  top->clk = 0, top->ld_new = 0, top->eval();
  if (read) words.push_back(w);
}

static void bytes(const char *hex, void *to, int n) {
  for (int i = 0; i < n; i++) {
    unsigned b = 0;
    sscanf(hex + 2 * i, "%2x", &b);
    static_cast<uint8_t *>(to)[i] = uint8_t(b);
  }
}

static void load(unsigned space, unsigned lane, unsigned addr, const void *data) {
  top->ld_next_space = space, top->ld_next_lane = lane, tick();
  top->ld_valid = top->ld_new = 1, top->ld_space = space, top->ld_lane = lane, top->ld_addr = addr;
  memcpy(&top->ld_data, data, WORD_BYTES);
  for (top->eval(); !top->ld_ready; top->eval()) tick();
  tick();
  top->ld_valid = 0;
}

int main(int argc, char **argv) {
  Verilated::commandArgs(argc, argv);
  top = new Vfx_exec;
  top->rst = 1;
  for (int i = 0; i < 4; i++) tick();
  top->rst = 0;

  std::deque<std::vector<uint8_t>> queue;
  std::map<unsigned, std::vector<uint8_t>> noted;  // the noise's words: space, lane, address
  std::vector<std::vector<uint8_t>> expected;
  unsigned given = 0;
  char line[512];
  while (fgets(line, sizeof line, stdin)) {
    unsigned space, lane, addr;
    char hex[256];
    if (sscanf(line, "l %u %u %u %255s", &space, &lane, &addr, hex) == 4) {
      uint8_t data[WORD_BYTES];
      bytes(hex, data, WORD_BYTES);
      load(space, lane, addr, data);
    } else if (sscanf(line, "c %255s", hex) == 1) {
      std::vector<uint8_t> d(32);
      bytes(hex, d.data(), 32);
      queue.push_back(d);
    } else if (line[0] == 'n') {
      unsigned long long seed;
      sscanf(line, "n %llu %u", &seed, &noise_limit);
      noise_state = seed;
    } else if (line[0] == 'w') {
      cycles = multiplies = last_multiply = 0, done_count = 0, given = unsigned(queue.size());
      words.clear(), expected.clear();
      bool offered = false, reading = false, writing = false;
      unsigned shown = 0;  // cycles that a command has stood there, two of them before it is valid
      unsigned key = 0, read_key = 0;
      top->ld_next_space = top->ld_next_lane = 0, tick();
      std::vector<uint8_t> wdata(WORD_BYTES);
      uint64_t limit = 2000000;
      while (done_count < given && !top->err_valid && cycles < limit) {
        if (!offered && !queue.empty() && (!noise_limit || noise() % 32 == 0 || noise() % 2)) {
          offered = true, shown = 0;
          memcpy(&top->cmd, queue.front().data(), 32);
        }
        top->cmd_valid = offered && shown >= 2;
        if (noise_limit && !writing && noise() % 2) {
          writing = true;
          unsigned s = top->ld_next_space, l = top->ld_next_lane % (s == 2 ? COLS : ROWS), words_of = s == 0 ? Y_WORDS : s == 1 ? X_WORDS : W_WORDS;
          unsigned a = noise_limit + noise() % (words_of - noise_limit);
          key = s << 24 | l << 16 | a;
          if (reading && key == read_key) key ^= 1, a ^= 1;
          for (auto &b : wdata) b = uint8_t(noise());
          top->ld_new = 1, top->ld_next_space = noise() % 3, top->ld_next_lane = noise() % (ROWS < COLS ? ROWS : COLS), top->ld_space = s, top->ld_lane = l, top->ld_addr = a;
          memcpy(&top->ld_data, wdata.data(), WORD_BYTES);
        }
        top->ld_valid = writing;
        if (noise_limit && !reading && !noted.empty() && noise() % 2) {
          auto i = noted.lower_bound((noise() % 2) << 24 | (noise() % ROWS) << 16);
          if (i != noted.end() && i->first >> 24 < 2 && !(writing && key == i->first)) {
            reading = true, read_key = i->first;
            top->st_space = i->first >> 24, top->st_lane = i->first >> 16 & 255, top->st_addr = i->first & 65535;
          }
        }
        top->st_valid = reading;
        top->eval();
        bool taken = top->cmd_valid && top->cmd_ready, written = writing && top->ld_ready, asked = reading && top->st_ready;
        if (asked) expected.push_back(noted[read_key]);
        tick();
        shown++;
        if (taken) queue.pop_front(), offered = false;
        if (asked) reading = false;
        if (written) {
          noted[key] = wdata, writing = false;
        }
      }
      bool failed = top->err_valid;
      uint64_t spent = last_multiply;
      uint64_t multiplied = multiplies;
      top->cmd_valid = top->ld_valid = top->st_valid = 0;
      for (int i = 0; i < 8; i++) tick();
      if (words != expected) printf("traffic: a word of STORE is wrong\n");
      else if (failed) printf("error %u %u\n", unsigned(top->err_code), done_count);
      else if (done_count != given) printf("stuck after %u of %u\n", done_count, given);
      else printf("done %llu %llu\n", (unsigned long long)spent, (unsigned long long)multiplied);
      queue.clear();
    } else if (sscanf(line, "s %u %u %u", &space, &lane, &addr) == 3) {
      words.clear();
      top->st_valid = 1, top->st_space = space, top->st_lane = lane, top->st_addr = addr;
      for (top->eval(); !top->st_ready; top->eval()) tick();
      tick();
      top->st_valid = 0;
      while (words.empty()) tick();
      for (uint8_t b : words[0]) printf("%02x", b);
      printf("\n");
    } else if (line[0] == 'r') {
      top->rst = 1, tick(), top->rst = 0;
    }
  }
  delete top;
}
