package appliance

import (
	"errors"
	"fmt"
	"maps"
	"sync"

	"smolgym/appliance/engine"
	"smolgym/model/customloss"
)

// LossInput is a declared input of a loss that a user wrote: rank 0 is a scalar, 1
// is [T], 2 is [T,K].
type LossInput = customloss.Input

// CustomLossRequest brings a loss that a user wrote, as a traced graph.
type CustomLossRequest struct {
	SessionID string
	Seq       int64 // counts the session's losses
	Name      string
	Inputs    []LossInput
	Graph     []byte // JSON, as clients trace it
}

// CustomLossResult names the loss for forward_backward.
type CustomLossResult struct {
	LossID string `json:"loss_id"`
}

// maxLosses bounds the losses of a session.
const maxLosses = 256

// losses are those that users wrote. They end with their session, or the process.
// The zero value is ready.
type losses struct {
	mu   sync.Mutex // guards what follows
	byID map[string]*userLoss
	open map[string]int // losses of a session
}

type userLoss struct {
	entry
	session string
	loss    *customloss.Loss // nil: it was refused
}

func lossID(session string, n int64) string { return fmt.Sprintf("%s:loss:%d", session, n) }

// CreateCustomLoss checks a loss and keeps it for the session's runs. The graph is
// data: no code of the user's is executed.
func (a *Appliance) CreateCustomLoss(req CustomLossRequest) (Ticket, error) {
	if req.Seq < 0 {
		return Ticket{}, Problemf(CodeUser, "custom_loss_seq_id %d is negative", req.Seq)
	}
	if err := a.liveSession(req.SessionID); err != nil {
		return Ticket{}, err
	}
	h := hashOf(KindCustomLoss)
	h.text(req.Name)
	for _, in := range req.Inputs {
		h.text(in.Name)
		h.int(int64(in.Rank))
	}
	h.text(string(req.Graph))
	sum, id := h.sum(), lossID(req.SessionID, req.Seq)

	a.losses.mu.Lock()
	if l := a.losses.byID[id]; l != nil {
		a.losses.mu.Unlock()
		if l.sum != sum {
			return Ticket{}, Problemf(CodeConflict, "create_custom_loss: number %d of this session was used by another request", req.Seq).
				WithHint("a repeat must have the same content, a new request a higher number")
		}
		return Ticket{RequestID: l.id}, nil
	}
	if a.losses.open[req.SessionID] >= maxLosses {
		a.losses.mu.Unlock()
		return Ticket{}, Problemf(CodeTooLarge, "create_custom_loss: this session has %d losses, the most there may be", maxLosses).
			WithHint("use those it has, or make a new ServiceClient")
	}
	if a.losses.byID == nil {
		a.losses.byID, a.losses.open = map[string]*userLoss{}, map[string]int{}
	}
	f := a.newFuture(KindCustomLoss, req.SessionID, req.Seq, sum, func() string { return "the loss is being checked" })
	l := &userLoss{entry: entry{sum, f.id}, session: req.SessionID}
	a.losses.byID[id] = l
	a.losses.open[req.SessionID]++
	a.losses.mu.Unlock()

	loss, err := customloss.Import(req.Graph, req.Inputs)
	if err != nil {
		a.settle(f, nil, lossRefused(req.Name, err))
		return Ticket{RequestID: f.id}, nil
	}
	a.losses.mu.Lock()
	l.loss = loss
	a.losses.mu.Unlock()
	a.settle(f, &CustomLossResult{LossID: id}, nil)
	return Ticket{RequestID: f.id}, nil
}

// lossRefused tells why a loss can't run here and the way out.
func lossRefused(name string, err error) error {
	return Problemf(CodeUser, "create_custom_loss %s: %v", clip(name), err).Because(err).
		WithHint("pass the plain function to forward_backward_custom instead, which computes it in the client")
}

// forgetLosses drops those of a session.
func (a *Appliance) forgetLosses(session string) {
	a.losses.mu.Lock()
	defer a.losses.mu.Unlock()
	maps.DeleteFunc(a.losses.byID, func(_ string, l *userLoss) bool { return l.session == session })
	delete(a.losses.open, session)
}

