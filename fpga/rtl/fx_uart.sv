// A serial line, byte by byte: 8 data bits, no parity, one stop bit, DIVISOR clocks a bit (at least 4).
`default_nettype none
module fx_uart #(
  parameter int DIVISOR = 104
) (
  input  wire        clk,
  input  wire        rst,
  input  wire        rx,
  output logic       tx,
  output logic       rx_valid,  // one cycle
  output logic       rx_good,   // the byte had a stop bit
  output logic [7:0] rx_data,
  input  wire        tx_valid,
  output logic       tx_ready,
  input  wire  [7:0] tx_data
);
  localparam int LG = $clog2(2 * DIVISOR);

  // Receiver: waits for the start bit's edge, then looks at the middle of each bit.
  logic [2:0] line;  // the first two take the line into this clock
  logic [LG-1:0] rx_wait;
  logic [3:0] rx_bit;
  logic rx_busy;
  always_ff @(posedge clk) begin
    line <= {line[1:0], rx};
    rx_valid <= 1'b0;
    if (!rx_busy) begin
      rx_busy <= !line[2];
      rx_bit <= '0;
      rx_wait <= LG'(DIVISOR + DIVISOR / 2 - 2);
    end else if (rx_wait != 0) rx_wait <= rx_wait - 1'b1;
    else begin
      rx_wait <= LG'(DIVISOR - 1);
      rx_bit <= rx_bit + 1'b1;
      if (rx_bit == 4'd8) begin
        rx_busy <= 1'b0;
        rx_valid <= 1'b1;
        rx_good <= line[2];
      end else rx_data <= {line[2], rx_data[7:1]};
    end
    if (rst) begin
      line <= 3'b111;
      rx_busy <= 1'b0;
      rx_valid <= 1'b0;
    end
  end

  // Transmitter: the start bit, eight bits and the stop bit leave a shift register.
  logic [8:0] shift;
  logic [LG-1:0] tx_wait;
  logic [3:0] tx_bit;  // bits left
  assign tx_ready = tx_bit == 0;
  always_ff @(posedge clk) begin
    if (tx_bit == 0) begin
      if (tx_valid) begin
        {shift, tx} <= {1'b1, tx_data, 1'b0};
        tx_bit <= 4'd10;
        tx_wait <= LG'(DIVISOR - 1);
      end
    end else if (tx_wait != 0) tx_wait <= tx_wait - 1'b1;
    else begin
      {shift, tx} <= {1'b1, shift};
      tx_bit <= tx_bit - 1'b1;
      tx_wait <= LG'(DIVISOR - 1);
    end
    if (rst) begin
      tx <= 1'b1;
      tx_bit <= '0;
    end
  end
endmodule
