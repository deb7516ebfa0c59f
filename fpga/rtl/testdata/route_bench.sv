// fx_route with four lanes of words of four bytes and a feed.
`default_nettype none
`include "fx_config.svh"
module route_bench (
  input  wire        clk, input wire rst,
  input  wire        cmd_valid, output wire cmd_ready, input wire [63:0] cmd0, input wire [63:0] cmd1, input wire [63:0] cmd2,
  input  wire [63:0] cmd3,
  input  wire        stall,
  input  wire        wr, input wire [1:0] wr_lane, input wire [9:0] wr_addr, input wire [31:0] wr_data,
  input  wire [7:0]  of_list, input wire [15:0] index, input wire [15:0] gate_at,
  output wire        done,
  output wire [15:0] token, output wire [2:0] rank, output wire [15:0] count, output wire [15:0] count2, output wire [15:0] gate,
  output wire [31:0] dropped
);
  localparam ROWS = 4, K = `FX_TOP_K;
  localparam GATE_BITS = $clog2(`FX_TOKENS) + (K > 2 ? 2 : 1);
  wire fd_valid; wire [10:0] los [0:ROWS]; wire [24*K+16:0] backs [0:ROWS]; wire idle, err_valid; wire [10:0] fd_x;
  logic [2:0] wait_feed;
  wire fd_ready = wait_feed == 0 && !stall;
  wire [15:0] other_token, other_count, other_count2; wire [2:0] other_rank;
  fx_route #(.ROWS(ROWS), .WORD_BYTES(4), .X_BITS(10)) route (.clk(clk), .rst(rst), .cmd_valid(cmd_valid), .cmd_ready(cmd_ready), .cmd({cmd3, cmd2, cmd1, cmd0}),
    .done(done), .idle(idle), .err_valid(err_valid), .fd_valid(fd_valid), .fd_ready(fd_ready), .fd_x(fd_x), .lane(los[0]), .back(backs[0]), .gm_addr(gate_at[GATE_BITS-1:0]), .gm_gate(gate),
    .ls_list({8'd0, of_list}), .ls_index({16'd0, index}), .ls_token({other_token, token}), .ls_rank({other_rank, rank}),
    .ls_count({other_count, count}), .ct_list({of_list, 8'd0}), .ct_count({count2, other_count2}), .dropped(dropped));
  always_ff @(posedge clk)
    if (rst) wait_feed <= 0;
    else if (fd_valid && fd_ready) wait_feed <= 3;
    else if (wait_feed != 0) wait_feed <= wait_feed - 1;

  wire feds [0:ROWS]; wire [10:0] fxs [0:ROWS];
  assign feds[0] = fd_valid && fd_ready; assign fxs[0] = fd_x;
  assign backs[ROWS] = 0;
  genvar r;
  generate for (r = 0; r < ROWS; r = r + 1) begin : lane
    logic [31:0] xs [0:1023];
    logic fed; logic [10:0] fx; logic [31:0] word; logic [2:0] left; logic [7:0] x;
    always_ff @(posedge clk) begin
      if (wr && wr_lane == r) xs[wr_addr] <= wr_data;
      fed <= feds[r]; fx <= fxs[r];
      if (fed) begin word <= xs[fx[9:0]]; left <= 4; end
      else if (left != 0) begin word <= word >> 8; left <= left - 1; end
      x <= left != 0 ? word[7:0] : $random;
    end
    assign feds[r+1] = fed; assign fxs[r+1] = fx;
    fx_route_lane unit (.clk(clk), .lane_i(los[r]), .lane_o(los[r+1]), .x(x), .back_i(backs[r+1]), .back_o(backs[r]));
  end endgenerate
endmodule
`default_nettype wire
