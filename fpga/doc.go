// Package fpga runs programs on fusec's overlay, a machine for matrix products, attention, norms and routing that is
// generated from SystemVerilog for a board or a simulator.
//
// Package isa is its contract, package link the ways to it, package model the same machine in Go. A Machine is an
// overlay behind a link:
//
//	l, err := link.Open("sim")
//	m, err := fpga.Open(l)
//	p, err := m.Load(at, commands) // the descriptors go to memory
//	err = m.Write(address, data)
//	err = m.Run(ctx, p)
//	err = m.Read(address, results)
package fpga
