package vec

import "golang.org/x/sys/cpu"

func init() {
	if cpu.X86.HasAVX2 && cpu.X86.HasFMA {
		maxStrip, expStrip, scaleStrip = maxColumnsF32, expColumnsF32, scaleColumnsF32
	}
}
