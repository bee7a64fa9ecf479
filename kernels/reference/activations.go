package reference

import "math"

func sigmoid(a float64) float64 { return 1 / (1 + math.Exp(-a)) }

// softplus is log(1+exp(a)), written so that neither end loses anything.
func softplus(a float64) float64 { return math.Max(a, 0) + math.Log1p(math.Exp(-math.Abs(a))) }

func gelu(a float64) float64 { return 0.5 * a * math.Erfc(-a/math.Sqrt2) }

// geluTanh's inner argument and its slope.
func geluInner(a float64) (u, slope float64) {
	c := math.Sqrt(2 / math.Pi)
	return c * (a + 0.044715*a*a*a), c * (1 + 3*0.044715*a*a)
}

func geluTanh(a float64) float64 {
	u, _ := geluInner(a)
	return a * sigmoid(2*u) // (1+tanh(u))/2
}

func geluGrad(a, dy float64) float64 {
	return dy * (0.5*math.Erfc(-a/math.Sqrt2) + a*math.Exp(-a*a/2)/math.Sqrt(2*math.Pi))
}

func geluTanhGrad(a, dy float64) float64 {
	u, slope := geluInner(a)
	s := sigmoid(2 * u)
	return dy * (s + 2*a*s*(1-s)*slope)
}
