package httpapi

import (
	"net"
	"net/http"

	"github.com/gin-gonic/gin"

	"smolgym/httpapi/wire"
)

// clientConfig sets the client's behaviour. Parts of a batch come one after
// another unless the server was told to take them in any order, so that arrival
// order is sequence order; a sampler has one poll for all its requests; batches are
// compressed where they cross a network.
func (s *server) clientConfig(c *gin.Context, _ *wire.ConfigRequest) (any, error) {
	on, compress, parallel := true, !local(c.Request.RemoteAddr), s.box.ParallelChunks()
	token, custom := !s.opt.PlainKeys, !s.opt.ClientLosses
	return wire.ConfigResponse{PJWTAuthEnabled: &token, CustomLossServerSide: &custom,
		ParallelFwdbwdChunks: &parallel, ProtoCompressFwdbwd: &compress,
		CreateModelViaLoadWeights: &on, SampleUseRetrieveFutures: &on, SampleJoinSamplingSession: &on}, nil
}

// usedUp notes that a training request that is refused for good has used its
// number up, so that those after it don't wait for it; err is returned.
func (s *server) usedUp(body []byte, err error) error {
	if err == nil || !s.box.ParallelChunks() {
		return err
	}
	var head struct {
		ModelID string `json:"model_id" wire:"required"`
		SeqID   int64  `json:"seq_id" wire:"required"`
	}
	status, _ := statusOf(err)
	if status == http.StatusBadRequest && wire.DecodeJSON(body, &head) == nil {
		s.box.SkipNumber(head.ModelID, head.SeqID)
	}
	return err
}

// local says whether a peer is on this machine.
func local(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	ip := net.ParseIP(host)
	return err == nil && ip != nil && ip.IsLoopback()
}

func (s *server) dynamicConfig(*gin.Context, *wire.ConfigRequest) (any, error) {
	on := true
	return wire.DynamicConfigResponse{SampleCancelEnabled: &on}, nil
}
