package httpapi

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"

	"smolgym/appliance"
	"smolgym/httpapi/hub"
	"smolgym/httpapi/wire"
)

// Limits of request bodies, in bytes after decompression.
const (
	maxBatch  = 64 << 20 // forward_backward
	maxPrompt = 16 << 20 // asample
	maxJSON   = 1 << 20  // everything else
	maxEvents = 8 << 20  // telemetry, which is thrown away
)

// hold is how long a poll waits for a result. Clients give up after 45 s, and an
// answer that comes sooner makes them ask again at once.
const hold = 30 * time.Second

// Options configure the handler.
type Options struct {
	Version string
	Keys    []string      // keys that are let in beside those of the box; without any: every key of the right form
	NeedKey bool          // let nobody in without a key, even when there is none
	Hold    time.Duration // of retrieve_future; 0 = 30 s
	Log     *slog.Logger  // slog.Default if nil
	// PlainKeys makes clients send their key with every request, instead of exchanging
	// it for a token that expires. They then can't say who they are (whoami).
	PlainKeys bool
	// ClientLosses leaves losses that users trace to their client, as plain functions are.
	ClientLosses bool
	Now          func() time.Time // for what expires; time.Now if nil
	Upstream     string           // URL of the hub that is asked about what isn't here; none if empty
}

// server holds what handlers share.
type server struct {
	box      *appliance.Appliance
	opt      Options
	log      *slog.Logger
	keys     [][sha256.Size]byte
	now      func() time.Time
	requests atomic.Int64
	hub      *hub.Handler
}

var releaseMode = sync.OnceFunc(func() { gin.SetMode(gin.ReleaseMode) })

// Handler serves an appliance.
type Handler struct {
	http.Handler
	hub *hub.Handler
}

// Close removes what uploads under way have left in the scratch folder. No request may be under way.
func (h *Handler) Close() error {
	if err := h.hub.Close(); err != nil {
		return fmt.Errorf("close hub: %w", err)
	}
	return nil
}

// New is the handler for an appliance. Close ends it, before the appliance is closed.
func New(box *appliance.Appliance, opt Options) *Handler {
	releaseMode()
	s := &server{box: box, opt: opt, log: opt.Log, now: opt.Now}
	if s.log == nil {
		s.log = slog.Default()
	}
	if s.now == nil {
		s.now = time.Now
	}
	if s.opt.Hold <= 0 {
		s.opt.Hold = hold
	}
	for _, k := range opt.Keys {
		s.keys = append(s.keys, sha256.Sum256([]byte(k)))
	}
	r := s.router()
	return &Handler{trimSlash(r), s.hub}
}

// router has all routes.
func (s *server) router() *gin.Engine {
	r := gin.New()
	r.RedirectTrailingSlash = false // a redirect would lose the body; see trimSlash
	r.RedirectFixedPath = false
	r.HandleMethodNotAllowed = true
	r.Use(s.recover)
	s.hub = s.newHub()
	r.NoRoute(func(c *gin.Context) {
		if hub.Claims(c.Request) {
			s.hub.ServeHTTP(c.Writer, c.Request)
			return
		}
		s.fail(c, errorf(http.StatusNotFound, "no route %s %s", c.Request.Method, clip(c.Request.URL.Path)))
	})
	r.NoMethod(func(c *gin.Context) {
		s.fail(c, errorf(http.StatusMethodNotAllowed, "%s is not a method of %s", clip(c.Request.Method), clip(c.Request.URL.Path)))
	})
	r.GET("/healthz", s.json(s.health))
	s.wireRoutes(r.Group("/api/v1"))
	s.ourRoutes(r.Group("/smolgym/v1", s.authorize))
	return r
}

// trimSlash answers /a/b/ as /a/b.
func trimSlash(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p := r.URL.Path; len(p) > 1 && strings.HasSuffix(p, "/") {
			r.URL.Path = strings.TrimRight(p, "/")
			if r.URL.Path == "" {
				r.URL.Path = "/"
			}
			r.URL.RawPath = ""
		}
		next.ServeHTTP(w, r)
	})
}

