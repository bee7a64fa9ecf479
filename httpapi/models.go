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
	g.GET("/graphs/*name", s.graph) // ?mode=decode for the graph that samples
}

func (s *server) addAlias(_ *gin.Context, req *AliasRequest) (any, error) {
	m, err := s.box.AddAlias(req.Model, req.Alias)
	if err != nil {
		return nil, err
	}
	return modelBody(m, true), nil
}

// graph prints a model's graph as text.
func (s *server) graph(c *gin.Context) {
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