// customLoss finds a loss for a run.
func (a *Appliance) customLoss(r *run, id string) (*customloss.Loss, error) {
	a.losses.mu.Lock()
	defer a.losses.mu.Unlock()
	l := a.losses.byID[id]
	switch {
	case l == nil:
		return nil, Problemf(CodeUser, "forward_backward: loss_id %q is not known; losses end with their session and with the server", clip(id)).
			WithHint("create it again with create_custom_loss")
	case l.session != r.session:
		return nil, Problemf(CodeUser, "forward_backward: loss %s belongs to another session than run %s", clip(id), r.name).
			WithHint("create it with the ServiceClient that made the run")
	case l.loss == nil:
		return nil, Problemf(CodeUser, "forward_backward: loss %s was refused when it was created", clip(id)).
			WithHint("pass the plain function to forward_backward_custom instead")
	}
	return l.loss, nil
}

// surrogate is the loss whose gradient is that of a custom loss, with the right weights.
const surrogate = "cross_entropy"

// surrogateBatch is a batch's cross-entropy with given weights, zeros if nil.
func surrogateBatch(data []Datum, weights [][]float32) Batch {
	out := Batch{Loss: surrogate, Data: make([]Datum, len(data))}
	for i, d := range data {
		targets := d.Inputs["target_tokens"]
		w := make([]float32, len(targets.I64))
		if weights != nil {
			w = weights[i]
		}
		out.Data[i] = Datum{Tokens: d.Tokens, Inputs: map[string]Tensor{"target_tokens": targets, "weights": {Shape: targets.Shape, F32: w}}}
	}
	return out
}

// customForwardBackward computes a loss that a user wrote: the model forward, the
// loss of each datum with its gradient g by the log-probabilities, and the model
// backward as cross-entropy with the weights -g. The weights can't change between
// the two. Owner.
func (a *Appliance) customForwardBackward(r *run, t *engine.Trainer, loss *customloss.Loss, req Batch) (*ForwardBackwardResult, error) {
	began := a.now()
	forward := surrogateBatch(req.Data, nil)
	forward.ForwardOnly = true
	out, err := t.ForwardBackward(forward)
	if err != nil {
		return nil, err
	}
	a.tracePasses(r.name, began, out.Passes)
	began = a.now()
	weights := make([][]float32, len(req.Data))
	metrics := make([]map[string]float64, len(req.Data))
	total := 0.0
	for i, d := range req.Data {
		res, err := loss.Run(customloss.Tensor{Shape: out.Shapes[i], Float32: out.Logprobs[i]}, lossInputs(loss, d))
		if err != nil {
			return nil, Problemf(CodeUser, "forward_backward: datum %d: %v", i, err).Because(err)
		}
		total += res.Value
		metrics[i] = res.Metrics
		weights[i] = res.Grad
		for k := range weights[i] {
			weights[i][k] = -weights[i][k]
		}
	}
	a.tracePart(r.name, "loss", began)
	result := &ForwardBackwardResult{Logprobs: out.Logprobs, Shapes: out.Shapes, Metrics: customloss.Combine(metrics)}
	if result.Metrics == nil {
		result.Metrics = map[string]float64{}
	}
	result.Metrics["loss:sum"], result.Metrics["tokens:sum"] = total, float64(out.Tokens)
	if req.ForwardOnly {
		a.meter(meterTraining, r.record().BaseModel, r.session, int64(out.Tokens))
		return result, nil
	}
	began = a.now()
	back, err := t.ForwardBackward(surrogateBatch(req.Data, weights))
	if errors.Is(err, engine.ErrRequest) {
		return nil, Problemf(CodeUser, "forward_backward: the gradient of the custom loss can't be used: %v", err).Because(err)
	}
	if err != nil {
		return nil, err
	}
	a.tracePasses(r.name, began, back.Passes)
	a.meter(meterTraining, r.record().BaseModel, r.session, int64(back.Tokens))
	result.Metrics["surrogate_loss:sum"], result.Metrics["supervised_tokens:sum"] = back.Loss, float64(back.Scored)
	return result, nil
}

// lossInputs are what a loss reads of a datum. The wire doesn't tell a scalar from a
// row of one value, so a single value is a scalar where the loss wants one.
func lossInputs(loss *customloss.Loss, d Datum) map[string]customloss.Tensor {
	in := map[string]customloss.Tensor{}
	for _, want := range loss.Inputs() {
		t, ok := d.Inputs[want.Name]
		if !ok {
			continue // the loss says what is missing
		}
		shape, n := t.Shape, max(len(t.F32), len(t.I64))
		switch {
		case want.Rank == 0 && n == 1:
			shape = nil
		case len(shape) == 0:
			shape = []int{n}
		}
		in[want.Name] = customloss.Tensor{Shape: shape, Float32: t.F32, Int64: t.I64}
	}
	return in
}
