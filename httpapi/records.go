package httpapi

import (
	"net/http"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"smolgym/appliance"
	"smolgym/httpapi/wire"
)

func (s *server) searchSessions(_ *gin.Context, req *wire.SessionSearchRequest) (any, error) {
	q := appliance.SessionQuery{SessionID: req.SessionID, DisplayName: req.DisplayName, ProjectIDs: req.ProjectIDs, UserMetadata: req.UserMetadata, Limit: req.Limit}
	for _, st := range req.Statuses {
		q.Statuses = append(q.Statuses, appliance.StatusQuery{Type: st.Type, Reasons: st.Reasons})
	}
	if at := req.Cursor; at != nil {
		q.After = &appliance.SessionCursor{Created: at.LastCreatedAt.Time, SessionID: at.LastSessionID}
	}
	var out wire.SessionSearchResponse
	if req.Owner.Type == "user" && !ownedBy(req.Owner.OwnerURNs) {
		return out, nil
	}
	list, next, err := s.box.SearchSessions(q)
	if err != nil {
		return nil, err
	}
	for _, v := range list {
		sum := wire.SessionSummary{SessionID: v.ID, CreatedAt: wire.Time{Time: v.Created}, Owner: userURN, ProjectID: appliance.Project(v.ProjectID),
			Status: &wire.SessionStatus{Type: "active"}, CheckpointsCount: v.Checkpoints, DisplayName: v.DisplayName,
			UserMetadata: v.UserMetadata, CheckpointStorageBytes: &v.CheckpointBytes}
		if f := v.Finished; f != nil {
			sum.Status = &wire.SessionStatus{Type: "client_finished", Detail: f.Detail, Reason: &wire.SessionStatusReason{Type: f.Reason}}
		}
		out.Sessions = append(out.Sessions, sum)
	}
	if next != nil {
		out.NextCursor = &wire.SessionSearchCursor{LastCreatedAt: wire.Time{Time: next.Created}, LastSessionID: next.SessionID}
	}
	return out, nil
}

// ownedBy says whether the one owner is among those asked for.
func ownedBy(urns []string) bool {
	for _, u := range urns {
		if u == userURN || u == owner {
			return true
		}
	}
	return false
}

func (s *server) copyWeights(c *gin.Context, req *wire.CopyWeightsRequest) (any, error) {
	q := appliance.CopyRequest{Path: req.SourcePath, ProjectID: req.DestinationProjectID, TTL: ttl(req.TTLSeconds), Key: c.GetHeader("X-Idempotency-Key")}
	if req.DestinationProjectID == "" {
		q.SessionID, q.ModelSeq = req.SessionID, *req.ModelSeqID
	}
	path, err := s.box.CopyCheckpoint(q)
	if err != nil {
		return nil, err
	}
	return wire.CopyWeightsResponse{TinkerPath: path}, nil
}

// auditKinds maps what a query asks for to what events' names begin with.
var auditKinds = map[string]string{"": "", "all": "", "checkpoints": "checkpoint_", "projects": "project_", "teams": "team_", "organizations": "organization_"}

// audit lists the events of one day, midnight to midnight UTC.
func (s *server) audit(c *gin.Context) (any, error) {
	prefix, known := auditKinds[c.Query("event_type")]
	if !known {
		return nil, errorf(http.StatusBadRequest, "audit: event_type %s is unknown; use all, checkpoints, projects, teams or organizations", clip(c.Query("event_type")))
	}
	day := s.now().UTC().Truncate(24 * time.Hour)
	if text := c.Query("day"); text != "" {
		var err error
		if day, err = time.Parse(time.DateOnly, text); err != nil {
			return nil, errorf(http.StatusBadRequest, "audit: day %s is no date; write YYYY-MM-DD", clip(text))
		}
	}
	events, err := s.box.Events(day, day.AddDate(0, 0, 1))
	if err != nil {
		return nil, err
	}
	var out wire.AuditResponse
	for _, e := range events {
		if !strings.HasPrefix(e.Name, prefix) {
			continue
		}
		entry := wire.AuditEntry{Timestamp: wire.Time{Time: e.Time}, Event: e.Name, EventDetails: wire.Dict[any]{"actor": userURN}}
		for k, v := range e.Details {
			entry.EventDetails[k] = v
		}
		out.Entries = append(out.Entries, entry)
	}
	return out, nil
}

