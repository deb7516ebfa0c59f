package link

import (
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// speeds are the rates that a line can have.
var speeds = map[int]uint32{9600: unix.B9600, 19200: unix.B19200, 38400: unix.B38400, 57600: unix.B57600,
	115200: unix.B115200,
	230400: unix.B230400, 460800: unix.B460800, 500000: unix.B500000, 921600: unix.B921600, 1000000: unix.B1000000,
	1500000: unix.B1500000, 2000000: unix.B2000000, 3000000: unix.B3000000, 4000000: unix.B4000000}

// openTTY opens a terminal device for bytes as they are, 8 data bits, no parity, one stop bit.
func openTTY(path string, speed int) (*os.File, error) {
	code, ok := speeds[speed]
	if !ok {
		var all []int
		for s := range speeds {
			all = append(all, s)
		}
		slices.Sort(all)
		return nil, fmt.Errorf("a line of %d bit/s: want one of %v", speed, all)
	}
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	raw, err := f.SyscallConn()
	if err == nil {
		set := func(fd uintptr) {
			t := unix.Termios{Cflag: unix.CS8 | unix.CREAD | unix.CLOCAL | code, Ispeed: code, Ospeed: code}
			t.Cc[unix.VMIN] = 1
			if err = unix.IoctlSetTermios(int(fd), unix.TCSETS, &t); err == nil {
				err = unix.IoctlSetInt(int(fd), unix.TCFLSH, unix.TCIOFLUSH)
			}
		}
		if e := raw.Control(set); e != nil {
			err = e
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: no serial line: %w", path, err)
	}
	return f, nil
}
