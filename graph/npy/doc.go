// Package npy reads and writes NumPy's .npy format: one array in one file.
// See https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html.
//
// Arrays are written as version 1.0, in C order and little-endian, as numpy.save does. Versions 1, 2 and 3 are read,
// in both byte orders and in C and Fortran order. Structured, complex, string and object arrays are refused.
package npy
