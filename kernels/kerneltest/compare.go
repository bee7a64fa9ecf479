package kerneltest

import (
	"fmt"
	"math"
	"testing"

	"smolgym/kernels"
	"smolgym/model/ir"
)

// Tolerance is how far a device may be from the reference: |got - want| <=
// Rel*|want| + Abs*max(1, largest |want| of the tensor): inputs are standard
// normals, so the terms of a sum that cancels are of order 1. Both zero means
// equal.
type Tolerance struct {
	Rel, Abs float64
	Why      string
}

const (
	whyExact = "one IEEE operation, or none: rounded the same everywhere"
	whySum   = "a float32 sum in another order: error grows with the square root of its length, at most 2^-24 each"
	whyExp   = "exp within 1 ulp, then one or two roundings"
)

var exact = Tolerance{Why: whyExact}

// tolerances for float32 by op.
var tolerances = map[ir.Op]Tolerance{
	ir.OpEmbed: exact, ir.OpGatherRows: exact, ir.OpKVWrite: exact, ir.OpSegmentExpand: exact,
	ir.OpAdd: exact, ir.OpSub: exact, ir.OpMul: exact, ir.OpDiv: exact, ir.OpNeg: exact, ir.OpMin: exact, ir.OpMax: exact, ir.OpClamp: exact,
	ir.OpGreater: exact, ir.OpNonZero: exact, ir.OpWhere: exact, ir.OpDetach: exact, ir.OpFill: exact, ir.OpScale: exact,
	ir.OpScaleAdd: {Rel: 6e-8, Why: "one fma; the reference rounds float64 first, which can only differ in a tie"},
	ir.OpExp:      {Rel: 2.4e-7, Why: "2 ulp of the polynomial; denormals lose relative digits, see Abs"},

	ir.OpLinear:       {Rel: 1e-6, Abs: 1e-6, Why: whySum},
	ir.OpLinearGradX:  {Rel: 1e-6, Abs: 1e-6, Why: whySum},
	ir.OpLinearGradW:  {Rel: 1e-6, Abs: 1e-6, Why: whySum},
	ir.OpBiasGrad:     {Rel: 1e-6, Abs: 1e-6, Why: whySum},
	ir.OpEmbedGrad:    {Rel: 1e-6, Abs: 1e-6, Why: whySum},
	ir.OpSegmentSum:   {Rel: 1e-6, Abs: 1e-6, Why: whySum},
	ir.OpSumSquares:   {Rel: 5e-7, Why: whySum + "; all terms are positive"},
	ir.OpRMSNorm:      {Rel: 1e-6, Why: "a sum of squares and four roundings"},
	ir.OpRMSNormGrad:  {Rel: 1e-6, Abs: 1e-6, Why: whySum},
	ir.OpRMSNormGradW: {Rel: 1e-6, Abs: 1e-6, Why: whySum},
	ir.OpRope:         {Rel: 1e-6, Abs: 1.2e-7, Why: "two roundings; the halves may cancel"},

	ir.OpAttention:      {Rel: 2e-6, Abs: 1e-6, Why: "scores, online softmax and a weighted sum in float32"},
	ir.OpPagedAttention: {Rel: 2e-6, Abs: 1e-6, Why: "the same code as Attention"},
	ir.OpAttentionGrad:  {Rel: 1e-5, Abs: 3e-6, Why: "weights recomputed from lse: its rounding (up to 2^-22 at |lse| 8) is their relative error; dout.v - delta cancels"},
	ir.OpSiLUMul:        {Rel: 5e-7, Why: whyExp},
	ir.OpSiLUMulGrad:    {Rel: 1e-6, Abs: 1.2e-7, Why: whyExp + "; 1 + g*(1-s) cancels for negative g"},
	ir.OpLSE:            {Rel: 3e-7, Abs: 3e-7, Why: "log of a sum: relative errors of the sum become absolute ones"},
	ir.OpLogProb:        {Rel: 3e-7, Abs: 3e-7, Why: "logit - lse, the error of lse"},
	ir.OpLogProbGrad:    {Rel: 5e-6, Abs: 1e-6, Why: "exp(logit - lse): an absolute error of lse, up to 2^-20 at |lse| 16, is a relative one here"},
	ir.OpAdamW:          {Rel: 5e-7, Abs: 1.2e-7, Why: "a rounding for each operation"},
}

