package appliance

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"smolgym/store"
)

// SessionQuery says which sessions to look for. What is empty matches all.
type SessionQuery struct {
	SessionID    string // exact; with DisplayName a session that matches either matches
	DisplayName  string // words, each somewhere in the name, in any case
	ProjectIDs   []string
	UserMetadata map[string]string // every pair must hold
	Statuses     []StatusQuery     // one must match
	After        *SessionCursor    // go on behind it
	Limit        int
}

// StatusQuery matches a session's status.
type StatusQuery struct {
	Type    string   // active, client_finished; others match none here
	Reasons []string // of client_finished: success, errored, interrupted; empty: each
}

// SessionCursor is the last session of a page.
type SessionCursor struct {
	Created   time.Time
	SessionID string
}

// SessionSummary is a session as a search finds it.
type SessionSummary struct {
	store.Session
	Checkpoints     int
	CheckpointBytes int64
}

// SearchSessions finds sessions, newest first, and says where to go on, nil at the end.
func (a *Appliance) SearchSessions(q SessionQuery) ([]SessionSummary, *SessionCursor, error) {
	all, _, err := a.db.Sessions(store.Page{})
	if err != nil {
		return nil, nil, problemOf("search sessions", err)
	}
	slices.SortFunc(all, newestFirst)
	var found []store.Session
	for _, s := range all {
		if after := q.After; after != nil && newestFirst(s, store.Session{ID: after.SessionID, Created: after.Created}) <= 0 {
			continue
		}
		if q.matches(s) {
			found = append(found, s)
		}
	}
	var next *SessionCursor
	if q.Limit > 0 && len(found) > q.Limit {
		found = found[:q.Limit]
		last := found[q.Limit-1]
		next = &SessionCursor{last.Created, last.ID}
	}
	list := make([]SessionSummary, len(found))
	for i, s := range found {
		list[i].Session = s
	}
	return list, next, a.countCheckpoints(list)
}

// newestFirst orders sessions.
func newestFirst(x, y store.Session) int {
	return cmp.Or(y.Created.Compare(x.Created), strings.Compare(y.ID, x.ID))
}

func (q SessionQuery) matches(s store.Session) bool {
	if !q.named(s) || len(q.ProjectIDs) > 0 && !slices.Contains(q.ProjectIDs, Project(s.ProjectID)) {
		return false
	}
	for k, v := range q.UserMetadata {
		if got, ok := s.UserMetadata[k]; !ok || got != v {
			return false
		}
	}
	return len(q.Statuses) == 0 || slices.ContainsFunc(q.Statuses, func(st StatusQuery) bool { return st.matches(s) })
}

// named says whether the session is asked for by its id or name.
func (q SessionQuery) named(s store.Session) bool {
	if q.SessionID == "" && q.DisplayName == "" || q.SessionID != "" && q.SessionID == s.ID {
		return true
	}
	words := strings.Fields(strings.ToLower(q.DisplayName))
	name := strings.ToLower(s.DisplayName)
	return len(words) > 0 && !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(name, w) })
}

func (st StatusQuery) matches(s store.Session) bool {
	switch st.Type {
	case "active":
		return s.Finished == nil
	case "client_finished":
		return s.Finished != nil && (len(st.Reasons) == 0 || slices.Contains(st.Reasons, s.Finished.Reason))
	}
	return false
}

// countCheckpoints fills in what the sessions' runs have saved.
func (a *Appliance) countCheckpoints(list []SessionSummary) error {
	if len(list) == 0 {
		return nil
	}
	cps, _, err := a.db.Checkpoints(store.Page{})
	if err != nil {
		return problemOf("search sessions", err)
	}
	at := map[string]int{}
	for i, s := range list {
		at[s.ID] = i
	}
	for _, cp := range cps {
		if i, ok := at[sessionOf(cp.RunID)]; ok {
			list[i].Checkpoints++
			list[i].CheckpointBytes += cp.SizeBytes
		}
	}
	return nil
}

// RunsIn lists the training runs of a project, newest first, and counts them.
func (a *Appliance) RunsIn(project string, p Page) ([]RunView, int, error) {
	if project == "" {
		return a.Runs(p)
	}
	recs, _, err := a.db.Runs(store.Page{})
	if err != nil {
		return nil, 0, problemOf("list runs", err)
	}
	projects := a.projectsOf()
	recs = slices.DeleteFunc(recs, func(r store.Run) bool { return projects(r.SessionID) != project })
	total := len(recs)
	recs = recs[min(p.Offset, total):]
	if p.Limit > 0 {
		recs = recs[:min(p.Limit, len(recs))]
	}
	views := make([]RunView, len(recs))
	for i, rec := range recs {
		if views[i], err = a.view(rec); err != nil {
			return nil, 0, err
		}
	}
	return views, total, nil
}

// projectsOf looks sessions' projects up, each once.
func (a *Appliance) projectsOf() func(session string) string {
	known := map[string]string{}
	return func(session string) string {
		project, ok := known[session]
		if !ok {
			if s, err := a.db.Session(session); err == nil {
				project = s.ProjectID
			}
			project = Project(project)
			known[session] = project
		}
		return project
	}
}

// StorageRow is what the checkpoints of a project take.
type StorageRow struct {
	ProjectID   string
	Checkpoints int
	SizeBytes   int64
}

// Storage adds up the checkpoints by project, of one project if it is named.
func (a *Appliance) Storage(project string) ([]StorageRow, error) {
	list, _, err := a.db.Checkpoints(store.Page{})
	if err != nil {
		return nil, problemOf("add up checkpoints", err)
	}
	projects := a.projectsOf()
	var rows []StorageRow
	for _, cp := range list {
		id := projects(sessionOf(cp.RunID))
		if project != "" && id != project {
			continue
		}
		i := slices.IndexFunc(rows, func(r StorageRow) bool { return r.ProjectID == id })
		if i < 0 {
			i = len(rows)
			rows = append(rows, StorageRow{ProjectID: id})
		}
		rows[i].Checkpoints++
		rows[i].SizeBytes += cp.SizeBytes
	}
	slices.SortFunc(rows, func(x, y StorageRow) int { return strings.Compare(x.ProjectID, y.ProjectID) })
	return rows, nil
}
