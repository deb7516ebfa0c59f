// The overlay's end of the external memory port. Reads of fetch and of LOAD share it, fetch first, whose reads are
// few; beats come back in the order of the requests, and each reader says which of its beats is a burst's last. A
// request or a written beat waits in a register and, once there, stays until memory takes it: `kill`, which stops the
// machine, does not touch what memory was promised. Beats that were asked for before `kill` are thrown away when they
// come; until then no new request goes out.
`include "fx_config.svh"
`default_nettype none
module fx_arbiter #(
  parameter int ADDR_BITS = `FX_ADDR_BITS,
  parameter int WORD_BYTES = `FX_WORD_BYTES,
  parameter int BURSTS = 32, // reads under way at a time, a power of two
  parameter STYLE = "auto"   // of the queue's memory
) (
  input  wire                     clk,
  input  wire                     rst,
  input  wire                     kill,
  // Readers: fetch and LOAD.
  input  wire                     f_valid,
  output logic                    f_ready,
  input  wire  [ADDR_BITS-1:0]    f_addr,
  input  wire  [7:0]              f_len,
  output logic                    f_rvalid,
  input  wire                     f_rready,
  input  wire                     f_rlast,
  input  wire                     l_valid,
  output logic                    l_ready,
  input  wire  [ADDR_BITS-1:0]    l_addr,
  input  wire  [7:0]              l_len,
  output logic                    l_rvalid,
  input  wire                     l_rready,
  input  wire                     l_rlast,
  // The writer: STORE.
  input  wire                     w_valid,
  output logic                    w_ready,
  input  wire  [ADDR_BITS-1:0]    w_addr,
  input  wire  [8*WORD_BYTES-1:0] w_data,
  output logic                    w_idle,
  // External memory.
  output logic                    m_ar_valid,
  input  wire                     m_ar_ready,
  output logic [ADDR_BITS-1:0]    m_ar_addr,
  output logic [7:0]              m_ar_len,
  input  wire                     m_r_valid,
  output logic                    m_r_ready,
  output logic                    m_aw_valid,
  input  wire                     m_aw_ready,
  output logic [ADDR_BITS-1:0]    m_aw_addr,
  output logic [8*WORD_BYTES-1:0] m_aw_data,
  input  wire                     m_w_idle
);
  localparam int LG = $clog2(BURSTS);

  // Whose burst is next, oldest first.
  logic order_valid, order_load, order_pop;
  logic [LG:0] order_level;
  wire  open = (!m_ar_valid || m_ar_ready) && !dead && !kill && order_level != (LG+1)'(BURSTS);
  assign f_ready = open;
  assign l_ready = open && !f_valid;
  wire  asked = open && (f_valid || l_valid);
  fx_fifo #(.WIDTH(1), .DEPTH(BURSTS), .STYLE(STYLE)) order (
    .clk, .rst(rst || kill), .push(asked), .tail(!f_valid), .valid(order_valid), .head(order_load), .pop(order_pop),
    .level(order_level));

  // Beats that memory owes us. Those of a machine that was stopped are dead.
  logic [LG+8:0] owed;
  logic dead;
  wire [7:0] len = f_valid ? f_len : l_len;
  wire [LG+8:0] owed_next = owed + (asked ? (LG+9)'(len) + 1'b1 : '0) - (LG+9)'(m_r_valid && m_r_ready);
  assign f_rvalid = m_r_valid && order_valid && !order_load && !dead;
  assign l_rvalid = m_r_valid && order_valid && order_load && !dead;
  assign m_r_ready = dead || kill || (order_valid && (order_load ? l_rready : f_rready));
  assign order_pop = !dead && order_valid && m_r_valid && m_r_ready && (order_load ? l_rlast : f_rlast);

  assign w_ready = !m_aw_valid || m_aw_ready;
  assign w_idle = !m_aw_valid && m_w_idle;

  always_ff @(posedge clk) begin
    if (m_ar_ready) m_ar_valid <= 1'b0;
    if (asked) begin
      m_ar_valid <= 1'b1;
      m_ar_addr <= f_valid ? f_addr : l_addr;
      m_ar_len <= len;
    end
    owed <= owed_next;
    dead <= (dead || kill) && owed_next != 0;
    if (w_ready) m_aw_valid <= w_valid;
    if (w_ready && w_valid) begin
      m_aw_addr <= w_addr;
      m_aw_data <= w_data;
    end
    if (rst) begin
      m_ar_valid <= 1'b0;
      m_aw_valid <= 1'b0;
      owed <= '0;
      dead <= 1'b0;
    end
  end

`ifdef FORMAL
  // Memory answers what it was asked for and no more. Then: what it was offered stays until it takes it, the beats it
  // owes are counted right whatever is killed, and beats that were asked for before a kill reach no reader.
  logic started = 1'b0, waiting = 1'b0, writing = 1'b0;
  logic [ADDR_BITS-1:0] wait_addr, write_addr;
  logic [8*WORD_BYTES-1:0] write_data;
  logic [7:0] wait_len;
  logic [LG+10:0] promised = '0;  // beats of requests that memory took
  logic [LG+10:0] old = '0;       // of those that it owes, the ones asked for before the last kill
  wire [LG+10:0] in_register = m_ar_valid ? (LG+11)'(m_ar_len) + 1'b1 : '0;
  wire read = m_r_valid && m_r_ready;
  always_ff @(posedge clk) begin
    started <= 1'b1;
    waiting <= !rst && m_ar_valid && !m_ar_ready;
    wait_addr <= m_ar_addr;
    wait_len <= m_ar_len;
    writing <= !rst && m_aw_valid && !m_aw_ready;
    write_addr <= m_aw_addr;
    write_data <= m_aw_data;
    promised <= rst ? '0 : promised + (m_ar_ready ? in_register : '0) - (LG+11)'(read);
    old <= rst ? '0 : (kill ? promised + in_register : old) - (LG+11)'(read && (kill || old != 0));
  end
  always_comb begin
    if (!started) assume (rst);
    assume (!(m_r_valid && promised == 0));
    if (started && !rst) begin
      if (waiting) assert (m_ar_valid && m_ar_addr == wait_addr && m_ar_len == wait_len);
      if (writing) assert (m_aw_valid && m_aw_addr == write_addr && m_aw_data == write_data);
      // At most a register more than BURSTS, 256 beats each, can be owed; what is dead came before.
      assume (promised <= (LG+11)'(BURSTS * 256));
      assert ((LG+11)'(owed) == promised + in_register);
      assert (old == (dead ? promised + in_register : '0));
      assert (!(dead && (asked || f_rvalid || l_rvalid)));
      assert (!(f_valid && f_ready && l_valid && l_ready));
      assert (!(f_rvalid && l_rvalid));
    end
  end
`endif
endmodule
