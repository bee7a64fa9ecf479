package httpapi

import (
	"net/http"
	"strconv"
	"time"

	"github.com/gin-gonic/gin"

	"smolgym/appliance"
	"smolgym/httpapi/hub"
	"smolgym/httpapi/wire"
)

// Bodies of /smolgym/v1 about what was trained.
type (
	// Checkpoint is saved weights.
	Checkpoint struct {
		Path         string            `json:"path"`
		Run          string            `json:"run"`
		Kind         string            `json:"kind"` // weights, sampler_weights or external_weights
		Name         string            `json:"name"`
		BaseModel    string            `json:"base_model"`
		Full         bool              `json:"full"`           // every parameter; else LoRA
		Rank         int               `json:"rank,omitempty"` // LoRA
		Alpha        float64           `json:"alpha,omitempty"`
		TrainAttn    bool              `json:"train_attn"`
		TrainMLP     bool              `json:"train_mlp"`
		TrainUnembed bool              `json:"train_unembed"`
		Step         int64             `json:"step"` // optimizer steps taken
		SizeBytes    int64             `json:"size_bytes"`
		Created      time.Time         `json:"created"`
		Expires      *time.Time        `json:"expires,omitempty"`
		Public       bool              `json:"public,omitempty"`
		Numerics     string            `json:"numerics,omitempty"`
		UserMetadata map[string]string `json:"user_metadata,omitempty"`
		Hub          string            `json:"hub,omitempty"`     // its repository for hub clients: revision main is the merged model, adapter the PEFT form
		Tensors      []Tensor          `json:"tensors,omitempty"` // when one checkpoint is asked for
	}
	// Tensor is one tensor of a checkpoint.
	Tensor struct {
		Name  string  `json:"name"`
		Shape []int64 `json:"shape"`
		Bytes int64   `json:"bytes"`
	}
	// Checkpoints is a page of checkpoints, newest first.
	Checkpoints struct {
		Checkpoints wire.List[Checkpoint] `json:"checkpoints"`
		Total       int                   `json:"total"`
	}
	// TTLRequest lets a checkpoint expire: PUT /smolgym/v1/checkpoints/RUN/KIND/NAME/ttl.
	TTLRequest struct {
		Seconds int64 `json:"seconds"` // from now; 0 keeps it
	}
	// Run is a training run.
	Run struct {
		ID           string            `json:"id"`
		Session      string            `json:"session"`
		BaseModel    string            `json:"base_model"`
		Full         bool              `json:"full"`
		Rank         int               `json:"rank,omitempty"`
		TrainAttn    bool              `json:"train_attn"`
		TrainMLP     bool              `json:"train_mlp"`
		TrainUnembed bool              `json:"train_unembed"`
		Live         bool              `json:"live"` // its state is in memory: it can be trained on
		Created      time.Time         `json:"created"`
		LastRequest  *time.Time        `json:"last_request,omitempty"`
		FromPath     string            `json:"from_path,omitempty"`
		Numerics     string            `json:"numerics,omitempty"`
		UserMetadata map[string]string `json:"user_metadata,omitempty"`
		Checkpoints  []Checkpoint      `json:"checkpoints,omitempty"` // when one run is asked for
	}
	// Runs is a page of runs, newest first.
	Runs struct {
		Runs  wire.List[Run] `json:"runs"`
		Total int            `json:"total"`
	}
	// Loaded is what is in device memory.
	Loaded struct {
		Models   wire.List[LoadedModel]   `json:"models"`
		Runs     wire.List[LoadedRun]     `json:"runs"`
		Samplers wire.List[LoadedSampler] `json:"samplers"`
	}
	// LoadedModel is a base model in device memory.
	LoadedModel struct {
		Name      string `json:"name"`
		Bytes     int64  `json:"bytes"`
		Precision string `json:"precision"` // of its matrix products: fp32 or bf16
	}
	// LoadedRun is a run with its training state in device memory.
	LoadedRun struct {
		ID        string `json:"id"`
		BaseModel string `json:"base_model"`
		Full      bool   `json:"full"`
		Rank      int    `json:"rank,omitempty"`
		Waiting   int    `json:"waiting"` // requests not done yet
	}
	// LoadedSampler is a sampler with its weights in device memory.
	LoadedSampler struct {
		ID        string    `json:"id"`
		BaseModel string    `json:"base_model"`
		Path      string    `json:"path,omitempty"` // the checkpoint it was made from
		Active    int       `json:"active"`         // requests that use the weights
		LastUse   time.Time `json:"last_use"`
	}
)

// inventoryRoutes list what was trained and what is loaded.
func (s *server) inventoryRoutes(g *gin.RouterGroup) {
	g.GET("/ps", s.json(s.loaded))
	g.GET("/runs", s.json(s.ourRuns))
	g.GET("/runs/:run", s.json(s.ourRun))
	g.GET("/checkpoints", s.json(s.ourCheckpoints))
	at := g.Group("/checkpoints/:run/:kind/:name")
	at.GET("", s.json(s.ourCheckpoint))
	at.DELETE("", s.json(s.deleteCheckpoint))
	at.PUT("/ttl", post(s, maxJSON, s.ourTTL))
}

