//go:build !gpu

package gpu

import (
	"strings"
	"testing"
)

func TestAbsent(t *testing.T) {
	if g, err := Open(0); g != nil || err == nil || !strings.Contains(err.Error(), "make gpu") {
		t.Errorf("Open: %v, %v", g, err)
	}
	if n, err := Count(); n != 0 || err == nil || !strings.Contains(err.Error(), "make gpu") {
		t.Errorf("Count: %v, %v", n, err)
	}
}
