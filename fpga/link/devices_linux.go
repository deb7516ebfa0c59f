package link

func openSerial(path string, speed int, o Options) (Link, error) {
	return opened(OpenSerial(path, speed, o))
}
func openXDMA(path string, o Options) (Link, error) { return opened(OpenXDMA(path, o)) }
