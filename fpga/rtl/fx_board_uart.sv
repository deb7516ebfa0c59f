// A board with nothing but a clock and a serial line: the overlay, its registers and its external memory on two pins.
// It resets itself after power-on; the light is on when a program is done or has failed.
`include "fx_config.svh"
`ifndef FX_DIVISOR
`define FX_DIVISOR 104
`endif
`ifndef FX_TIMEOUT
`define FX_TIMEOUT 22
`endif
`default_nettype none
module fx_board_uart #(
  parameter int DIVISOR = `FX_DIVISOR,  // clocks a bit
  parameter int TIMEOUT = `FX_TIMEOUT,  // see fx_serial
  parameter int COUNTER_BITS = 32,
  parameter int NUMBER_BITS = 16,
  parameter int AHEAD = 2,
  parameter int SPARE = 0,
  parameter int UNDER = `FX_SERIAL_MUL ? 1 : 4,
  parameter int COUNT_IN_RAM = `FX_SERIAL_MUL,
  parameter int LOAD_BURSTS = 2,
  parameter int STORE_DEPTH = 8,
  parameter STYLE = "block"  // a small chip has more block RAMs than cells
) (
  input  wire  clk,
  input  wire  rx,
  output logic tx,
  output logic led
);
  localparam int ADDR_BITS = `FX_ADDR_BITS, BITS = 8 * `FX_WORD_BYTES;

  logic [5:0] up = '0;
  logic rst = 1'b1;
  always_ff @(posedge clk) begin
    if (!(&up)) up <= up + 1'b1;
    rst <= !(&up);
  end

  logic rx_valid, rx_good, tx_valid, tx_ready, o_rst, r_we, r_re, irq;
  logic [7:0] rx_data, tx_data, r_addr, m_ar_len;
  logic [31:0] r_wdata, r_rdata;
  logic m_ar_valid, m_ar_ready, m_r_valid, m_r_ready, m_aw_valid, m_aw_ready;
  logic [ADDR_BITS-1:0] m_ar_addr, m_aw_addr;
  logic [BITS-1:0] m_r_data, m_aw_data;
  assign led = irq;
  fx_uart #(.DIVISOR(DIVISOR)) uart (
    .clk, .rst, .rx, .tx, .rx_valid, .rx_good, .rx_data, .tx_valid, .tx_ready, .tx_data);
  fx_serial #(.TIMEOUT(TIMEOUT)) serial (
    .clk, .rst, .rx_valid, .rx_good, .rx_data, .tx_valid, .tx_ready, .tx_data, .o_rst, .r_we, .r_re, .r_addr, .r_wdata,
    .r_rdata, .irq, .m_ar_valid, .m_ar_ready, .m_ar_addr, .m_ar_len, .m_r_valid, .m_r_ready, .m_r_data, .m_aw_valid,
    .m_aw_ready, .m_aw_addr, .m_aw_data);
  // The host takes writes and serves reads in the order of the line: what was sent can be read.
  fx_overlay #(
    .COUNTER_BITS(COUNTER_BITS), .NUMBER_BITS(NUMBER_BITS), .AHEAD(AHEAD), .SPARE(SPARE), .UNDER(UNDER),
    .COUNT_IN_RAM(COUNT_IN_RAM), .LOAD_BURSTS(LOAD_BURSTS), .STORE_DEPTH(STORE_DEPTH), .STYLE(STYLE)
  ) overlay (
    .clk, .rst(o_rst), .r_we, .r_re, .r_addr, .r_wdata, .r_rdata, .irq, .m_ar_valid, .m_ar_ready, .m_ar_addr, .m_ar_len,
    .m_r_valid, .m_r_ready, .m_r_data, .m_aw_valid, .m_aw_ready, .m_aw_addr, .m_aw_data, .m_w_idle(1'b1));
endmodule
