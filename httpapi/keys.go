package httpapi

import (
	"time"

	"github.com/gin-gonic/gin"

	"smolgym/appliance"
	"smolgym/httpapi/wire"
)

type (
	// Key is a key that lets clients in. Its text is in the answer that made it and
	// nowhere else.
	Key struct {
		ID      string    `json:"id"`
		Name    string    `json:"name,omitempty"`
		Created time.Time `json:"created"`
		Key     string    `json:"key,omitempty"`
	}
	// Keys lists the keys, newest first.
	Keys struct {
		Keys wire.List[Key] `json:"keys"`
	}
	// KeyRequest makes a key: POST /smolgym/v1/keys.
	KeyRequest struct {
		Name string `json:"name,omitempty"` // for people
	}
)

func (s *server) keyRoutes(g *gin.RouterGroup) {
	g.GET("/keys", s.json(s.listKeys))
	g.POST("/keys", post(s, maxJSON, s.createKey))
	g.DELETE("/keys/:id", s.json(s.revokeKey))
}

func keyBody(k appliance.KeyRecord, text string) Key { return Key{k.ID, k.Name, k.Created.UTC(), text} }

func (s *server) listKeys(*gin.Context) (any, error) {
	list, err := s.box.Keys()
	if err != nil {
		return nil, err
	}
	var out Keys
	for _, k := range list {
		out.Keys = append(out.Keys, keyBody(k, ""))
	}
	return out, nil
}

func (s *server) createKey(c *gin.Context, req *KeyRequest) (any, error) {
	k, text, err := s.box.CreateKey(req.Name)
	if err != nil {
		return nil, err
	}
	c.Header("Cache-Control", "no-store")
	return keyBody(k, text), nil
}

func (s *server) revokeKey(c *gin.Context) (any, error) {
	return struct{}{}, s.box.RevokeKey(c.Param("id"))
}
