// Package tiling has the arithmetic of cutting work into blocks.
package tiling

// CeilDiv returns n/d, rounded up, for n ≥ 0 and d > 0.
func CeilDiv(n, d int) int { return (n + d - 1) / d }

// RoundUp returns the least multiple of step that is not below n.
func RoundUp(n, step int) int { return CeilDiv(n, step) * step }
