package simplify

// Rules lists the rules in order.
func Rules() []Rule { return rules }
