package hub

import (
	"context"
	"crypto/rand"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"smolgym/appliance"
)

// Content is stored bytes.
type Content = interface {
	io.ReaderAt
	io.Closer
	Size() int64
}

// Box is what the hub needs of the appliance. Errors that a user should read are appliance problems.
type Box interface {
	Model(name string) (appliance.ModelRecord, error)
	Models() ([]appliance.ModelRecord, error)
	RemoveModel(name string) error
	// SetModel lists the model of files that are here, in place of one of that name. A refusal of CodeUnsupported is
	// the complete list of reasons; CodeConflict says that the model of that name is in use.
	SetModel(name string, files []appliance.ManifestFile) error

	// OpenContent reads content by its hash, 64 hexadecimal digits; CodeNotFound if it isn't here.
	OpenContent(sha256 string) (Content, error)
	// ContentState says how many bytes of how many are here; CodeNotFound if none are.
	ContentState(sha256 string) (have, size int64, err error)
	// PutContent takes bytes from an offset on, which must be where the last ones ended or 0, and answers how many are
	// here now. Complete content stays for an hour, or as long as a model or repository has it.
	PutContent(sha256 string, size, offset int64, r io.Reader) (have int64, err error)

	// Repository is what was put under a name; CodeNotFound if nothing was.
	Repository(name string) ([]byte, error)
	Repositories() ([]string, error)
	// PutRepository keeps a document and the content it speaks of.
	PutRepository(name string, doc []byte, content []string) error
	RemoveRepository(name string) error

	// Scratch is a folder for files that nobody misses after a restart.
	Scratch() (string, error)
}

// DefaultUpstream is asked about what isn't here.
const DefaultUpstream = "https://huggingface.co"

// Options configure a Handler; the zero value asks nobody upstream and takes any token.
type Options struct {
	Upstream string                  // URL of the hub that is asked about what isn't here; none if empty
	Allow    func(token string) bool // whether a bearer token ("": none) is let in; nil: any, to write at least one
	Export   Exporter                // checkpoints as repositories; nil: none
	Log      *slog.Logger            // slog.Default if nil
	Now      func() time.Time        // time.Now if nil

	MultipartBytes int64 // size of the parts that larger files are sent in; 0 = 1 GiB
	TreePage       int   // entries of one page of a tree; 0 = 1000
}

// Handler serves the hub's routes.
type Handler struct {
	box     Box
	opt     Options
	log     *slog.Logger
	up      *upstream
	secret  [32]byte // signs where large files are sent to
	xet     xetSpaces
	oids    oids
	sums    exportSums
	derived derivedModels

	mu sync.Mutex // guards changes of repositories
}

// New makes a handler. Close ends it.
func New(box Box, opt Options) *Handler {
	h := &Handler{box: box, opt: opt, log: opt.Log}
	if h.log == nil {
		h.log = slog.Default()
	}
	if h.opt.Now == nil {
		h.opt.Now = time.Now
	}
	if h.opt.MultipartBytes <= 0 {
		h.opt.MultipartBytes = 1 << 30
	}
	if h.opt.TreePage <= 0 {
		h.opt.TreePage = 1000
	}
	if opt.Upstream != "" {
		h.up = newUpstream(opt.Upstream, h.opt.Now)
	}
	_, _ = rand.Read(h.secret[:]) // never fails
	return h
}

// Close removes what uploads under way have left in the scratch folder.
func (h *Handler) Close() error { return h.xet.close() }

// Claims says whether a request is for the hub. Ask it about what no other route takes.
func Claims(r *http.Request) bool {
	p, err := split(r.URL)
	if err != nil || len(p) < 2 {
		return false
	}
	switch p[0] {
	case "api":
		switch p[1] {
		case "models", "repos", "datasets", "spaces", "whoami-v2", "validate-yaml", "agent-harnesses":
			return true
		}
		return false
	case "xet":
		return true
	case "datasets", "spaces", "models", "kernels", "buckets":
		return len(p) > 3
	}
	if strings.HasSuffix(p[1], ".git") || p[1] == "resolve" || p[1] == "raw" {
		return true
	}
	return len(p) > 2 && (p[2] == "resolve" || p[2] == "raw")
}

// split takes a path apart before it is unescaped, so that an escaped slash stays within its segment.
func split(u *url.URL) ([]string, error) {
	path := u.EscapedPath()
	if len(path) > maxURLPath {
		return nil, failf(http.StatusRequestURITooLong, "", "the path has %d bytes; at most %d are read", len(path), maxURLPath)
	}
	parts := strings.Split(strings.TrimPrefix(path, "/"), "/")
	for i, s := range parts {
		t, err := url.PathUnescape(s)
		if err != nil {
			return nil, failf(http.StatusBadRequest, "", "the path has a malformed escape")
		}
		parts[i] = t
	}
	return parts, nil
}

const maxURLPath = 16 << 10

// ServeHTTP answers a request that Claims took.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := h.serve(w, r); err != nil {
		h.fail(w, r, err)
	}
}

// serve finds the handler. Uploads of large files carry their own permission; everything else the caller's token.
func (h *Handler) serve(w http.ResponseWriter, r *http.Request) error {
	p, err := split(r.URL)
	if err != nil {
		return err
	}
	if p[0] == "xet" {
		return h.serveXet(w, r, p[1:])
	}
	if len(p) > 4 && strings.HasSuffix(p[1], ".git") && p[2] == "info" && p[3] == "lfs" {
		return h.serveLFS(w, r, p[0], strings.TrimSuffix(p[1], ".git"), p[4:])
	}
	if err := h.mayRead(r); err != nil {
		return err
	}
	switch {
	case p[0] == "api":
		return h.serveAPI(w, r, p[1:])
	case kindOfRepo(p[0]):
		return h.elsewhere(w, r, p[0])
	case len(p) > 4 && (p[2] == "resolve" || p[2] == "raw"):
		return h.serveFile(w, r, p[0]+"/"+p[1], p[3], p[4:])
	case len(p) > 3 && (p[1] == "resolve" || p[1] == "raw") && hubWord(p[0]):
		return h.elsewhere(w, r, p[0]) // of a repository without an organisation
	}
	return noRoute(r)
}

