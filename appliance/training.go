package appliance

import (
	"math"

	"smolgym/appliance/engine"
)

// What transports need of the engine's types.
type (
	// Batch is the input of one forward or forward_backward.
	Batch = engine.Batch
	// Datum is one sequence of a batch.
	Datum = engine.Datum
	// Tensor is one named input of a datum.
	Tensor = engine.Tensor
	// AdamParams are one step's settings.
	AdamParams = engine.AdamParams
)

// ForwardBackwardRequest asks for a batch's loss and, unless it is forward only,
// adds its gradient to the run's.
type ForwardBackwardRequest struct {
	RunID string
	Seq   int64
	Batch Batch
	// Refusal, if not nil, is what makes the request impossible though it could be
	// read: its future fails with it.
	Refusal error
	// LossID, if not empty, names a loss that a user wrote; it takes the place of the
	// batch's.
	LossID string
}

// ForwardBackward asks for a forward or forward_backward.
func (a *Appliance) ForwardBackward(req ForwardBackwardRequest) (Ticket, error) {
	r, err := a.run(req.RunID)
	if err != nil {
		return Ticket{}, err
	}
	r.touch(req.Seq)
	kind := KindForwardBackward
	if req.Batch.ForwardOnly {
		kind = KindForward
	}
	h := hashOf(kind)
	h.batch(req.Batch)
	h.text(req.LossID)
	if req.Refusal != nil {
		h.text(req.Refusal.Error())
	}
	checked, toCheck := false, req.Batch
	check := func() error {
		if req.Refusal != nil {
			return Problemf(CodeUser, "%s: %v", kind, req.Refusal)
		}
		if req.LossID != "" {
			if _, err := a.customLoss(r, req.LossID); err != nil {
				return err
			}
			toCheck = surrogateBatch(req.Batch.Data, nil)
		}
		// A run whose creation still waits is checked when it executes.
		if b := r.loaded(); b != nil {
			checked = true
			return b.eng.CheckBatch(toCheck)
		}
		return nil
	}
	return r.submitBatch(batchBytes(req.Batch), kind, req.Seq, h.sum(), check, func() (any, error) {
		t, err := r.training()
		if err != nil {
			return nil, err
		}
		if !checked {
			if err := t.Base().CheckBatch(toCheck); err != nil {
				return nil, err
			}
		}
		if req.LossID != "" {
			loss, err := a.customLoss(r, req.LossID)
			if err != nil {
				return nil, err
			}
			return a.customForwardBackward(r, t, loss, req.Batch)
		}
		began := a.now()
		out, err := t.ForwardBackward(req.Batch)
		if err != nil {
			return nil, err
		}
		a.tracePasses(r.name, began, out.Passes)
		a.meter(meterTraining, r.record().BaseModel, r.session, int64(out.Tokens))
		return &ForwardBackwardResult{Logprobs: out.Logprobs, Shapes: out.Shapes, Metrics: map[string]float64{
			"loss:sum": out.Loss, "tokens:sum": float64(out.Tokens), "supervised_tokens:sum": float64(out.Scored),
		}}, nil
	})
}

// training is the run's trainer. Owner.
func (r *run) training() (*engine.Trainer, error) {
	if r.pending != nil {
		if err := r.start(); err != nil {
			return nil, err
		}
	}
	if r.trainer == nil {
		return nil, r.a.endedRun(r.name, "it was unloaded")
	}
	return r.trainer, nil
}

// OptimStepRequest asks for one optimizer step.
type OptimStepRequest struct {
	RunID     string
	Seq       int64
	Adam      AdamParams
	Optimizer string // adamw, or empty
}

// OptimStep asks for a step with the accumulated gradient.
func (a *Appliance) OptimStep(req OptimStepRequest) (Ticket, error) {
	r, err := a.run(req.RunID)
	if err != nil {
		return Ticket{}, err
	}
	r.touch(req.Seq)
	h := hashOf(KindOptimStep)
	h.text(req.Optimizer)
	p := req.Adam
	for _, v := range []float64{p.LearningRate, p.Beta1, p.Beta2, p.Eps, p.WeightDecay, p.GradClipNorm} {
		h.float(v)
	}
	check := func() error {
		if err := checkOptimizer(req.Optimizer); err != nil {
			return err
		}
		return checkAdam(p)
	}
	return r.submit(KindOptimStep, req.Seq, h.sum(), check, func() (any, error) {
		t, err := r.training()
		if err != nil {
			return nil, err
		}
		res, err := t.Step(p)
		if err != nil {
			return nil, err
		}
		metrics := map[string]float64{"step": float64(res.Step), "lr": p.LearningRate}
		// JSON has no word for infinity, and readers refuse null here.
		if !math.IsNaN(res.GradNorm) && !math.IsInf(res.GradNorm, 0) {
			metrics["grad_norm"] = res.GradNorm
		}
		return &OptimResult{Metrics: metrics}, nil
	})
}

// checkAdam refuses settings that would put NaN into the weights.
func checkAdam(p AdamParams) error {
	for _, f := range []struct {
		name     string
		v        float64
		low, top float64
	}{
		{"learning_rate", p.LearningRate, 0, math.MaxFloat32}, {"beta1", p.Beta1, 0, 1}, {"beta2", p.Beta2, 0, 1},
		{"eps", p.Eps, 0, math.MaxFloat32}, {"weight_decay", p.WeightDecay, 0, math.MaxFloat32}, {"grad_clip_norm", p.GradClipNorm, 0, math.MaxFloat32},
	} {
		if !(f.v >= f.low && f.v <= f.top) {
			return Problemf(CodeUser, "adam_params.%s is %v: want %v to %v", f.name, f.v, f.low, f.top)
		}
		if f.top == 1 && f.v == 1 {
			return Problemf(CodeUser, "adam_params.%s is 1: want less than 1", f.name)
		}
	}
	return nil
}
