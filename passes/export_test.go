package passes

// What the tests of this package look at.
var (
	IsRequest = isRequest
	Request   = request
)

// RoundingFrom is cfg with values of at least n elements worth a conversion to 16 bits.
func (cfg Config) RoundingFrom(n int) Config {
	cfg.leastHalf = n
	return cfg
}
