package graph

// FilePart is bytes of a file.
type FilePart struct {
	Path          string
	Offset, Bytes int64
}
