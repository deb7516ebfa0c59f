package optim

import "math"

// Schedule gives the learning rate of a step; the first step is 0. Skipped steps do not count.
type Schedule func(step int) float64

// Constant is one rate for all steps.
func Constant(rate float64) Schedule { return func(int) float64 { return rate } }

// StepDecay multiplies the rate by factor after every given number of steps.
func StepDecay(rate, factor float64, every int) Schedule {
	return func(step int) float64 { return rate * math.Pow(factor, float64(step/max(every, 1))) }
}

// Linear changes the rate linearly within the given number of steps, and then keeps it constant.
func Linear(from, to float64, steps int) Schedule {
	return func(step int) float64 {
		if step >= steps {
			return to
		}
		return from + (to-from)*float64(step)/float64(steps)
	}
}

// Cosine changes the rate along half a cosine within the given number of steps, and then keeps it constant (I.
// Loshchilov and F. Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts", arXiv 1608.03983).
func Cosine(from, to float64, steps int) Schedule {
	return func(step int) float64 {
		if step >= steps {
			return to
		}
		return to + (from-to)*(1+math.Cos(math.Pi*float64(step)/float64(steps)))/2
	}
}

// InverseSqrt divides the rate by the square root of the step's number, counted from 1.
func InverseSqrt(rate float64) Schedule {
	return func(step int) float64 { return rate / math.Sqrt(float64(step+1)) }
}

// Warmup raises the rate linearly over the given number of steps to the rate of then at its step 0, and continues with
// then: step s of the warm-up has the fraction (s+1) ÷ steps.
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
