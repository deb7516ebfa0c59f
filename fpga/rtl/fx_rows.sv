// The rows of a Load or a Store, one every three cycles: where each lies in memory and in a scratchpad, by adding. Rows
// that a list names take an addition for each bit of the token's number. Row i goes to lane i%lanes; each round over
// the lanes is a panel.
//
// A command's fields are held from `cmd_valid` until `row_done` takes its last row. A row stands at `row_*` while
// `row_good`; `row_done` takes it. With `row_none` there is no row, only the end of a command whose list has no more
// entries. A row that must not be moved stands there with `row_bad` instead, and its fault in `row_error`.
//
// With PATCHES a row may be several segments, each of which stands at `row_*` like a row.
`include "fx_config.svh"
`default_nettype none
module fx_rows #(
  parameter int ADDR_BITS = `FX_ADDR_BITS,
  parameter int WORD_BYTES = `FX_WORD_BYTES,
  parameter int ROUTER = `FX_ROUTER,
  parameter int PATCHES = 0
) (
  input  wire                    clk,
  input  wire                    rst,
  input  wire  [ADDR_BITS:0]     limit,        // the first address behind memory
  input  wire                    cmd_valid,
  input  wire  [31:0]            cmd_addr,
  input  wire  [31:0]            cmd_stride,
  input  wire  [15:0]            cmd_rows,
  input  wire  [15:0]            cmd_words,
  input  wire  [17:0]            cmd_base,     // in words of the lane
  input  wire  [15:0]            cmd_panel,
  input  wire  [5:0]             cmd_lanes,    // of the space, less one
  input  wire  [17:0]            cmd_end,      // words of a lane of the space, 0: there is no such space
  input  wire                    cmd_indexed,  // rows lie at the numbers that the list tells
  input  wire                    cmd_listed,   // rows behind the list's end are left out
  input  wire                    cmd_skip,     // all are left out if the list has no entry cmd_start
  input  wire  [2:0]             cmd_top_k,    // the number of a row is token·top_k + rank; 1, without rank: the token
  input  wire  [15:0]            cmd_start,
  // With PATCHES: the first row's lane, and segments; no more than one of rows that a list names.
  input  wire  [5:0]             cmd_lane,
  input  wire  [7:0]             cmd_taps,
  input  wire  [7:0]             cmd_word_step,
  input  wire  [15:0]            cmd_tap_step,
  input  wire  [31:0]            cmd_tap_stride,
  output logic [15:0]            ls_index,     // the answer comes a cycle later
  input  wire  [15:0]            ls_token,
  input  wire  [2:0]             ls_rank,
  input  wire  [15:0]            ls_count,
  output logic                   row_good,
  output logic                   row_bad,
  input  wire                    row_done,
  output logic                   row_last,
  output logic                   row_none,
  output logic [3:0]             row_error,
  output logic [ADDR_BITS-1:0]   row_addr,
  output logic [5:0]             row_lane,
  output logic [15:0]            row_base
);
  localparam int LG_WORD = $clog2(WORD_BYTES);
  localparam logic [2:0] IDLE = 3'd0, LOOK = 3'd1, TAKE = 3'd2, MULTIPLY = 3'd3, ENDS = 3'd4, COMPARE = 3'd5, GIVE = 3'd6,
                         LAST = 3'd7;
  logic [2:0] state;

  // The next row. An address that overflowed stays so.
  logic [ADDR_BITS-1:0] addr;
  logic over;
  logic [15:0] left;
  logic [16:0] index;
  logic [5:0] lane;
  logic [17:0] base;
  wire listed = ROUTER != 0 && (cmd_listed || cmd_skip);
  wire behind = index >= {1'b0, ls_count};
  assign ls_index = index[15:0];

  // The number of a row times the stride, bit by bit from below.
  logic [18:0] number;
  logic [ADDR_BITS-1:0] step;
  logic step_over;
  wire indexed = ROUTER != 0 && cmd_indexed;
  wire [ADDR_BITS-1:0] add = indexed ? step : cmd_stride[ADDR_BITS-1:0];
  wire high = (cmd_stride >> 1 >> (ADDR_BITS - 1)) != 0;
  wire add_over = indexed ? step_over : high;
  wire [ADDR_BITS:0] sum = {1'b0, addr} + {1'b0, add};
  wire [18:0] token = {3'b0, ls_token};
  wire [18:0] slot = (cmd_top_k[0] ? token : '0) + (cmd_top_k[1] ? token << 1 : '0) + (cmd_top_k[2] ? token << 2 : '0);

  wire free = !row_good && !row_bad;
  wire move = state == GIVE && free;

  // Where the segment lies, behind the row's first one, and whether it is the row's last.
  localparam int END_BITS = PATCHES != 0 ? 26 : 19;
  wire [ADDR_BITS-1:0] seg_addr;
  wire seg_over, seg_last;
  wire [17:0] seg_base;
  wire [END_BITS-1:0] seg_words;  // from its first word of the lane to its last
  generate
    if (PATCHES != 0) begin : segments
      logic [ADDR_BITS-1:0] far;
      logic far_over;
      logic [17:0] deep;
      logic [7:0] taps;
      logic [END_BITS-1:0] span;
      wire [ADDR_BITS:0] far_sum = {1'b0, far} + {1'b0, cmd_tap_stride[ADDR_BITS-1:0]};
      wire far_high = (cmd_tap_stride >> 1 >> (ADDR_BITS - 1)) != 0;
      wire [ADDR_BITS:0] at = {1'b0, addr} + {1'b0, far};
      assign seg_addr = at[ADDR_BITS-1:0];
      assign seg_over = over || far_over || at[ADDR_BITS];
      assign seg_base = base + deep;
      assign seg_last = taps <= 8'd1;
      assign seg_words = span;
      always_ff @(posedge clk) begin
        if (state == IDLE || (move && seg_last)) begin
          {far_over, far} <= '0;
          deep <= '0;
          taps <= cmd_taps;
        end else if (move) begin
          far <= far_sum[ADDR_BITS-1:0];
          far_over <= far_over || far_sum[ADDR_BITS] || far_high;
          deep <= deep + 18'(cmd_tap_step);
          taps <= taps - 1'b1;
        end
        if (state == IDLE) span <= END_BITS'(cmd_words - 16'd1) * END_BITS'(cmd_word_step == 0 ? 8'd1 : cmd_word_step) + 1'b1;
      end
    end else begin : whole
      assign seg_addr = addr;
      assign seg_over = over;
      assign seg_base = base;
      assign seg_last = 1'b1;
      assign seg_words = END_BITS'(cmd_words);
    end
  endgenerate

  // Where the row ends, and whether that is too far.
  logic [ADDR_BITS+1:0] row_end;
  logic [END_BITS-1:0] base_end;
  logic outside, beyond, final_row;

  always_ff @(posedge clk) begin
    if (row_done) row_good <= 1'b0;
    row_end <= {seg_over, 1'b0, seg_addr} + (ADDR_BITS+2)'({cmd_words, {LG_WORD{1'b0}}});
    base_end <= END_BITS'(seg_base) + seg_words;
    outside <= row_end > {1'b0, limit};
    beyond <= base_end > END_BITS'(cmd_end);
    case (state)
      IDLE: if (cmd_valid && free) begin
        addr <= cmd_addr[ADDR_BITS-1:0];
        over <= (cmd_addr >> 1 >> (ADDR_BITS - 1)) != 0;
        left <= cmd_rows;
        index <= {1'b0, cmd_start};
        lane <= PATCHES != 0 ? cmd_lane : '0;
        base <= cmd_base;
        state <= listed ? LOOK : ENDS;
      end
      LOOK: state <= TAKE;
      TAKE: begin
        number <= slot + (cmd_top_k == 3'd1 ? '0 : 19'(ls_rank));
        step <= cmd_stride[ADDR_BITS-1:0];
        step_over <= high;
        if (!behind) state <= indexed ? MULTIPLY : ENDS;
        else if (free) begin
          row_good <= 1'b1;
          row_none <= 1'b1;
          row_last <= 1'b1;
          state <= LAST;
        end
      end
      MULTIPLY: begin
        number <= number >> 1;
        {step_over, step} <= {step_over | step[ADDR_BITS-1], step << 1};
        if (number == 0) state <= ENDS;
      end
      ENDS: begin
        final_row <= left == 16'd1 || (ROUTER != 0 && cmd_listed && index + 17'd1 >= {1'b0, ls_count});
        state <= COMPARE;
      end
      COMPARE: state <= GIVE;
      GIVE: if (free) begin
        row_good <= !outside && !beyond;
        row_bad <= outside || beyond;
        row_error <= outside ? `FX_ERR_MEMORY : `FX_ERR_SCRATCH;
        row_none <= 1'b0;
        row_last <= final_row && seg_last;
        row_addr <= seg_addr;
        row_lane <= lane;
        row_base <= seg_base[15:0];
        if (seg_last) begin
          left <= left - 1'b1;
          index <= index + 1'b1;
          lane <= lane == cmd_lanes ? '0 : lane + 1'b1;
          if (lane == cmd_lanes) base <= base + 18'(cmd_panel);
        end
        if (indexed) begin
          addr <= cmd_addr[ADDR_BITS-1:0];
          over <= (cmd_addr >> 1 >> (ADDR_BITS - 1)) != 0;
        end
        state <= final_row && seg_last ? LAST : indexed ? LOOK : ENDS;
      end
      default: if (row_done) state <= IDLE;  // LAST
    endcase
    if (indexed ? state == MULTIPLY && number[0] : move && seg_last) begin
      addr <= sum[ADDR_BITS-1:0];
      over <= over || sum[ADDR_BITS] || add_over;
    end
    if (rst) begin
      state <= IDLE;
      row_good <= 1'b0;
      row_bad <= 1'b0;
    end
  end
endmodule
