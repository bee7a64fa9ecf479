package httpapi

import (
	"net/http"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"smolgym/appliance"
	"smolgym/httpapi/wire"
)

// wireRoutes are those of the Tinker wire.
func (s *server) wireRoutes(g *gin.RouterGroup) {
	g.GET("/healthz", s.json(s.health))
	// These carry their permission in the URL.
	g.GET("/external/:run/:name/*file", s.externalFile)
	g.HEAD("/external/:run/:name/*file", s.externalFile)
	g.GET("/traces/:id", s.trace)
	g.Use(s.authorize)
	g.POST("/auth/token", s.json(s.authToken))
	g.GET("/get_server_capabilities", s.json(s.capabilities))
	g.POST("/client/config", post(s, maxJSON, s.clientConfig))
	g.POST("/client/dynamic_config", post(s, maxJSON, s.dynamicConfig))
	g.GET("/auth/apikey/me", s.json(s.apiKey))
	g.DELETE("/auth/apikey/me", s.json(s.nothing))
	g.POST("/telemetry", s.json(s.telemetry))

	g.POST("/create_session", post(s, maxJSON, s.createSession))
	g.POST("/session_heartbeat", post(s, maxJSON, s.heartbeat))
	g.GET("/sessions", s.json(s.sessions))
	g.POST("/sessions/search", post(s, maxJSON, s.searchSessions))
	g.GET("/sessions/:id", s.json(s.session))
	g.POST("/sessions/:id/finish", post(s, maxJSON, s.finishSession))
	g.PUT("/sessions/:id/project", post(s, maxJSON, s.assignProject))
	g.GET("/sessions/:id/trace_export", s.json(s.traceExport))

	g.POST("/create_model", post(s, maxJSON, s.createModel))
	g.POST("/get_info", post(s, maxJSON, s.getInfo))
	g.POST("/forward_backward", s.json(s.forwardBackward))
	g.POST("/optim_step", post(s, maxJSON, s.optimStep))
	g.POST("/save_weights", post(s, maxJSON, s.saveWeights))
	g.POST("/save_weights_for_sampler", post(s, maxJSON, s.saveForSampler))
	g.POST("/save_weights_external", post(s, maxJSON, s.saveExternal))
	g.POST("/load_weights", post(s, maxJSON, s.loadWeights))
	g.POST("/copy_weights", post(s, maxJSON, s.copyWeights))
	g.POST("/create_custom_loss", post(s, maxGraph, s.createCustomLoss))
	g.POST("/unload_model", post(s, maxJSON, s.unloadModel))
	g.POST("/retrieve_future", s.retrieveFuture)
	g.POST("/retrieve_futures", post(s, maxPrompt, s.retrieveFutures)) // names every result fetched
	g.POST("/cancel_future", post(s, maxJSON, s.cancelFuture))

	g.POST("/create_sampling_session", post(s, maxJSON, s.createSampling))
	g.POST("/join_sampling_session", post(s, maxJSON, s.joinSampling))
	g.GET("/samplers/:id", s.json(s.sampler))
	g.POST("/asample", s.json(s.sampleBody))

	g.GET("/training_runs", s.json(s.runs))
	g.GET("/training_runs/:run", s.json(s.run))
	g.GET("/training_runs/:run/checkpoints", s.json(s.runCheckpoints))
	checkpoint := g.Group("/training_runs/:run/checkpoints/:kind/:name")
	checkpoint.DELETE("", s.json(s.deleteCheckpoint))
	checkpoint.POST("/publish", s.json(s.publish(true)))
	checkpoint.DELETE("/publish", s.json(s.publish(false)))
	checkpoint.PUT("/ttl", post(s, maxJSON, s.setTTL))
	checkpoint.GET("/external_weights_urls", s.json(s.externalURLs))
	g.GET("/checkpoints", s.json(s.checkpoints))
	g.POST("/weights_info", post(s, maxJSON, s.weightsInfo))

	g.GET("/audit", s.json(s.audit))
	g.GET("/billing/usage/events", s.json(s.usage))
	g.GET("/billing/usage/checkpoints/current", s.json(s.storage))
}

func (s *server) nothing(*gin.Context) (any, error) { return struct{}{}, nil }

// Health is the answer of healthz: what the wire asks for, and what is useful.
type Health struct {
	wire.HealthResponse
	Version   string `json:"version,omitempty"`
	Device    string `json:"device"`
	Family    string `json:"family"` // of instructions
	Why       string `json:"why"`    // this device and family
	Precision string `json:"precision"`
	Schema    int    `json:"schema"`
}

func (s *server) health(*gin.Context) (any, error) {
	st, err := s.box.Status()
	if err != nil {
		return nil, err
	}
	return Health{HealthResponse: wire.HealthResponse{Status: "ok"}, Version: s.opt.Version, Device: st.Device.Kind,
		Family: st.Device.Family, Why: st.Device.Why, Precision: st.Precision, Schema: st.Schema}, nil
}

func (s *server) capabilities(*gin.Context) (any, error) {
	list, err := s.box.Capabilities()
	if err != nil {
		return nil, err
	}
	var out wire.CapabilitiesResponse
	for _, m := range list {
		out.SupportedModels = append(out.SupportedModels, wire.SupportedModel{ModelName: m.Name, MaxContextLength: m.Context, Trainable: true, Sampleable: true})
	}
	return out, nil
}

