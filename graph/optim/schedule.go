package optim

import "math"

// Schedule gives the learning rate of a step; the first step is 0. Skipped steps do not count.
type Schedule func(step int) float64

// Constant is one rate for all steps.
func Constant(rate float64) Schedule { return func(int) float64 { return rate } }

// StepDecay multiplies the rate by factor after every so many steps.
func StepDecay(rate, factor float64, every int) Schedule {
	return func(step int) float64 { return rate * math.Pow(factor, float64(step/max(every, 1))) }
}

// Linear leads from one rate to another within so many steps, and stays there.
func Linear(from, to float64, steps int) Schedule {
	return func(step int) float64 {
		if step >= steps {
			return to
		}
		return from + (to-from)*float64(step)/float64(steps)
	}
}

// Cosine leads from one rate to another within so many steps along half a cosine, and stays there (I. Loshchilov and
// F. Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts", arXiv 1608.03983).
func Cosine(from, to float64, steps int) Schedule {
	return func(step int) float64 {
		if step >= steps {
			return to
		}
		return to + (from-to)*(1+math.Cos(math.Pi*float64(step)/float64(steps)))/2
	}
}

// InverseSqrt falls with the root of the step's number, from the rate at the first step.
func InverseSqrt(rate float64) Schedule {
	return func(step int) float64 { return rate / math.Sqrt(float64(step+1)) }
}

// Warmup raises the rate linearly over so many steps to what then gives at its step 0, and goes on with then: step s of
// the warm-up has the share (s+1) ÷ steps.
func Warmup(steps int, then Schedule) Schedule {
	return func(step int) float64 {
		if step < steps {
			return then(0) * float64(step+1) / float64(steps)
		}
		return then(step - steps)
	}
}

// WarmupCosine is the usual schedule of transformers: a linear warm-up to peak over the first steps, and half a cosine
// down to floor at the last of total steps.
func WarmupCosine(peak, floor float64, warmup, total int) Schedule {
	return Warmup(warmup, Cosine(peak, floor, total-warmup))
}