// ourPage reads ?limit= and ?offset=.
func ourPage(c *gin.Context) (p appliance.Page, err error) {
	for _, f := range []struct {
		name string
		dst  *int
	}{{"limit", &p.Limit}, {"offset", &p.Offset}} {
		text := c.Query(f.name)
		if text == "" {
			continue
		}
		if *f.dst, err = strconv.Atoi(text); err != nil || *f.dst < 0 {
			return p, errorf(http.StatusBadRequest, "%s %s: want a number, 0 or more", f.name, clip(text))
		}
	}
	return p, nil
}

func (s *server) loaded(*gin.Context) (any, error) {
	var out Loaded
	l := s.box.Loaded()
	for _, m := range l.Models {
		out.Models = append(out.Models, LoadedModel{m.Name, m.Bytes, m.Precision})
	}
	for _, r := range l.Runs {
		out.Runs = append(out.Runs, LoadedRun{r.ID, r.BaseModel, r.Full, r.Rank, r.Waiting})
	}
	for _, sm := range l.Samplers {
		out.Samplers = append(out.Samplers, LoadedSampler{sm.ID, sm.BaseModel, sm.Path, sm.Active, sm.LastUse.UTC()})
	}
	return out, nil
}

// checkpointBody is a record as we show it.
func checkpointBody(cp appliance.CheckpointRecord) Checkpoint {
	out := Checkpoint{Path: cp.Path(), Run: cp.RunID, Kind: string(cp.Kind), Name: cp.Name, BaseModel: cp.BaseModel, Full: cp.Full,
		TrainAttn: cp.TrainAttn, TrainMLP: cp.TrainMLP, TrainUnembed: cp.TrainUnembed, Step: cp.Step, SizeBytes: cp.SizeBytes,
		Created: cp.Created.UTC(), Expires: cp.Expires, Public: cp.Public, Numerics: cp.Numerics, UserMetadata: cp.UserMetadata}
	if !cp.Full {
		out.Rank, out.Alpha = cp.Rank, cp.Alpha
	}
	out.Hub, _ = hub.CheckpointRepo(out.Path) // one in an external form has none
	for _, t := range cp.Tensors {
		out.Tensors = append(out.Tensors, Tensor{t.Name, t.Shape, t.Bytes})
	}
	return out
}

func (s *server) ourCheckpoints(c *gin.Context) (any, error) {
	page, err := ourPage(c)
	if err != nil {
		return nil, err
	}
	var list []appliance.CheckpointRecord
	var out Checkpoints
	if run := c.Query("run"); run != "" {
		list, out.Total, err = s.box.CheckpointsOf(run, page)
	} else {
		list, out.Total, err = s.box.Checkpoints(page)
	}
	if err != nil {
		return nil, err
	}
	for _, cp := range list {
		out.Checkpoints = append(out.Checkpoints, checkpointBody(cp))
	}
	return out, nil
}

func (s *server) ourCheckpoint(c *gin.Context) (any, error) {
	path, err := checkpointPath(c)
	if err != nil {
		return nil, err
	}
	cp, err := s.box.Checkpoint(path)
	if err != nil {
		return nil, err
	}
	return checkpointBody(cp), nil
}

// maxTTL bounds an expiry, in seconds: what a duration can hold is 292 years.
const maxTTL = 100 * 365 * 24 * 3600

func (s *server) ourTTL(c *gin.Context, req *TTLRequest) (any, error) {
	path, err := checkpointPath(c)
	if err != nil {
		return nil, err
	}
	if req.Seconds < 0 || req.Seconds > maxTTL {
		return nil, errorf(http.StatusBadRequest, "seconds %d: want 0 (kept) to %d", req.Seconds, maxTTL)
	}
	if err := s.box.SetTTL(path, time.Duration(req.Seconds)*time.Second); err != nil {
		return nil, err
	}
	return s.ourCheckpoint(c)
}

// ourRunBody is a record as we show it.
func ourRunBody(v appliance.RunView) Run {
	out := Run{ID: v.ID, Session: v.SessionID, BaseModel: v.BaseModel, Full: v.Full, TrainAttn: v.TrainAttn, TrainMLP: v.TrainMLP,
		TrainUnembed: v.TrainUnembed, Live: v.Live, Created: v.Created.UTC(), FromPath: v.FromPath, Numerics: v.Numerics, UserMetadata: v.UserMetadata}
	if !v.Full {
		out.Rank = v.Rank
	}
	if !v.LastRequest.IsZero() {
		at := v.LastRequest.UTC()
		out.LastRequest = &at
	}
	return out
}

func (s *server) ourRuns(c *gin.Context) (any, error) {
	page, err := ourPage(c)
	if err != nil {
		return nil, err
	}
	list, total, err := s.box.Runs(page)
	if err != nil {
		return nil, err
	}
	out := Runs{Total: total}
	for _, v := range list {
		out.Runs = append(out.Runs, ourRunBody(v))
	}
	return out, nil
}

func (s *server) ourRun(c *gin.Context) (any, error) {
	v, err := s.box.Run(c.Param("run"))
	if err != nil {
		return nil, err
	}
	list, _, err := s.box.CheckpointsOf(v.ID, appliance.Page{})
	if err != nil {
		return nil, err
	}
	out := ourRunBody(v)
	for _, cp := range list {
		out.Checkpoints = append(out.Checkpoints, checkpointBody(cp))
	}
	return out, nil
}
