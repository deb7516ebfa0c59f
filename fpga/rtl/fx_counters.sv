// fx_counters: counters in a memory, for a chip that has more block RAM than cells. A few bits of each count in registers;
// one counter a cycle, in turn, has them added to its word. So a value is at most 18 cycles old.
`default_nettype none
module fx_counters #(
  parameter int COUNTERS = 11,  // at most 16
  parameter int WIDTH = 32
) (
  input  wire                 clk,
  input  wire                 clear,  // one cycle
  input  wire  [COUNTERS-1:0] count,
  input  wire  [3:0]          at,
  output logic [WIDTH-1:0]    value   // of counter `at`, a cycle later
);
  // Up to 16 events come between two turns of a counter.
  logic [4:0] recent [0:15];
  logic [3:0] turn, turn_q;
  logic [4:0] add;    // what goes to the word that is read
  logic [4:0] fresh;  // words that still hold what was before `clear`
  logic old;          // the one that is read does
  logic [WIDTH-1:0] word;
  wire  [WIDTH-1:0] next = (old ? '0 : word) + WIDTH'(add);
  fx_ram #(.WIDTH(WIDTH), .DEPTH(16)) sums (
    .clk(clk), .we(1'b1), .waddr(turn_q), .wdata(next), .raddr(turn), .rdata(word));
  fx_ram #(.WIDTH(WIDTH), .DEPTH(16)) copy (
    .clk(clk), .we(1'b1), .waddr(turn_q), .wdata(next), .raddr(at), .rdata(value));
  always_ff @(posedge clk) begin
    turn <= turn + 1'b1;
    turn_q <= turn;
    add <= recent[turn];
    fresh <= clear ? 5'd17 : fresh - 5'(fresh != 0);
    old <= clear || fresh > 5'd1;
    for (int i = 0; i < 16; i++)
      if (i >= COUNTERS || clear) recent[i] <= '0;
      else recent[i] <= (turn == 4'(i) ? '0 : recent[i]) + 5'(count[i < COUNTERS ? i : 0]);
    if (clear) add <= '0;
  end
endmodule
