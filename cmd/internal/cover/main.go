// Command cover reads what `go test -coverprofile` has counted, and fails if the statements of a folder of packages are
// covered less than asked for. Files of protocol buffers, which are generated, do not count, nor do packages that help tests
// of other packages, whose names end in test.
//
//	go run ./cmd/internal/cover -min 90 out/coverage graph passes
package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
)

func main() {
	least := flag.Float64("min", 90, "the least share of covered statements, in percent")
	flag.Parse()
	if err := run(*least, flag.Arg(0), flag.Args()[min(1, flag.NArg()):]); err != nil {
		fmt.Fprintln(os.Stderr, "cover:", err)
		os.Exit(1)
	}
}

func run(least float64, profile string, folders []string) error {
	f, err := os.Open(profile)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: `make test COVER=1` writes it", err)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	// A block is listed once per test binary: it is covered if any of them ran it.
	covered, size := map[string]bool{}, map[string]int{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) != 3 || fields[0] == "mode:" || strings.Contains(fields[0], ".pb.go:") ||
			strings.HasSuffix(path.Dir(fields[0]), "test") {
			continue
		}
		n, err := strconv.Atoi(fields[1])
		if err != nil {
			return fmt.Errorf("%s: %w", profile, err)
		}
		size[fields[0]] = n
		covered[fields[0]] = covered[fields[0]] || fields[2] != "0"
	}
	if err := lines.Err(); err != nil {
		return err
	}
	low := false
	for _, folder := range folders {
		all, hit := 0, 0
		for block, n := range size {
			if strings.HasPrefix(block, "fusec/"+folder+"/") {
				all += n
				if covered[block] {
					hit += n
				}
			}
		}
		share := 100 * float64(hit) / float64(max(all, 1))
		fmt.Printf("%-10s %5.1f %% of %d statements\n", folder, share, all)
		low = low || share < least
	}
	if low {
		return fmt.Errorf("less than %g %% is covered", least)
	}
	return nil
}
