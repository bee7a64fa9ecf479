package httpapi

import (
	"encoding/json"

	"github.com/gin-gonic/gin"

	"smolgym/appliance"
	"smolgym/httpapi/wire"
)

// maxGraph bounds a traced loss, in bytes.
const maxGraph = 4 << 20

// createCustomLoss takes a traced loss; its graph stays data.
func (s *server) createCustomLoss(_ *gin.Context, req *wire.CreateCustomLossRequest) (any, error) {
	graph, err := json.Marshal(req.Graph)
	if err != nil {
		return nil, err
	}
	q := appliance.CustomLossRequest{SessionID: req.SessionID, Seq: req.CustomLossSeqID, Name: req.Name, Graph: graph}
	for _, in := range req.Inputs {
		q.Inputs = append(q.Inputs, appliance.LossInput{Name: in.Name, Rank: in.Rank})
	}
	return future(s.box.CreateCustomLoss(q))
}
