// A board's pins against a pseudo-terminal: prints its path, then plays the serial line bit by bit until the end of
// standard input.
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <termios.h>
#include <unistd.h>

#include <deque>

#include "Vfx_board_uart.h"
#include "verilated.h"

namespace {
constexpr int kDivisor = FX_DIVISOR;

// The host's end of the line: sends bytes as bits.
class Sender {
 public:
  std::deque<uint8_t> queue;
  bool idle() const { return bit_ < 0 && queue.empty(); }
  // The level of the line in the next clock.
  bool level() {
    if (bit_ < 0) {
      if (queue.empty()) return true;
      frame_ = queue.front() << 1 | 0x200;
      queue.pop_front();
      bit_ = 0, clocks_ = 0;
    }
    const bool out = frame_ >> bit_ & 1;
    if (++clocks_ == kDivisor) {
      clocks_ = 0;
      if (++bit_ == 10) bit_ = -1;
    }
    return out;
  }

 private:
  int bit_ = -1, clocks_ = 0;
  unsigned frame_ = 0;
};

// Takes bits and finds bytes in them.
class Receiver {
 public:
  // Whether the line's level in this clock ends a byte.
  bool take(bool level) {
    if (bit_ < 0) {
      if (!level) bit_ = 0, clocks_ = kDivisor + kDivisor / 2, byte = 0;
      return false;
    }
    if (--clocks_ > 0) return false;
    clocks_ = kDivisor;
    if (bit_ == 8) {
      bit_ = -1;
      return true;
    }
    byte |= uint8_t(level) << bit_++;
    return false;
  }
  bool idle() const { return bit_ < 0; }
  uint8_t byte = 0;

 private:
  int bit_ = -1, clocks_ = 0;
};

void fail(const char *what) {
  perror(what);
  exit(1);
}
}  // namespace

int main() {
  const int line = posix_openpt(O_RDWR | O_NOCTTY);
  if (line < 0 || grantpt(line) || unlockpt(line)) fail("board: pseudo-terminal");
  const char *path = ptsname(line);
  // Held open, so that the line lives on when one host has closed it and the next has not come yet.
  const int other = open(path, O_RDWR | O_NOCTTY);
  termios raw;
  if (other < 0 || tcgetattr(other, &raw)) fail("board: pseudo-terminal");
  cfmakeraw(&raw);
  if (tcsetattr(other, TCSANOW, &raw) || fcntl(line, F_SETFL, O_NONBLOCK)) fail("board: pseudo-terminal");

  VerilatedContext context;
  context.randReset(2);
  Vfx_board_uart board(&context);
  Sender sender;
  Receiver receiver;
  std::deque<uint8_t> out;
  board.rx = 1;
  unsigned quiet = 0;  // clocks since a bit moved on the line
  for (uint64_t cycle = 0;; cycle++) {
    if (cycle == 1000) {  // after the power-on reset
      printf("%s\n", path);
      fflush(stdout);
    }
    if ((cycle & 127) == 0) {
      if (sender.idle()) {
        uint8_t bytes[4096];
        const ssize_t n = read(line, bytes, sizeof bytes);
        if (n > 0) sender.queue.insert(sender.queue.end(), bytes, bytes + n);
      }
      while (!out.empty() && write(line, &out.front(), 1) == 1) out.pop_front();
      // The clock of a board whose line is silent need not run fast: the host's processor may want to.
      pollfd ends[2] = {{0, POLLIN, 0}, {line, POLLIN, 0}};
      const bool rest = quiet > 200000 && out.empty();
      if ((rest || (cycle & 0xffff) == 0) && poll(ends, 2, rest ? 1 : 0) > 0 && ends[0].revents) {
        char end;
        if (read(0, &end, 1) <= 0) return 0;
      }
    }
    board.rx = sender.level();
    board.clk = 0;
    board.eval();
    board.clk = 1;
    board.eval();
    if (receiver.take(board.tx)) out.push_back(receiver.byte);
    quiet = sender.idle() && receiver.idle() ? quiet + (quiet < 1u << 30) : 0;
  }
}
