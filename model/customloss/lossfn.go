package customloss

import (
	"math"
	"slices"
)

// legacy are the arguments torch.nn.functional losses end with.
const legacy = " size_average:N=None reduce:N=None reduction:s=mean"

func (m *machine) reduce(t *tensor, how any) any {
	switch how {
	case "none":
		return t
	case "sum":
		return m.sum(t, nil, false)
	case "mean":
		return m.mean(t, nil, false)
	}
	return m.fail("reduction %.20v, it is none, sum or mean", how)
}

// pairwise reduces an elementwise rule of input and target.
func (m *machine) pairwise(a, b *tensor, rule binaryRule, weight any, how any) any {
	rule.toFloat = true
	t := m.binary(a, b, rule)
	if w, ok := weight.(*tensor); ok {
		t = m.mul(t, w)
		if how == "mean" && m.err == nil {
			return m.fail("a weighted mean is not supported; use reduction=\"none\" and divide")
		}
	}
	return m.reduce(t, how)
}

func squareRule() binaryRule {
	return binaryRule{f: func(x, y float64) float64 { return (x - y) * (x - y) },
		dx: func(x, y, _ float64) float64 { return 2 * (x - y) }, dy: func(x, y, _ float64) float64 { return 2 * (y - x) }}
}

func absRule() binaryRule {
	return binaryRule{f: func(x, y float64) float64 { return math.Abs(x - y) },
		dx: func(x, y, _ float64) float64 { return sign(x - y) }, dy: func(x, y, _ float64) float64 { return sign(y - x) }}
}

// bendRule is quadratic within width and linear outside: Huber, or over width for smooth L1.
func bendRule(width, scale float64) binaryRule {
	slope := func(z float64) float64 {
		if math.Abs(z) >= width {
			return width * sign(z) * scale
		}
		return z * scale // NaN included
	}
	return binaryRule{f: func(x, y float64) float64 {
		z := math.Abs(x - y)
		if z < width {
			return 0.5 * z * z * scale
		}
		return width * (z - 0.5*width) * scale
	}, dx: func(x, y, _ float64) float64 { return slope(x - y) }, dy: func(x, y, _ float64) float64 { return -slope(x - y) }}
}

func inputTarget(a []any) (*tensor, *tensor) { return a[0].(*tensor), a[1].(*tensor) }

func initLosses() {
	reg("f", "mse_loss", "input:T target:T"+legacy+" weight:T?=None", func(m *machine, a []any) any {
		x, y := inputTarget(a)
		return m.pairwise(x, y, squareRule(), a[5], a[4])
	})
	reg("f", "l1_loss", "input:T target:T"+legacy+" weight:T?=None", func(m *machine, a []any) any {
		x, y := inputTarget(a)
		return m.pairwise(x, y, absRule(), a[5], a[4])
	})
	reg("f", "huber_loss", "input:T target:T reduction:s=mean delta:n=1 weight:T?=None", func(m *machine, a []any) any {
		x, y := inputTarget(a)
		return m.pairwise(x, y, bendRule(a[3].(float64), 1), a[4], a[2])
	})
	reg("f", "smooth_l1_loss", "input:T target:T"+legacy+" beta:n=1", func(m *machine, a []any) any {
		x, y := inputTarget(a)
		if beta := a[5].(float64); beta != 0 {
			return m.pairwise(x, y, bendRule(beta, 1/beta), nil, a[4])
		}
		return m.pairwise(x, y, absRule(), nil, a[4])
	})
	reg("f", "soft_margin_loss", "input:T target:T"+legacy, func(m *machine, a []any) any {
		x, y := inputTarget(a)
		return m.pairwise(x, y, binaryRule{f: func(x, y float64) float64 { return softplus(-x * y) },
			dx: func(x, y, _ float64) float64 { return -y * sigmoid(-x*y) }}, nil, a[4])
	})
	reg("f", "kl_div", "input:T target:T"+legacy+" log_target:b=False", func(m *machine, a []any) any {
		x, y := inputTarget(a)
		out := m.sub(m.binary(y, y, binaries["xlogy"]), m.mul(y, x))
		if a[5].(bool) {
			out = m.mul(m.unary(y, unaries["exp"]), m.sub(y, x))
		}
		if a[4] == "batchmean" && m.err == nil {
			if len(x.shape) == 0 {
				return m.fail("batchmean takes at least one dimension")
			}
			return m.div(m.sum(out, nil, false), scalar(int64(x.shape[0])))
		}
		return m.reduce(out, a[4])
	})
	reg("f", "binary_cross_entropy", "input:T target:T weight:T?=None"+legacy, func(m *machine, a []any) any {
		x, y := inputTarget(a)
		return m.weighted(m.binary(x, y, crossRule), a[2], a[5])
	})
	reg("f", "binary_cross_entropy_with_logits", "input:T target:T weight:T?=None"+legacy+" pos_weight:T?=None", func(m *machine, a []any) any {
		x, y := inputTarget(a)
		if w, ok := a[6].(*tensor); ok {
			positive := m.mul(m.mul(w, y), m.unary(x, unaries["logsigmoid"]))
			negative := m.mul(m.sub(scalar(int64(1)), y), m.unary(m.exact(x, exacts["neg negative"]), unaries["logsigmoid"]))
			return m.weighted(m.exact(m.add(positive, negative), exacts["neg negative"]), a[2], a[5])
		}
		return m.weighted(m.binary(x, y, logitRule), a[2], a[5])
	})
	initClassLosses()
}

