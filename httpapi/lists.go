package httpapi

import (
	"github.com/gin-gonic/gin"

	"smolgym/appliance"
	"smolgym/httpapi/wire"
)

// owner is who owns everything: one box has one owner.
const owner = "local"

// saved is what lists say about a checkpoint.
func saved(cp appliance.CheckpointRecord) wire.Checkpoint {
	out := wire.Checkpoint{CheckpointID: string(cp.Kind) + "/" + cp.Name, CheckpointType: wire.Kind(cp.Kind).Type(), Time: wire.Time{Time: cp.Created},
		TinkerPath: cp.Path(), SizeBytes: &cp.SizeBytes, Public: cp.Public, UserMetadata: cp.UserMetadata}
	if cp.Expires != nil {
		out.ExpiresAt = &wire.Time{Time: *cp.Expires}
	}
	return out
}

func runBody(v appliance.RunView) wire.TrainingRun {
	out := wire.TrainingRun{TrainingRunID: v.ID, BaseModel: v.BaseModel, ModelOwner: owner, IsLora: !v.Full, Corrupted: v.Corrupted,
		LastRequestTime: wire.Time{Time: v.LastRequest}, UserMetadata: v.UserMetadata}
	if out.IsLora {
		out.LoraRank = &v.Rank
	}
	if cp := v.LastWeights; cp != nil {
		b := saved(*cp)
		out.LastCheckpoint = &b
	}
	if cp := v.LastSampler; cp != nil {
		b := saved(*cp)
		out.LastSamplerCheckpoint = &b
	}
	return out
}

func (s *server) runs(c *gin.Context) (any, error) {
	page, err := wire.ParsePage(c.Request.URL.Query(), 20)
	if err != nil {
		return nil, err
	}
	list, total, err := s.box.RunsIn(page.ProjectID, appliance.Page{Limit: page.Limit, Offset: page.Offset})
	if err != nil {
		return nil, err
	}
	out := wire.TrainingRunsResponse{Cursor: wire.Cursor{Offset: page.Offset, Limit: page.Limit, TotalCount: total}}
	for _, v := range list {
		out.TrainingRuns = append(out.TrainingRuns, runBody(v))
	}
	return out, nil
}

func (s *server) run(c *gin.Context) (any, error) {
	v, err := s.box.Run(c.Param("run"))
	if err != nil {
		return nil, err
	}
	return runBody(v), nil
}

func (s *server) runCheckpoints(c *gin.Context) (any, error) {
	list, _, err := s.box.CheckpointsOf(c.Param("run"), appliance.Page{})
	if err != nil {
		return nil, err
	}
	var out wire.CheckpointsResponse
	for _, cp := range list {
		out.Checkpoints = append(out.Checkpoints, saved(cp))
	}
	return out, nil
}

func (s *server) checkpoints(c *gin.Context) (any, error) {
	page, err := wire.ParsePage(c.Request.URL.Query(), 100)
	if err != nil {
		return nil, err
	}
	list, total, err := s.box.Checkpoints(appliance.Page{Limit: page.Limit, Offset: page.Offset})
	if err != nil {
		return nil, err
	}
	out := wire.CheckpointsResponse{Cursor: &wire.Cursor{Offset: page.Offset, Limit: page.Limit, TotalCount: total}}
	for _, cp := range list {
		out.Checkpoints = append(out.Checkpoints, saved(cp))
	}
	return out, nil
}
