package memlimit

import (
	"errors"
	"math"
	"runtime"
	"testing"
	"testing/fstest"
)

func TestAvailable(t *testing.T) {
	const meminfo = "MemTotal: 9000 kB\nMemFree: 1 kB\nMemAvailable:    4000 kB\n"
	for name, c := range map[string]struct {
		files map[string]string
		want  int64 // −1: not known
	}{
		"nothing":      {nil, -1},
		"machine":      {map[string]string{"proc/meminfo": meminfo}, 4000 << 10},
		"not a number": {map[string]string{"proc/meminfo": "MemAvailable: many kB\n"}, -1},
		"version 2": {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a/b\n",
			"sys/fs/cgroup/a/memory.max": "1000000\n", "sys/fs/cgroup/a/memory.current": "900000\n",
			"sys/fs/cgroup/a/memory.stat":  "anon 5\ninactive_file 30000\nactive_file 20000\n",
			"sys/fs/cgroup/a/b/memory.max": "max\n", "sys/fs/cgroup/a/b/memory.current": "900000\n"}, 150000},
		"version 1": {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "5:cpu:/x\n4:memory:/gone\n0::/\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "2000000", "sys/fs/cgroup/memory/memory.usage_in_bytes": "2500000",
			"sys/fs/cgroup/memory/memory.stat": "total_inactive_file 1000000\ninactive_file 7\n"}, 500000},
		"over its limit": {map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "5",
			"sys/fs/cgroup/memory.current": "6"}, 0},
		"no limit": {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "4:memory:/\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
			"sys/fs/cgroup/memory/memory.usage_in_bytes": "7"}, 4000 << 10},
	} {
		root := fstest.MapFS{}
		for file, text := range c.files {
			root[file] = &fstest.MapFile{Data: []byte(text)}
		}
		got, known := available(root)
		if known != (c.want >= 0) || known && got != c.want {
			t.Errorf("%s: %d, known %v, want %d", name, got, known, c.want)
		}
	}
}

func TestCheck(t *testing.T) {
	if err := Check(Large - 1); err != nil {
		t.Errorf("a small size: %v", err)
	}
	err := Check(math.MaxInt64)
	if e := (*Error)(nil); errors.As(err, &e) != (runtime.GOOS == "linux") {
		t.Errorf("all memory there can be: error %v", err)
	}
}
