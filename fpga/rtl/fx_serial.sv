// The overlay behind a serial line: frames of bytes reach its registers, and its external memory is the host's, which
// serves reads and takes writes over the same line.
//
//	host to board                     board to host
//	Z crc              begin          z version word_bytes crc
//	R register crc     read           r d0 d1 d2 d3 crc
//	W register d0 d1 d2 d3 crc        w crc
//	D beats crc        of an M        M a0 a1 a2 a3 n crc       read n+1 beats
//	                                  S a0 a1 a2 a3 beat crc    write a beat
//	                                  I crc                     done or error
//	                                  E code crc                the line is broken
//
// crc is a CRC-8 (x^8+x^2+x+1) of the bytes before it. A frame takes effect when its CRC is right, but for the beats
// of D, which go to the overlay as they come. What breaks the line (1: a wrong CRC, 2: a byte where none belongs or
// without its stop bit, 3: silence within a frame, 4: a beat before the last was taken) stops the overlay: it stands
// in reset until Z. One M is open at a time.
`include "fx_config.svh"
`default_nettype none
module fx_serial #(
  parameter int WORD_BYTES = `FX_WORD_BYTES,
  parameter int ADDR_BITS = `FX_ADDR_BITS,
  parameter int TIMEOUT = 22  // silence within a frame: 2^TIMEOUT cycles
) (
  input  wire                     clk,
  input  wire                     rst,
  // Bytes.
  input  wire                     rx_valid,
  input  wire                     rx_good,
  input  wire  [7:0]              rx_data,
  output logic                    tx_valid,
  input  wire                     tx_ready,
  output logic [7:0]              tx_data,
  // The overlay.
  output logic                    o_rst,
  output logic                    r_we,
  output logic                    r_re,
  output logic [7:0]              r_addr,
  output logic [31:0]             r_wdata,
  input  wire  [31:0]             r_rdata,
  input  wire                     irq,
  input  wire                     m_ar_valid,
  output logic                    m_ar_ready,
  input  wire  [ADDR_BITS-1:0]    m_ar_addr,
  input  wire  [7:0]              m_ar_len,
  output logic                    m_r_valid,
  input  wire                     m_r_ready,
  output logic [8*WORD_BYTES-1:0] m_r_data,
  input  wire                     m_aw_valid,
  output logic                    m_aw_ready,
  input  wire  [ADDR_BITS-1:0]    m_aw_addr,
  input  wire  [8*WORD_BYTES-1:0] m_aw_data
);
  localparam logic [7:0] LINE_VERSION = 8'd1;

  function automatic logic [7:0] crc8(input logic [7:0] crc, input logic [7:0] data);
    crc8 = crc ^ data;
    for (int i = 0; i < 8; i++) crc8 = crc8[7] ? {crc8[6:0], 1'b0} ^ 8'h07 : {crc8[6:0], 1'b0};
  endfunction

  // Frames from the host.
  localparam logic [1:0] IDLE = 2'd0, FIELDS = 2'd1, BEATS = 2'd2, CHECK = 2'd3;
  localparam int SHIFT = WORD_BYTES > 4 ? 8 * WORD_BYTES : 32;
  logic [1:0] state;
  logic [7:0] rx_crc;
  logic is_z, is_r, is_w, is_d;  // the frame's operation
  logic [2:0] fields;             // bytes to come before the CRC
  logic [SHIFT-1:0] bytes;        // the last ones, the newest on top
  logic [8:0] beats;              // of the open read that are to come
  logic [3:0] byte_at;            // within a beat
  logic [TIMEOUT:0] silence;
  logic open;                     // a read waits for its beats
  logic dead;
  logic [3:0] wake;               // cycles of reset after Z
  logic break_line, broken;       // broken: a cycle later
  logic [2:0] reason;
  // A byte is looked at in the cycle in which it comes and obeyed in the next, `got`; in rx_data it stays for longer.
  logic got, good, right;        // it had its stop bit, and is the CRC
  logic of_z, of_r, of_w, of_d;  // it is an operation
  wire closed = got && state == CHECK && right;
  wire late = silence[TIMEOUT];

  always_comb begin
    break_line = 1'b0;
    reason = 3'd2;
    if (!dead && !broken) begin
      if (late) {break_line, reason} = {1'b1, 3'd3};
      else if (got) begin
        if (!good) break_line = 1'b1;
        else case (state)
          IDLE: break_line = !(of_z || of_r || of_w || (of_d && open));
          BEATS: if (m_r_valid) {break_line, reason} = {1'b1, 3'd4};
          CHECK:
            if (!right) {break_line, reason} = {1'b1, 3'd1};
            else if (is_d && m_r_valid) {break_line, reason} = {1'b1, 3'd4};
          default: ;
        endcase
      end
    end
  end

  assign r_wdata = bytes[SHIFT-1 -: 32];
  assign m_r_data = bytes[SHIFT-1 -: 8*WORD_BYTES];

  always_ff @(posedge clk) begin
    got <= rx_valid && !rst;
    good <= rx_good;
    right <= rx_good && rx_data == rx_crc;
    {of_z, of_r, of_w, of_d} <= {rx_data == "Z", rx_data == "R", rx_data == "W", rx_data == "D"};
    o_rst <= rst || dead || wake != 0;
    silence <= got || state == IDLE ? '0 : silence + 1'b1;
    r_we <= closed && is_w;
    if (m_r_ready) m_r_valid <= 1'b0;
    if (wake != 0) wake <= wake - 1'b1;
    if (m_ar_valid && m_ar_ready) begin
      open <= 1'b1;
      beats <= {1'b0, m_ar_len} + 9'd1;
    end
    if (got) begin
      rx_crc <= crc8(state == IDLE ? '0 : rx_crc, rx_data);
      if (state == FIELDS || state == BEATS) bytes <= {rx_data, bytes[SHIFT-1:8]};
      case (state)
        IDLE: begin
          {is_z, is_r, is_w, is_d} <= {of_z, of_r, of_w, of_d};
          fields <= of_w ? 3'd5 : 3'd1;
          byte_at <= '0;
          if (of_z) state <= CHECK;
          else if (!dead) state <= of_d ? BEATS : FIELDS;
        end
        FIELDS: begin
          if (fields == 3'd5 || is_r) r_addr <= rx_data;
          fields <= fields - 1'b1;
          if (fields == 3'd1) state <= CHECK;
        end
        BEATS:
          if (byte_at == 4'(WORD_BYTES - 1)) begin
            byte_at <= '0;
            m_r_valid <= 1'b1;
            beats <= beats - 1'b1;
            if (beats == 9'd1) state <= CHECK;
          end else byte_at <= byte_at + 1'b1;
        default: state <= IDLE;
      endcase
    end
    if (late) state <= IDLE;
    if (closed && is_d) open <= 1'b0;
    if (closed && is_z) begin
      dead <= 1'b0;
      wake <= 4'd15;
    end
    broken <= break_line && !rst;
    if (broken) begin
      dead <= 1'b1;
      state <= IDLE;
    end
    if (o_rst) begin
      open <= 1'b0;
      m_r_valid <= 1'b0;
    end
    if (rst) begin
      state <= IDLE;
      silence <= '0;
      dead <= 1'b0;
      wake <= '0;
      r_we <= 1'b0;
    end
  end

  // Frames to the host, one at a time, the most urgent first: chosen in one cycle, it begins in the next.
  localparam int FRAME = WORD_BYTES > 2 ? 5 + WORD_BYTES : 7;  // bytes of the longest, S
  localparam int FAULT = 0, BEGIN = 1, READ = 2, WRITTEN = 3, EVENT = 4, ASK = 5, SEND = 6;
  logic [6:0] chosen;             // at most one of them
  logic [8*FRAME-1:0] frame;
  logic [4:0] tx_left;            // bytes left, the CRC among them
  logic [7:0] tx_crc;
  logic tell_error, tell_begin, tell_read, tell_write, tell_irq, irq_seen;
  logic [2:0] tell_reason;
  logic free, starts, sends;      // no frame is chosen or on its way; one was chosen; one is sent
  wire sent = tx_valid && tx_ready;
  assign m_ar_ready = chosen[ASK];
  assign m_aw_ready = chosen[SEND];
  assign r_re = chosen[READ];
  assign tx_valid = sends;
  assign tx_data = tx_left == 5'd1 ? tx_crc : frame[7:0];

  logic [8*FRAME-1:0] contents;   // of the chosen frame
  logic [4:0] length;
  always_comb begin
    contents = '0;
    length = '0;
    (* parallel_case *)
    case (1'b1)
      chosen[FAULT]: begin
        contents[15:0] = {5'b0, tell_reason, "E"};
        length = 5'd3;
      end
      chosen[BEGIN]: begin
        contents[23:0] = {8'(WORD_BYTES), LINE_VERSION, "z"};
        length = 5'd4;
      end
      chosen[READ]: begin
        contents[39:0] = {r_rdata, "r"};
        length = 5'd6;
      end
      chosen[WRITTEN]: begin
        contents[7:0] = "w";
        length = 5'd2;
      end
      chosen[EVENT]: begin
        contents[7:0] = "I";
        length = 5'd2;
      end
      chosen[ASK]: begin
        contents[47:0] = {m_ar_len, 32'(m_ar_addr), "M"};
        length = 5'd7;
      end
      chosen[SEND]: begin
        contents[8*(5 + WORD_BYTES)-1:0] = {m_aw_data, 32'(m_aw_addr), "S"};
        length = 5'(6 + WORD_BYTES);
      end
      default: ;
    endcase
  end

  wire mute = o_rst || dead;      // the overlay has nothing to say
  wire [6:0] choice = tell_error ? 7'd1 << FAULT : tell_begin ? 7'd1 << BEGIN : mute ? '0 : tell_read ? 7'd1 << READ :
                      tell_write ? 7'd1 << WRITTEN : tell_irq ? 7'd1 << EVENT : m_ar_valid && !open ? 7'd1 << ASK :
                      m_aw_valid ? 7'd1 << SEND : '0;
  always_ff @(posedge clk) begin
    chosen <= free ? choice : '0;
    starts <= free && choice != 0;
    if (free) free <= choice == 0;
    if (starts) begin
      frame <= contents;
      tx_left <= length;
      tx_crc <= '0;
      sends <= 1'b1;
    end else if (sent) begin
      frame <= frame >> 8;
      tx_left <= tx_left - 1'b1;
      tx_crc <= crc8(tx_crc, frame[7:0]);
      if (tx_left == 5'd1) {free, sends} <= 2'b10;
    end
    irq_seen <= irq && !o_rst;
    if (chosen[FAULT]) tell_error <= 1'b0;
    if (chosen[BEGIN]) tell_begin <= 1'b0;
    if (chosen[READ]) tell_read <= 1'b0;
    if (chosen[WRITTEN]) tell_write <= 1'b0;
    if (chosen[EVENT]) tell_irq <= 1'b0;
    if (irq && !irq_seen) tell_irq <= 1'b1;
    if (closed && is_r) tell_read <= 1'b1;
    if (r_we) tell_write <= 1'b1;
    if (wake == 4'd1) tell_begin <= 1'b1;
    if (o_rst) {tell_read, tell_write, tell_irq} <= '0;
    if (broken) tell_error <= 1'b1;
    if (break_line) tell_reason <= reason;
    if (rst) begin
      chosen <= '0;
      starts <= 1'b0;
      {free, sends} <= 2'b10;
      {tell_error, tell_begin} <= '0;
    end
  end
endmodule
