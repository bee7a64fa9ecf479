package httpapi

import (
	"github.com/gin-gonic/gin"
)

type (
	// Doctor is how the box stands: GET /smolgym/v1/doctor?model=NAME.
	Doctor struct {
		Status    Status     `json:"status"`
		Disk      Disk       `json:"disk"`
		Agreement *Agreement `json:"agreement,omitempty"` // when a model is named
	}
	// Disk is the room of the data folder, in bytes.
	Disk struct {
		Folder string `json:"folder"`
		File   int64  `json:"file"`   // the store
		Unused int64  `json:"unused"` // of it, to be written again
		Free   int64  `json:"free"`   // what the file system has left; -1 where it can't be told
	}
	// Agreement has the largest differences between a token's log-probabilities by
	// the ways they are computed; all are to be 0.
	Agreement struct {
		Model   string  `json:"model"`
		Tokens  int     `json:"tokens"`
		Batched float64 `json:"batched"` // sampled alone against among others
		Scored  float64 `json:"scored"`  // sampled against scored as a prompt
		Forward float64 `json:"forward"` // sampled against training's forward pass
		Trained float64 `json:"trained"` // sampled against forward_backward
		Largest float64 `json:"largest"`
	}
)

func (s *server) doctor(c *gin.Context) (any, error) {
	st, err := s.status(c)
	if err != nil {
		return nil, err
	}
	d, err := s.box.Disk()
	if err != nil {
		return nil, err
	}
	out := Doctor{Status: st.(Status), Disk: Disk(d)}
	if model := c.Query("model"); model != "" {
		g, err := s.box.Agree(c.Request.Context(), model)
		if err != nil {
			return nil, err
		}
		out.Agreement = &Agreement{model, g.Tokens, g.Batched, g.Scored, g.Forward, g.Trained, g.Largest()}
	}
	return out, nil
}
