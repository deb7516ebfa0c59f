// fx_vector with four lanes of words of four bytes, and what stands around them in fx_exec: a feed, a reader of Y and a gate memory.
// acc of lane r comes with valid bit r.
`default_nettype none
`include "fx_config.svh"
module vector_bench (
  input  wire        clk, input wire rst,
  input  wire        cmd_valid, output wire cmd_ready, input wire [63:0] cmd0, input wire [63:0] cmd1, input wire [63:0] cmd2,
  input  wire [63:0] cmd3,
  input  wire        stall,
  input  wire [1:0]  wr,                  // 1: X, 2: Y, 3: gates
  input  wire [1:0]  wr_lane, input wire [9:0] wr_addr, input wire [31:0] wr_data,
  output wire        done, output wire err_valid,
  output wire        segment, output wire [10:0] dst, output wire [6:0] par, output wire one,
  output wire [3:0]  valid, output wire [63:0] acc01, output wire [63:0] acc23
);
  localparam ROWS = 4, WB = 4;
  wire [31:0] vos [0:ROWS];
  wire fd_valid, vy_re, ij_valid, sg_valid, mean, idle;
  wire [10:0] fd_x, res, vy_at; wire [1:0] vy_byte; wire [3:0] err_code;
  wire [12:0] count; wire [31:0] eps;
  wire [7:0] gm_addr; logic [15:0] gm_gate;
  logic [6:0] wait_feed;
  wire fd_ready = wait_feed == 0 && !stall;
  fx_vector #(.ROWS(ROWS), .WORD_BYTES(WB), .GATE_BITS(8),
    .X_BITS(10), .Y_BITS(10), .D_BITS(10), .P_BITS(6)) sequencer (.clk(clk), .rst(rst), .cmd_valid(cmd_valid), .cmd_ready(cmd_ready),
    .cmd({cmd3, cmd2, cmd1, cmd0}), .out_ok(!stall), .done(done), .idle(idle), .err_valid(err_valid), .err_code(err_code),
    .fd_valid(fd_valid), .fd_ready(fd_ready),
    .fd_x(fd_x), .vy_re(vy_re), .vy_at(vy_at), .vy_byte(vy_byte), .ij_valid(ij_valid), .sg_valid(sg_valid), .sg_ready(hold == 0), .sg_dst(dst), .sg_res(res),
    .sg_par(par), .sg_one(one), .lane(vos[0]), .count(count), .mean(mean), .eps(eps),
    .gm_addr(gm_addr), .gm_gate(gm_gate));
  logic [3:0] hold;                       // after the start of a segment
  assign segment = sg_valid && hold == 0;

  logic [15:0] gates [0:255];
  logic [31:0] accs [0:ROWS-1];
  always_ff @(posedge clk) begin
    if (wr == 3) gates[wr_addr[7:0]] <= wr_data[15:0];
    gm_gate <= gates[gm_addr];
    hold <= rst ? 0 : segment ? 13 : hold == 0 ? 0 : hold - 1;
    if (rst) wait_feed <= 0;
    else if (fd_valid && fd_ready) wait_feed <= `FX_SERIAL_MUL ? 67 : 3;
    else if (wait_feed != 0) wait_feed <= wait_feed - 1;
  end

  // The word and the count of its elements, one lane after the other; an element is there three cycles after the word was fed.
  wire feds [0:ROWS]; wire [10:0] fxs [0:ROWS]; wire yqs [0:ROWS]; wire [11:0] yps [0:ROWS]; wire ijs [0:ROWS];
  assign feds[0] = fd_valid && fd_ready; assign fxs[0] = fd_x; assign yqs[0] = vy_re; assign yps[0] = {vy_at[9:0], vy_byte};
  assign ijs[0] = ij_valid;
  genvar r;
  generate for (r = 0; r < ROWS; r = r + 1) begin : lane
    logic [31:0] xs [0:1023]; logic [7:0] ys [0:4095];
    logic f; logic [10:0] fx; logic q; logic ij, ij2;
    logic [31:0] word; logic [7:0] left, wait_; logic [7:0] x;
    logic [11:0] yp; logic [7:0] y [0:1];
    always_ff @(posedge clk) begin
      if (wr == 1 && wr_lane == r) xs[wr_addr] <= wr_data;
      if (wr == 2 && wr_lane == r) {ys[{wr_addr, 2'd3}], ys[{wr_addr, 2'd2}], ys[{wr_addr, 2'd1}], ys[{wr_addr, 2'd0}]} <= wr_data;
      f <= feds[r]; fx <= fxs[r]; q <= yqs[r]; yp <= yps[r]; ij <= ijs[r]; ij2 <= ij;
      // word at t+2, its first element at t+3
      if (f) begin word <= xs[fx[9:0]]; wait_ <= 0; left <= 4; end
      else if (left != 0) begin
        wait_ <= `FX_SERIAL_MUL && wait_ != 16 ? wait_ + 1 : 0;
        if (!`FX_SERIAL_MUL || wait_ == 16) begin word <= word >> 8; left <= left - 1; end
      end
      x <= left != 0 && wait_ == 0 ? word[7:0] : $random;
      y[0] <= q ? ys[yp] : $random;
      y[1] <= y[0];
    end
    assign feds[r+1] = f; assign fxs[r+1] = fx; assign yqs[r+1] = q; assign yps[r+1] = yp; assign ijs[r+1] = ij;
    fx_vector_lane unit (.clk(clk), .lane_i(vos[r]), .lane_o(vos[r+1]),
      .count(count), .mean(mean), .eps(eps), .x_i(x), .y(y[1]), .acc(accs[r]));
    assign valid[r] = ij2;
  end endgenerate
  assign acc01 = {accs[1], accs[0]};
  assign acc23 = {accs[3], accs[2]};
endmodule
`default_nettype wire
