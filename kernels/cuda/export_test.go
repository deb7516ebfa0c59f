package cuda

// SetFreeSlots changes from how many bytes on mixtures of experts run in waves, and returns what it was.
func SetFreeSlots(bytes int) (was int) {
	was, freeSlots = freeSlots, bytes
	return was
}
