package httpapi

import (
	"net/http"

	"github.com/gin-gonic/gin"
)

// AliasRequest lets a stored model answer to another name: POST /smolgym/v1/aliases.
type AliasRequest struct {
	Model string `json:"model" wire:"required"`
	Alias string `json:"alias" wire:"required"`
}

// modelRoutes name models anew and show what they compute.
func (s *server) modelRoutes(g *gin.RouterGroup) {
	g.POST("/aliases", post(s, maxJSON, s.addAlias))
	g.GET("/graphs/*name", s.graph) // ?mode=decode for the graph that samples; ?form=onnx for files, see Export
}

func (s *server) addAlias(_ *gin.Context, req *AliasRequest) (any, error) {
	m, err := s.box.AddAlias(req.Model, req.Alias)
	if err != nil {
		return nil, err
	}
	return modelBody(m, true), nil
}

// graph prints a model's graph as text, or gives it in a form that other tools load.
func (s *server) graph(c *gin.Context) {
	if form := c.Query("form"); form != "" && form != "text" {
		s.graphFiles(c)
		return
	}
	mode := c.Query("mode")
	if mode != "" && mode != "train" && mode != "decode" {
		s.fail(c, errorf(http.StatusBadRequest, "mode %q: give train or decode", clip(mode)))
		return
	}
	text, err := s.box.Graph(nameParam(c, "name"), mode == "decode")
	if err != nil {
		s.fail(c, err)
		return
	}
	c.Data(http.StatusOK, "text/plain; charset=utf-8", text)
}

// graphFiles lists a model's files in another form, or with ?file= makes one while it sends it.
func (s *server) graphFiles(c *gin.Context) {
	name := nameParam(c, "name")
	files, err := s.box.ExportModel(name, exportOptions(c))
	if err != nil {
		s.fail(c, err)
		return
	}
	defer files.Close()
	if file := c.Query("file"); file != "" {
		s.sendExport(c, name, files, file)
		return
	}
	c.JSON(http.StatusOK, exportBody(name, files))
}
