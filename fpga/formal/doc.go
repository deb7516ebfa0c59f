// Package formal proves parts of the overlay's hardware by k-induction with yosys, yosys-smtbmc and z3: the queue, the
// arbiter of external memory, the semaphores, and the check of descriptors against a specification of each field
// (check.sv). The properties of a module are in the module, under FORMAL. The proofs are the package's tests.
package formal
