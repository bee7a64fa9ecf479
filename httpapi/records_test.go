package httpapi

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"smolgym/httpapi/wire"
)

// Sessions are found by each filter, page after page, newest first.
func TestSearchSessions(t *testing.T) {
	r := newRig(t, Options{})
	r.upload("tiny")
	var ids []string
	for _, s := range []object{
		{"display_name": "Nightly run A", "user_metadata": object{"team": "red", "n": 1}, "project_id": "alpha"},
		{"display_name": "nightly b", "user_metadata": object{"team": "blue"}},
		{"user_metadata": object{"team": "red"}, "project_id": "beta"},
	} {
		s["tags"], s["sdk_version"], s["type"] = []string{}, "0.38.0", "create_session"
		var made wire.CreateSessionResponse
		r.must("POST", "/api/v1/create_session", s, &made)
		ids = append(ids, made.SessionID)
	}
	_, run, _ := r.trained()
	mine := strings.Split(run, ":")[0]
	r.must("POST", "/api/v1/sessions/"+ids[1]+"/finish", object{"reason": object{"type": "errored"}, "detail": "boom"}, nil)
	r.must("PUT", "/api/v1/sessions/"+mine+"/project", object{"project_id": "gamma"}, nil)

	find := func(q object) (found []string, last wire.SessionSearchResponse) {
		t.Helper()
		for _, need := range []string{"user_metadata", "owner"} {
			if q[need] == nil {
				q[need] = map[string]object{"user_metadata": {}, "owner": {"type": "own"}}[need]
			}
		}
		for {
			var page wire.SessionSearchResponse
			r.must("POST", "/api/v1/sessions/search", q, &page)
			for _, s := range page.Sessions {
				found = append(found, s.SessionID)
			}
			last.Sessions = append(last.Sessions, page.Sessions...)
			if page.NextCursor == nil {
				return found, last
			}
			q["cursor"] = page.NextCursor
		}
	}
	for _, c := range []struct {
		query object
		want  []string
	}{
		{object{}, []string{mine, ids[2], ids[1], ids[0]}},
		{object{"limit": 1}, []string{mine, ids[2], ids[1], ids[0]}},
		{object{"limit": 3}, []string{mine, ids[2], ids[1], ids[0]}},
		{object{"display_name": "NIGHTLY"}, []string{ids[1], ids[0]}},
		{object{"display_name": "a run"}, []string{ids[0]}},
		{object{"display_name": "run", "session_id": mine}, []string{mine, ids[0]}},
		{object{"session_id": ids[2]}, []string{ids[2]}},
		{object{"user_metadata": object{"team": "red"}}, []string{ids[2], ids[0]}},
		{object{"user_metadata": object{"team": "red", "n": "1"}}, []string{ids[0]}},
		{object{"project_ids": []string{"alpha", "default"}}, []string{ids[1], ids[0]}},
		{object{"project_ids": []string{"gamma"}}, []string{mine}},
		{object{"statuses": []object{{"type": "active"}}}, []string{mine, ids[2], ids[0]}},
		{object{"statuses": []object{{"type": "client_finished"}}}, []string{ids[1]}},
		{object{"statuses": []object{{"type": "client_finished", "reasons": []string{"success"}}, {"type": "failed"}}}, nil},
		{object{"owner": object{"type": "user", "owner_urns": []string{"tml:user:else"}}}, nil},
		{object{"owner": object{"type": "user", "owner_urns": []string{userURN}}, "session_id": mine}, []string{mine}},
	} {
		text, _ := json.Marshal(c.query)
		if got, _ := find(c.query); strings.Join(got, " ") != strings.Join(c.want, " ") {
			t.Errorf("%s: %v, want %v", text, got, c.want)
		}
	}
	_, page := find(object{"session_id": mine})
	if s := page.Sessions[0]; s.ProjectID != "gamma" || s.CheckpointsCount != 1 || *s.CheckpointStorageBytes == 0 || s.Status.Type != "active" || s.Owner == "" {
		t.Errorf("summary %+v", s)
	}
	_, page = find(object{"session_id": ids[1]})
	if s := page.Sessions[0]; s.Status.Reason.Type != "errored" || s.Status.Detail != "boom" || s.ProjectID != "default" {
		t.Errorf("summary %+v", s)
	}
	if w := r.do("POST", "/api/v1/sessions/search", object{"limit": 201}); w.Code != http.StatusBadRequest {
		t.Errorf("limit 201: %d", w.Code)
	}

	// Runs by project.
	for project, want := range map[string]int{"gamma": 1, "default": 0, "": 1} {
		var runs wire.TrainingRunsResponse
		r.must("GET", "/api/v1/training_runs?access_scope=accessible&project_id="+project, nil, &runs)
		if runs.Cursor.TotalCount != want || len(runs.TrainingRuns) != want {
			t.Errorf("project %q: %+v", project, runs)
		}
	}
}

