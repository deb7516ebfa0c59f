package cuda

import "fmt"

// Err says what went wrong in an operation of the given name; nil if nothing did.
func (s *Status) Err(op string) error {
	switch s.Code {
	case StatusOK:
		return nil
	case StatusIndex:
		if s.Limit == 0 {
			return fmt.Errorf("%s: index %d, element %d of the indices, into an axis of no elements", op, s.Value, s.Where)
		}
		return fmt.Errorf("%s: index %d, element %d of the indices, is outside 0..%d", op, s.Value, s.Where, s.Limit-1)
	case StatusStart:
		return fmt.Errorf("%s: start %d: the slice does not fit; the greatest start is %d", op, s.Value, s.Limit)
	case StatusLength:
		return fmt.Errorf("%s: length %d, element %d of the lengths, is outside 0..%d", op, s.Value, s.Where, s.Limit)
	case StatusDivision:
		return fmt.Errorf("%s: division of an integer by zero", op)
	}
	return fmt.Errorf("%s: the kernel reported code %d", op, s.Code)
}
