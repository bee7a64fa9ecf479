package appliance

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"smolgym/store/blob"
)

// parts cuts a lesson of three data into three batches.
func parts() (whole Batch, each []Batch) {
	whole = lesson()
	third := lesson().Data[0]
	third.Tokens = slices.Clone(third.Tokens)
	slices.Reverse(third.Tokens)
	whole.Data = append(whole.Data, third)
	for _, d := range whole.Data {
		each = append(each, Batch{Data: []Datum{d}, Loss: whole.Loss})
	}
	return whole, each
}

// FR-03: a batch in three requests that arrive 2, 3, 1 and a step numbered 4 leave
// the weights of one request, to the bit; so does every other order.
func TestPartsInAnyOrder(t *testing.T) {
	whole, each := parts()
	a, session := ready(t, Options{ParallelChunks: true})
	create := func(n int64) string {
		ticket, err := a.CreateModel(lora(session, n))
		return result[CreateModelResult](t, a, ticket, err).ModelID
	}
	plain := create(0)
	ticket, err := a.ForwardBackward(ForwardBackwardRequest{RunID: plain, Seq: 1, Batch: whole})
	one := result[ForwardBackwardResult](t, a, ticket, err)
	ticket, err = a.OptimStep(OptimStepRequest{RunID: plain, Seq: 2, Adam: adam})
	result[OptimResult](t, a, ticket, err)
	want := state(t, a, plain, 3, "x")

	orders := [][]int64{{2, 3, 1, 4}, {3, 2, 1, 4}, {4, 3, 2, 1}, {1, 2, 3, 4}}
	for i := range 4 {
		o := []int64{1, 2, 3, 4}
		rand.New(rand.NewPCG(uint64(i), 1)).Shuffle(4, func(i, j int) { o[i], o[j] = o[j], o[i] })
		orders = append(orders, o)
	}
	for n, arrival := range orders {
		run := create(int64(1 + n))
		got := map[int64]Ticket{}
		for _, seq := range arrival {
			for range 2 { // and each twice
				var ticket Ticket
				var err error
				if seq == 4 {
					ticket, err = a.OptimStep(OptimStepRequest{RunID: run, Seq: 4, Adam: adam})
				} else {
					ticket, err = a.ForwardBackward(ForwardBackwardRequest{RunID: run, Seq: seq, Batch: each[seq-1]})
				}
				if err != nil {
					t.Fatal(err)
				}
				if first, ok := got[seq]; ok && first.RequestID != ticket.RequestID {
					t.Errorf("a repeat of %d has another id", seq)
				}
				got[seq] = ticket
			}
		}
		for i := range 3 {
			out := result[ForwardBackwardResult](t, a, got[int64(i+1)], nil)
			if !slices.Equal(out.Logprobs[0], one.Logprobs[i]) {
				t.Errorf("arrival %v: datum %d has other outputs", arrival, i)
			}
		}
		result[OptimResult](t, a, got[4], nil)
		if !maps.Equal(state(t, a, run, 5, "x"), want) {
			t.Errorf("arrival %v: other weights than those of one request", arrival)
		}
	}
}

// FR-03: a last part with only zero weights leaves the gradients of the others.
func TestPartWithoutWeight(t *testing.T) {
	_, each := parts()
	a, session := ready(t, Options{ParallelChunks: true})
	zero := each[2]
	d := zero.Data[0]
	d.Inputs = maps.Clone(d.Inputs)
	w := d.Inputs["weights"]
	d.Inputs["weights"] = Tensor{Shape: w.Shape, F32: make([]float32, len(w.F32))}
	zero.Data = []Datum{d}
	var ends []map[string]blob.ID
	for n, batches := range [][]Batch{each[:2], {each[0], each[1], zero}, {zero, zero}} {
		ticket, err := a.CreateModel(lora(session, int64(n)))
		run := result[CreateModelResult](t, a, ticket, err).ModelID
		for i, b := range batches {
			ticket, err := a.ForwardBackward(ForwardBackwardRequest{RunID: run, Seq: int64(i + 1), Batch: b})
			result[ForwardBackwardResult](t, a, ticket, err)
		}
		ticket, err = a.OptimStep(OptimStepRequest{RunID: run, Seq: int64(len(batches) + 1), Adam: adam})
		result[OptimResult](t, a, ticket, err)
		ends = append(ends, state(t, a, run, int64(len(batches)+2), "x"))
	}
	if !maps.Equal(ends[0], ends[1]) {
		t.Error("a part without weights changed the step")
	}
	if maps.Equal(ends[0], ends[2]) {
		t.Error("a step without gradients equals one with: the comparison is blind")
	}
}