func noRoute(r *http.Request) error {
	return failf(http.StatusNotFound, codeRepo, "no route %s %.120q", r.Method, r.URL.Path)
}

func (h *Handler) serveAPI(w http.ResponseWriter, r *http.Request, p []string) error {
	is := func(method string, n int) bool { return r.Method == method && len(p) == n }
	switch {
	case p[0] == "whoami-v2" && is("GET", 1):
		return h.whoami(w, r)
	case p[0] == "validate-yaml" && is("POST", 1):
		return h.validateYAML(w, r)
	case p[0] == "agent-harnesses":
		return failf(http.StatusNotFound, codeEntry, "there are no agent harnesses here")
	case p[0] == "repos" && len(p) == 2 && p[1] == "create" && is("POST", 2):
		return h.createRepo(w, r)
	case p[0] == "repos" && len(p) == 2 && p[1] == "delete" && is("DELETE", 2):
		return h.deleteRepo(w, r)
	case p[0] == "datasets", p[0] == "spaces":
		return h.elsewhere(w, r, strings.Join(p, "/"))
	case p[0] == "models" && is("GET", 1):
		return h.listModels(w, r)
	case p[0] == "models" && len(p) == 2 && hubWord(p[1]):
		return h.elsewhere(w, r, p[1])
	case p[0] == "models" && len(p) > 2:
		return h.serveRepo(w, r, p[1]+"/"+p[2], p[3:])
	}
	return noRoute(r)
}

// serveRepo serves /api/models/org/name and what is below.
func (h *Handler) serveRepo(w http.ResponseWriter, r *http.Request, repo string, p []string) error {
	verb := ""
	if len(p) > 0 {
		verb = p[0]
	}
	read, write := r.Method == "GET" || r.Method == "HEAD", r.Method == "POST"
	switch {
	case verb == "" && read:
		return h.info(w, r, repo, "main")
	case verb == "revision" && read && len(p) == 2:
		return h.info(w, r, repo, p[1])
	case verb == "tree" && read && len(p) > 1:
		return h.tree(w, r, repo, p[1], p[2:])
	case verb == "paths-info" && write && len(p) == 2:
		return h.pathsInfo(w, r, repo, p[1])
	case verb == "refs" && read && len(p) == 1:
		return h.refs(w, r, repo)
	case verb == "commits" && read && len(p) == 2:
		return h.commits(w, r, repo, p[1])
	case verb == "auth-check" && read && len(p) == 1:
		return h.authCheck(w, r, repo)
	case verb == "discussions":
		return failf(http.StatusForbidden, "", "there are no discussions here")
	case verb == "xet-write-token" && read && len(p) == 2:
		return h.xetToken(w, r, repo, p[1])
	case verb == "preupload" && write && len(p) == 2:
		return h.preupload(w, r, repo, p[1])
	case verb == "commit" && write && len(p) == 2:
		return h.commit(w, r, repo, p[1])
	case verb == "branch" && write && len(p) == 2:
		return h.createBranch(w, r, repo, p[1])
	}
	return failf(http.StatusNotFound, codeEntry, "%s of %.120q isn't served here", r.Method, strings.Join(p, "/"))
}

// serveFile serves /org/name/resolve/revision/path.
func (h *Handler) serveFile(w http.ResponseWriter, r *http.Request, repo, rev string, path []string) error {
	if r.Method != "GET" && r.Method != "HEAD" {
		return failf(http.StatusMethodNotAllowed, "", "%.20q is not a method of a file", r.Method)
	}
	name, err := joinPath(path)
	if err != nil {
		return err
	}
	return h.resolve(w, r, repo, rev, name)
}

// token is the bearer token of a request.
func token(r *http.Request) string {
	t, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok {
		return ""
	}
	return strings.TrimSpace(t)
}

func (h *Handler) mayRead(r *http.Request) error {
	if t := token(r); h.opt.Allow != nil && !h.opt.Allow(t) {
		return badToken(t)
	}
	return nil
}

// mayWrite asks for a token even where any will do: a page in a browser can't add one without asking first.
func (h *Handler) mayWrite(r *http.Request) error {
	if t := token(r); t == "" || h.opt.Allow != nil && !h.opt.Allow(t) {
		return badToken(t)
	}
	return nil
}

func badToken(t string) error {
	if t == "" {
		return failf(http.StatusUnauthorized, "", "a token is needed: set HF_TOKEN to what TINKER_API_KEY is for this server")
	}
	// Clients tell a bad token from a repository they may not see by this text.
	return failf(http.StatusUnauthorized, "", "Invalid credentials in Authorization header: set HF_TOKEN to what TINKER_API_KEY is for this server")
}

// base is the URL that the client reached us by.
func base(r *http.Request) string {
	scheme := "http"
	if r.TLS != nil || r.Header.Get("X-Forwarded-Proto") == "https" {
		scheme = "https"
	}
	return scheme + "://" + r.Host
}

// Exporter makes repositories of checkpoints.
type Exporter interface {
	// Export plans the files of a checkpoint, tinker://run/kind/name, merged into its model or as an adapter.
	Export(ctx context.Context, path string, adapter bool) (Export, error)
}
