// STORE: rows of Y or X to memory, and time stamps. Words are read from the scratchpads as far ahead as the data queue
// has room; a command is taken (`cmd_ready`) with its last read. When its last beat is written, and memory says that
// all writes can be seen, it is done; what the next command reads waits meanwhile.
`include "fx_config.svh"
`default_nettype none
module fx_store #(
  parameter int ADDR_BITS = `FX_ADDR_BITS,
  parameter int WORD_BYTES = `FX_WORD_BYTES,
  parameter int ROWS = `FX_ROWS,
  parameter int X_WORDS = `FX_X_WORDS,
  parameter int Y_WORDS = `FX_Y_WORDS,
  parameter int ROUTER = `FX_ROUTER,
  parameter int COUNTER_BITS = 64,
  parameter int DEPTH = 16, // of the data queue, a power of two above the scratchpads' latency
  parameter STYLE = "auto"  // of the queues' memories
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
  input  wire  [2:0]              ls_rank,
  input  wire  [15:0]             ls_count,
  input  wire  [COUNTER_BITS-1:0] cycles,
  input  wire  [COUNTER_BITS-1:0] multiplies,
  output logic                    st_valid,
  input  wire                     st_ready,
  output logic [2:0]              st_space,
  output logic [5:0]              st_lane,
  output logic [15:0]             st_addr,
  input  wire                     st_rvalid,
  input  wire  [8*WORD_BYTES-1:0] st_rdata,
  output logic                    w_valid,
  input  wire                     w_ready,
  output logic [ADDR_BITS-1:0]    w_addr,
  output logic [8*WORD_BYTES-1:0] w_data,
  input  wire                     w_idle
);
  localparam int LG = $clog2(DEPTH);
  localparam int STAMP_WORDS = 16 / WORD_BYTES;
  // A row that is right has at most as many words as a lane, or a Stamp.
  localparam int MOST = X_WORDS > Y_WORDS ? X_WORDS : Y_WORDS;
  localparam int COUNT = $clog2((MOST > STAMP_WORDS ? MOST : STAMP_WORDS) + 1);

  // A Stamp is a row that comes from the counters.
  // (What a command is is known before it is valid.)
  logic stamp, one_word;
  always_ff @(posedge clk) begin
    stamp <= cmd[3:0] == `FX_OP_STAMP;
    one_word <= stamp ? STAMP_WORDS == 1 : cmd[`FX_STORE_WORDS] == 16'd1;
  end
  wire [15:0] words = stamp ? 16'(STAMP_WORDS) : cmd[`FX_STORE_WORDS];
  wire [COUNT-1:0] row_words = COUNT'(words);
  wire [2:0] space = cmd[`FX_STORE_SPACE];
  wire [17:0] space_end = stamp ? 18'(STAMP_WORDS) : space == `FX_SPACE_Y ? 18'(Y_WORDS) :
                          space == `FX_SPACE_X ? 18'(X_WORDS) : '0;
  wire scatter = !stamp && cmd[`FX_STORE_SCATTER];

  logic row_good, row_bad, row_done, row_last, row_none;
  logic [3:0] row_error;
  logic [ADDR_BITS-1:0] row_addr;
  logic [5:0] row_lane;
  logic [15:0] row_base;
  assign ls_list = cmd[`FX_STORE_LIST];
  fx_rows #(.ADDR_BITS(ADDR_BITS), .WORD_BYTES(WORD_BYTES), .ROUTER(ROUTER)) rows (
    .clk, .rst, .limit, .cmd_valid, .cmd_addr(cmd[`FX_STORE_ADDR]), .cmd_stride(cmd[`FX_STORE_STRIDE]),
    .cmd_rows(stamp ? 16'd1 : cmd[`FX_STORE_ROWS]), .cmd_words(words),
    .cmd_base(stamp ? '0 : 18'(cmd[`FX_STORE_BASE])), .cmd_panel(cmd[`FX_STORE_PANEL]), .cmd_lanes(6'(ROWS - 1)),
    .cmd_end(space_end), .cmd_indexed(scatter), .cmd_listed(scatter), .cmd_skip(1'b0),
    .cmd_top_k(cmd[`FX_STORE_TOPK]), .cmd_start(cmd[`FX_STORE_START]), .cmd_lane('0), .cmd_taps('0),
    .cmd_word_step('0), .cmd_tap_step('0), .cmd_tap_stride('0), .ls_index, .ls_token, .ls_rank, .ls_count,
    .row_good, .row_bad, .row_done, .row_last, .row_none, .row_error, .row_addr, .row_lane, .row_base);

  // Where the data of each row goes to; a row enters this queue before its first read. The queue is told that its head
  // was taken a cycle later.
  logic go_valid, go_taken, go_none, go_last, go_stamp, go_single;
  logic [ADDR_BITS-1:0] go_addr;
  logic [COUNT-1:0] go_words;
  logic [2:0] go_level;
  logic entered;  // the row stands in the queue
  wire enter = row_good && !entered && !go_level[2];
  fx_fifo #(.WIDTH(ADDR_BITS + COUNT + 4), .DEPTH(4), .STYLE(STYLE)) go (
    .clk, .rst, .push(enter), .tail({row_addr, row_words, row_none, row_last, stamp, one_word}),
    .valid(go_valid), .head({go_addr, go_words, go_none, go_last, go_stamp, go_single}), .pop(go_taken),
    .level(go_level));

  // Reads, as many as the data queue has room for.
  logic [COUNT-1:0] word;
  logic final_word;  // it is the row's last
  logic [LG:0] room;
  logic some_room;
  wire read = st_valid && st_ready;
  wire data_valid, data_pop;
  wire [8*WORD_BYTES-1:0] data;
  wire [LG:0] unused_level;
  wire quick = row_none || stamp;  // nothing is read
  assign st_valid = entered && !quick && some_room;
  assign st_space = space;
  assign st_lane = row_lane;
  assign st_addr = row_base + 16'(word);
  assign row_done = entered && (quick || (read && final_word));
  assign cmd_ready = row_done && row_last;
  fx_fifo #(.WIDTH(8*WORD_BYTES), .DEPTH(DEPTH), .STYLE(STYLE)) data_queue (
    .clk, .rst, .push(st_rvalid), .tail(st_rdata), .valid(data_valid), .head(data), .pop(data_pop),
    .level(unused_level));

  // The row that is written.
  logic writes, none, last, settle;  // words are written; there are none
  logic stamping, stamped;  // the row is a Stamp, whose next word stands in time_stamp
  logic loads, shift;       // of time_stamp
  logic single;  // the last word of the row
  logic [COUNT-1:0] left;
  logic [127:0] time_stamp;
  wire beat = w_valid && w_ready;
  wire row_end = none || (beat && single);
  wire settled = settle && w_idle;
  wire go_take = go_valid && !go_taken && !settle && ((!writes && !none) || (row_end && !last));
  assign w_valid = writes && (stamping ? stamped : data_valid);
  assign w_data = stamping ? time_stamp[8*WORD_BYTES-1:0] : data;
  assign data_pop = beat && !stamping;
  assign stalled = (w_valid && !w_ready) || (settle && !w_idle);
  assign err_valid = row_bad && go_level == 0 && !writes && !none && !settle && !done;
  assign err_code = row_error;

  wire [LG:0] room_next = room - (LG+1)'(read) + (LG+1)'(data_pop);
  always_ff @(posedge clk) begin
    entered <= (entered || enter) && !row_done;
    if (enter) final_word <= one_word;
    else if (read) final_word <= word + COUNT'(2) == row_words;
    if (read) word <= row_done ? '0 : word + 1'b1;
    room <= room_next;
    some_room <= room_next != 0;
    if (row_end && last) settle <= 1'b1;
    else if (settled) settle <= 1'b0;
    done <= settled;
    go_taken <= go_take;
    if (go_take) {writes, none} <= {!go_none, go_none};
    else if (row_end) {writes, none} <= '0;
    if (!writes || (beat && single)) begin  // ready for the next row, if there is one
      {last, stamping, stamped} <= {go_last, go_stamp, 1'b0};
      w_addr <= go_addr;
      left <= go_words;
      single <= go_single;
    end else if (beat) begin
      w_addr <= w_addr + ADDR_BITS'(WORD_BYTES);
      left <= left - 1'b1;
      single <= left == COUNT'(2);
      stamped <= 1'b0;
    end else if (loads || shift) stamped <= 1'b1;
    loads <= go_take && go_stamp && !rst;
    shift <= beat && stamping && !rst;
    if (loads) time_stamp <= {64'(multiplies), 64'(cycles)};
    else if (shift) time_stamp <= time_stamp >> (8 * WORD_BYTES);
    if (rst) begin
      entered <= 1'b0;
      word <= '0;
      room <= (LG+1)'(DEPTH);
      some_room <= 1'b1;
      writes <= 1'b0;
      none <= 1'b0;
      settle <= 1'b0;
      go_taken <= 1'b0;
      done <= 1'b0;
    end
  end
endmodule
