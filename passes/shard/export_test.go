package shard

// LittleExchanged has 128 exchanged bytes count as much, so that the squares of the last ones are summed apart, until the function
// that it returns is called.
func LittleExchanged() (restore func()) {
	was := muchExchanged
	muchExchanged = 128
	return func() { muchExchanged = was }
}
