package httpapi

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"smolgym/appliance"
	"smolgym/httpapi/wire"
)

// The bodies of /smolgym/v1. Fields may be added, never changed.
type (
	// Model describes a stored model.
	Model struct {
		Name       string    `json:"name"`
		Aliases    []string  `json:"aliases,omitempty"`
		Created    time.Time `json:"created"`
		Family     string    `json:"family"`
		Parameters int64     `json:"parameters"`
		DType      string    `json:"dtype"` // of the stored weights
		Context    int       `json:"context"`
		SizeBytes  int64     `json:"size_bytes"`
		Warnings   []string  `json:"warnings,omitempty"`
		Files      []File    `json:"files,omitempty"` // when one model is asked for
	}
	// File is one file of a model.
	File struct {
		Path   string `json:"path"`
		Size   int64  `json:"size"` // bytes
		SHA256 string `json:"sha256"`
	}
	// Models lists the stored models by name.
	Models struct {
		Models wire.List[Model] `json:"models"`
	}
	// UploadRequest announces a model: POST /smolgym/v1/uploads.
	UploadRequest struct {
		Name  string `json:"name" wire:"required"`
		Files []File `json:"files" wire:"required"`
	}
	// Upload is how far a model has come in. Send each file's bytes from Have on
	// with PUT /smolgym/v1/uploads/ID/files/PATH?offset=HAVE, then commit.
	Upload struct {
		ID    string       `json:"id"`
		Model string       `json:"model"`
		Files []UploadFile `json:"files"`
	}
	// UploadFile is how far one file has come.
	UploadFile struct {
		File
		Have int64 `json:"have"` // bytes that are here
		Done bool  `json:"done"`
	}
	// Stats are the engine's counters since the start.
	Stats struct {
		DecodeSteps     int64 `json:"decode_steps"`     // batches decoded
		DecodeSequences int64 `json:"decode_sequences"` // sequences in them, summed
		MaxDecodeBatch  int   `json:"max_decode_batch"` // most sequences in one
		MaxDecodeMix    int   `json:"max_decode_mix"`   // most sets of weights in one
		LongestHoldMS   int64 `json:"longest_hold_ms"`  // longest that other work kept the device without asking whether decoding is due
		SampledTokens   int64 `json:"sampled_tokens"`
		PrefillTokens   int64 `json:"prefill_tokens"`
		TrainTokens     int64 `json:"train_tokens"`
		OptimSteps      int64 `json:"optim_steps"`
	}
	// Status is what the box is and does.
	Status struct {
		Version        string    `json:"version,omitempty"`
		Started        time.Time `json:"started"`
		Device         string    `json:"device"`
		DeviceName     string    `json:"device_name"`
		Family         string    `json:"family"`
		Why            string    `json:"why"`
		Threads        int       `json:"threads"`
		MemoryBytes    int64     `json:"memory_bytes"`
		FreeBytes      int64     `json:"free_bytes"`
		Precision      string    `json:"precision"`
		Numerics       string    `json:"numerics"`
		Models         int       `json:"models"`
		ModelsLoaded   int       `json:"models_loaded"`
		Sessions       int       `json:"sessions"`
		RunsLive       int       `json:"runs_live"`
		SamplersLoaded int       `json:"samplers_loaded"`
		SamplesActive  int       `json:"samples_active"`
		SamplesWaiting int       `json:"samples_waiting"`
		RunsWaiting    int       `json:"runs_waiting"`
	}
	// TokenizeRequest has a text to encode or ids to decode.
	TokenizeRequest struct {
		Model   string   `json:"model" wire:"required"`
		Text    *string  `json:"text,omitempty"`
		IDs     *[]int32 `json:"ids,omitempty"`
		Special bool     `json:"special"` // encode: add what the post-processor adds; decode: keep special tokens
	}
	// TokenizeResponse has the other of the two.
	TokenizeResponse struct {
		IDs  []int32 `json:"ids,omitempty"`
		Text *string `json:"text,omitempty"`
	}
)

// maxManifest bounds an announcement, in bytes: ten thousand files with their hashes.
const maxManifest = 8 << 20

func (s *server) ourRoutes(g *gin.RouterGroup) {
	g.GET("/status", s.json(s.status))
	g.GET("/stats", s.json(s.stats))
	g.POST("/tokenize", post(s, maxPrompt, s.tokenize))
	g.GET("/models", s.json(s.models))
	// A model's name has a slash in it.
	g.GET("/models/*name", s.json(s.model))
	g.DELETE("/models/*name", s.json(s.removeModel))
	g.POST("/uploads", post(s, maxManifest, s.beginUpload))
	g.GET("/uploads/:id", s.json(s.upload))
	g.DELETE("/uploads/:id", s.json(s.abortUpload))
	g.PUT("/uploads/:id/files/*path", s.json(s.putFile))
	g.POST("/uploads/:id/commit", s.json(s.commitUpload))
	s.inventoryRoutes(g)
	s.exportRoutes(g)
	s.importRoutes(g)
	s.modelRoutes(g)
	s.keyRoutes(g)
	g.POST("/chat", s.chat)
	g.GET("/doctor", s.json(s.doctor))
}

func (s *server) status(*gin.Context) (any, error) {
	st, err := s.box.Status()
	if err != nil {
		return nil, err
	}
	return Status{Version: s.opt.Version, Started: st.Started, Device: st.Device.Kind, DeviceName: st.Device.Name, Family: st.Device.Family,
		Why: st.Device.Why, Threads: st.Device.Threads, MemoryBytes: st.Device.MemoryBytes, FreeBytes: st.Device.FreeBytes,
		Precision: st.Precision, Numerics: st.Numerics, Models: st.Models, ModelsLoaded: st.BasesLoaded, Sessions: st.Sessions,
		RunsLive: st.RunsLive, SamplersLoaded: st.SamplersIn, SamplesActive: st.Queue.SamplesActive, SamplesWaiting: st.Queue.SamplesWaiting,
		RunsWaiting: st.Queue.LanesWaiting}, nil
}