func initClassLosses() {
	reg("f", "hinge_embedding_loss", "input:T target:T margin:n=1"+legacy, func(m *machine, a []any) any {
		x, y := inputTarget(a)
		margin := a[2].(float64)
		return m.pairwise(x, y, binaryRule{masked: true, f: func(x, y float64) float64 {
			return step01(y != 1)*math.Max(0, margin-x) + step01(y != -1)*x
		}, dx: func(x, y, _ float64) float64 {
			return step01(y != -1) - step01(y != 1 && margin-x > 0)
		}}, nil, a[5])
	})
	reg("f", "margin_ranking_loss", "input1:T input2:T target:T margin:n=0"+legacy, func(m *machine, a []any) any {
		x, y := inputTarget(a)
		gap := m.mul(m.exact(a[2].(*tensor), exacts["neg negative"]), m.sub(x, y))
		return m.reduce(m.clamp(m.add(gap, scalar(a[3])), scalar(int64(0)), nil), a[6])
	})
	reg("f", "cross_entropy", "input:T target:T weight:N=None size_average:N=None ignore_index:i=-100 reduce:N=None reduction:s=mean label_smoothing:n=0",
		func(m *machine, a []any) any {
			return m.crossEntropy(a[0].(*tensor), a[1].(*tensor), a[4].(int64), a[6], a[7].(float64))
		})
	reg("f", "nll_loss", "input:T target:T weight:N=None size_average:N=None ignore_index:i=-100 reduce:N=None reduction:s=mean",
		func(m *machine, a []any) any {
			return m.classLoss(a[0].(*tensor), a[1].(*tensor), a[4].(int64), a[6], 0)
		})
	reg("f", "dropout", "input:T p:n=0.5 training:b=True inplace:Z=False", func(m *machine, a []any) any {
		if a[1].(float64) != 0 && a[2].(bool) {
			return m.fail("dropout draws random numbers; use p=0 or training=False")
		}
		return a[0]
	})
	reg("f", "normalize", "input:T p:n=2 dim:i=1 eps:n=1e-12 out:N=None", func(m *machine, a []any) any {
		t := a[0].(*tensor)
		n := m.norm(t, a[1].(float64), []int64{a[2].(int64)}, true)
		return m.div(t, m.clamp(n, scalar(a[3].(float64)), nil))
	})
	reg("f", "layer_norm", "input:T normalized_shape:I weight:T?=None bias:T?=None eps:n=1e-05", layerNorm)
	reg("f", "glu", "input:T dim:i=-1", func(m *machine, a []any) any {
		t := a[0].(*tensor)
		at := m.dim(a[1].(int64), len(t.shape))
		if m.err != nil || len(t.shape) == 0 || t.shape[at]%2 != 0 {
			return m.fail("glu takes a dimension of even size")
		}
		half := int64(t.shape[at] / 2)
		return m.mul(m.narrow(t, a[1].(int64), 0, half), m.unary(m.narrow(t, a[1].(int64), half, half), unaries["sigmoid expit"]))
	})
}

func layerNorm(m *machine, a []any) any {
	t, shape := a[0].(*tensor), a[1].([]int64)
	var dims []int64
	for k := range shape {
		dims = append(dims, int64(k-len(shape)))
	}
	if len(shape) == 0 || len(shape) > len(t.shape) || !slices.Equal(toInt64(t.shape[len(t.shape)-len(shape):]), shape) {
		return m.fail("layer_norm over %v does not fit a tensor of shape %v", shape, t.shape)
	}
	out := m.sub(t, m.mean(t, dims, true))
	out = m.mul(out, m.unary(m.add(m.variance(t, dims, 0, true, false), scalar(a[4])), unaries["rsqrt"]))
	if w, ok := a[2].(*tensor); ok {
		out = m.mul(out, w)
	}
	if b, ok := a[3].(*tensor); ok {
		out = m.add(out, b)
	}
	return out
}

