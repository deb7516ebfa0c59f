// The registers: control, status, the program's place, the watchdog, the shape of the configuration and the counters. A
// register's value is there a cycle after its address, with COUNT_IN_RAM that of a counter two; `r_re` says that it was
// taken. With COUNT_IN_RAM the counters stand in a memory (fx_counters), and are right a few cycles after the program's
// end.
`include "fx_config.svh"
`default_nettype none
module fx_regs #(
  parameter int ADDR_BITS = `FX_ADDR_BITS,
  parameter int COUNTER_BITS = 64,  // counters read as 64 bits whatever they hold
  parameter int NUMBER_BITS = 32,
  parameter int COUNT_IN_RAM = 0,
  localparam int COUNTERS = `FX_COUNTERS
) (
  input  wire                     clk,
  input  wire                     rst,
  input  wire                     r_we,
  input  wire                     r_re,
  input  wire  [7:0]              r_addr,
  input  wire  [31:0]             r_wdata,
  output logic [31:0]             r_rdata,
  output logic                    irq,
  // The machine.
  output logic                    reset,       // one cycle, a cycle after RegControl was written
  output logic                    start,       // the same
  output logic                    stopped,     // by an error
  output logic [31:0]             program_at,
  output logic [ADDR_BITS:0]      limit,
  input  wire                     finished,
  input  wire                     error_valid,
  input  wire  [3:0]              error_code,
  input  wire                     error_counts,  // error_number, else the answer of the queues a cycle later
  input  wire  [NUMBER_BITS-1:0]  error_number,
  input  wire  [NUMBER_BITS-1:0]  blamed,
  input  wire                     progress,
  output logic                    expired,
  output logic [7:0]              ct_list,
  input  wire  [15:0]             ct_count,
  input  wire  [31:0]             dropped,
  input  wire  [COUNTERS-1:0]     count,
  output logic [COUNTER_BITS-1:0] cycles,
  output logic [COUNTER_BITS-1:0] multiplies
);
  localparam logic [31:0] WATCHDOG = 32'h100000;
  localparam logic [ADDR_BITS:0] TOP = {1'b1, {ADDR_BITS{1'b0}}};

  logic busy, done, asking;
  logic [3:0] code;
  logic [NUMBER_BITS-1:0] number;
  logic [31:0] watchdog, patience;  // patience: cycles without progress that are left
  logic watched, impatient;  // watchdog is not zero; patience was a cycle ago
  logic [ADDR_BITS:0] program_reg, limit_reg;  // the highest bit: the address has higher ones
  logic rewound;  // the watchdog was written
  logic [31:0] high, high_too;  // of the counter whose low half was read; of the one that stands in r_rdata

  wire control = r_we && r_addr == `FX_REG_CONTROL;
  // What control says is true in the next cycle; the status and irq say so already then.
  assign irq = (done && !start) || (stopped && !reset);
  wire [2:0] status = reset ? '0 : {stopped, done && !start, busy || start};
  assign program_at = wide(program_reg);

  wire [4:0] counter_at = r_addr[7:3] - 5'(`FX_REG_COUNTERS >> 3);
  wire counters_read = r_addr >= `FX_REG_COUNTERS && 32'(counter_at) < COUNTERS;
  logic [63:0] chosen;
  logic [31:0] value;
  wire counts = busy && !stopped;

  // An address of 32 bits as one of ADDR_BITS and whether it has higher bits, and back.
  function automatic logic [ADDR_BITS:0] narrow(input logic [31:0] at);
    narrow = {(at >> 1 >> (ADDR_BITS - 1)) != 0, at[ADDR_BITS-1:0]};
  endfunction
  function automatic logic [31:0] wide(input logic [ADDR_BITS:0] at);
    wide = 32'($signed({at[ADDR_BITS], at[ADDR_BITS-1:0]}));
  endfunction

  generate
    if (COUNT_IN_RAM != 0) begin : in_ram
      logic [COUNTER_BITS-1:0] counter;
      fx_counters #(.COUNTERS(COUNTERS), .WIDTH(COUNTER_BITS)) counters (
        .clk, .clear(rst || reset || start), .count(counts ? count : '0), .at(counter_at[3:0]), .value(counter));
      assign chosen = 64'(counter);
      always_ff @(posedge clk) begin
        if (start || rst || reset) {cycles, multiplies} <= '0;
        else if (counts) begin
          cycles <= cycles + 1'b1;
          multiplies <= multiplies + COUNTER_BITS'(count[`FX_COUNT_MULTIPLY]);
        end
      end
    end else begin : in_registers
      logic [COUNTER_BITS-1:0] counter [0:COUNTERS-1];
      assign cycles = counter[`FX_COUNT_CYCLES];
      assign multiplies = counter[`FX_COUNT_MULTIPLY];
      always_comb begin
        chosen = '0;
        for (int i = 0; i < COUNTERS; i++) if (counter_at == 5'(i)) chosen = 64'(counter[i]);
      end
      always_ff @(posedge clk)
        for (int i = 0; i < COUNTERS; i++)
          if (start || rst || reset) counter[i] <= '0;
          else if (counts) counter[i] <= counter[i] + COUNTER_BITS'(count[i]);
    end
  endgenerate

  always_comb begin
    case (r_addr)
      `FX_REG_ID:       value = `FX_ID;
      `FX_REG_VERSION:  value = `FX_VERSION;
      `FX_REG_STATUS:   value = {29'b0, status};
      `FX_REG_ERROR:    value = {28'b0, code};
      `FX_REG_ERROR_AT: value = 32'(number);
      `FX_REG_PROGRAM:  value = program_at;
      `FX_REG_LIMIT:    value = wide(limit_reg);
      `FX_REG_WATCHDOG: value = watchdog;
      `FX_REG_EXPERT:   value = {24'b0, ct_list};
      `FX_REG_COUNT:    value = {16'b0, ct_count};
      `FX_REG_DROPPED:  value = dropped;
      `FX_REG_SHAPE0:   value = `FX_SHAPE0;
      `FX_REG_SHAPE1:   value = `FX_SHAPE1;
      `FX_REG_SHAPE2:   value = `FX_SHAPE2;
      `FX_REG_SHAPE3:   value = `FX_SHAPE3;
      default:          value = !counters_read ? '0 : r_addr[2] ? high : chosen[31:0];
    endcase
  end

  always_ff @(posedge clk) begin
    r_rdata <= value;
    high_too <= chosen[63:32];
    if (r_re && counters_read && !r_addr[2]) high <= high_too;
    reset <= control && r_wdata[1];
    start <= control && r_wdata[0] && !r_wdata[1] && !busy && !stopped;
    limit <= limit_reg == 0 || limit_reg[ADDR_BITS] ? TOP : limit_reg;
    if (r_we) case (r_addr)
      `FX_REG_PROGRAM:  program_reg <= narrow(r_wdata);
      `FX_REG_LIMIT:    limit_reg <= narrow(r_wdata);
      `FX_REG_WATCHDOG: watchdog <= r_wdata;
      `FX_REG_EXPERT:   ct_list <= r_wdata[7:0];
      `FX_REG_STATUS:   if (r_wdata[1]) done <= 1'b0;
      default: ;
    endcase
    rewound <= r_we && r_addr == `FX_REG_WATCHDOG;
    patience <= progress || rewound || !busy ? watchdog : patience - 1'b1;
    watched <= watchdog != 0;
    impatient <= patience == 0 && !rewound;
    expired <= busy && !stopped && watched && impatient && !progress && !rewound;
    if (start) begin
      busy <= 1'b1;
      done <= 1'b0;
    end
    if (finished && !stopped) begin
      busy <= 1'b0;
      done <= 1'b1;
    end
    asking <= 1'b0;
    if (error_valid && busy && !stopped && !finished) begin
      busy <= 1'b0;
      stopped <= 1'b1;
      code <= error_code;
      number <= error_number;
      asking <= !error_counts;
    end
    if (asking) number <= blamed;
    if (rst || reset) begin
      busy <= 1'b0;
      done <= 1'b0;
      stopped <= 1'b0;
      asking <= 1'b0;
      code <= '0;
      number <= '0;
      program_reg <= '0;
      limit_reg <= '0;
      watchdog <= WATCHDOG;
      ct_list <= '0;
      high <= '0;
      reset <= 1'b0;
      start <= 1'b0;
      expired <= 1'b0;
    end
  end
endmodule
