// Package fpgatest tests overlays: it makes random programs that are valid for a configuration, runs them on the model
// in Go and on any link, and compares all memory byte for byte. Its conformance suite (see [Suite]) is the same for
// every link.
package fpgatest
