package httpapi

import (
	"encoding/hex"
	"fmt"
	"mime"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"smolgym/appliance"
	"smolgym/httpapi/wire"
)

func (s *server) saveExternal(_ *gin.Context, req *wire.SaveWeightsExternalRequest) (any, error) {
	return future(s.box.SaveExternal(appliance.ExportRequest{RunID: req.ModelID, Seq: req.SeqID, Name: req.Path,
		TTL: ttl(req.TTLSeconds), Recipients: req.AgeEncryptionRecipients}))
}

// externalURLs says where the files of an export are. The URLs need no key: they
// are fetched by plain downloaders.
func (s *server) externalURLs(c *gin.Context) (any, error) {
	at, err := checkpointPath(c)
	if err != nil {
		return nil, err
	}
	names, err := s.box.ExportFiles(at)
	if err != nil {
		return nil, err
	}
	until := s.now().Add(signedLife).Truncate(time.Second)
	out := wire.ExternalWeightsURLsResponse{URLs: wire.Dict[string]{}, Expires: wire.Time{Time: until}}
	for _, name := range names {
		if out.URLs[name], err = s.signedURL(c, until, "external", c.Param("run"), c.Param("name"), name); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// externalFile sends a file of an export, or a part of it.
func (s *server) externalFile(c *gin.Context) {
	run, name, file := c.Param("run"), c.Param("name"), strings.TrimPrefix(c.Param("file"), "/")
	err := s.permitted(c, "external", run, name, file)
	var f *appliance.ExportFile
	if err == nil {
		f, err = s.box.OpenExport(wire.Path{Run: run, Kind: wire.KindExternalWeights, Name: name}.String(), file)
	}
	if err != nil {
		s.fail(c, err)
		return
	}
	defer f.Close() // only read from
	h := c.Writer.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": path.Base(file)}))
	h.Set("ETag", fmt.Sprintf("%q", hex.EncodeToString(f.Sum[:])))
	http.ServeContent(c.Writer, c.Request, "", f.Created, f)
}
