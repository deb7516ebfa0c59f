package shard

// LittleExchanged has the last part of few bytes count apart, until the function that it returns is called.
func LittleExchanged() (restore func()) {
	was := muchExchanged
	muchExchanged = 128
	return func() { muchExchanged = was }
}