// A copy shares the bytes, lives on when the source goes, and can't be trained.
func TestCopyWeights(t *testing.T) {
	r := newRig(t, Options{})
	r.upload("tiny")
	session, run, path := r.trained()
	copied := func(key string) string {
		t.Helper()
		var out wire.CopyWeightsResponse
		r.must("POST", "/api/v1/copy_weights", object{"source_path": path, "destination_project_id": "archive", "ttl_seconds": 7200}, &out, "X-Idempotency-Key", key)
		return out.TinkerPath
	}
	first, again, other := copied("k1"), copied("k1"), copied("k2")
	if first != again || first == other || !strings.HasSuffix(first, ":train:0/weights/step-1") {
		t.Fatalf("copies %s, %s, %s", first, again, other)
	}
	var stored wire.BillingStorageResponse
	r.must("GET", "/api/v1/billing/usage/checkpoints/current?project_id=archive", nil, &stored)
	if len(stored.Data) != 1 || stored.Data[0].CheckpointCount != 2 {
		t.Errorf("storage %+v", stored)
	}
	r.must("DELETE", "/api/v1/training_runs/"+run+"/checkpoints/weights/step-1", nil, nil)
	if w := r.do("POST", "/api/v1/weights_info", object{"tinker_path": path}); w.Code != http.StatusNotFound {
		t.Errorf("the source is still there: %d", w.Code)
	}
	var info wire.WeightsInfoResponse
	r.must("POST", "/api/v1/weights_info", object{"tinker_path": first}, &info)
	if info.BaseModel != "local/tiny" || *info.LoraRank != 4 || !*info.TrainMLP {
		t.Errorf("info %+v", info)
	}
	p, err := wire.ParsePath(first)
	if err != nil {
		t.Fatal(err)
	}
	var one wire.TrainingRun
	r.must("GET", "/api/v1/training_runs/"+p.Run, nil, &one)
	if one.LastCheckpoint == nil || one.LastCheckpoint.TinkerPath != first || one.LastCheckpoint.ExpiresAt == nil {
		t.Errorf("run %+v", one)
	}
	w := r.future("forward_backward", batch(t, p.Run, 1, nil), asProtobuf...)
	if !strings.Contains(w.Body.String(), `"category":"user"`) || !strings.Contains(w.Body.String(), first) {
		t.Errorf("training a copy: %s", w.Body)
	}
	var load wire.LoadWeightsResponse
	r.want("load_weights", object{"session_id": session, "model_seq_id": 7, "path": first, "optimizer": true}, &load)
	if w := r.future("forward_backward", batch(t, session+":train:7", 1, nil), asProtobuf...); w.Header().Get("Content-Type") != protobuf {
		t.Errorf("training from a copy: %s", w.Body)
	}
}

