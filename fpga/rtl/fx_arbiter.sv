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
  parameter int BURSTS = 32  // reads under way at a time, a power of two
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

  // Whose bursts are under way, the oldest lowest.
  logic [BURSTS-1:0] of_fetch, of_load;
  logic pop, dead;
  wire [BURSTS-1:0] full = of_fetch | of_load;
  wire open = !m_ar_valid && !dead && !kill && !full[BURSTS-1];
  assign f_ready = open;
  assign l_ready = open && !f_valid;
  wire asked = open && (f_valid || l_valid);

  // Beats that memory owes us of the requests that it took, counted a cycle late: m_ar_len is still there then. Those of a machine
  // that was stopped are dead.
  logic [LG+8:0] owed;
  logic taken, beat;
  assign f_rvalid = m_r_valid && of_fetch[0];
  assign l_rvalid = m_r_valid && of_load[0];
  assign m_r_ready = dead || kill || (of_fetch[0] && f_rready) || (of_load[0] && l_rready);
  assign pop = m_r_valid && ((of_fetch[0] && f_rready && f_rlast) || (of_load[0] && l_rready && l_rlast));

  assign w_ready = !m_aw_valid || m_aw_ready;
  assign w_idle = !m_aw_valid && m_w_idle;

  always_ff @(posedge clk) begin
    if (m_ar_ready) m_ar_valid <= 1'b0;
    if (asked) begin
      m_ar_valid <= 1'b1;
      m_ar_addr <= f_valid ? f_addr : l_addr;
      m_ar_len <= f_valid ? f_len : l_len;
    end
    for (int i = 0; i < BURSTS; i++)
      if (rst || kill) {of_fetch[i], of_load[i]} <= '0;
      else if (pop && i + 1 < BURSTS && full[(i + 1) % BURSTS])
        {of_fetch[i], of_load[i]} <= {of_fetch[(i + 1) % BURSTS], of_load[(i + 1) % BURSTS]};
      else if (pop ? full[i] : !full[i] && (i == 0 || full[i == 0 ? 0 : i - 1]))
        {of_fetch[i], of_load[i]} <= {asked && f_valid, asked && !f_valid};
    taken <= m_ar_valid && m_ar_ready;
    beat <= m_r_valid && m_r_ready;
    owed <= owed + (taken ? (LG+9)'(m_ar_len) + 1'b1 : '0) - (LG+9)'(beat);
    dead <= kill || (dead && (m_ar_valid || taken || owed != 0));
    if (w_ready) m_aw_valid <= w_valid;
    if (w_ready && w_valid) begin
      m_aw_addr <= w_addr;
      m_aw_data <= w_data;
    end
    if (rst) begin
      m_ar_valid <= 1'b0;
      m_aw_valid <= 1'b0;
      {taken, beat} <= '0;
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
      assert ((LG+11)'(owed) + (taken ? (LG+11)'(m_ar_len) + 1'b1 : '0) == promised + (LG+11)'(beat));
      assert (old == (dead ? promised + in_register : '0));
      assert (!(dead && (asked || f_rvalid || l_rvalid)));
      assert ((of_fetch & of_load) == 0 && (full & (full + 1'b1)) == 0);
      if (dead) assert (full == 0);
      assert (!(f_valid && f_ready && l_valid && l_ready));
      assert (!(f_rvalid && l_rvalid));
    end
  end
`endif
endmodule
