// Package plan predicts what a program for the overlay takes, in cycles, cells and time, without simulating its hardware: for arrays,
// memories and clocks that nobody has built. Predict follows the descriptors of a compiled program through fetch, queues, semaphores
// and the three engines, and their rows and bursts through external memory; Resources counts multipliers and memory bits and
// estimates cells from synthesised configurations. docs/hardware.md says what follows from it for the design of hardware.
package plan
