// Package rtl has the overlay's hardware: SystemVerilog that a configuration's header (isa.Config.Header, as
// fx_config.svh in the same folder) turns into one machine. The top is fx_overlay, on a board with a serial line
// fx_board_uart.
package rtl

import "embed"

// Files are the sources, in one folder.
//
//go:embed *.sv*
var Files embed.FS