// Events by day and kind, usage by hour, and the timeline of a session.
func TestHistory(t *testing.T) {
	r := newRig(t, Options{})
	r.upload("tiny")
	session, run, path := r.trained()
	route := "/api/v1/training_runs/" + run + "/checkpoints/weights/step-1"
	r.must("POST", route+"/publish", nil, nil)
	r.must("PUT", route+"/ttl", object{"ttl_seconds": nil}, nil)
	r.must("PUT", "/api/v1/sessions/"+session+"/project", object{"project_id": "p"}, nil)
	var log wire.AuditResponse
	events := func(query string) string {
		t.Helper()
		log = wire.AuditResponse{}
		r.must("GET", "/api/v1/audit?"+query, nil, &log)
		var names []string
		for _, e := range log.Entries {
			names = append(names, e.Event)
		}
		return strings.Join(names, " ")
	}
	today := "day=" + time.Now().UTC().Format(time.DateOnly)
	for query, want := range map[string]string{
		"event_type=checkpoints":        "checkpoint_create checkpoint_publish checkpoint_set_ttl",
		"event_type=all&" + today:       "checkpoint_create checkpoint_publish checkpoint_set_ttl project_assign_session",
		"event_type=projects":           "project_assign_session",
		"event_type=teams":              "",
		"event_type=all&day=2001-02-03": "",
	} {
		if got := events(query); got != want {
			t.Errorf("%s: %s, want %s", query, got, want)
		}
	}
	events("event_type=checkpoints")
	if d := log.Entries[0].EventDetails; d["tinker_path"] != path || d["actor"] != userURN {
		t.Errorf("details %v", d)
	}
	for _, bad := range []string{"event_type=x", "day=yesterday"} {
		if w := r.do("GET", "/api/v1/audit?"+bad, nil); w.Code != http.StatusBadRequest {
			t.Errorf("%s: %d", bad, w.Code)
		}
	}

	hour := time.Now().UTC().Truncate(time.Hour)
	window := func(from, before time.Time) string {
		return url.Values{"starting_on": {from.Format(time.RFC3339)}, "ending_before": {before.Format(time.RFC3339)}}.Encode()
	}
	var used wire.BillingEventsResponse
	r.must("GET", "/api/v1/billing/usage/events?"+window(hour.Add(-time.Hour), hour.Add(time.Hour)), nil, &used)
	got := map[string]int64{}
	for _, e := range used.Data {
		if e.EventInfo.TokenCount != nil {
			got[e.EventInfo.Type] += *e.EventInfo.TokenCount
		} else if e.EventInfo.Count != nil {
			got[e.EventInfo.Type] += *e.EventInfo.Count
		}
		if e.SessionID != session || e.ProjectID != "p" || e.BaseModel != "local/tiny" {
			t.Errorf("event %+v", e)
		}
	}
	if got["training"] != 11 || got["checkpoint"] != 1 || used.Sessions[session].UserMetadata["k"] != "v" {
		t.Errorf("usage %v, sessions %v", got, used.Sessions)
	}
	for _, bad := range []string{"", window(hour, hour), window(hour, hour.AddDate(0, 2, 0))} {
		if w := r.do("GET", "/api/v1/billing/usage/events?"+bad, nil); w.Code != http.StatusBadRequest {
			t.Errorf("%s: %d", bad, w.Code)
		}
	}

	var trace wire.TraceExportResponse
	r.must("GET", "/api/v1/sessions/"+session+"/trace_export", nil, &trace)
	if trace.Status != "ready" {
		t.Fatalf("trace %+v", trace)
	}
	var file struct {
		Events []struct {
			Name, Ph string
			Ts, Dur  float64
		} `json:"traceEvents"`
	}
	w := r.plain("GET", trace.URL)
	if err := json.Unmarshal(w.Body.Bytes(), &file); err != nil {
		t.Fatalf("%v: %s", err, w.Body)
	}
	seen := map[string]int{}
	for _, e := range file.Events {
		if e.Ph != "e" {
			seen[e.Name]++
		}
		if e.Ts < 0 || e.Ph == "X" && e.Dur <= 0 {
			t.Errorf("event %+v", e)
		}
	}
	if seen["queue"] != 4 || seen["optimizer"] != 1 || seen["save"] != 1 || seen["create"] != 1 || seen["forward_backward"] != 1 || seen["forward"] != 1 || seen["backward"] != 1 {
		t.Errorf("spans %v", seen)
	}
	if w := r.do("GET", "/api/v1/sessions/nobody/trace_export", nil); w.Code != http.StatusNotFound {
		t.Errorf("trace of nobody: %d", w.Code)
	}
	if w := r.plain("GET", strings.Split(trace.URL, "?")[0]); w.Code != http.StatusUnauthorized {
		t.Errorf("trace without permission: %d", w.Code)
	}
}
