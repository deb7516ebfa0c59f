// Package model is the overlay in Go, bit for bit: after a program, a Machine has the same memory as the hardware of
// fpga/rtl. It complements the specification in package isa, and the hardware is tested against it. As a link.Link it
// also runs programs without a simulator.
//
// Time is abstract: an engine executes a descriptor immediately and is then busy for about as many cycles as the
// hardware, so that queues, semaphores and barriers order the engines in the same way. Options.Races finds descriptors
// that depend on an order that nothing guarantees.
package model
