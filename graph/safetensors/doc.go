// Package safetensors reads and writes the safetensors format: named tensors in one file, without executable content.
// See https://github.com/huggingface/safetensors.
//
// A file is the length N of the header as an unsigned little-endian 64-bit number, the header of N bytes, and the data.
// The header is a JSON object that gives every tensor its dtype, shape and position in the data; the key __metadata__
// has the user's strings. The tensors fill the data without gaps or overlaps, row-major and little-endian.
//
// Reading checks all of that before it reads data, and allocates at most a small multiple of the file's actual size.
// The data of a tensor is read only on request. Values are not checked and may be NaN or infinite.
package safetensors
