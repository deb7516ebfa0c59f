// Command cover runs the tests of folders of packages with coverage, every package counted for all tests of its
// folder's tree, and fails if a folder's statements are covered less than asked for.
//
//	go run ./cmd/internal/cover -min 90 graph passes
package main

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

func main() {
	least := flag.Float64("min", 90, "the least share of covered statements, in percent")
	flag.Parse()
	if err := run(*least, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "cover:", err)
		os.Exit(1)
	}
}

func run(least float64, folders []string) error {
	dir, err := os.MkdirTemp("", "cover")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	profile := filepath.Join(dir, "profile")
	packages := make([]string, len(folders))
	for i, f := range folders {
		packages[i] = "./" + f + "/..."
	}
	args := append([]string{"test", "-short", "-coverprofile", profile, "-coverpkg", strings.Join(packages, ",")}, packages...)
	cmd := exec.Command("go", args...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	f, err := os.Open(profile)
	if err != nil {
		return err
	}
	defer f.Close()
	// A block is listed once per test binary: it is covered if any of them ran it.
	covered, size := map[string]bool{}, map[string]int{}
	for s := bufio.NewScanner(f); s.Scan(); {
		fields := strings.Fields(s.Text())
		if len(fields) != 3 || strings.HasPrefix(s.Text(), "mode:") {
			continue
		}
		n, err := strconv.Atoi(fields[1])
		if err != nil {
			return fmt.Errorf("%s: %w", profile, err)
		}
		size[fields[0]] = n
		covered[fields[0]] = covered[fields[0]] || fields[2] != "0"
	}
	low := false
	for _, folder := range slices.Sorted(slices.Values(folders)) {
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
