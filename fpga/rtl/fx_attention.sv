// The sequencer of Attention: it cuts a descriptor into items, a block of keys of a panel of queries each, and leads
// them through the array and the lanes (fx_softmax). Signals fd_*, res_*, t_*, ij_*, alt_*, sg_* are those of fx_exec.
//
// An item goes through five steps, each of which is done with one item after the other:
//
//   QK      scores: tiles of COLS keys, with tag SCORE
//   scores  they come out of the scale path into the lanes' memories
//   exp     the lanes make probabilities of them, one key a cycle
//   PV      tiles of COLS features, whose row operands are the probabilities, with tag PV
//   results they come out of the array and are added to the accumulators
//
// On the array QK of the next item comes before PV of this one, so that exp, which takes less time than QK, is never
// waited for. What an item is stands in a ring of four entries; a pointer for each step tells which of them it is at.
// The lowest bit of the pointer says which half of the lanes' memories is the item's.
//
// The results of a panel are finished (reciprocal, then one feature a cycle) as soon as its last item is done, in
// cycles in which the array gives none: while other panels' items, or the next descriptor's, are under way.
`default_nettype none
`include "fx_config.svh"
module fx_attention #(
  parameter ROWS = 8, COLS = 8, WORD_BYTES = 8, KEY_BLOCK = 64, HEAD_DIM = 64, Q_PANELS = 4,
  parameter X_BITS = 9, W_BITS = 9, D_BITS = 9,  // of addresses, which carry one bit more: that they lie beyond the end
  parameter RES = 14,      // cycles from a tile's last slot to its first result, at least 6
  parameter LATENCY = 21,  // from a value's entry into lane 0's scale path until its word is written in the last lane
  parameter KEY_BITS = $clog2(KEY_BLOCK) + 1,
  parameter PANEL_BITS = Q_PANELS > 1 ? $clog2(Q_PANELS) : 1,
  parameter ACC_BITS = PANEL_BITS + $clog2(HEAD_DIM),
  parameter CTL_BITS = 4 * KEY_BITS + 2 * PANEL_BITS + 2 * ACC_BITS + 23
) (
  input  wire                 clk,
  input  wire                 rst,
  input  wire                 cmd_valid,
  output wire                 cmd_ready,
  input  wire  [255:0]        cmd,
  output logic                done,
  output wire                 idle,
  output wire                 err,        // an address of the oldest command lies beyond the end

  output wire                 fd_valid,
  input  wire                 fd_ready,
  output logic [X_BITS:0]     fd_x,
  output logic [W_BITS:0]     fd_w,
  output wire                 fd_probs,  // PV; else QK
  output wire                 fd_first,
  output wire                 fd_last,

  input  wire                 res_score,  // a result leaves the array in lane 0
  input  wire                 res_pv,
  input  wire                 res_last,   // of its tile
  input  wire                 t_score,    // a score leaves the scale path
  output wire  [14:0]         score_mul,  // of the item whose scores enter the scale path
  output wire  [5:0]          score_shift,

  output logic                ij_valid,   // never raised when the scale path is taken
  output logic                sg_valid,
  input  wire                 sg_ready,
  output wire  [D_BITS:0]     sg_dst,
  output logic                out_new,   // the following are new
  output logic                out_wide,
  output logic [2:0]          out_space,
  output logic [15:0]         out_mul,
  output logic [5:0]          out_shift,

  output wire  [CTL_BITS-1:0] ctl
);
  localparam WORD_LOG = $clog2(WORD_BYTES), COL_LOG = $clog2(COLS);
  localparam KEY_LOG = $clog2(KEY_BLOCK), DIM_LOG = $clog2(HEAD_DIM);

  // Addresses stay beyond the end once they are there.
  `define FX_ATTENTION_CLIP(field, BITS) {32'(cmd[field]) >> BITS != 0, BITS'(cmd[field])}
  function automatic [X_BITS:0] x_add(input [X_BITS:0] a, input [X_BITS:0] b);
    logic [X_BITS:0] s;
    s = {1'b0, a[X_BITS-1:0]} + {1'b0, b[X_BITS-1:0]};
    x_add = {s[X_BITS] | a[X_BITS] | b[X_BITS], s[X_BITS-1:0]};
  endfunction
  function automatic [W_BITS:0] w_add(input [W_BITS:0] a, input [W_BITS:0] b);
    logic [W_BITS:0] s;
    s = {1'b0, a[W_BITS-1:0]} + {1'b0, b[W_BITS-1:0]};
    w_add = {s[W_BITS] | a[W_BITS] | b[W_BITS], s[W_BITS-1:0]};
  endfunction
  function automatic [D_BITS:0] d_add(input [D_BITS:0] a, input [D_BITS:0] b);
    logic [D_BITS:0] s;
    s = {1'b0, a[D_BITS-1:0]} + {1'b0, b[D_BITS-1:0]};
    d_add = {s[D_BITS] | a[D_BITS] | b[D_BITS], s[D_BITS-1:0]};
  endfunction

  // ---- The descriptor under way.
  logic        first, last, wide, causal;
  logic [2:0]  space;
  logic [X_BITS:0] x, q_panel;
  logic [W_BITS:0] v_panel;
  logic [D_BITS:0] base, panel;
  logic [15:0] o_mul;
  logic [7:0]  dim;
  logic [PANEL_BITS-1:0] p_last;
  logic [14:0] s_mul;
  logic [5:0]  s_shift, o_shift;

  // ---- Items: for each block of keys, for each panel that sees one of them.
  localparam [2:0] IDLE = 3'd0, CLAMP = 3'd1, EDGE = 3'd2, MEASURE = 3'd3, BLOCK = 3'd4, SIZE = 3'd5, ITEM = 3'd6;
  logic [2:0] state;
  logic signed [17:0] diagonal;  // queries and keys count to less than 2^17
  // Keys that the panel's last row sees from the block's first on: of panel 0, of this one.
  logic signed [17:0] seen_start, seen;
  logic [16:0] left;             // keys from the block's first on
  logic [16:0] seen_left;        // of which the last panel sees so many
  logic [PANEL_BITS-1:0] p;
  logic [X_BITS:0] x_at;
  logic [W_BITS:0] k_at, v_at;
  logic [Q_PANELS-1:0] empty;    // panels that saw no key yet
  logic        turn;             // a descriptor's items have the other turn than those of the one before
  logic        waits;            // for the finish to take the descriptor
  logic        none, final_block;  // no panel sees a key; none will see one behind this block
  wire [31:0]  cmd_diagonal = cmd[`FX_ATTENTION_DIAGONAL];
  wire signed [17:0] edge_rows = {{(18-PANEL_BITS){1'b0}}, p_last} * ROWS + ROWS;
  wire signed [17:0] reach = diagonal + edge_rows;

  // Words of a block of keys; of a tile, as an address.
  wire [15:0] block_words = 16'(dim) << (KEY_LOG - COL_LOG);
  wire [W_BITS:0] k_step = {block_words >> W_BITS != 0, W_BITS'(block_words)};

  // The keys of the item: those of the block, or up to the last one that the panel's last row sees.
  logic [KEY_LOG:0] in_block;
  logic [KEY_LOG-1:0] key_last;
  logic             some;
  logic signed [8:0] rel;  // keys that the panel's first row sees, at most the block's
  wire             cut = causal && seen < $signed({{(17-KEY_LOG){1'b0}}, in_block});
  wire signed [17:0] seen_row0 = seen - (ROWS - 1);

  // Pointers of the steps into the ring: items made, QK fed, scores entered into the scale path, scores there,
  // probabilities begun and there, PV fed, results there.
  logic [2:0] made, fed, scaled, scored, begun, ready, used, summed;
  wire full = made[1:0] == summed[1:0] && made[2] != summed[2];
  logic [X_BITS:0] ring_x[0:3];
  logic [W_BITS:0] ring_k[0:3], ring_v[0:3], ring_v_panel[0:3];
  logic [7:0]  ring_dim_qk[0:3], ring_dim_pv[0:3], ring_dim_sum[0:3];
  logic [KEY_LOG-1:0] ring_last_qk[0:3], ring_last_scaled[0:3], ring_last_score[0:3];
  logic [KEY_LOG-1:0] ring_last_exp[0:3], ring_last_pv[0:3];
  logic signed [8:0] ring_rel[0:3];
  logic [PANEL_BITS-1:0] ring_panel_exp[0:3], ring_panel_sum[0:3];
  logic        ring_fresh[0:3], ring_turn_qk[0:3], ring_turn_exp[0:3], ring_turn_pv[0:3];
  logic [1:0]  ring_final[0:3];  // of the descriptor's last block, its last item
  logic [20:0] ring_scale[0:3];
  wire make = state == ITEM && some && ~full;

  // The finish's descriptor and panel.
  localparam [2:0] PANEL = 3'd0, DIVIDE = 3'd1, GIVE = 3'd2, DRAIN = 3'd3;
  logic [2:0] fin_state;
  logic fin_last, fin_turn;
  logic [PANEL_BITS-1:0] fin_p;
  logic         fin_valid;
  logic [PANEL_BITS:0] fin_ready;  // panels whose items are done
  assign waits = (state == BLOCK && final_block && fin_valid);
  wire fin_take = state == BLOCK && final_block && ~fin_valid;
  assign cmd_ready = state == IDLE;

  always_ff @(posedge clk) begin
    case (state)
      IDLE: if (cmd_valid) begin
        first <= cmd[`FX_ATTENTION_FIRST];
        last <= cmd[`FX_ATTENTION_LAST];
        wide <= cmd[`FX_ATTENTION_WIDE];
        causal <= cmd[`FX_ATTENTION_CAUSAL];
        space <= cmd[`FX_ATTENTION_SPACE];
        x <= `FX_ATTENTION_CLIP(`FX_ATTENTION_X, X_BITS);
        q_panel <= `FX_ATTENTION_CLIP(`FX_ATTENTION_QPANEL, X_BITS);
        k_at <= `FX_ATTENTION_CLIP(`FX_ATTENTION_K, W_BITS);
        v_at <= `FX_ATTENTION_CLIP(`FX_ATTENTION_V, W_BITS);
        dim <= cmd[`FX_ATTENTION_DIM];
        p_last <= PANEL_BITS'(cmd[`FX_ATTENTION_QPANELS] - 8'd1);
        left <= {1'b0, cmd[`FX_ATTENTION_KEYS]};
        base <= `FX_ATTENTION_CLIP(`FX_ATTENTION_BASE, D_BITS);
        panel <= `FX_ATTENTION_CLIP(`FX_ATTENTION_PANEL, D_BITS);
        // Of a diagonal nothing matters beyond more rows or keys than there can be.
        diagonal <= cmd_diagonal[31] ? (&cmd_diagonal[30:16] ? cmd_diagonal[17:0] : -18'sd65536) :
            |cmd_diagonal[30:16] ? 18'sd65535 : cmd_diagonal[17:0];
        s_mul <= 15'(cmd[`FX_ATTENTION_SCOREMUL]);
        s_shift <= cmd[`FX_ATTENTION_SCORESH];
        o_mul <= cmd[`FX_ATTENTION_OUTMUL];
        o_shift <= cmd[`FX_ATTENTION_OUTSH];
        v_panel <= `FX_ATTENTION_CLIP(`FX_ATTENTION_VPANEL, W_BITS);
        turn <= ~turn;
        state <= CLAMP;
      end
      CLAMP: begin
        if (first) begin
          for (integer i = 0; i < Q_PANELS; i = i + 1) if (i <= {1'b0, p_last}) empty[i] <= 1'b1;
        end
        seen_start <= diagonal + ROWS;
        seen <= reach;
        state <= EDGE;
      end
      EDGE: begin
        seen_left <= ~causal || seen >= $signed({1'b0, left}) ? left : seen < 0 ? 17'd0 : seen[16:0];
        state <= MEASURE;
      end
      MEASURE: begin
        in_block <= left >= KEY_BLOCK ? KEY_BLOCK : left[KEY_LOG:0];
        none <= seen_left == 0;
        final_block <= seen_left <= KEY_BLOCK;
        state <= BLOCK;
      end
      BLOCK: begin
        p <= '0;
        seen <= seen_start;
        x_at <= x;
        if (~waits) state <= none ? IDLE : SIZE;
      end
      SIZE: begin
        key_last <= KEY_LOG'((cut ? seen[KEY_LOG:0] : in_block) - 1'b1);
        some <= ~cut || seen > 0;
        rel <= causal && seen_row0 < KEY_BLOCK ? seen_row0[8:0] : KEY_BLOCK;
        state <= ITEM;
      end
      default: if (~some || ~full) begin
        p <= p + 1'b1;
        seen <= seen + ROWS;
        x_at <= x_add(x_at, q_panel);
        if (some) empty[p] <= 1'b0;
        state <= SIZE;
        if (p == p_last) begin
          state <= final_block ? IDLE : MEASURE;
          left <= left - KEY_BLOCK;
          seen_left <= seen_left - KEY_BLOCK;
          seen_start <= seen_start - KEY_BLOCK;
          k_at <= w_add(k_at, k_step);
          v_at <= w_add(v_at, (W_BITS+1)'(KEY_BLOCK / WORD_BYTES));
        end
      end
    endcase
    if (make) begin
      ring_x[made[1:0]] <= x_at;
      ring_k[made[1:0]] <= k_at;
      ring_v[made[1:0]] <= v_at;
      ring_v_panel[made[1:0]] <= v_panel;
      ring_dim_qk[made[1:0]] <= dim;
      ring_dim_pv[made[1:0]] <= dim;
      ring_dim_sum[made[1:0]] <= dim;
      ring_last_qk[made[1:0]] <= key_last;
      ring_last_scaled[made[1:0]] <= key_last;
      ring_last_score[made[1:0]] <= key_last;
      ring_last_exp[made[1:0]] <= key_last;
      ring_last_pv[made[1:0]] <= key_last;
      ring_rel[made[1:0]] <= rel;
      ring_panel_exp[made[1:0]] <= p;
      ring_panel_sum[made[1:0]] <= p;
      ring_fresh[made[1:0]] <= empty[p];
      ring_turn_qk[made[1:0]] <= turn;
      ring_turn_exp[made[1:0]] <= turn;
      ring_turn_pv[made[1:0]] <= turn;
      ring_final[made[1:0]] <= {final_block, final_block && p == p_last};
      ring_scale[made[1:0]] <= {s_mul, s_shift};
      made <= made + 3'd1;
    end
    if (rst) begin
      state <= IDLE;
      made <= 3'd0;
      turn <= 1'b0;
      empty <= '1;
    end
  end

  // ---- The feed: tiles of QK and PV. One item of QK may be ahead of PV, and is, if there will be one. Nothing is
  // fed from beyond the end of a memory: then no other QK begins, and when what came before is done, there is an error.
  logic feeding, pv, bad, bad_turn;
  logic [X_BITS:0] x_base;
  logic [W_BITS:0] w_base, w_step;
  logic [7:0]  word, word_last;
  logic [7:0]  tile, tile_last;
  wire  [2:0]  ahead = fed - used;
  wire         coming = state != IDLE && ~waits && ~bad;
  wire         choose_qk = made != fed && ahead < 3'd2 && ~bad;
  wire         choose_pv = begun != used && (ahead == 3'd2 || ((made == fed || bad) && ~coming));
  wire [7:0]   dim_qk = ring_dim_qk[fed[1:0]], dim_pv = ring_dim_pv[used[1:0]];
  wire [KEY_LOG-1:0] last_qk = ring_last_qk[fed[1:0]], last_pv = ring_last_pv[used[1:0]];
  wire [W_BITS:0] w_start = choose_qk ? ring_k[fed[1:0]] : ring_v[used[1:0]];
  wire [W_BITS:0] w_next = w_add(w_base, w_step);
  wire         beyond = fd_w[W_BITS] | (~pv & fd_x[X_BITS]);
  wire         slot = fd_valid & fd_ready;
  logic [KEY_BITS-1:0] feed_at;
  assign fd_valid = feeding & ~beyond;
  assign fd_probs = pv;
  assign fd_first = word == 0;
  assign fd_last = word == word_last;
  always_ff @(posedge clk) begin
    feed_at <= feed_at + 1'b1;
    if (~feeding) begin
      word <= 8'd0;
      tile <= 8'd0;
      feeding <= choose_qk | choose_pv;
      pv <= ~choose_qk;
      fd_x <= ring_x[fed[1:0]];
      x_base <= ring_x[fed[1:0]];
      fd_w <= w_start;
      w_base <= w_start;
      w_step <= choose_qk ? {8'(dim_qk >> W_BITS) != 0, W_BITS'(dim_qk)} : ring_v_panel[used[1:0]];
      word_last <= choose_qk ? dim_qk - 8'd1 : 8'(last_pv) >> WORD_LOG;
      tile_last <= choose_qk ? 8'(last_qk) >> COL_LOG : 8'(dim_pv >> (COL_LOG - WORD_LOG)) - 8'd1;
    end else if (beyond) begin
      feeding <= 1'b0;
      bad <= 1'b1;
      bad_turn <= pv ? ring_turn_pv[used[1:0]] : ring_turn_qk[fed[1:0]];
    end else if (slot) begin
      feed_at <= {used[0], KEY_LOG'({word, {WORD_LOG{1'b0}}})};
      word <= word + 8'd1;
      fd_x <= x_add(fd_x, (X_BITS+1)'(1));
      fd_w <= w_add(fd_w, (W_BITS+1)'(1));
      if (fd_last) begin
        word <= 8'd0;
        tile <= tile + 8'd1;
        fd_x <= x_base;
        fd_w <= w_next;
        w_base <= w_next;
        if (tile == tile_last) begin
          feeding <= 1'b0;
          if (pv) used <= used + 3'd1;
          else fed <= fed + 3'd1;
        end
      end
    end
    if (rst) begin
      feeding <= 1'b0;
      bad <= 1'b0;
      fed <= 3'd0;
      used <= 3'd0;
    end
  end

  // ---- Scores: on their way into the scale path, and out of it.
  logic [KEY_LOG-1:0] tiles_scaled, key;
  wire  [KEY_LOG-1:0] last_scaled = ring_last_scaled[scaled[1:0]], last_score = ring_last_score[scored[1:0]];
  wire  [KEY_LOG-1:0] tile_end = last_score | KEY_LOG'(COLS - 1);
  wire signed [8:0] sc_rel = ring_rel[scored[1:0]] - $signed({{(9-KEY_LOG){1'b0}}, key});
  assign {score_mul, score_shift} = ring_scale[scaled[1:0]];
  always_ff @(posedge clk) begin
    if (res_score & res_last) begin
      tiles_scaled <= tiles_scaled + 1'b1;
      if (tiles_scaled == last_scaled >> COL_LOG) begin
        tiles_scaled <= '0;
        scaled <= scaled + 3'd1;
      end
    end
    if (t_score) begin
      key <= key + 1'b1;
      if (key == tile_end) begin
        key <= '0;
        scored <= scored + 3'd1;
      end
    end
    if (rst) begin
      tiles_scaled <= '0;
      scaled <= 3'd0;
      key <= '0;
      scored <= 3'd0;
    end
  end

  // ---- Exp. A panel whose results of the descriptor before are not finished yet is waited for.
  logic ex, xb, ex_half, xb_fresh;
  logic [KEY_LOG-1:0] ex_key, ex_last, pr_key;
  logic [PANEL_BITS-1:0] ex_panel;
  logic [9:0] ex_late;  // ex, one to ten cycles before
  logic ex_rest;        // the last probabilities are on their way
  wire  pr_write = ex_late[8];
  wire  sum_write = ex_late[9] & ~ex_late[8];
  wire  held = fin_valid && fin_last && fin_state != DRAIN && ring_turn_exp[ready[1:0]] != fin_turn &&
      ring_panel_exp[ready[1:0]] >= fin_p;
  always_ff @(posedge clk) begin
    xb <= 1'b0;
    ex_late <= {ex_late[8:0], ex};
    ex_key <= ex_key + 1'b1;
    if (~ex & ~ex_rest & ~held & scored != ready) begin
      ex <= 1'b1;
      xb <= 1'b1;
      xb_fresh <= ring_fresh[ready[1:0]];
      ex_half <= ready[0];
      ex_key <= '0;
      // The whole word of keys that is fed.
      ex_last <= ring_last_exp[ready[1:0]] | KEY_LOG'(WORD_BYTES - 1);
      ex_panel <= ring_panel_exp[ready[1:0]];
      ex_rest <= 1'b1;
    end
    if (ex && ex_key == ex_last) ex <= 1'b0;
    pr_key <= pr_write ? pr_key + 1'b1 : '0;
    if (ex_late[7] & ~ex_late[8]) begun <= begun + 3'd1;
    if (sum_write) begin
      ready <= ready + 3'd1;
      ex_rest <= 1'b0;
    end
    if (rst) begin
      ex <= 1'b0;
      ex_rest <= 1'b0;
      ex_late <= 10'd0;
      begun <= 3'd0;
      ready <= 3'd0;
    end
  end

  // ---- Results of PV.
  logic [DIM_LOG-1:0] feature;
  wire  [7:0] dim_sum = ring_dim_sum[summed[1:0]];
  wire  [DIM_LOG-1:0] feature_last = DIM_LOG'({dim_sum, {WORD_LOG{1'b0}}} - 1'b1);
  wire  [PANEL_BITS-1:0] panel_sum = ring_panel_sum[summed[1:0]];
  wire  [ACC_BITS-1:0] sum_at = {panel_sum, feature};
  wire  sum_last = res_pv && feature == feature_last;
  logic [4:0] sum_late;
  logic [ACC_BITS-1:0] late_at[0:4];
  always_ff @(posedge clk) begin
    if (res_pv) feature <= sum_last ? '0 : feature + 1'b1;
    if (sum_last) summed <= summed + 3'd1;
    sum_late <= {sum_late[3:0], res_pv};
    late_at[0] <= sum_at;
    for (integer i = 1; i < 5; i = i + 1) late_at[i] <= late_at[i-1];
    if (rst) begin
      feature <= '0;
      summed <= 3'd0;
      sum_late <= 5'd0;
    end
  end

  // ---- The finish: for each panel a segment, the reciprocal, and the features in cycles in which neither the
  // accumulators are read nor, four cycles later, the scale path is taken.
  logic [D_BITS:0] fin_dst, fin_panel;
  logic [PANEL_BITS-1:0] fin_p_last;
  logic [DIM_LOG-1:0] fin_feature, fin_feature_last;
  logic [6:0] fin_wait;
  logic [Q_PANELS-1:0] fin_empty;  // panels that saw no key
  logic rc;
  logic [1:0] give_late;
  // Results that the array will give in four cycles.
  logic [RES-5:0] coming_late;
  logic [COL_LOG:0] taken;
  wire  soon = coming_late[RES-5] | taken[0];  // columns come every second cycle
  wire  give = fin_state == GIVE & ~res_pv & ~soon;
  assign sg_dst = fin_dst;
  assign ij_valid = give_late[1];
  always_ff @(posedge clk) begin
    coming_late <= {coming_late[RES-6:0], slot & fd_last};
    taken <= coming_late[RES-5] ? (COL_LOG+1)'(2 * COLS - 2) : taken != 0 ? taken - 1'b1 : '0;
    give_late <= {give_late[0], give};
    rc <= 1'b0;
    done <= 1'b0;
    out_new <= fin_take;
    fin_wait <= fin_wait != 0 ? fin_wait - 7'd1 : 7'd0;
    if (sum_last && ring_final[summed[1:0]][1]) fin_ready <= {1'b0, panel_sum} + 1'b1;
    case (fin_state)
      PANEL: begin
        if (fin_valid && ~fin_last && fin_ready > {1'b0, fin_p_last}) begin
          fin_state <= DRAIN;
          fin_wait <= 7'd6;
        end
        sg_valid <= fin_valid && fin_last && fin_ready > {1'b0, fin_p} && give_late == 0;
        if (sg_valid & sg_ready) begin
          sg_valid <= 1'b0;
          rc <= 1'b1;
          fin_wait <= 7'd24;
          fin_state <= DIVIDE;
        end
      end
      DIVIDE: if (fin_wait == 1) fin_state <= GIVE;
      GIVE: if (give) begin
        fin_feature <= fin_feature + 1'b1;
        if (fin_feature == fin_feature_last) begin
          fin_feature <= '0;
          fin_state <= fin_p == fin_p_last ? DRAIN : PANEL;
          fin_wait <= 7'(LATENCY + 4);
          fin_p <= fin_p + 1'b1;
          fin_dst <= d_add(fin_dst, fin_panel);
        end
      end
      default: if (fin_wait == 1) begin
        done <= 1'b1;
        fin_valid <= 1'b0;
        fin_state <= PANEL;
      end
    endcase
    if (make && final_block) fin_empty[p] <= 1'b0;
    if (fin_take) begin
      fin_empty <= empty;
      fin_valid <= 1'b1;
      fin_last <= last;
      fin_turn <= turn;
      fin_ready <= none ? {1'b0, p_last} + 1'b1 : '0;
      fin_p <= '0;
      fin_p_last <= p_last;
      fin_dst <= base;
      fin_panel <= panel;
      fin_feature <= '0;
      fin_feature_last <= DIM_LOG'({dim, {WORD_LOG{1'b0}}} - 1'b1);
      out_wide <= wide;
      out_space <= space;
      out_mul <= o_mul;
      out_shift <= o_shift;
    end
    if (rst) begin
      done <= 1'b0;
      fin_valid <= 1'b0;
      fin_state <= PANEL;
      sg_valid <= 1'b0;
      coming_late <= '0;
      taken <= '0;
      give_late <= 2'b00;
    end
  end

  assign idle = state == IDLE & ~fin_valid;
  assign err = bad && used == summed && !(fin_valid && fin_turn != bad_turn);

  // ---- What lane 0 is told.
  wire [ACC_BITS-1:0] ac_at = res_pv ? sum_at : {fin_p, fin_feature};
  assign ctl = {feed_at,
      t_score, key == 0, key == tile_end, key <= last_score, {scored[0], key},
      xb, xb_fresh, ex_half, ex_panel, {ex_half, ex_key}, pr_write, {ex_half, pr_key}, sum_write,
      summed[0], give, ac_at, sum_late[4], late_at[4],
      rc, fin_empty[fin_p], fin_p, sc_rel};
endmodule
`default_nettype wire
