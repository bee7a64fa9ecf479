package hub

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

// Times of asking upstream. A client waits ten seconds for the answer to a HEAD.
const (
	dialTime    = 3 * time.Second
	askTime     = 8 * time.Second
	offlineTime = 15 * time.Second // after a failure, during which nobody is asked
	onlineTime  = time.Minute      // after an answer, during which a GET is sent on without asking
	maxHops     = 5
)

// viaHeader marks our own questions: two boxes that ask each other would never stop.
const viaHeader = "X-Smolgym-Upstream"

// upstream is the hub that is asked about what isn't here.
type upstream struct {
	base   string
	host   string
	client *http.Client
	now    func() time.Time

	mu     sync.Mutex
	failed time.Time
	worked time.Time
}

func newUpstream(base string, now func() time.Time) *upstream {
	u := &upstream{base: strings.TrimRight(base, "/"), now: now}
	if parsed, err := url.Parse(u.base); err == nil {
		u.host = parsed.Host
	}
	u.client = &http.Client{
		Timeout: askTime,
		Transport: &http.Transport{
			Proxy:                 http.ProxyFromEnvironment,
			DialContext:           (&net.Dialer{Timeout: dialTime}).DialContext,
			TLSHandshakeTimeout:   dialTime,
			ResponseHeaderTimeout: askTime,
			ForceAttemptHTTP2:     true,
			DisableCompression:    true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return u
}

// errOffline: nobody answers.
var errOffline = errors.New("upstream does not answer")

func (u *upstream) noted(worked bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if worked {
		u.worked, u.failed = u.now(), time.Time{}
	} else {
		u.failed, u.worked = u.now(), time.Time{}
	}
}

func (u *upstream) offline() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return !u.failed.IsZero() && u.now().Sub(u.failed) < offlineTime
}

func (u *upstream) online() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return !u.worked.IsZero() && u.now().Sub(u.worked) < onlineTime
}

// copied are the headers of an answer that a client reads.
var copied = []string{"ETag", "X-Repo-Commit", "X-Linked-ETag", "X-Linked-Size", "X-Error-Code", "X-Error-Message", "Accept-Ranges", "Content-Type"}

// head asks about a path. Redirects within the upstream are followed, as a client would; one that leads away, to where
// the bytes are, ends the search. The first mention of a header counts. No token is sent: the one at hand is ours.
func (u *upstream) head(ctx context.Context, path string) (status int, header http.Header, size string, err error) {
	if u.offline() {
		return 0, nil, "", errOffline
	}
	header = http.Header{}
	target := u.base + path
	for range maxHops {
		req, err := http.NewRequestWithContext(ctx, "HEAD", target, nil)
		if err != nil {
			return 0, nil, "", err
		}
		req.Header.Set("Accept-Encoding", "identity")
		req.Header.Set("User-Agent", "smolgym")
		req.Header.Set(viaHeader, "1")
		resp, err := u.client.Do(req)
		if err != nil {
			if ctx.Err() == nil {
				u.noted(false)
			}
			return 0, nil, "", errors.Join(errOffline, err)
		}
		_, _ = io.Copy(io.Discard, resp.Body) // a HEAD has none
		_ = resp.Body.Close()
		u.noted(true)
		for _, k := range copied {
			if v := resp.Header.Get(k); v != "" && header.Get(k) == "" {
				header.Set(k, v)
			}
		}
		status, size = resp.StatusCode, resp.Header.Get("Content-Length")
		next, err := resp.Location()
		if status < 300 || status > 399 || err != nil || next.Host != u.host {
			break
		}
		target = next.String()
	}
	return status, header, size, nil
}

// elsewhere answers for what isn't on the box: a HEAD by asking, anything else by sending the client there. With nobody
// to ask, it is not found.
func (h *Handler) elsewhere(w http.ResponseWriter, r *http.Request, repo string) error {
	if h.up == nil || r.Header.Get(viaHeader) != "" {
		return noRepo(repo)
	}
	// What somebody writes must not leave the box by a redirect; a question may.
	if r.Method != "GET" && r.Method != "HEAD" && !(r.Method == "POST" && strings.Contains(r.URL.Path, "/paths-info/")) {
		return failf(http.StatusNotFound, codeRepo, "repository %.200q is not on this box, and only models are written here", repo)
	}
	path := r.URL.EscapedPath()
	if r.URL.RawQuery != "" {
		path += "?" + r.URL.RawQuery
	}
	if r.Method == "HEAD" {
		return h.headElsewhere(w, r, repo, path)
	}
	if !h.up.online() {
		if _, _, _, err := h.up.head(r.Context(), path); err != nil {
			return noRepo(repo)
		}
	}
	// 307 keeps method and body.
	w.Header().Set("Location", h.up.base+path)
	w.Header().Set("Content-Length", "0")
	w.WriteHeader(http.StatusTemporaryRedirect)
	return nil
}

func (h *Handler) headElsewhere(w http.ResponseWriter, r *http.Request, repo, path string) error {
	status, header, size, err := h.up.head(r.Context(), path)
	if err != nil {
		return noRepo(repo)
	}
	for k, v := range header {
		w.Header()[k] = v
	}
	if status >= 300 && status <= 399 { // the bytes are somewhere else: the size is told apart
		status, size = http.StatusOK, ""
	}
	if status == http.StatusOK {
		if linked := header.Get("X-Linked-Size"); linked != "" {
			size = linked
		}
		if size != "" {
			w.Header().Set("Content-Length", size)
		}
	}
	if status == http.StatusNotFound && header.Get("X-Error-Code") == "" {
		w.Header().Set("X-Error-Code", codeEntry)
	}
	w.WriteHeader(status)
	return nil
}
