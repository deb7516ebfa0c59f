// Package capi is what the C interface, include/fusec.h, does, in Go. Package main of cmd/libfusec gives it to C: it converts
// strings and handles, and nothing else, so that all of this can be tested without C.
//
// A [Program] reads and hands out DLPack tensors in place. Memory that C gives is used as the element slice of a
// [graph.Tensor]. Memory that C gets is pinned until the program is closed.
package capi
