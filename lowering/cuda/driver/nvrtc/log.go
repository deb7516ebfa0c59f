package nvrtc

// Parsing of the compiler's messages.

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Usage is the resources of an entry: registers per thread, and bytes. Spills counts the stores and the loads of
// spilled registers. A stack without spills holds arrays that are indexed by values that are not constant.
type Usage struct{ Registers, Spills, Stack, Shared int }

var (
	entryLine  = regexp.MustCompile(`Compiling entry function '([^']+)'`)
	stackLine  = regexp.MustCompile(`(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads`)
	usedLine   = regexp.MustCompile(`Used (\d+) registers`)
	sharedPart = regexp.MustCompile(`(\d+) bytes smem`)
	lossLine   = regexp.MustCompile(`.*Potential Performance Loss: .*`)
	ptxLine    = regexp.MustCompile(`ptx input, line (\d+); error.*`)
)

// Usages reads the resources of each entry from the log of [Compiler.Compile]. Shared is the shared memory that is
// declared with a size.
func Usages(log string) map[string]Usage {
	usages := map[string]Usage{}
	entry := ""
	var u Usage
	for _, line := range strings.Split(log, "\n") {
		if m := entryLine.FindStringSubmatch(line); m != nil {
			entry, u = m[1], Usage{}
		}
		if m := stackLine.FindStringSubmatch(line); m != nil {
			u.Stack, u.Spills = number(m[1]), number(m[2])+number(m[3])
		}
		if m := usedLine.FindStringSubmatch(line); m != nil && entry != "" {
			u.Registers = number(m[1])
			if m := sharedPart.FindStringSubmatch(line); m != nil {
				u.Shared = number(m[1])
			}
			usages[entry] = u
			entry = ""
		}
	}
	return usages
}

// Losses are the assembler's remarks on lost performance, for example on wgmma instructions that it serialises.
func Losses(log string) []string { return lossLine.FindAllString(log, -1) }

func number(s string) int {
	n, _ := strconv.Atoi(s) // the pattern matches only digits
	return n
}

// quotePTX adds to each message of the assembler the line of PTX to which it refers. The compiler itself quotes the
// source.
func quotePTX(log, ptx string) string {
	lines := strings.Split(ptx, "\n")
	return ptxLine.ReplaceAllStringFunc(log, func(message string) string {
		n := number(ptxLine.FindStringSubmatch(message)[1])
		if n < 1 || n > len(lines) {
			return message
		}
		return fmt.Sprintf("%s\n  %s", message, strings.TrimSpace(lines[n-1]))
	})
}
