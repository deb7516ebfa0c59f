// Package safetensors reads and writes the safetensors format: named tensors in one file, with nothing in it that could
// run. See https://github.com/huggingface/safetensors.
//
// A file is the length N of the header as an unsigned little-endian 64-bit number, the header of N bytes, and the data.
// The header is a JSON object that gives every tensor its dtype, shape and place in the data; the key __metadata__
// holds strings of the user's. The tensors fill the data without gaps or overlaps, row-major and little-endian.
//
// Reading checks all of that before any data is touched, and allocates no more than a small multiple of what the file
// really holds. The data of a tensor is read when it is asked for and not before. Values are taken as they are, NaN and
// infinities included.
package safetensors
