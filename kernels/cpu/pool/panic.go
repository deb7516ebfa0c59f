package pool

import (
	"errors"
	"fmt"
	"runtime/debug"
)

// ErrGoexit is the value of a Panic whose item called runtime.Goexit instead
// of returning.
var ErrGoexit = errors.New("runtime.Goexit called by a work item")

// A Panic reports a work item that did not return. Run panics with it.
type Panic struct {
	Item  int    // the item's number
	Value any    // what it panicked with, or ErrGoexit
	Stack []byte // the stack of the goroutine that executed it
}

// newPanic must be called by the deferred function that recovered value, while
// the stack still holds the item's frames.
func newPanic(item int, value any) *Panic {
	if value == nil {
		value = ErrGoexit
	}
	return &Panic{Item: item, Value: value, Stack: debug.Stack()}
}

// Error names the item and the value, without the stack.
func (p *Panic) Error() string {
	return fmt.Sprintf("pool: item %d panicked: %v", p.Item, p.Value)
}

// Unwrap returns the value if it is an error.
func (p *Panic) Unwrap() error {
	err, _ := p.Value.(error)
	return err
}
