package appliance

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"smolgym/store"
)

// maxEvents bounds the log of events.
const maxEvents = 100_000

// note records that something was done to what a user keeps.
func (a *Appliance) note(name string, details map[string]string) {
	a.record.event(store.Event{ID: uuid.NewString(), Time: a.now(), Name: name, Details: details})
}

// noteSave records a new checkpoint.
func (a *Appliance) noteSave(key store.CheckpointKey, cp store.Checkpoint) {
	a.note("checkpoint_create", map[string]string{"tinker_path": key.Path(), "base_model": cp.BaseModel})
	a.meter(meterCheckpoint, cp.BaseModel, sessionOf(key.RunID), 1)
}

// sessionOf is the session in a run's or sampler's id.
func sessionOf(id string) string {
	session, _, _ := strings.Cut(id, ":")
	return session
}

// What is metered.
const (
	meterTraining   = "training"                // tokens
	meterPrefill    = "sampling_prefill"        // tokens
	meterCached     = "sampling_prefill_cached" // tokens that were not computed again
	meterSample     = "sampling_sample"         // tokens
	meterCheckpoint = "checkpoint"              // checkpoints
	meterStorage    = "storage"                 // byte-seconds
)

// meter adds an amount to this hour's.
func (a *Appliance) meter(kind, baseModel, session string, amount int64) {
	if amount > 0 {
		a.record.meter(store.Meter{Hour: a.now().UTC().Truncate(time.Hour), Kind: kind, BaseModel: baseModel, SessionID: session}, amount)
	}
}

// meterSamples adds what a request for samples used.
func (a *Appliance) meterSamples(s *sampler, prompt int, res *SampleResult) {
	tokens := 0
	for _, q := range res.Sequences {
		tokens += len(q.Tokens)
	}
	a.meter(meterPrefill, s.rec.BaseModel, s.rec.SessionID, int64(prompt-res.CachedTokens))
	a.meter(meterCached, s.rec.BaseModel, s.rec.SessionID, int64(res.CachedTokens))
	a.meter(meterSample, s.rec.BaseModel, s.rec.SessionID, int64(tokens))
}

// history writes events and meters.
func (r *recorder) history(events []store.Event, meters map[store.Meter]int64) {
	if len(events) > 0 {
		if err := r.db.AddEvents(events); err != nil {
			r.log.Error("record events", "count", len(events), "error", err)
		}
	}
	if len(meters) == 0 {
		return
	}
	list := make([]store.Meter, 0, len(meters))
	for m, amount := range meters {
		m.Amount = amount
		list = append(list, m)
	}
	if err := r.db.AddMeters(list); err != nil {
		r.log.Error("record meters", "count", len(meters), "error", err)
	}
}

// storageEvery is how often the checkpoints' bytes are added up.
const storageEvery = time.Minute

// meterStorage adds the byte-seconds that checkpoints took since the last time.
func (a *Appliance) meterStorage(now time.Time) {
	since := now.Sub(a.metered)
	if since < storageEvery {
		return
	}
	first := a.metered.IsZero()
	a.metered = now
	if first || since > time.Hour {
		return // a start, or a machine that slept
	}
	list, _, err := a.db.Checkpoints(store.Page{})
	if err != nil {
		a.log.Error("meter storage", "error", err)
	}
	for _, cp := range list {
		lived := min(since, now.Sub(cp.Created))
		a.meter(meterStorage, cp.BaseModel, sessionOf(cp.RunID), int64(lived.Seconds()*float64(cp.SizeBytes)))
	}
}

// EventRecord is something that was done to what a user keeps.
type EventRecord = store.Event

// Events lists what happened from a moment on and before another, oldest first.
func (a *Appliance) Events(from, before time.Time) ([]EventRecord, error) {
	a.record.flush()
	list, err := a.db.Events(from, before)
	if err != nil {
		return nil, problemOf("list events", err)
	}
	slices.Reverse(list)
	return list, nil
}

// UsageRow is what a session used of one kind within one hour. One of Tokens,
// Checkpoints and GigabyteHours is set.
type UsageRow struct {
	Hour          time.Time
	Kind          string // training, sampling_prefill, sampling_sample, checkpoint or storage
	Cached        bool   // sampling_prefill
	BaseModel     string
	SessionID     string
	ProjectID     string
	Tokens        int64
	Checkpoints   int64
	GigabyteHours float64
}

// Usage lists what was used in the hours that begin from a moment on and before
// another, hour by hour with the most tokens first, and the sessions that used it.
func (a *Appliance) Usage(from, before time.Time) ([]UsageRow, map[string]map[string]string, error) {
	a.record.flush()
	list, err := a.db.Metered(from, before)
	if err != nil {
		return nil, nil, problemOf("list usage", err)
	}
	sessions := map[string]map[string]string{}
	projects := map[string]string{}
	rows := make([]UsageRow, 0, len(list))
	for _, m := range list {
		if _, seen := sessions[m.SessionID]; !seen && m.SessionID != "" {
			if s, err := a.db.Session(m.SessionID); err == nil {
				sessions[m.SessionID], projects[m.SessionID] = s.UserMetadata, s.ProjectID
			} else {
				sessions[m.SessionID] = nil
			}
		}
		row := UsageRow{Hour: m.Hour, Kind: m.Kind, BaseModel: m.BaseModel, SessionID: m.SessionID, ProjectID: Project(projects[m.SessionID])}
		switch m.Kind {
		case meterCached:
			row.Kind, row.Cached, row.Tokens = meterPrefill, true, m.Amount
		case meterCheckpoint:
			row.Checkpoints = m.Amount
		case meterStorage:
			row.GigabyteHours = float64(m.Amount) / 1e9 / 3600
		default:
			row.Tokens = m.Amount
		}
		rows = append(rows, row)
	}
	slices.SortStableFunc(rows, func(x, y UsageRow) int {
		return cmp.Or(x.Hour.Compare(y.Hour), cmp.Compare(y.Tokens, x.Tokens), cmp.Compare(x.SessionID, y.SessionID), cmp.Compare(x.BaseModel, y.BaseModel), cmp.Compare(x.Kind, y.Kind))
	})
	return rows, sessions, nil
}

// DefaultProject is the project of sessions that name none.
const DefaultProject = "default"

// Project is a session's project by its stored name.
func Project(id string) string { return pick(id, DefaultProject) }
