package httpapi

import (
	"io"
	"mime"
	"net/http"
	"path"
	"strconv"

	"github.com/gin-gonic/gin"

	"smolgym/appliance"
)

// Bodies of /smolgym/v1 about weights that leave the box.
type (
	// Export says which files an export has. Fetch each with GET …/export/PATH and the same query, or,
	// of a model, with &file=PATH.
	Export struct {
		Path    string       `json:"path"` // of the checkpoint; of a model its name
		Form    string       `json:"form"` // adapter, merged, gguf or onnx
		Files   []ExportFile `json:"files"`
		Notes   []string     `json:"notes,omitempty"`   // what a user should know, a sentence each
		Skipped []string     `json:"skipped,omitempty"` // files of the base model that are left out
	}
	// ImportRequest announces an adapter (PEFT's folder): POST /smolgym/v1/imports.
	// Send its files as those of an upload, then POST /smolgym/v1/uploads/ID/import.
	ImportRequest struct {
		Model string `json:"model" wire:"required"` // the stored model that it is over
		Files []File `json:"files" wire:"required"`
	}
	// ImportName ends an import.
	ImportName struct {
		Name string `json:"name" wire:"required"` // of the checkpoint
	}
	// Imported is an adapter that became a checkpoint.
	Imported struct {
		Checkpoint
		Notes []string `json:"notes,omitempty"` // what was odd or folded, a sentence each
	}
	// ExportFile is one file of an export.
	ExportFile struct {
		Path string `json:"path"`
		Size int64  `json:"size"` // bytes
	}
)

// exportRoutes give a checkpoint's files in forms that other tools load:
// ?form=adapter|merged|gguf|onnx and, optionally, &dtype= and, for onnx, &name= of the file.
func (s *server) exportRoutes(g *gin.RouterGroup) {
	g.GET("/checkpoints/:run/:kind/:name/export", s.json(s.exportPlan))
	g.GET("/checkpoints/:run/:kind/:name/export/*file", s.exportedFile)
}

// importRoutes take adapters in.
func (s *server) importRoutes(g *gin.RouterGroup) {
	g.POST("/imports", post(s, maxManifest, s.beginImport))
	g.POST("/uploads/:id/import", post(s, maxJSON, s.commitImport))
}

func (s *server) beginImport(_ *gin.Context, req *ImportRequest) (any, error) {
	files, err := manifestOf(req.Files)
	if err != nil {
		return nil, err
	}
	return uploadBody(s.box.BeginImport(req.Model, files))
}

func (s *server) commitImport(c *gin.Context, req *ImportName) (any, error) {
	im, err := s.box.CommitImport(c.Param("id"), req.Name)
	if err != nil {
		return nil, err
	}
	return Imported{checkpointBody(im.Checkpoint), im.Notes}, nil
}

// exported plans what the query asks for.
func (s *server) exported(c *gin.Context) (string, *appliance.Files, error) {
	at, err := checkpointPath(c)
	if err != nil {
		return "", nil, err
	}
	files, err := s.box.Export(at, exportOptions(c))
	return at, files, err
}

func exportOptions(c *gin.Context) appliance.ExportOptions {
	return appliance.ExportOptions{Form: c.Query("form"), DType: c.Query("dtype"), File: c.Query("name")}
}

func (s *server) exportPlan(c *gin.Context) (any, error) {
	at, files, err := s.exported(c)
	if err != nil {
		return nil, err
	}
	defer files.Close()
	return exportBody(at, files), nil
}

func exportBody(at string, files *appliance.Files) Export {
	out := Export{Path: at, Form: files.Form, Files: []ExportFile{}, Notes: files.Plan.Notes, Skipped: files.Plan.Skipped}
	for _, f := range files.Plan.Files {
		out.Files = append(out.Files, ExportFile{f.Path, f.Size})
	}
	return out
}

// exportedFile makes a file while it sends it.
func (s *server) exportedFile(c *gin.Context) {
	at, files, err := s.exported(c)
	if err != nil {
		s.fail(c, err)
		return
	}
	defer files.Close()
	s.sendExport(c, at, files, nameParam(c, "file"))
}

func (s *server) sendExport(c *gin.Context, at string, files *appliance.Files, name string) {
	f, ok := files.Plan.File(name)
	if !ok {
		s.fail(c, errorf(http.StatusNotFound, "the export of %s as %s has no file %q", at, files.Form, clip(name)))
		return
	}
	h := c.Writer.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Length", strconv.FormatInt(f.Size, 10))
	h.Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": path.Base(name)}))
	c.Status(http.StatusOK)
	if c.Request.Method == http.MethodHead {
		return
	}
	w := &sentWriter{w: c.Writer}
	if err := f.Write(w); err != nil && w.err == nil {
		// The length was promised, so the server closes the connection: that is how the client learns of it.
		s.log.Error("export broke off", "path", at, "file", name, "error", err)
	}
}

// sentWriter notes that it was the client's side that failed.
type sentWriter struct {
	w   io.Writer
	err error
}

func (s *sentWriter) Write(p []byte) (int, error) {
	n, err := s.w.Write(p)
	if err != nil {
		s.err = err
	}
	return n, err
}