// Compare runs every case of every op against the oracle and logs the coverage.
func Compare(t *testing.T, oracle, dev kernels.Device) {
	ran, missing := 0, 0
	for _, op := range ir.Ops() {
		if why, pending := Pending[op]; pending {
			if missing++; dev.Supports(op, ir.F32) {
				t.Errorf("%s has a kernel on %s, yet is listed as pending (%s)", op, dev.Info().Family, why)
			}
			continue
		}
		tol, ok := tolerances[op]
		if !ok || tol.Why == "" {
			t.Errorf("%s: no tolerance with a reason", op)
			continue
		}
		cs, err := Cases(oracle, op)
		if err != nil || len(cs) == 0 {
			t.Errorf("%s: %d cases: %v", op, len(cs), err)
			continue
		}
		for _, c := range cs {
			if !dev.Supports(op, c.Weights()) {
				t.Errorf("%s %s: no kernel on %s", op, c.Weights(), dev.Info().Family)
				missing++
				break
			}
		}
		for _, c := range cs {
			want, err := Exec(oracle, c)
			if err != nil {
				t.Errorf("%s: oracle: %v", c, err)
				continue
			}
			got, err := Exec(dev, c)
			if err != nil {
				t.Errorf("%s: %v", c, err)
				continue
			}
			ran++
			for i := range want {
				check := tol.check
				if c.integer(i) {
					check = sameAll // its values would pass for denormals
				}
				if err := check(got[i], want[i]); err != nil {
					t.Errorf("%s: output %d: %v", c, i, err)
				}
			}
		}
	}
	t.Logf("%s: %d of %d ops, %d cases", dev.Info().Family, len(ir.Ops())-missing, len(ir.Ops()), ran)
}

// Weights is the type of the weights.
func (c Case) Weights() ir.DType {
	for _, o := range c.In {
		if o.Type.DType == ir.BF16 {
			return ir.BF16
		}
	}
	return ir.F32
}

// integer says whether an output holds integers.
func (c Case) integer(output int) bool {
	p, err := c.Program()
	if err != nil {
		return false
	}
	n := &p.Graph.Nodes[0]
	return p.Graph.Value(n.Out[output]).Type.DType == ir.I32
}

// floor is what is lost among the denormals: one of the smallest.
const floor = 1.5e-45

func (tol Tolerance) check(got, want []float32) error {
	if len(got) != len(want) {
		return fmt.Errorf("%d elements, want %d", len(got), len(want))
	}
	largest := 1.0
	for _, w := range want {
		if a := math.Abs(float64(w)); !math.IsInf(a, 0) && a > largest {
			largest = a
		}
	}
	for i, w := range want {
		g := float64(got[i])
		w := float64(w)
		limit := tol.Rel*math.Abs(w) + tol.Abs*largest
		if limit > 0 {
			limit += floor
		}
		if same(got[i], want[i]) || math.Abs(g-w) <= limit && !math.IsInf(w, 0) {
			continue
		}
		return fmt.Errorf("element %d is %.9g, want %.9g (off by %.3g, allowed %.3g)", i, g, w, math.Abs(g-w), limit)
	}
	return nil
}

// same is equality of bits, any NaN being equal to any other.
func same(a, b float32) bool {
	return math.Float32bits(a) == math.Float32bits(b) || a != a && b != b
}

func sameAll(got, want []float32) error {
	if len(got) != len(want) {
		return fmt.Errorf("%d elements, want %d", len(got), len(want))
	}
	for i := range want {
		if !same(got[i], want[i]) {
			return fmt.Errorf("element %d is %.9g (%08x), want the same bits as %.9g (%08x)", i, got[i], math.Float32bits(got[i]), want[i], math.Float32bits(want[i]))
		}
	}
	return nil
}