func (s *server) apiKey(*gin.Context) (any, error) {
	out := wire.APIKeyResponse{Name: owner}
	out.Details.OrgDetails.Name, out.Details.UserDetails.Email = owner, userEmail
	return out, nil
}

// telemetry is accepted and thrown away: events may hold keys and file paths.
func (s *server) telemetry(c *gin.Context) (any, error) {
	discard(c, maxEvents)
	return wire.TelemetryResponse{}, nil
}

func (s *server) createSession(_ *gin.Context, req *wire.CreateSessionRequest) (any, error) {
	id, err := s.box.CreateSession(appliance.SessionRequest{Tags: req.Tags, UserMetadata: req.UserMetadata,
		ProjectID: req.ProjectID, DisplayName: req.DisplayName, SDKVersion: req.SDKVersion})
	if err != nil {
		return nil, err
	}
	return wire.CreateSessionResponse{SessionID: id}, nil
}

func (s *server) heartbeat(_ *gin.Context, req *wire.HeartbeatRequest) (any, error) {
	return wire.HeartbeatResponse{}, s.box.Heartbeat(req.SessionID)
}

func (s *server) finishSession(c *gin.Context, req *wire.FinishSessionRequest) (any, error) {
	return struct{}{}, s.box.FinishSession(c.Param("id"), req.Reason.Type, req.Detail)
}

func (s *server) sessions(c *gin.Context) (any, error) {
	page, err := wire.ParsePage(c.Request.URL.Query(), 20)
	if err != nil {
		return nil, err
	}
	list, _, err := s.box.Sessions(appliance.Page{Limit: page.Limit, Offset: page.Offset})
	if err != nil {
		return nil, err
	}
	var out wire.SessionsResponse
	for _, v := range list {
		out.Sessions = append(out.Sessions, v.ID)
	}
	return out, nil
}

func (s *server) session(c *gin.Context) (any, error) {
	v, err := s.box.Session(c.Param("id"))
	if err != nil {
		return nil, err
	}
	return wire.SessionResponse{TrainingRunIDs: v.Runs, SamplerIDs: v.Samplers, UserMetadata: v.UserMetadata, DisplayName: v.DisplayName}, nil
}

func (s *server) assignProject(c *gin.Context, req *wire.AssignProjectRequest) (any, error) {
	return struct{}{}, s.box.AssignProject(c.Param("id"), req.ProjectID)
}

// checkpointPath is the path that a route's parameters name.
func checkpointPath(c *gin.Context) (string, error) {
	p, err := wire.ParsePath("tinker://" + strings.Join([]string{c.Param("run"), c.Param("kind"), c.Param("name")}, "/"))
	return p.String(), err
}

func (s *server) deleteCheckpoint(c *gin.Context) (any, error) {
	path, err := checkpointPath(c)
	if err != nil {
		return nil, err
	}
	return struct{}{}, s.box.DeleteCheckpoint(path)
}

func (s *server) publish(public bool) func(c *gin.Context) (any, error) {
	return func(c *gin.Context) (any, error) {
		path, err := checkpointPath(c)
		if err != nil {
			return nil, err
		}
		return struct{}{}, s.box.PublishCheckpoint(path, public)
	}
}

func (s *server) setTTL(c *gin.Context, req *wire.SetTTLRequest) (any, error) {
	path, err := checkpointPath(c)
	if err != nil {
		return nil, err
	}
	return struct{}{}, s.box.SetTTL(path, time.Duration(req.TTLSeconds.Value)*time.Second)
}

func (s *server) weightsInfo(_ *gin.Context, req *wire.WeightsInfoRequest) (any, error) {
	cp, err := s.box.Checkpoint(req.TinkerPath)
	if err != nil {
		return nil, err
	}
	out := wire.WeightsInfoResponse{BaseModel: cp.BaseModel, IsLora: !cp.Full, OptimizerConfig: &wire.OptimizerConfig{Type: "adamw"}}
	if out.IsLora {
		out.LoraRank, out.TrainUnembed, out.TrainMLP, out.TrainAttn = &cp.Rank, &cp.TrainUnembed, &cp.TrainMLP, &cp.TrainAttn
	}
	return out, nil
}

// retrieveFuture waits a while for a result. Failures are answers, not statuses:
// clients poll a 5xx for ever.
func (s *server) retrieveFuture(c *gin.Context) {
	body, err := s.body(c, maxJSON)
	var req wire.RetrieveFutureRequest
	if err == nil {
		err = wire.DecodeJSON(body, &req)
	}
	if err != nil {
		s.fail(c, err)
		return
	}
	ctx, cancel := withTimeout(c.Request.Context(), s.opt.Hold)
	defer cancel()
	ans, err := s.box.Retrieve(ctx, req.RequestID)
	if err != nil {
		s.fail(c, err)
		return
	}
	switch {
	case ans.Failure != nil:
		c.JSON(http.StatusOK, wire.FailedResponse{Error: ans.Failure.Message, Category: wire.Category(ans.Failure.Category)})
	case ans.Result == nil:
		c.JSON(http.StatusRequestTimeout, wire.TryAgainResponse{RequestID: req.RequestID, QueueState: wire.QueueState(ans.QueueState), QueueStateReason: ans.Reason})
	default:
		s.result(c, req.RequestID, ans)
	}
}
