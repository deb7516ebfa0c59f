// Package board turns an overlay's configuration into a bitstream with open tools, and reports its size and clock:
// yosys synthesises, nextpnr places and routes, icepack or ecppack writes the bits. Each build writes its logs, the
// netlist, the bitstream and a report to a separate folder.
package board
