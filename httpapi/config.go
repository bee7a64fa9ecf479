package httpapi

import (
	"net"

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
		SampleUseRetrieveFutures: &on, SampleJoinSamplingSession: &on}, nil
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
