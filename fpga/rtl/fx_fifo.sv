// A queue in a memory with a registered read port: what is pushed can be taken from the next cycle but one, and after
// that one entry a cycle. The head stands at `head` while `valid`; `pop` takes it. `level` counts all entries, those
// that cannot be seen yet among them. Pushing into a full queue or popping without `valid` is the user's mistake.
`default_nettype none
module fx_fifo #(
  parameter int WIDTH = 8,
  parameter int DEPTH = 16,  // a power of two, at least 2
  parameter STYLE = "auto"   // "block": in a block RAM, however small
) (
  input  wire                        clk,
  input  wire                        rst,
  input  wire                        push,
  input  wire  [WIDTH-1:0]           tail,
  output logic                       valid,
  output logic [WIDTH-1:0]           head,
  input  wire                        pop,
  output logic [$clog2(DEPTH):0]     level
);
  localparam int LG = $clog2(DEPTH);
  (* no_rw_check, ram_style = STYLE *)  // what is written is read a cycle later at the earliest
  logic [WIDTH-1:0] entries [0:DEPTH-1];
  logic [LG-1:0] read_at, write_at;
  wire  [LG-1:0] read_next = read_at + LG'(pop);
  wire  [LG:0]   left = level - (LG+1)'(pop);  // entries written before this cycle that stay

  always_ff @(posedge clk) begin
    if (push) entries[write_at] <= tail;
    head <= entries[read_next];
    read_at <= read_next;
    write_at <= write_at + LG'(push);
    level <= left + (LG+1)'(push);
    valid <= left != 0;
    if (rst) begin
      read_at <= '0;
      write_at <= '0;
      level <= '0;
      valid <= 1'b0;
    end
  end

`ifdef FORMAL
  // What is pushed comes out in order: any one entry, followed from its push to its pop, keeps its place and value.
  logic started = 1'b0;
  always_ff @(posedge clk) started <= 1'b1;
  wire pushed_full = push && level == (LG+1)'(DEPTH) && !pop, popped_empty = pop && !valid;
  always_comb begin
    if (!started) assume (rst);
`ifdef FX_PROVE_FIFO
    assume (!pushed_full && !popped_empty);
`else
    if (started && !rst) assert (!pushed_full && !popped_empty);
`endif
  end
  (* anyseq *) wire watch;
  logic watched = 1'b0;
  logic [LG:0] before;
  logic [WIDTH-1:0] value;
  always_ff @(posedge clk) begin
    if (rst) watched <= 1'b0;
    else if (!watched && push && watch) begin
      watched <= 1'b1;
      before <= left;
      value <= tail;
    end else if (watched && pop) begin
      watched <= before != 0;
      before <= before - 1'b1;
    end
  end
  wire [LG-1:0] place = read_at + before[LG-1:0];
  always_comb if (started) begin
    assert (level <= (LG+1)'(DEPTH));
    assert (write_at == LG'(read_at + level[LG-1:0]));
    assert (!valid || level != 0);
    if (watched) begin
      assert (before < level);
      assert (entries[place] == value);
      if (valid && before == 0) assert (head == value);
    end
  end
`endif
endmodule
