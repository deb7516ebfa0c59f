// fx_route_lane: a lane's part of Route. Logits of one token stream by, expert 0 first; the lane keeps the TOP_K largest
// and their experts in order, the lower expert first among equals, by insertion.
//
// Control (lane_i) comes from the lane before, from fx_route for lane 0, and goes on a cycle later. A cycle after it has
// come x has to be the high byte of a logit, whose low byte came in the cycle before:
//   valid, first   a logit of the row, the row's first one
//   commit         the row is complete: what was chosen goes to the way out (back_o); the next row may begin three
//                  cycles later
//   shift          the way out moves: each lane takes over what the lane behind it has
//   again, hops    a logit for the sum over all experts, of the lane that many lanes on. It goes along the lanes to
//                  fx_route, where logits arrive in the order of issue
// back_o is {valid, logit, TOP_K entries of {expert, logit}, the best lowest}.
`default_nettype none
`include "fx_config.svh"

module fx_route_lane #(
  parameter TOP_K = `FX_TOP_K
) (
  input  wire                  clk,
  input  wire  [10:0]          lane_i,
  output wire  [10:0]          lane_o,
  input  wire  [7:0]           x,
  input  wire  [24*TOP_K+16:0] back_i,      // from the lane behind
  output wire  [24*TOP_K+16:0] back_o
);
  logic valid, first, commit, shift, again;
  logic [5:0] hops;
  wire mine = again && hops == 0;
  assign lane_o = {valid, first, commit, shift, again && !mine, hops - 6'd1};
  always_ff @(posedge clk) {valid, first, commit, shift, again, hops} <= lane_i;

  logic [7:0] low;
  wire signed [15:0] logit = {x, low};
  logic back_valid;
  logic [15:0] back_logit;
  logic [24*TOP_K-1:0] chosen;
  assign back_o = {back_valid, back_logit, chosen};
  always_ff @(posedge clk) begin
    low <= x;
    back_valid <= mine || back_i[24*TOP_K+16];
    back_logit <= mine ? logit : back_i[24*TOP_K +: 16];
  end

  // One cycle for the number of the expert, one for the insertion.
  logic signed [15:0] value;
  logic [7:0] expert;
  logic valid1, first1;
  always_ff @(posedge clk) begin
    valid1 <= valid;
    first1 <= first;
    value <= logit;
    if (valid) expert <= first ? 8'd0 : expert + 8'd1;
  end

  logic [TOP_K-1:0] taken;
  logic [24*TOP_K-1:0] best;
  wire [TOP_K-1:0] above;    // the logit goes before entry i
  genvar i;
  generate for (i = 0; i < TOP_K; i = i + 1) begin : entry
    wire signed [15:0] kept = best[24*i +: 16];
    assign above[i] = first1 || !taken[i] || value > kept;
    always_ff @(posedge clk)
      if (valid1 && above[i]) begin
        if (i != 0 && above[i == 0 ? 0 : i-1]) best[24*i +: 24] <= best[24*(i == 0 ? 0 : i-1) +: 24];
        else best[24*i +: 24] <= {expert, value};
      end
  end endgenerate
  always_ff @(posedge clk)
    if (valid1) taken <= first1 ? TOP_K'(1) : TOP_K'({taken, 1'b1});

  logic commit1, commit2;
  always_ff @(posedge clk) begin
    commit1 <= commit;
    commit2 <= commit1;
    if (commit2) chosen <= best;
    else if (shift) chosen <= back_i[24*TOP_K-1:0];
  end
endmodule
`default_nettype wire
