// External memory with a price: cycle by cycle, what a burst and a beat have to wait for. Reads come in the order of
// their requests; a write is seen its latency after it was taken.
#pragma once
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <deque>

class Memory {
 public:
  // What memory says in a cycle, and what happened in it.
  bool ar_ready = true, r_valid = false, aw_ready = true, w_idle = true;
  uint8_t r_data[16] = {};

  Memory(uint64_t size, unsigned word) : size_(size), word_(word), bytes_((uint8_t *)calloc(size, 1)) {}
  ~Memory() { free(bytes_); }
  Memory(const Memory &) = delete;
  Memory &operator=(const Memory &) = delete;

  bool good() const { return bytes_ != nullptr; }
  uint64_t size() const { return size_; }
  uint8_t *at(uint64_t address, uint64_t n) {
    return address <= size_ && n <= size_ - address ? bytes_ + address : nullptr;
  }

  bool set(const uint32_t m[8]) {
    if (m[0] == 0 || m[1] == 0 || m[0] > m[1] || m[1] > 1u << 20 || m[2] > 1u << 20 ||
        m[3] > 1u << 20 || m[4] > 65535 || m[6] > 1 || m[7] != 0)
      return false;
    beats_ = m[0], cycles_ = m[1], latency_ = m[2], extra_ = m[3];
    stall_ = m[4], seed_ = m[5] * 2654435761u | 1, shared_ = m[6];
    read_credit_ = write_credit_ = cycles_;
    return true;
  }

  // Before a cycle: what memory offers in it. Where reads and writes share the rate, they take turns.
  void offer(uint64_t now, bool writing) {
    now_ = now;
    write_turn_ = write_turn_ && writing;
    earn(read_credit_);
    if (!shared_) earn(write_credit_);
    ar_ready = !stalled() && reads_.size() < 256;
    int64_t &write_credit = shared_ ? read_credit_ : write_credit_;
    if (!r_valid && !reads_.empty() && now >= reads_.front().from) {
      Read &r = reads_.front();
      if (r.extra > 0) {
        r.extra--;
      } else if (read_credit_ >= cycles_ && !write_turn_ && !stalled()) {
        spend(read_credit_);
        r_valid = true;
        fetch(r.address);
      }
    }
    aw_ready = write_credit >= cycles_ && !stalled() && writes_.size() < 4096;
    while (!writes_.empty() && now >= writes_.front().seen) {
      const Write &w = writes_.front();
      if (uint8_t *to = at(w.address, word_)) memcpy(to, w.data, word_);
      writes_.pop_front();
    }
    w_idle = writes_.empty();
  }

  // After a cycle: what the overlay took and gave.
  void request(uint64_t address, unsigned beats) { reads_.push_back({address, beats, now_ + latency_, extra_}); }
  void take() {
    r_valid = false;
    write_turn_ = shared_;
    Read &r = reads_.front();
    r.address += word_;
    if (--r.beats == 0) reads_.pop_front();
  }
  void write(uint64_t address, const void *data) {
    spend(shared_ ? read_credit_ : write_credit_);
    write_turn_ = false;
    Write w{address, now_ + latency_, {}};
    memcpy(w.data, data, word_);
    writes_.push_back(w);
  }

 private:
  struct Read {
    uint64_t address;
    unsigned beats;
    uint64_t from;
    uint32_t extra;
  };
  struct Write {
    uint64_t address, seen;
    uint8_t data[16];
  };
  uint64_t size_;
  unsigned word_;
  uint8_t *bytes_;
  std::deque<Read> reads_;
  std::deque<Write> writes_;
  int64_t beats_ = 1, cycles_ = 1, read_credit_ = 1, write_credit_ = 1;
  uint64_t now_ = 0;
  uint32_t latency_ = 40, extra_ = 0, stall_ = 0, seed_ = 1;
  bool shared_ = false, write_turn_ = false;

  // A rate of beats_/cycles_ as credit: each cycle brings beats_, each beat costs cycles_.
  void earn(int64_t &credit) {
    credit += beats_;
    if (credit > cycles_ + beats_ - 1) credit = cycles_ + beats_ - 1;
  }
  void spend(int64_t &credit) { credit -= cycles_; }
  bool stalled() {
    if (stall_ == 0) return false;
    seed_ ^= seed_ << 13, seed_ ^= seed_ >> 17, seed_ ^= seed_ << 5;
    return (seed_ & 65535) < stall_;
  }
  void fetch(uint64_t address) {
    const uint8_t *from = at(address, word_);
    if (from)
      memcpy(r_data, from, word_);
    else
      memset(r_data, 0, word_);
  }
};
