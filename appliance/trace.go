package appliance

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"smolgym/appliance/engine"
	"smolgym/store"
)

// Bounds of what is remembered for traces.
const (
	maxSpans     = 1 << 14 // of a session; older ones are overwritten
	maxTimelines = 256     // sessions; those silent the longest are forgotten
)

// span is a piece of time that a request spent in one way.
type span struct {
	name    string
	owner   string // run or sampler
	waiting bool   // may overlap with others of its owner
	request string
	seq     int64
	at      time.Time
	took    time.Duration
}

// timeline is what a session's requests did, as a ring.
type timeline struct {
	spans []span
	next  int // the oldest, once the ring is full
	lost  int
	used  time.Time
}

// timelines are those of the sessions. The zero value is ready.
type timelines struct {
	mu   sync.Mutex // guards what follows
	byID map[string]*timeline
}

// add remembers spans of a session.
func (t *timelines) add(session string, now time.Time, spans ...span) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byID == nil {
		t.byID = map[string]*timeline{}
	}
	line := t.byID[session]
	if line == nil {
		if len(t.byID) >= maxTimelines {
			t.forget()
		}
		line = &timeline{}
		t.byID[session] = line
	}
	line.used = now
	for _, s := range spans {
		if len(line.spans) < maxSpans {
			line.spans = append(line.spans, s)
			continue
		}
		line.spans[line.next] = s
		line.next = (line.next + 1) % maxSpans
		line.lost++
	}
}

// forget drops the timeline that was silent the longest; mu is held.
func (t *timelines) forget() {
	oldest := ""
	for id, line := range t.byID {
		if oldest == "" || line.used.Before(t.byID[oldest].used) {
			oldest = id
		}
	}
	delete(t.byID, oldest)
}

// of copies a session's spans in order of their start.
func (t *timelines) of(session string) (spans []span, lost int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	line := t.byID[session]
	if line == nil {
		return nil, 0
	}
	spans = slices.Clone(line.spans)
	slices.SortStableFunc(spans, func(x, y span) int { return x.at.Compare(y.at) })
	return spans, line.lost
}

// phases are the names of a request's execution in traces.
var phases = map[Kind]string{
	KindCreateModel: "create", KindForward: "forward_only", KindForwardBackward: "forward_backward", KindOptimStep: "optimizer",
	KindSaveWeights: "save", KindSaveSampler: "save", KindExport: "save", KindLoadWeights: "load", KindSample: "sample",
}

// traceTask remembers how long a request of a run waited and was executed.
func (a *Appliance) traceTask(run string, f *future, began time.Time) {
	now := a.now()
	name := phases[f.kind]
	a.traces.add(sessionOf(run), now,
		span{name: "queue", owner: run, waiting: true, request: f.id, seq: f.seq, at: f.created, took: began.Sub(f.created)},
		span{name: name, owner: run, request: f.id, seq: f.seq, at: began, took: now.Sub(began)})
}

// traceRest remembers the part of a request that came after its turn.
func (a *Appliance) traceRest(run string, f *future, began time.Time) {
	now := a.now()
	a.traces.add(sessionOf(run), now, span{name: "write files", owner: run, waiting: true, request: f.id, seq: f.seq, at: began, took: now.Sub(began)})
}

// tracePart remembers a part of what a run's request does now.
func (a *Appliance) tracePart(run, name string, began time.Time) {
	now := a.now()
	a.traces.add(sessionOf(run), now, span{name: name, owner: run, at: began, took: now.Sub(began)})
}

// tracePasses remembers a batch's ways through the model.
func (a *Appliance) tracePasses(run string, began time.Time, passes []engine.Pass) {
	spans := make([]span, len(passes))
	for i, p := range passes {
		spans[i] = span{name: "forward", owner: run, at: began.Add(p.After), took: p.Took}
		if p.Backward {
			spans[i].name = "backward"
		}
	}
	a.traces.add(sessionOf(run), a.now(), spans...)
}

// traceSample remembers how long a request for samples waited for its weights and
// was with the engine.
func (a *Appliance) traceSample(s *sampler, f *future, began time.Time) {
	now := a.now()
	a.traces.add(s.rec.SessionID, now,
		span{name: "queue", owner: s.rec.ID, waiting: true, request: f.id, seq: f.seq, at: f.created, took: began.Sub(f.created)},
		span{name: "sample", owner: s.rec.ID, waiting: true, request: f.id, seq: f.seq, at: began, took: now.Sub(began)})
}

// traceEvent is one entry of the trace event format, which Perfetto and Chrome read.
type traceEvent struct {
	Name  string         `json:"name"`
	Phase string         `json:"ph"` // X: complete; b, e: begin and end of one that may overlap; M: metadata
	Cat   string         `json:"cat,omitempty"`
	ID    string         `json:"id,omitempty"`
	At    float64        `json:"ts"`            // µs since the first span
	Took  *float64       `json:"dur,omitempty"` // µs
	PID   int            `json:"pid"`
	TID   int            `json:"tid"`
	Args  map[string]any `json:"args,omitempty"`
}

// traceFile is the whole file.
type traceFile struct {
	Events []traceEvent   `json:"traceEvents"`
	Unit   string         `json:"displayTimeUnit"`
	Other  map[string]any `json:"otherData"`
}

// Trace is a session's timeline as a file that Perfetto and Chrome open: a thread
// for each run and sampler, with what was executed as slices and what waited as
// slices that may overlap.
func (a *Appliance) Trace(session string) ([]byte, error) {
	if _, err := a.db.Session(session); errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrInvalid) {
		return nil, Problemf(CodeNotFound, "no session %q", clip(session))
	} else if err != nil {
		return nil, problemOf("find session", err)
	}
	spans, lost := a.traces.of(session)
	out := traceFile{Unit: "ms", Other: map[string]any{"session_id": session, "spans": len(spans), "spans_lost": lost}}
	out.Events = append(out.Events, traceEvent{Name: "process_name", Phase: "M", PID: 1, Args: map[string]any{"name": "session " + session}})
	var owners []string
	for _, s := range spans {
		if !slices.Contains(owners, s.owner) {
			owners = append(owners, s.owner)
			out.Events = append(out.Events, traceEvent{Name: "thread_name", Phase: "M", PID: 1, TID: len(owners), Args: map[string]any{"name": s.owner}})
		}
	}
	µs := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
	for i, s := range spans {
		if i == 0 {
			out.Other["start"] = s.at.UTC().Format(time.RFC3339Nano)
		}
		e := traceEvent{Name: s.name, Cat: s.name, At: µs(s.at.Sub(spans[0].at)), PID: 1, TID: slices.Index(owners, s.owner) + 1}
		if s.request != "" {
			e.Args = map[string]any{"request_id": s.request, "seq_id": s.seq}
		}
		if !s.waiting {
			took := µs(s.took)
			e.Phase, e.Took = "X", &took
			out.Events = append(out.Events, e)
			continue
		}
		e.Phase, e.ID = "b", fmt.Sprint(s.request, "/", s.name)
		end := e
		end.Phase, end.At, end.Args = "e", µs(s.at.Add(s.took).Sub(spans[0].at)), nil
		out.Events = append(out.Events, e, end)
	}
	raw, err := json.Marshal(out)
	if err != nil {
		return nil, problemOf("encode trace", err)
	}
	return raw, nil
}