// FR-03: a number that never arrives is a clear error in time, for the batch it
// belongs to; what follows goes on, and the number is then too late.
func TestMissingPart(t *testing.T) {
	_, each := parts()
	a, session := ready(t, Options{ParallelChunks: true, ParkFor: 50 * time.Millisecond})
	ticket, err := a.CreateModel(lora(session, 0))
	run := result[CreateModelResult](t, a, ticket, err).ModelID
	forward := func(seq int64, n int) (Ticket, error) {
		return a.ForwardBackward(ForwardBackwardRequest{RunID: run, Seq: seq, Batch: each[n]})
	}
	two, err := forward(2, 1)
	if err != nil {
		t.Fatal(err)
	}
	three, err := forward(3, 2)
	if err != nil {
		t.Fatal(err)
	}
	stepped, err := a.OptimStep(OptimStepRequest{RunID: run, Seq: 4, Adam: adam})
	if err != nil {
		t.Fatal(err)
	}
	fails(t, a, two, nil, "number 2 was not executed", "number 1 did not arrive within 50ms", "whole batch again")
	fails(t, a, three, nil, "number 3", "number 1 did not arrive")
	result[OptimResult](t, a, stepped, nil)
	_, err = forward(1, 0)
	refused(t, err, CodeConflict, "number 1", "executed")
	// A refused request uses its number up without anyone waiting for it.
	ticket, err = a.ForwardBackward(ForwardBackwardRequest{RunID: run, Seq: 6, Batch: Batch{Loss: "cross_entropy"}})
	fails(t, a, ticket, err, "empty")
	seven, err := forward(7, 0)
	if err != nil {
		t.Fatal(err)
	}
	five, err := forward(5, 0)
	result[ForwardBackwardResult](t, a, five, err)
	result[ForwardBackwardResult](t, a, seven, nil)
	// A request that is no part of a batch fails alone.
	nine, err := a.OptimStep(OptimStepRequest{RunID: run, Seq: 9, Adam: adam})
	if err != nil {
		t.Fatal(err)
	}
	ten, err := forward(10, 0)
	fails(t, a, nine, nil, "number 8 did not arrive")
	result[ForwardBackwardResult](t, a, ten, err)
	// Ending the run ends the wait.
	twelve, err := forward(12, 0)
	if err != nil {
		t.Fatal(err)
	}
	ticket, err = a.UnloadModel(run)
	result[UnloadResult](t, a, ticket, err)
	fails(t, a, twelve, nil)
}

// With the order of arrival as the order, gaps mean nothing and a number that
// comes too late is refused.
func TestGapsOff(t *testing.T) {
	a, session := ready(t, Options{})
	ticket, err := a.CreateModel(lora(session, 0))
	run := result[CreateModelResult](t, a, ticket, err).ModelID
	ticket, err = a.ForwardBackward(ForwardBackwardRequest{RunID: run, Seq: 5, Batch: lesson()})
	result[ForwardBackwardResult](t, a, ticket, err)
	_, err = a.ForwardBackward(ForwardBackwardRequest{RunID: run, Seq: 3, Batch: lesson()})
	refused(t, err, CodeConflict, "number 3", "number 5")
}