// recover keeps a fault of one handler from ending the server.
func (s *server) recover(c *gin.Context) {
	defer func() {
		if r := recover(); r != nil {
			s.fail(c, fmt.Errorf("panic: %v\n%s", r, debug.Stack()))
		}
	}()
	c.Next()
}

// requestID names a request in the log and in its answer.
func (s *server) requestID() string { return fmt.Sprintf("r-%d", s.requests.Add(1)) }

// authorize lets in keys of the right form and, if keys were made, only those.
func (s *server) authorize(c *gin.Context) {
	key := c.GetHeader("X-API-Key")
	if !strings.HasPrefix(key, "tml-") && !strings.HasPrefix(key, "eyJ") {
		s.fail(c, errorf(http.StatusUnauthorized, "the header X-API-Key must hold a key that starts with tml-; set TINKER_API_KEY"))
		return
	}
	if strings.HasPrefix(key, "eyJ") {
		if err := s.checkToken(key); err != nil {
			s.refuseToken(c, err)
		}
		return
	}
	known, err := s.knownKey(key)
	switch {
	case err != nil:
		s.fail(c, err)
	case !known:
		s.fail(c, errorf(http.StatusUnauthorized, "the key in X-API-Key is not known here; set TINKER_API_KEY to one that \"smolgym key create\" made"))
	}
}

// keyHashes are those of the keys that are let in; needed says whether one has to be known.
func (s *server) keyHashes() (hashes [][sha256.Size]byte, needed bool, err error) {
	hashes, err = s.box.KeyHashes()
	hashes = append(s.keys[:len(s.keys):len(s.keys)], hashes...)
	return hashes, s.opt.NeedKey || len(hashes) > 0, err
}

// knownKey says whether a key of the right form is let in.
func (s *server) knownKey(key string) (bool, error) {
	hashes, needed, err := s.keyHashes()
	if err != nil || !needed {
		return err == nil, err
	}
	// Hashes have one length, so the comparison takes the same time for any key.
	sum, known := sha256.Sum256([]byte(key)), 0
	for _, k := range hashes {
		known |= subtle.ConstantTimeCompare(sum[:], k[:])
	}
	return known == 1, nil
}

// json is a handler that answers 200 with a JSON body.
func (s *server) json(h func(c *gin.Context) (any, error)) gin.HandlerFunc {
	return func(c *gin.Context) {
		body, err := h(c)
		if err != nil {
			s.fail(c, err)
			return
		}
		c.JSON(http.StatusOK, body)
	}
}

// post is a handler of a JSON request.
func post[T any](s *server, limit int64, h func(c *gin.Context, req *T) (any, error)) gin.HandlerFunc {
	return s.json(func(c *gin.Context) (any, error) {
		body, err := s.body(c, limit)
		if err != nil {
			return nil, err
		}
		req := new(T)
		if err := wire.DecodeJSON(body, req); err != nil {
			return nil, s.usedUp(body, err)
		}
		out, err := h(c, req)
		return out, s.usedUp(body, err)
	})
}

// body reads a request's body. One that says it is too large is refused unread.
func (s *server) body(c *gin.Context, limit int64) ([]byte, error) {
	encoding := c.GetHeader("Content-Encoding")
	if c.Request.ContentLength > limit {
		return nil, &wire.TooLargeError{Limit: limit}
	}
	body, err := wire.DecodeBody(http.MaxBytesReader(c.Writer, c.Request.Body, limit+limit/1024+2048), encoding, limit)
	var large *http.MaxBytesError
	if asError(err, &large) {
		return nil, &wire.TooLargeError{Limit: limit}
	}
	if err != nil && c.Request.Context().Err() != nil {
		return nil, errorf(http.StatusBadRequest, "the request ended before its body was complete")
	}
	return body, err
}

// discard reads a body without keeping it.
func discard(c *gin.Context, limit int64) {
	_, _ = io.Copy(io.Discard, io.LimitReader(c.Request.Body, limit)) // nobody reads it
}

// clip shortens foreign text for a message.
func clip(s string) string {
	const most = 120
	if len(s) > most {
		s = s[:most] + "…"
	}
	return fmt.Sprintf("%q", s)
}