// crossRule is binary cross entropy of a probability, its logs at least -100.
var crossRule = binaryRule{f: func(x, y float64) float64 {
	return -(y*math.Max(math.Log(x), -100) + (1-y)*math.Max(math.Log1p(-x), -100))
}, toFloat: true, dx: func(x, y, _ float64) float64 { return (x - y) / math.Max(x*(1-x), 1e-12) },
	dy: func(x, _, _ float64) float64 {
		return math.Max(math.Log1p(-x), -100) - math.Max(math.Log(x), -100)
	}}

// logitRule is binary cross entropy of a logit.
var logitRule = binaryRule{f: func(x, y float64) float64 { return (1-y)*x + softplus(-x) }, toFloat: true,
	dx: func(x, y, _ float64) float64 { return sigmoid(x) - y }, dy: func(x, _, _ float64) float64 { return -x }}

func (m *machine) weighted(t *tensor, weight, how any) any {
	if w, ok := weight.(*tensor); ok {
		t = m.mul(t, w)
	}
	return m.reduce(t, how)
}

// crossEntropy of logits [C], [N,C] or [N,C,...] against classes or probabilities.
func (m *machine) crossEntropy(t, target *tensor, ignore int64, how any, smooth float64) any {
	if len(t.shape) == 0 || !t.dt.floating() {
		return m.fail("cross_entropy takes a floating tensor of at least one dimension")
	}
	dim := int64(boolInt(len(t.shape) > 1))
	logs := m.logSoftmax(t, dim)
	if !target.dt.floating() {
		return m.classLoss(logs, target, ignore, how, smooth)
	}
	if !slices.Equal(t.shape, target.shape) {
		return m.fail("cross_entropy of shape %v against probabilities of shape %v is not defined", t.shape, target.shape)
	}
	classes := float64(t.shape[dim])
	if smooth != 0 {
		target = m.add(m.mul(target, scalar(1-smooth)), scalar(smooth/classes))
	}
	out := m.exact(m.sum(m.mul(logs, target), []int64{dim}, false), exacts["neg negative"])
	if how == "mean" && m.err == nil {
		return m.div(m.sum(out, nil, false), scalar(int64(max(t.len()/max(t.shape[dim], 1), 0))))
	}
	return m.reduce(out, how)
}

// classLoss is minus the log probability of each class, those equal to ignore left out.
func (m *machine) classLoss(logs, target *tensor, ignore int64, how any, smooth float64) any {
	if len(logs.shape) == 0 || target.dt != int64s || len(target.shape) != len(logs.shape)-1 {
		return m.fail("classes of %v and shape %v do not fit log probabilities of shape %v", target.dt, target.shape, logs.shape)
	}
	dim := int64(boolInt(len(logs.shape) > 1))
	want := slices.Delete(slices.Clone(logs.shape), int(dim), int(dim)+1)
	if !slices.Equal(want, target.shape) {
		return m.fail("classes of shape %v do not fit log probabilities of shape %v", target.shape, logs.shape)
	}
	kept := m.test(target, func(x float64) bool { return x != float64(ignore) })
	safe := m.choose(kept, target, scalar(int64(0)))
	at := m.unsqueeze(safe, dim)
	zero := scalar(0.0)
	minus := exacts["neg negative"]
	out := m.choose(kept, m.squeezed(m.exact(m.gather(logs, dim, at), minus), dim), zero)
	count := m.sum(m.cast(kept, int64s), nil, false)
	if smooth != 0 {
		spread := m.choose(kept, m.exact(m.sum(logs, []int64{dim}, false), minus), zero)
		out = m.add(m.mul(out, scalar(1-smooth)), m.mul(spread, scalar(smooth/float64(max(logs.shape[dim], 1)))))
	}
	if how == "mean" && m.err == nil {
		return m.div(m.sum(out, nil, false), count)
	}
	return m.reduce(out, how)
}

func init() {
	initOperators()
	initMath()
	initReductions()
	initShapes()
	initIndexing()
	initInfo()
	initCreation()
	initLinalg()
	initLosses()
	initRare()
}
