package fuse

// MaxRegion is maxRegion.
const MaxRegion = maxRegion
