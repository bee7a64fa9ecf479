package store

import (
	"errors"
	"reflect"
	"testing"
	"time"
)

// FuzzDecode reads any bytes as a record and body of every noun: no panic, a
// sentinel on failure, and what was read encodes to something that reads the same.
func FuzzDecode(f *testing.F) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	add := func(v any, body []byte) {
		head, err := encode(v)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(head, body)
	}
	add(Model{Name: "a/b", Created: at, Files: []File{{Path: "config.json", Size: 2}}}, nil)
	add(Session{ID: "s", Finished: &Finish{Reason: "success"}}, nil)
	add(Run{ID: "s:train:0", Adapter: Adapter{Rank: 4}}, nil)
	body, err := checkpointBody(&Checkpoint{Tensors: []Tensor{{Name: "w", Shape: []int64{1}}}})
	if err != nil {
		f.Fatal(err)
	}
	add(Checkpoint{CheckpointKey: CheckpointKey{"r", KindWeights, "n"}, Expires: &at}, body)
	add(Sampler{ID: "p", Created: at}, nil)
	add(Future{ID: "f", State: FutureDone, Done: at}, []byte{1, 2, 3})
	f.Add([]byte{}, []byte{})
	f.Add([]byte{1}, []byte{0})
	f.Add([]byte{2, '{', '}'}, []byte{2})
	f.Fuzz(func(t *testing.T, head, body []byte) {
		fuzzTable(t, modelTable, head, nil)
		fuzzTable(t, sessionTable, head, nil)
		fuzzTable(t, runTable, head, nil)
		fuzzTable(t, checkpointTable, head, body)
		fuzzTable(t, samplerTable, head, nil)
		fuzzTable(t, futureTable, head, body)
	})
}

func fuzzTable[T any](t *testing.T, tab *table[T], head, body []byte) {
	rec, err := tab.decode(head, body)
	if err != nil {
		if !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrNewer) {
			t.Fatalf("%s: %v", tab.noun, err)
		}
		return
	}
	if tab.check(rec) != nil {
		return
	}
	for i := range tab.indexes {
		tab.indexes[i].entry(rec, tab.key(rec))
	}
	r, err := tab.prepare(rec)
	if err != nil {
		return // times beyond year 9999 and the like
	}
	again, err := tab.decode(r.head, r.body)
	if err != nil {
		t.Fatalf("%s: own encoding doesn't decode: %v", tab.noun, err)
	}
	second, err := tab.prepare(again)
	if err != nil || !reflect.DeepEqual(second.head, r.head) || !reflect.DeepEqual(second.body, r.body) {
		t.Fatalf("%s: encoding isn't stable: %q, then %q, %v", tab.noun, r.head, second.head, err)
	}
}
