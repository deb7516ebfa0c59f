package raise

import "fusec/passes/pattern"

// Patterns lists the patterns in order.
func Patterns() (list []*pattern.Pattern) {
	for i := range raisings {
		for p, r := range raisingOf {
			if r == &raisings[i] {
				list = append(list, p)
			}
		}
	}
	return list
}