func (s *server) stats(*gin.Context) (any, error) {
	st := s.box.Stats()
	return Stats{DecodeSteps: st.DecodeSteps, DecodeSequences: st.DecodeSequences, MaxDecodeBatch: st.MaxDecodeBatch,
		MaxDecodeMix: st.MaxDecodeMix, LongestHoldMS: st.LongestHold.Milliseconds(),
		SampledTokens: st.SampledTokens, PrefillTokens: st.PrefillTokens, TrainTokens: st.TrainTokens, OptimSteps: st.OptimSteps}, nil
}

func (s *server) tokenize(_ *gin.Context, req *TokenizeRequest) (any, error) {
	switch {
	case (req.Text == nil) == (req.IDs == nil):
		return nil, errorf(http.StatusBadRequest, "tokenize: send either text or ids")
	case req.Text != nil:
		ids, err := s.box.Tokenize(req.Model, *req.Text, req.Special)
		return TokenizeResponse{IDs: ids}, err
	}
	text, err := s.box.Detokenize(req.Model, *req.IDs, !req.Special)
	return TokenizeResponse{Text: &text}, err
}

func (s *server) models(*gin.Context) (any, error) {
	list, err := s.box.Models()
	if err != nil {
		return nil, err
	}
	var out Models
	for _, m := range list {
		out.Models = append(out.Models, modelBody(m, false))
	}
	return out, nil
}

// modelBody is a record as we show it.
func modelBody(m appliance.ModelRecord, files bool) Model {
	out := Model{Name: m.Name, Aliases: m.Aliases, Created: m.Created.UTC(), Family: m.Family, Parameters: m.Parameters, DType: m.DType, Context: m.Context}
	for _, f := range m.Files {
		out.SizeBytes += f.Size
		if files {
			out.Files = append(out.Files, File{f.Path, f.Size, f.SHA256.String()})
		}
	}
	if w := m.Meta["warnings"]; w != "" {
		out.Warnings = strings.Split(w, "\n")
	}
	return out
}

// nameParam is a name with slashes that ends a route.
func nameParam(c *gin.Context, name string) string { return strings.TrimPrefix(c.Param(name), "/") }

func (s *server) model(c *gin.Context) (any, error) {
	m, err := s.box.Model(nameParam(c, "name"))
	if err != nil {
		return nil, err
	}
	return modelBody(m, true), nil
}

func (s *server) removeModel(c *gin.Context) (any, error) {
	return struct{}{}, s.box.RemoveModel(nameParam(c, "name"))
}

func (s *server) beginUpload(_ *gin.Context, req *UploadRequest) (any, error) {
	files, err := manifestOf(req.Files)
	if err != nil {
		return nil, err
	}
	return uploadBody(s.box.BeginUpload(req.Name, files))
}

func manifestOf(list []File) ([]appliance.ManifestFile, error) {
	files := make([]appliance.ManifestFile, len(list))
	for i, f := range list {
		var err error
		if files[i], err = appliance.NewManifestFile(f.Path, f.Size, f.SHA256); err != nil {
			return nil, err
		}
	}
	return files, nil
}

func uploadBody(u appliance.UploadState, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	out := Upload{ID: u.ID, Model: u.Model}
	for _, f := range u.Files {
		out.Files = append(out.Files, fileBody(f))
	}
	return out, nil
}

func fileBody(f appliance.UploadFile) UploadFile {
	return UploadFile{File: File{f.Path, f.Size, f.SHA256.String()}, Have: f.Have, Done: f.Done}
}

func (s *server) upload(c *gin.Context) (any, error) { return uploadBody(s.box.Upload(c.Param("id"))) }

func (s *server) abortUpload(c *gin.Context) (any, error) {
	return struct{}{}, s.box.AbortUpload(c.Param("id"))
}

func (s *server) commitUpload(c *gin.Context) (any, error) {
	m, err := s.box.CommitUpload(c.Param("id"))
	if err != nil {
		return nil, err
	}
	return modelBody(m, true), nil
}

// putFile takes a file's bytes from an offset on. How many bytes may come is for
// the announcement to say.
func (s *server) putFile(c *gin.Context) (any, error) {
	offset, err := fileOffset(c)
	if err != nil {
		return nil, err
	}
	f, err := s.box.PutFile(c.Param("id"), nameParam(c, "path"), offset, appliance.FromClient(c.Request.Body))
	if err != nil {
		return nil, err
	}
	return fileBody(f), nil
}

// fileOffset is where the body's first byte belongs: ?offset=N, or Content-Range.
func fileOffset(c *gin.Context) (int64, error) {
	text := c.Query("offset")
	if r := c.GetHeader("Content-Range"); r != "" {
		var ok bool
		if text, ok = strings.CutPrefix(r, "bytes "); ok {
			text, _, ok = strings.Cut(text, "-")
		}
		if !ok {
			return 0, errorf(http.StatusBadRequest, "Content-Range %s: want bytes FIRST-LAST/TOTAL", clip(r))
		}
	}
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil || n < 0 {
		return 0, errorf(http.StatusBadRequest, "offset %s: want a number of bytes", fmt.Sprintf("%.40q", text))
	}
	return n, nil
}
