// The rows of a Load or a Store, one every three cycles: where each lies in memory and in a scratchpad, by adding. Rows
// that a list names take an addition for each bit of the token's number. Row i goes to lane i%lanes; each round over
// the lanes is a panel.
//
// A command's fields are held from `cmd_valid` until `row_done` takes its last row. A row stands at `row_*` while
// `row_good`; `row_done` takes it. With `row_none` there is no row, only the end of a command whose list has no more
// entries. A row that must not be moved stands there with `row_bad` instead, and its fault in `row_error`.
`include "fx_config.svh"
`default_nettype none
module fx_rows #(
  parameter int ADDR_BITS = `FX_ADDR_BITS,
  parameter int WORD_BYTES = `FX_WORD_BYTES,
  parameter int ROUTER = `FX_ROUTER
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
  // Where the row ends, and whether that is too far.
  logic [ADDR_BITS+1:0] row_end;
  logic [18:0] base_end;
  logic outside, beyond, final_row;

  always_ff @(posedge clk) begin
    if (row_done) row_good <= 1'b0;
    row_end <= {over, 1'b0, addr} + (ADDR_BITS+2)'({cmd_words, {LG_WORD{1'b0}}});
    base_end <= {1'b0, base} + 19'(cmd_words);
    outside <= row_end > {1'b0, limit};
    beyond <= base_end > {1'b0, cmd_end};
    case (state)
      IDLE: if (cmd_valid && free) begin
        addr <= cmd_addr[ADDR_BITS-1:0];
        over <= (cmd_addr >> 1 >> (ADDR_BITS - 1)) != 0;
        left <= cmd_rows;
        index <= {1'b0, cmd_start};
        lane <= '0;
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
        row_last <= final_row;
        row_addr <= addr;
        row_lane <= lane;
        row_base <= base[15:0];
        left <= left - 1'b1;
        index <= index + 1'b1;
        lane <= lane == cmd_lanes ? '0 : lane + 1'b1;
        if (lane == cmd_lanes) base <= base + 18'(cmd_panel);
        if (indexed) begin
          addr <= cmd_addr[ADDR_BITS-1:0];
          over <= (cmd_addr >> 1 >> (ADDR_BITS - 1)) != 0;
        end
        state <= final_row ? LAST : indexed ? LOOK : ENDS;
      end
      default: if (row_done) state <= IDLE;  // LAST
    endcase
    if (indexed ? state == MULTIPLY && number[0] : move) begin
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
