// fx_gemm: the sequencer of Gemm: for each panel, for each tile, WORDS slots of the feed. See fx_exec for the ports' rules.
`default_nettype none
`include "fx_config.svh"
module fx_gemm #(
  parameter ROWS = 8,
  parameter COLS = 8,
  parameter WORD_BYTES = 8,
  parameter ROUTER = 0,
  parameter X_BITS = 9,
  parameter W_BITS = 9,
  parameter Y_BITS = 9,
  parameter D_BITS = 9,
  parameter P_BITS = 8,
  parameter SERIAL_MUL = 0,
  parameter ONE = 0,            // cmd stays as it is until done: its fields need no registers
  parameter DONE_LATENCY = 50   // from the last slot of a descriptor to the cycle in which all its results can be read
) (
  input  wire              clk,
  input  wire              rst,
  input  wire              cmd_valid,
  output wire              cmd_ready,
  input  wire  [255:0]     cmd,
  output wire              done,
  output wire              idle,
  // Entries of a list, one cycle after its number is in list.
  output wire  [7:0]       list,
  input  wire  [15:0]      list_count,
  // Slots.
  output wire              fd_valid,
  input  wire              fd_ready,
  output wire  [X_BITS:0]  fd_x,
  output wire  [W_BITS:0]  fd_w,
  output wire              fd_first,
  output wire              fd_last,
  output wire  [D_BITS:0]  fd_dst,
  output wire  [Y_BITS:0]  fd_res,
  output wire  [P_BITS:0]  fd_par,
  output logic             err,           // a tile's results, residual or records lie beyond the end: a cycle after its last slot
  // Out's constants are this descriptor's; nothing is on its way; the records of a panel's rows.
  input  wire              out_ok,
  input  wire              quiet,
  input  wire              by_row,
  output wire              rr_valid,
  input  wire              rr_busy,
  output wire  [P_BITS:0]  rr_par
);
  localparam R_BITS = $clog2(ROWS);
  localparam LG_TILE = $clog2(COLS / WORD_BYTES);   // words of a tile's results, int8

  // A field of 16 bits as an address of BITS bits and whether it lies beyond the end.
  `define FX_GEMM_CLIP(field, BITS) {32'(cmd[field]) >> BITS != 0, BITS'(cmd[field])}

  logic run, hold, more, wide, by_row_c, residual, listed, look;
  logic [2:0] space;
  logic [15:0] words, left;
  logic [7:0] tiles, tiles_left, panels_left;
  logic words_last;
  logic [X_BITS:0] x, x_base, x_panel;
  logic [W_BITS:0] w, w_first, w_base, w_tile;
  logic [D_BITS:0] dst, dst_base, dst_panel;
  logic [Y_BITS:0] res, res_base, res_panel;
  logic [P_BITS:0] par, par_first;
  logic rows_ok;   // the rows' records of this panel are in the lanes, or on their way in time

  wire [X_BITS:0] x_next, x_base_next;
  wire [W_BITS:0] w_next, w_base_next;
  wire [D_BITS:0] dst_next, dst_base_next;
  wire [Y_BITS:0] res_next, res_base_next;
  wire [P_BITS:0] par_next;
  fx_address #(X_BITS) next_x (.at(x), .step((X_BITS+1)'(1)), .next(x_next));
  fx_address #(X_BITS) next_x_base (.at(x_base), .step(x_panel), .next(x_base_next));
  fx_address #(W_BITS) next_w (.at(w), .step((W_BITS+1)'(1)), .next(w_next));
  fx_address #(W_BITS) next_w_base (.at(w_base), .step(w_tile), .next(w_base_next));
  fx_address #(D_BITS) next_dst (.at(dst), .step((D_BITS+1)'(wide ? 2 << LG_TILE : 1 << LG_TILE)), .next(dst_next));
  fx_address #(D_BITS) next_dst_base (.at(dst_base), .step(dst_panel), .next(dst_base_next));
  fx_address #(Y_BITS) next_res (.at(res), .step((Y_BITS+1)'(1 << LG_TILE)), .next(res_next));
  fx_address #(Y_BITS) next_res_base (.at(res_base), .step(res_panel), .next(res_base_next));
  fx_address #(P_BITS) next_par (.at(par), .step((P_BITS+1)'(by_row_c ? ROWS : COLS)), .next(par_next));

  logic fresh;     // the first slot of a tile
  wire tile_last = tiles_left == 8'd1;
  wire panel_last = panels_left == 8'd1;
  wire ends = words_last && tile_last && panel_last;
  wire fed = fd_valid && fd_ready;
  wire take = cmd_valid && cmd_ready;
  wire may_end;    // SERIAL_MUL: a timer is free
  assign fd_valid = run && !(words_last && !hold && !(out_ok && rows_ok)) && !(ends && !may_end);
  assign {fd_x, fd_w, fd_dst, fd_res, fd_par} = {x, w, dst, res, par};
  assign fd_first = fresh && !more;
  assign fd_last = words_last && !hold;
  assign cmd_ready = !run && !look;

  // A Listed Gemm looks for its panels first.
  wire none;
  generate
    if (ROUTER) begin : lists
      logic counted;
      logic [7:0] start;
      logic [16:0] panels;
      logic [8:0] rest;
      logic ranged;
      assign list = cmd[`FX_GEMM_LIST];
      assign none = ranged && rest == 0;
      always_ff @(posedge clk) begin
        if (take) start <= cmd[`FX_GEMM_START];
        look <= !rst && (take ? cmd[`FX_GEMM_LISTED] : look && !ranged);
        counted <= take;
        if (counted) panels <= (17'(list_count) + 17'(ROWS - 1)) >> R_BITS;
        ranged <= !rst && look && !counted && !ranged;
        rest <= panels <= 17'(start) ? 9'd0 : panels - 17'(start) > 17'd255 ? 9'd255 : 9'(panels - 17'(start));
      end
      assign listed = cmd[`FX_GEMM_LISTED];
      always_ff @(posedge clk) begin
        if (take) panels_left <= cmd[`FX_GEMM_PANELS];
        else if (ranged && rest < 9'(panels_left)) panels_left <= rest[7:0];
        else if (fed && words_last && tile_last) panels_left <= panels_left - 8'd1;
        run <= !rst && (take ? !listed : ranged ? rest != 0 : run && !(fed && ends));
      end
    end else begin : plain
      assign list = 8'd0;
      assign none = 1'b0;
      assign look = 1'b0;
      assign listed = 1'b0;
      always_ff @(posedge clk) begin
        if (take) panels_left <= cmd[`FX_GEMM_PANELS];
        else if (fed && words_last && tile_last) panels_left <= panels_left - 8'd1;
        run <= !rst && (take || (run && !(fed && ends)));
      end
    end
  endgenerate

  // The fields that hold for the whole descriptor.
  localparam F_BITS = 5 + 3 + 16 + 8 + (X_BITS+1) + 2*(W_BITS+1) + (D_BITS+1) + (Y_BITS+1) + (P_BITS+1);
  wire [F_BITS-1:0] asked = {cmd[`FX_GEMM_HOLD], cmd[`FX_GEMM_MORE],
    cmd[`FX_GEMM_WIDE], cmd[`FX_GEMM_ROWPARAM], cmd[`FX_GEMM_RESIDUAL],
    cmd[`FX_GEMM_SPACE],
    cmd[`FX_GEMM_WORDS],
    cmd[`FX_GEMM_TILES],
    `FX_GEMM_CLIP(`FX_GEMM_XPANEL, X_BITS),
    `FX_GEMM_CLIP(`FX_GEMM_W, W_BITS),
    `FX_GEMM_CLIP(`FX_GEMM_WPANEL, W_BITS),
    `FX_GEMM_CLIP(`FX_GEMM_PANEL, D_BITS),
    `FX_GEMM_CLIP(`FX_GEMM_RESPANEL, Y_BITS),
    `FX_GEMM_CLIP(`FX_GEMM_PARAM, P_BITS)};
  logic [F_BITS-1:0] fields;
  generate
    if (ONE) assign fields = asked;
    else begin : keep
      always_ff @(posedge clk) if (take) fields <= asked;
    end
  endgenerate
  assign {hold, more, wide, by_row_c, residual, space, words, tiles, x_panel, w_first, w_tile, dst_panel, res_panel, par_first} = fields;

  always_ff @(posedge clk) begin
    // The words of a tile.
    if (take || (fed && words_last)) begin
      left <= take ? cmd[`FX_GEMM_WORDS] : words;
      words_last <= take ? cmd[`FX_GEMM_WORDS] == 16'd1 : words == 16'd1;
      fresh <= 1'b1;
    end else if (fed) begin
      left <= left - 16'd1;
      words_last <= left == 16'd2;
      fresh <= 1'b0;
    end

    // The tiles of a panel, and the panels.
    if (take) begin
      tiles_left <= cmd[`FX_GEMM_TILES];
      {x, x_base} <= {2{`FX_GEMM_CLIP(`FX_GEMM_X, X_BITS)}};
      {w, w_base} <= {2{`FX_GEMM_CLIP(`FX_GEMM_W, W_BITS)}};
      {dst, dst_base} <= {2{`FX_GEMM_CLIP(`FX_GEMM_BASE, D_BITS)}};
      {res, res_base} <= {2{`FX_GEMM_CLIP(`FX_GEMM_RES, Y_BITS)}};
      par <= `FX_GEMM_CLIP(`FX_GEMM_PARAM, P_BITS);
    end else if (fed) begin
      x <= !words_last ? x_next : tile_last ? x_base_next : x_base;
      w <= !words_last ? w_next : tile_last ? w_first : w_base_next;
      if (words_last) begin
        tiles_left <= tile_last ? tiles : tiles_left - 8'd1;
        w_base <= tile_last ? w_first : w_base_next;
        dst <= tile_last ? dst_base_next : dst_next;
        res <= tile_last ? res_base_next : res_next;
        if (tile_last) {x_base, dst_base, res_base} <= {x_base_next, dst_base_next, res_base_next};
        if (tile_last == by_row_c) par <= par_next;
        else if (tile_last) par <= par_first;
      end
    end
  end
  `undef FX_GEMM_CLIP

  // Records of the rows go to the lanes when the results of the panel before have left them.
  logic rows_asked, ended;   // ended: a cycle ago a panel, or nothing was begun yet
  wire panel_ends = fed && words_last && tile_last;
  assign rr_valid = run && out_ok && by_row && !hold && !rows_asked && !ended && quiet;
  assign rr_par = par;
  always_ff @(posedge clk) begin
    ended <= take || panel_ends;
    if (ended) rows_asked <= 1'b0;
    else if (rr_valid) rows_asked <= 1'b1;
    rows_ok <= !take && (!by_row_c || (rows_asked && !rr_busy && !ended && !panel_ends));
  end

  // Descriptors are done in order, each the same time after its last slot.
  generate
    if (ONE) begin : timer
      localparam T_BITS = $clog2(DONE_LATENCY + 1);
      logic [T_BITS-1:0] rest;
      logic over;
      always_ff @(posedge clk) begin
        over <= !rst && ((fed && ends) || none);
        rest <= rst ? '0 : over ? T_BITS'(DONE_LATENCY - 1) : rest - T_BITS'(rest != 0);
      end
      assign may_end = 1'b1;
      assign done = rest == T_BITS'(1);
    end else if (SERIAL_MUL) begin : timers
      // Two of them at most, which takes less than a long shift register.
      localparam T_BITS = $clog2(DONE_LATENCY + 1);
      logic [T_BITS-1:0] left_0, left_1;
      logic turn;
      always_ff @(posedge clk) begin
        turn <= !rst && (turn ^ (fed && ends));
        left_0 <= rst ? '0 : fed && ends && !turn ? T_BITS'(DONE_LATENCY) : left_0 - T_BITS'(left_0 != 0);
        left_1 <= rst ? '0 : fed && ends && turn ? T_BITS'(DONE_LATENCY) : left_1 - T_BITS'(left_1 != 0);
      end
      assign may_end = (turn ? left_1 : left_0) == 0;
      assign done = left_0 == T_BITS'(1) || left_1 == T_BITS'(1);
    end else begin : delays
      logic [DONE_LATENCY-1:0] done_d;
      always_ff @(posedge clk) done_d <= rst ? '0 : {done_d[DONE_LATENCY-2:0], none || (fed && ends)};
      assign may_end = 1'b1;
      assign done = done_d[DONE_LATENCY-1];
    end
  endgenerate
  // The last word and record of a tile.
  wire [D_BITS:0] dst_end;
  wire [Y_BITS:0] res_end;
  wire [P_BITS:0] par_end;
  fx_address #(D_BITS) end_dst (.at(dst), .step((D_BITS+1)'(wide ? (2 << LG_TILE) - 1 : (1 << LG_TILE) - 1)), .next(dst_end));
  fx_address #(Y_BITS) end_res (.at(res), .step((Y_BITS+1)'((1 << LG_TILE) - 1)), .next(res_end));
  fx_address #(P_BITS) end_par (.at(par), .step((P_BITS+1)'(by_row_c ? ROWS - 1 : COLS - 1)), .next(par_end));
  wire [D_BITS:0] dst_high = dst_end >> (space == `FX_SPACE_X ? X_BITS : space == `FX_SPACE_W ? W_BITS : Y_BITS);
  always_ff @(posedge clk)
    err <= !rst && fed && fd_last && (dst_high != 0 || (residual && res_end[Y_BITS]) || par_end[P_BITS]);

  logic [2:0] under_way;
  always_ff @(posedge clk) under_way <= rst ? 3'd0 : under_way + 3'(take) - 3'(done);
  assign idle = under_way == 0;
endmodule
