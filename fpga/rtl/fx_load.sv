// LOAD: rows from memory into the scratchpads. Requests run ahead of the data: what each burst's beats are for waits
// in a queue, so that as many bursts are under way as it holds, those of the commands behind among them. A command is
// taken (`cmd_ready`) with its last request, and is done when its last beat is written. A row's fault is told when
// everything before it is done.
`include "fx_config.svh"
`default_nettype none
module fx_load #(
  parameter int ADDR_BITS = `FX_ADDR_BITS,
  parameter int WORD_BYTES = `FX_WORD_BYTES,
  parameter int ROWS = `FX_ROWS,
  parameter int COLS = `FX_COLS,
  parameter int X_WORDS = `FX_X_WORDS,
  parameter int W_WORDS = `FX_W_WORDS,
  parameter int Y_WORDS = `FX_Y_WORDS,
  parameter int PARAMS = `FX_PARAMS,
  parameter int TABLES = `FX_TABLES,
  parameter int ROUTER = `FX_ROUTER,
  parameter int PATCHES = `FX_PATCHES,
  parameter int BURSTS = 16, // under way at a time, a power of two
  parameter STYLE = "auto"   // of the queue's memory
) (
  input  wire                     clk,
  input  wire                     rst,
  input  wire  [ADDR_BITS:0]      limit,
  input  wire                     cmd_valid,
  output logic                    cmd_ready,
  input  wire  [255:0]            cmd,
  output logic                    done,
  output logic                    err_valid,
  output logic [3:0]              err_code,
  output logic                    stalled,  // waits for memory
  output logic [7:0]              ls_list,
  output logic [15:0]             ls_index,
  input  wire  [15:0]             ls_token,
  input  wire  [15:0]             ls_count,
  output logic                    ar_valid,
  input  wire                     ar_ready,
  output logic [ADDR_BITS-1:0]    ar_addr,
  output logic [7:0]              ar_len,
  input  wire                     r_valid,
  output logic                    r_ready,
  output logic                    r_last,
  output logic                    ld_valid,
  input  wire                     ld_ready,
  output logic                    ld_new,        // ld_space and ld_lane were ld_next_* a cycle ago
  output logic [2:0]              ld_next_space,
  output logic [5:0]              ld_next_lane,
  output logic [2:0]              ld_space,
  output logic [5:0]              ld_lane,
  output logic [15:0]             ld_addr
);
  localparam int LG_WORD = $clog2(WORD_BYTES), LG = $clog2(BURSTS);
  localparam int TABLE_WORDS = 256 / WORD_BYTES;

  // The space: its lanes, its words, and where Base lies.
  wire [2:0]  space = cmd[`FX_LOAD_SPACE];
  wire [15:0] base_field = cmd[`FX_LOAD_BASE];
  logic [5:0] lanes;
  logic [17:0] base, space_end;
  always_comb begin
    lanes = '0;
    base = {2'b0, base_field};
    space_end = '0;
    case (space)
      `FX_SPACE_Y: begin
        lanes = 6'(ROWS - 1);
        space_end = 18'(Y_WORDS);
      end
      `FX_SPACE_X: begin
        lanes = 6'(ROWS - 1);
        space_end = 18'(X_WORDS);
      end
      `FX_SPACE_W: begin
        lanes = 6'(COLS - 1);
        space_end = 18'(W_WORDS);
      end
      `FX_SPACE_PARAMS: begin
        base = 18'({base_field, 3'b0} >> LG_WORD);
        space_end = WORD_BYTES == 16 && base_field[0] ? '0 : 18'(PARAMS * 8 / WORD_BYTES);
      end
      `FX_SPACE_TABLE: begin
        base = 18'(32'(base_field[1:0]) * TABLE_WORDS);
        space_end = base_field[15:2] != 0 ? '0 : 18'(TABLES * TABLE_WORDS);
      end
      default: ;
    endcase
  end

  logic row_good, row_bad, row_done, row_last, row_none;
  logic [3:0] row_error;
  logic [ADDR_BITS-1:0] row_addr;
  logic [5:0] row_lane;
  logic [15:0] row_base;
  assign ls_list = cmd[`FX_LOAD_LIST];
  fx_rows #(.ADDR_BITS(ADDR_BITS), .WORD_BYTES(WORD_BYTES), .ROUTER(ROUTER), .PATCHES(PATCHES)) rows (
    .clk, .rst, .limit, .cmd_valid, .cmd_addr(cmd[`FX_LOAD_ADDR]), .cmd_stride(cmd[`FX_LOAD_STRIDE]),
    .cmd_rows(cmd[`FX_LOAD_ROWS]), .cmd_words(cmd[`FX_LOAD_WORDS]), .cmd_base(base), .cmd_panel(cmd[`FX_LOAD_PANEL]),
    .cmd_lanes(lanes), .cmd_end(space_end), .cmd_indexed(cmd[`FX_LOAD_GATHER]), .cmd_listed(cmd[`FX_LOAD_GATHER]),
    .cmd_skip(cmd[`FX_LOAD_SKIP]), .cmd_top_k(3'd1), .cmd_start(cmd[`FX_LOAD_START]),
    .cmd_lane(cmd[`FX_LOAD_LANE]), .cmd_taps(cmd[`FX_LOAD_TAPS]), .cmd_word_step(cmd[`FX_LOAD_WORDSTEP]),
    .cmd_tap_step(cmd[`FX_LOAD_TAPSTEP]), .cmd_tap_stride(cmd[`FX_LOAD_TAPSTRIDE]), .ls_index, .ls_token,
    .ls_rank(3'd0), .ls_count, .row_good, .row_bad, .row_done, .row_last, .row_none, .row_error, .row_addr,
    .row_lane, .row_base);

  // Bursts: a row is cut into pieces of 256 beats, if a space holds longer ones.
  localparam logic PIECES = X_WORDS > 256 || W_WORDS > 256 || Y_WORDS > 256 || PARAMS * 8 / WORD_BYTES > 256;
  logic [7:0] chunk_q;
  wire [7:0] chunk = PIECES ? chunk_q : '0;
  // From one word to the next in the lane, and from the row's first word to the piece's.
  localparam int STEP_BITS = PATCHES != 0 ? 8 : 1;
  wire [STEP_BITS-1:0] step;
  wire [15:0] chunk_at;
  wire [15:0] words = cmd[`FX_LOAD_WORDS];
  wire [15:0] rest = words - {chunk, 8'b0};
  wire whole = !PIECES || rest <= 16'd256;  // what is left of the row is one burst
  logic [LG:0] level;
  wire room = !level[LG];
  wire send = row_good && room && (row_none || ar_ready);
  assign ar_valid = row_good && !row_none && room;
  assign ar_addr = row_addr + ADDR_BITS'({chunk, 8'b0, {LG_WORD{1'b0}}});
  assign ar_len = whole ? rest[7:0] - 8'd1 : 8'd255;
  assign row_done = send && (row_none || whole);
  assign cmd_ready = row_done && row_last;
  generate
    if (PATCHES != 0) begin : steps
      logic [15:0] chunk_at_q;
      always_ff @(posedge clk) begin
        if (send) chunk_at_q <= row_done ? '0 : chunk_at_q + {step, 8'b0};
        if (rst) chunk_at_q <= '0;
      end
      assign step = cmd[`FX_LOAD_WORDSTEP] == 0 ? 8'd1 : cmd[`FX_LOAD_WORDSTEP];
      assign chunk_at = chunk_at_q;
    end else begin : ones
      assign step = 1'b1;
      assign chunk_at = {chunk, 8'b0};
    end
  endgenerate

  // What the beats under way are for. The queue is told that its head was taken a cycle later.
  logic next_valid, next_taken, next_none, next_last, next_single;
  logic [2:0] next_space;
  logic [5:0] next_lane;
  logic [15:0] next_addr;
  logic [7:0] next_len;
  localparam int WIDTH = 3 + 6 + 16 + 8 + 3 + (PATCHES != 0 ? STEP_BITS : 0);
  wire [15:0] ld_by;  // from one beat's word to the next one's
  wire [WIDTH-1:0] tail, head;
  assign {next_space, next_lane, next_addr, next_len, next_none, next_last, next_single} = head[WIDTH-1 -: 36];
  assign tail[WIDTH-1 -: 36] = {space, row_lane, row_base + chunk_at, ar_len, row_none, row_last && (row_none || whole), ar_len == 0};
  fx_fifo #(.WIDTH(WIDTH), .DEPTH(BURSTS), .STYLE(STYLE)) pending (
    .clk, .rst, .push(send),
    .tail(tail), .valid(next_valid), .head(head),
    .pop(next_taken), .level);

  // The burst whose beats come in.
  logic moves, none, last;  // beats come; there are none
  logic [7:0] left;
  wire beat = moves && r_valid && ld_ready;
  wire finish = none || (beat && r_last);
  wire next_take = next_valid && !next_taken && ((!moves && !none) || finish);
  generate
    if (PATCHES != 0) begin : with_step
      logic [STEP_BITS-1:0] ld_step;
      always_ff @(posedge clk) if (next_take) ld_step <= head[STEP_BITS-1:0];
      assign tail[STEP_BITS-1:0] = step;
      assign ld_by = 16'(ld_step);
    end else begin : without_step
      assign ld_by = 16'd1;
    end
  endgenerate
  assign ld_valid = moves && r_valid;
  assign ld_new = next_taken;
  assign {ld_next_space, ld_next_lane} = {next_space, next_lane};
  assign r_ready = moves && ld_ready;
  assign stalled = moves && !r_valid;
  assign err_valid = row_bad && level == 0 && !moves && !none && !done;
  assign err_code = row_error;

  always_ff @(posedge clk) begin
    if (send) chunk_q <= row_done ? '0 : chunk + 1'b1;
    next_taken <= next_take;
    if (next_take) begin
      {moves, none, last} <= {!next_none, next_none, next_last};
      {ld_space, ld_lane} <= {next_space, next_lane};
      ld_addr <= next_addr;
      left <= next_len;
      r_last <= next_single;
    end else begin
      if (finish) {moves, none} <= '0;
      if (beat) begin
        ld_addr <= ld_addr + ld_by;
        left <= left - 1'b1;
        r_last <= left == 8'd1;
      end
    end
    done <= finish && last;
    if (rst) begin
      chunk_q <= '0;
      moves <= 1'b0;
      none <= 1'b0;
      next_taken <= 1'b0;
      done <= 1'b0;
    end
  end
endmodule
