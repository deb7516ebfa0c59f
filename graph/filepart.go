package graph

// FilePart is the part of a file that begins at Offset, in bytes.
type FilePart struct {
	Path          string
	Offset, Bytes int64
}
