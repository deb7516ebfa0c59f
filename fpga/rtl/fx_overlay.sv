// fx_overlay: the whole machine, without what a board puts around it. Fetch reads the program and hands descriptors to
// three engines, which semaphores order: LOAD fills the scratchpads, EXEC computes, STORE writes results out.
//
// Register port: r_we writes r_wdata to r_addr, at most every second cycle; r_rdata is the register at what r_addr was
// a cycle before (see fx_regs), and r_re says that it was taken. It answers whatever the machine does. irq is high when
// a program is done or the machine has stopped by an error. rst is high for two cycles at least.
//
// Memory port: m_ar_* asks for a burst of m_ar_len + 1 beats, at most 256, at a multiple of WORD_BYTES; m_r_* brings
// the beats in the order of the requests. m_aw_* writes one beat. A valid that is raised stays, its address and data
// with it, until the ready. m_w_idle: every beat written can be read; low from the cycle after a beat is taken.
//
// An error stops all engines a few cycles later: they stand in reset until RegControl resets the machine. Memory is
// left in order: requests that it saw stay, and beats it owes are thrown away (fx_arbiter).
`include "fx_config.svh"
`default_nettype none
module fx_overlay #(
  parameter int ADDR_BITS = `FX_ADDR_BITS,
  parameter int WORD_BYTES = `FX_WORD_BYTES,
  parameter int COUNTER_BITS = 64,   // of each performance counter
  parameter int NUMBER_BITS = 32,    // of a descriptor's number
  parameter int AHEAD = 4,           // descriptors read ahead
  parameter int SPARE = 1,           // whether EXEC's next descriptor waits beside it
  parameter int UNDER = 4,           // descriptors of an engine under way: see fx_issue
  parameter int COUNT_IN_RAM = 0,    // counters: see fx_regs
  parameter int LOAD_BURSTS = 16,    // reads of LOAD under way
  parameter int STORE_DEPTH = 16,    // words that STORE reads ahead
  parameter STYLE = "auto"           // of the queues' memories: see fx_fifo
) (
  input  wire                     clk,
  input  wire                     rst,
  input  wire                     r_we,
  input  wire                     r_re,
  input  wire  [7:0]              r_addr,
  input  wire  [31:0]             r_wdata,
  output logic [31:0]             r_rdata,
  output logic                    irq,
  output logic                    m_ar_valid,
  input  wire                     m_ar_ready,
  output logic [ADDR_BITS-1:0]    m_ar_addr,
  output logic [7:0]              m_ar_len,
  input  wire                     m_r_valid,
  output logic                    m_r_ready,
  input  wire  [8*WORD_BYTES-1:0] m_r_data,
  output logic                    m_aw_valid,
  input  wire                     m_aw_ready,
  output logic [ADDR_BITS-1:0]    m_aw_addr,
  output logic [8*WORD_BYTES-1:0] m_aw_data,
  input  wire                     m_w_idle
);
  localparam int LG_BEATS = $clog2(32 / WORD_BYTES), SEMAPHORES = `FX_SEMAPHORES;
  localparam logic NARROW = UNDER == 1 && WORD_BYTES == 2 && ADDR_BITS == 16 && `FX_X_WORDS <= 256 && `FX_W_WORDS <= 256 &&
    `FX_Y_WORDS <= 256 && `FX_PARAMS <= 256 && `FX_ROUTER == 0 && `FX_NORMS == 0 && `FX_ATTENTION == 0 &&
    `FX_PATCHES == 0;
  // Clients of the semaphores, and engines of the queues, which are one less.
  localparam int FETCH = 0, LOAD = 1, EXEC = 2, STORE = 3;

  logic reset, start, go, stop, stopped, finished, expired, progress;  // go: start, a cycle later
  logic error_valid, error_counts;
  logic [3:0] error_code;
  logic [1:0] blame;
  logic [31:0] program_at, dropped;
  logic [ADDR_BITS:0] limit;
  logic [NUMBER_BITS-1:0] error_number, blamed, number, latest;
  logic [7:0] ct_list;
  logic [15:0] ct_count;
  logic [`FX_COUNTERS-1:0] count;
  logic [COUNTER_BITS-1:0] cycles, multiplies;
  always_ff @(posedge clk) begin
    stop <= rst || reset || stopped;
    go <= start;
  end
  fx_regs #(.ADDR_BITS(ADDR_BITS), .COUNTER_BITS(COUNTER_BITS), .NUMBER_BITS(NUMBER_BITS), .COUNT_IN_RAM(COUNT_IN_RAM)) regs (
    .clk, .rst, .r_we, .r_re, .r_addr, .r_wdata, .r_rdata, .irq, .reset, .start, .stopped, .program_at, .limit,
    .finished, .error_valid, .error_code, .error_counts, .error_number, .blamed, .progress, .expired, .ct_list,
    .ct_count, .dropped, .count, .cycles, .multiplies);

  // Fetch and the queues.
  logic f_ar_valid, f_ar_ready, f_r_valid, f_r_ready, f_r_last, passed, f_err_valid, put, commit;
  logic [ADDR_BITS-1:0] f_ar_addr;
  logic [7:0] f_ar_len;
  logic [3:0] f_err_code;
  logic [1:0] put_engine;
  logic [LG_BEATS-1:0] put_beat;
  logic [8*WORD_BYTES-1:0] put_data;
  logic [2:0] room, held, loaded, empty, under_way, cmd_valid, cmd_ready, done;
  logic [2:0] done_1, done_2, done_3;  // done, cycles ago
  logic [255:0] cmd_load, cmd_exec, cmd_store;
  logic [3:0] want, take, post;
  logic [4*SEMAPHORES-1:0] wait_masks, post_masks;
  logic all_idle;
  always_ff @(posedge clk) begin
    all_idle <= (&empty) && held == 0 && under_way == 0;
    {done_3, done_2, done_1} <= stop ? '0 : {done_2, done_1, done};
  end
  fx_fetch #(.ADDR_BITS(ADDR_BITS), .WORD_BYTES(WORD_BYTES), .NUMBER_BITS(NUMBER_BITS), .AHEAD(AHEAD)) fetch (
    .clk, .rst(stop), .start(go), .program_at, .limit, .finished, .passed, .number, .latest, .err_valid(f_err_valid),
    .err_code(f_err_code), .ar_valid(f_ar_valid), .ar_ready(f_ar_ready), .ar_addr(f_ar_addr), .ar_len(f_ar_len),
    .r_valid(f_r_valid), .r_ready(f_r_ready), .r_last(f_r_last), .r_data(m_r_data), .room, .put, .put_engine,
    .put_beat, .put_data, .commit, .idle(all_idle), .want(want[FETCH]),
    .wait_mask(wait_masks[FETCH*SEMAPHORES +: SEMAPHORES]), .take(take[FETCH]), .post(post[FETCH]),
    .post_mask(post_masks[FETCH*SEMAPHORES +: SEMAPHORES]));
  fx_queues #(.WORD_BYTES(WORD_BYTES), .NUMBER_BITS(NUMBER_BITS), .SPARE(SPARE), .NARROW(32'(NARROW))) queues (
    .clk, .rst(stop), .room, .put, .put_engine, .put_beat, .put_data, .commit, .number, .held, .loaded, .cmd_load,
    .cmd_exec, .cmd_store, .empty, .done(done_3), .blame, .blamed);
  assign post[3:1] = done;
  fx_issue #(.UNDER(UNDER)) issue_load (
    .clk, .rst(stop), .loaded(loaded[0]), .cmd(cmd_load), .held(held[0]), .want(want[LOAD]),
    .wait_mask(wait_masks[LOAD*SEMAPHORES +: SEMAPHORES]), .take(take[LOAD]), .cmd_valid(cmd_valid[0]),
    .cmd_ready(cmd_ready[0]), .done(done[0]), .post_mask(post_masks[LOAD*SEMAPHORES +: SEMAPHORES]),
    .busy(under_way[0]));
  fx_issue #(.UNDER(UNDER)) issue_exec (
    .clk, .rst(stop), .loaded(loaded[1]), .cmd(cmd_exec), .held(held[1]), .want(want[EXEC]),
    .wait_mask(wait_masks[EXEC*SEMAPHORES +: SEMAPHORES]), .take(take[EXEC]), .cmd_valid(cmd_valid[1]),
    .cmd_ready(cmd_ready[1]), .done(done[1]), .post_mask(post_masks[EXEC*SEMAPHORES +: SEMAPHORES]),
    .busy(under_way[1]));
  fx_issue #(.UNDER(UNDER)) issue_store (
    .clk, .rst(stop), .loaded(loaded[2]), .cmd(cmd_store), .held(held[2]), .want(want[STORE]),
    .wait_mask(wait_masks[STORE*SEMAPHORES +: SEMAPHORES]), .take(take[STORE]), .cmd_valid(cmd_valid[2]),
    .cmd_ready(cmd_ready[2]), .done(done[2]), .post_mask(post_masks[STORE*SEMAPHORES +: SEMAPHORES]),
    .busy(under_way[2]));

  logic over;
  logic [1:0] over_client;
  fx_semaphores #(.COUNT(SEMAPHORES)) semaphores (
    .clk, .rst(stop || go), .want, .wait_masks, .take, .post, .post_masks, .over, .over_client);

  // The engines.
  logic l_ar_valid, l_ar_ready, l_r_valid, l_r_ready, l_r_last, l_stalled, l_err_valid;
  logic [ADDR_BITS-1:0] l_ar_addr;
  logic [7:0] l_ar_len;
  logic [3:0] l_err_code, e_err_code, s_err_code;
  logic ld_valid, ld_ready, ld_new, st_valid, st_ready, st_rvalid;
  logic [2:0] ld_space, ld_next_space, st_space;
  logic [5:0] ld_lane, ld_next_lane, st_lane;
  logic [15:0] ld_addr, st_addr;
  logic [8*WORD_BYTES-1:0] st_rdata, w_data;
  logic [7:0] ll_list, sl_list;
  logic [15:0] ll_index, ll_token, ll_count, sl_index, sl_token, sl_count;
  logic [2:0] sl_rank;
  fx_load #(.ADDR_BITS(ADDR_BITS), .WORD_BYTES(WORD_BYTES), .BURSTS(LOAD_BURSTS), .STYLE(STYLE)) load (
    .clk, .rst(stop), .limit, .cmd_valid(cmd_valid[0]), .cmd_ready(cmd_ready[0]), .cmd(cmd_load), .done(done[0]),
    .err_valid(l_err_valid), .err_code(l_err_code), .stalled(l_stalled), .ls_list(ll_list), .ls_index(ll_index),
    .ls_token(ll_token), .ls_count(ll_count), .ar_valid(l_ar_valid), .ar_ready(l_ar_ready), .ar_addr(l_ar_addr),
    .ar_len(l_ar_len), .r_valid(l_r_valid), .r_ready(l_r_ready), .r_last(l_r_last), .ld_valid, .ld_ready, .ld_new,
    .ld_next_space, .ld_next_lane, .ld_space, .ld_lane, .ld_addr);

  logic s_stalled, s_err_valid, w_valid, w_ready, w_idle;
  logic [ADDR_BITS-1:0] w_addr;
  fx_store #(.ADDR_BITS(ADDR_BITS), .WORD_BYTES(WORD_BYTES), .COUNTER_BITS(COUNTER_BITS), .DEPTH(STORE_DEPTH),
             .STYLE(STYLE)) store (
    .clk, .rst(stop), .limit, .cmd_valid(cmd_valid[2]), .cmd_ready(cmd_ready[2]), .cmd(cmd_store), .done(done[2]),
    .err_valid(s_err_valid), .err_code(s_err_code), .stalled(s_stalled), .ls_list(sl_list), .ls_index(sl_index),
    .ls_token(sl_token), .ls_rank(sl_rank), .ls_count(sl_count), .cycles, .multiplies, .st_valid, .st_ready, .st_space,
    .st_lane, .st_addr, .st_rvalid, .st_rdata, .w_valid, .w_ready, .w_addr, .w_data, .w_idle);

  logic e_err_valid, multiply;
  logic [2:0] unused_rank;
  logic unused_busy;  // fx_issue knows
  fx_exec #(.ONE(UNDER == 1)) exec (
    .clk, .rst(stop), .cmd_valid(cmd_valid[1]), .cmd_ready(cmd_ready[1]), .cmd(cmd_exec), .done(done[1]),
    .err_valid(e_err_valid), .err_code(e_err_code), .busy(unused_busy), .multiply, .ld_valid, .ld_ready,
    .ld_space, .ld_new, .ld_next_space, .ld_next_lane, .ld_lane, .ld_addr, .ld_data(m_r_data), .st_valid, .st_ready, .st_space, .st_lane, .st_addr, .st_rvalid,
    .st_rdata, .ls0_list(ll_list), .ls0_index(ll_index), .ls0_token(ll_token), .ls0_rank(unused_rank),
    .ls0_count(ll_count), .ls1_list(sl_list), .ls1_index(sl_index), .ls1_token(sl_token), .ls1_rank(sl_rank), .ls1_count(sl_count),
    .ct_list, .ct_count, .dropped);

  fx_arbiter #(.ADDR_BITS(ADDR_BITS), .WORD_BYTES(WORD_BYTES), .BURSTS(2 * LOAD_BURSTS)) arbiter (
    .clk, .rst, .kill(stop), .f_valid(f_ar_valid), .f_ready(f_ar_ready), .f_addr(f_ar_addr), .f_len(f_ar_len),
    .f_rvalid(f_r_valid), .f_rready(f_r_ready), .f_rlast(f_r_last), .l_valid(l_ar_valid), .l_ready(l_ar_ready),
    .l_addr(l_ar_addr), .l_len(l_ar_len), .l_rvalid(l_r_valid), .l_rready(l_r_ready), .l_rlast(l_r_last), .w_valid,
    .w_ready, .w_addr, .w_data, .w_idle, .m_ar_valid, .m_ar_ready, .m_ar_addr, .m_ar_len, .m_r_valid, .m_r_ready,
    .m_aw_valid, .m_aw_ready, .m_aw_addr, .m_aw_data, .m_w_idle);

  // Errors: the oldest descriptor of an engine is to blame; those of fetch and the watchdog bring their number. That a
  // semaphore is over is known two cycles after its post, so the queues take what is done off their numbers a cycle later
  // than that; errors of the engines, which stay, wait for it.
  wire [2:0] settled = ~(done | done_1 | done_2);
  always_ff @(posedge clk) begin
    error_valid <= !stop;
    error_code <= `FX_ERR_NONE;
    error_counts <= 1'b0;
    error_number <= number;
    blame <= 2'd0;
    if (e_err_valid && settled[1]) begin
      error_code <= e_err_code;
      blame <= 2'(EXEC - 1);
    end else if (l_err_valid && settled[0]) begin
      error_code <= l_err_code;
      blame <= 2'(LOAD - 1);
    end else if (s_err_valid && settled[2]) begin
      error_code <= s_err_code;
      blame <= 2'(STORE - 1);
    end else if (over) begin
      error_code <= `FX_ERR_SEMAPHORE;
      error_counts <= over_client == 2'(FETCH);
      error_number <= latest;  // Barrier or End, behind which nothing has passed yet
      blame <= over_client - 2'd1;
    end else if (f_err_valid) begin
      error_code <= f_err_code;
      error_counts <= 1'b1;
    end else if (expired) begin
      error_code <= `FX_ERR_WATCHDOG;
      error_counts <= 1'b1;
      error_number <= latest;
    end else error_valid <= 1'b0;
  end

  wire read_beat = m_r_valid && m_r_ready, write_beat = m_aw_valid && m_aw_ready;
  always_ff @(posedge clk) begin
    progress <= passed || take != 0 || done != 0 || read_beat || write_beat || multiply;
    count[`FX_COUNT_CYCLES] <= 1'b1;
    count[`FX_COUNT_MULTIPLY] <= multiply;
    count[`FX_COUNT_EXEC] <= under_way[1];
    count[`FX_COUNT_EXEC_WAITS] <= want[EXEC] && !take[EXEC] && wait_masks[EXEC*SEMAPHORES +: SEMAPHORES] != 0;
    count[`FX_COUNT_LOAD] <= under_way[0];
    count[`FX_COUNT_LOAD_STALLS] <= l_stalled;
    count[`FX_COUNT_STORE] <= under_way[2];
    count[`FX_COUNT_STORE_STALLS] <= s_stalled;
    count[`FX_COUNT_READ_BEATS] <= read_beat;
    count[`FX_COUNT_WRITE_BEATS] <= write_beat;
    count[`FX_COUNT_DESCRIPTORS] <= passed;
  end
endmodule
