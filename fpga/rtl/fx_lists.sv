// fx_lists: the router's lists, one for each expert, of tokens and ranks in the order in which they were appended.
//
// append takes an entry; one cycle later append_room tells whether the list had room for it, and if so it is in the
// list from the next cycle on. The same list may be named again three cycles after. clear empties all lists in EXPERTS
// cycles, in which `clearing` is high and nothing may be appended. Readers name a list and an index; one cycle later
// the entry and the list's count are there. What an entry behind the list's end reads as is not defined.
`default_nettype none
`include "fx_config.svh"

module fx_lists #(
  parameter EXPERTS = `FX_EXPERTS,
  parameter LIST_LEN = `FX_LIST_LEN,
  parameter READERS = 2,
  parameter COUNTERS = 2                      // readers of counts alone
) (
  input  wire                  clk,
  input  wire                  rst,
  input  wire                  clear,
  output wire                  clearing,
  input  wire                  append,
  input  wire  [7:0]           append_list,
  input  wire  [15:0]          append_token,
  input  wire  [1:0]           append_rank,
  output logic                 append_room,
  output logic [31:0]          dropped,       // entries without room since clear

  input  wire  [8*READERS-1:0]  ls_list,
  input  wire  [16*READERS-1:0] ls_index,
  output wire  [16*READERS-1:0] ls_token,
  output wire  [3*READERS-1:0]  ls_rank,
  output wire  [16*READERS-1:0] ls_count,
  input  wire  [8*COUNTERS-1:0] ct_list,
  output wire  [16*COUNTERS-1:0] ct_count
);
  localparam LE = $clog2(EXPERTS), LL = $clog2(LIST_LEN);

  // One writer of counts: clear or append.
  logic [LE:0] next_clear;                    // its highest bit: all are clear
  assign clearing = !next_clear[LE];
  logic [LE-1:0] list1;
  logic [15:0] token1;
  logic [1:0] rank1;
  logic append1;
  wire [LL:0] count1;
  wire room = !count1[LL];
  wire count_we = clearing || append1 && room;
  wire [LE-1:0] count_at = clearing ? next_clear[LE-1:0] : list1;
  wire [LL:0] count_to = clearing ? (LL+1)'(0) : count1 + (LL+1)'(1);
  assign append_room = room;
  always_ff @(posedge clk) begin
    append1 <= append && !rst;
    list1 <= append_list[LE-1:0];
    token1 <= append_token;
    rank1 <= append_rank;
    if (rst || clear) next_clear <= 0;
    else if (clearing) next_clear <= next_clear + (LE+1)'(1);
    if (rst || clear) dropped <= 0;
    else if (append1 && !room) dropped <= dropped + 32'd1;
  end

  fx_ram #(.WIDTH(LL+1), .DEPTH(EXPERTS)) appended (.clk(clk), .we(count_we), .waddr(count_at), .wdata(count_to),
    .raddr(append_list[LE-1:0]), .rdata(count1));

  genvar i;
  generate for (i = 0; i < READERS; i = i + 1) begin : reader
    wire [LE-1:0] list = ls_list[8*i +: LE];
    wire [LL:0] count;
    fx_ram #(.WIDTH(LL+1), .DEPTH(EXPERTS)) counts (.clk(clk), .we(count_we), .waddr(count_at), .wdata(count_to),
      .raddr(list), .rdata(count));
    fx_ram #(.WIDTH(18), .DEPTH(EXPERTS * LIST_LEN)) entries (.clk(clk), .we(append1 && room),
      .waddr({list1, count1[LL-1:0]}), .wdata({token1, rank1}),
      .raddr({list, ls_index[16*i +: LL]}), .rdata({ls_token[16*i +: 16], ls_rank[3*i +: 2]}));
    assign ls_rank[3*i+2] = 1'b0;
    assign ls_count[16*i +: 16] = 16'(count);
  end
  for (i = 0; i < COUNTERS; i = i + 1) begin : counter
    wire [LL:0] count;
    fx_ram #(.WIDTH(LL+1), .DEPTH(EXPERTS)) counts (.clk(clk), .we(count_we), .waddr(count_at), .wdata(count_to),
      .raddr(ct_list[8*i +: LE]), .rdata(count));
    assign ct_count[16*i +: 16] = 16'(count);
  end endgenerate
endmodule
`default_nettype wire
