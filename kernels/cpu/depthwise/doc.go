// Package depthwise slides windows over images without mixing channels: convolutions with a filter for each channel,
// the gradients of these, maxima and means of windows, and the gradients of those, in float32 and float64.
//
// Images are in NHWC: the channels of a pixel stand side by side, and a vector register holds a pixel's elements of
// several channels. Rows and pixels may be any distance apart ([Image]).
//
// A plan is made once for a shape and run many times on changing data. Running allocates nothing. Its work is cut into
// items, by shape alone, that several workers may do at the same time; each plan says how many there are and how much
// scratch memory an item needs. Each element of a result is one sum in an order that depends on the shape alone, so that
// results are the same bits for any number of workers.
//
// # Algorithm
//
// Along an axis, a window at an output position has the taps first, first+step, … that lie in the image. Output
// positions with the same taps make a run, along which the input position moves on evenly. A kernel goes over a run: it
// keeps the sums of some pixels and channels in registers while it goes over the taps (J. Zhang, E. Franchetti and
// T. M. Low, "High Performance Zero-Memory Overhead Direct Convolutions", ICML 2018, on channels as vectors). The
// gradient for the image is the same sum over other taps: with stride s, the output positions of each residue of s have
// theirs, and the input position moves against the taps. Thus one kernel does the convolution, its gradient for the
// image, means and their gradient.
package depthwise

//go:generate go run -C ../internal/gen ./vec -family=window -pkg=depthwise -out=../../depthwise/kernels_amd64.s -stubs=../../depthwise/kernels_amd64.go
//go:generate go run -C ../internal/gen ./vec -arch=arm64 -family=window -pkg=depthwise -out=../../depthwise/kernels_arm64.s -stubs=../../depthwise/kernels_arm64.go
