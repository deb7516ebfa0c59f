// Package board turns an overlay's configuration into a bitstream by open tools, and says what it takes: yosys synthesises,
// nextpnr places and routes, icepack or ecppack writes the bits. Each build leaves its logs, the netlist, the bitstream
// and a report in a folder of its own.
package board
