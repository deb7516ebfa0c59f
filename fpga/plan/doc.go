// Package plan predicts the cycles, cells and time of a program for the overlay without simulating its hardware, for
// any array, memory and clock. Predict follows the descriptors of a compiled program through fetch, queues, semaphores
// and the three engines, and their rows and bursts through external memory; Resources counts multipliers and memory
// bits and estimates cells from synthesised configurations. docs/hardware.md has the conclusions for the design of
// hardware.
package plan
