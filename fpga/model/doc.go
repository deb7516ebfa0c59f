// Package model is the overlay in Go, bit for bit: what the hardware of fpga/rtl leaves in memory after a program, a
// Machine leaves there, too. It is written to be read beside package isa, and is what the hardware is tested against;
// as a link.Link it also runs programs where there is no simulator.
//
// Time is abstract: an engine does a descriptor at once and is then busy for about as many cycles as the hardware, so
// that queues, semaphores and barriers order the engines as they do there. Descriptors that depend on an order that
// nothing guarantees are found by Options.Races.
package model