// maxUsageDays is the longest window of usage that one answer covers.
const maxUsageDays = 31

func queryTime(c *gin.Context, name string) (time.Time, error) {
	t, err := time.Parse(time.RFC3339, c.Query(name))
	if err != nil {
		return t, errorf(http.StatusBadRequest, "query %s: %s is no time; write it as 2026-01-02T00:00:00Z", name, clip(c.Query(name)))
	}
	return t, nil
}

// usage lists what was used, by the hour. Everything has the price 0.
func (s *server) usage(c *gin.Context) (any, error) {
	from, err := queryTime(c, "starting_on")
	if err != nil {
		return nil, err
	}
	before, err := queryTime(c, "ending_before")
	if err != nil {
		return nil, err
	}
	if !from.Before(before) || before.Sub(from) > maxUsageDays*24*time.Hour {
		return nil, errorf(http.StatusBadRequest, "billing: the window from %v to %v; want one of up to %d days", from, before, maxUsageDays)
	}
	rows, sessions, err := s.box.Usage(from, before)
	if err != nil {
		return nil, err
	}
	out := wire.BillingEventsResponse{Sessions: wire.Dict[wire.BillingSession]{}}
	for _, r := range rows {
		free := 0.0
		e := wire.BillingEvent{BucketStart: wire.Time{Time: r.Hour}, BucketEnd: wire.Time{Time: r.Hour.Add(time.Hour)}, EventInfo: wire.BillingEventInfo{Type: r.Kind},
			BaseModel: r.BaseModel, UserID: userURN, UserName: owner, SessionID: r.SessionID, ProjectID: r.ProjectID, EstimatedCostUSD: &free}
		switch r.Kind {
		case "checkpoint":
			e.EventInfo.Count, e.EstimatedCostUSD = &r.Checkpoints, nil
		case "storage":
			yes := true
			e.EventInfo.GigabyteHours, e.EventInfo.Free = &r.GigabyteHours, &yes
		case "sampling_prefill":
			e.EventInfo.TokenCount, e.EventInfo.Cached = &r.Tokens, &r.Cached
		default:
			e.EventInfo.TokenCount = &r.Tokens
		}
		out.Data = append(out.Data, e)
	}
	for id, meta := range sessions {
		out.Sessions[id] = wire.BillingSession{UserMetadata: meta}
	}
	return out, nil
}

// storage says what checkpoints occupy, by project.
func (s *server) storage(c *gin.Context) (any, error) {
	rows, err := s.box.Storage(c.Query("project_id"))
	if err != nil {
		return nil, err
	}
	free := 0.0
	out := wire.BillingStorageResponse{EffectiveRateUSDPerGigabyteMonth: &free}
	for _, r := range rows {
		out.Data = append(out.Data, wire.BillingStorageItem{ProjectID: r.ProjectID, CheckpointCount: r.Checkpoints, SizeBytes: r.SizeBytes, SizeGigabytes: float64(r.SizeBytes) / 1e9})
	}
	return out, nil
}

// traceExport says where a session's timeline is.
func (s *server) traceExport(c *gin.Context) (any, error) {
	id := c.Param("id")
	if _, err := s.box.Session(id); err != nil {
		return nil, err
	}
	url, err := s.signedURL(c, s.now().Add(signedLife), "traces", id)
	if err != nil {
		return nil, err
	}
	return wire.TraceExportResponse{Status: "ready", URL: url}, nil
}

// trace sends a session's timeline.
func (s *server) trace(c *gin.Context) {
	id := c.Param("id")
	err := s.permitted(c, "traces", id)
	var raw []byte
	if err == nil {
		raw, err = s.box.Trace(id)
	}
	if err != nil {
		s.fail(c, err)
		return
	}
	c.Header("Content-Disposition", `attachment; filename="trace.json"`)
	c.Data(http.StatusOK, "application/json", raw)
}
