package hub

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"smolgym/appliance"
)

// The hub's error codes. Without one a client takes a 404 for a broken network.
const (
	codeRepo     = "RepoNotFound"
	codeRevision = "RevisionNotFound"
	codeEntry    = "EntryNotFound"
)

// failure is an error with a status.
type failure struct {
	status int
	code   string // X-Error-Code; may be empty
	text   string
	commit string // X-Repo-Commit; with it a client remembers that a file isn't there
	url    string // of the repository that is there already
}

func (f *failure) Error() string { return f.text }

func failf(status int, code, format string, args ...any) *failure {
	return &failure{status: status, code: code, text: fmt.Sprintf(format, args...)}
}

func noRepo(name string) *failure {
	return failf(http.StatusNotFound, codeRepo, "repository %.200q is not on this box, and there is no hub to ask about it", name)
}

func noRevision(repo, rev string) *failure {
	return failf(http.StatusNotFound, codeRevision, "%s has no revision %.200q", repo, rev)
}

func noEntry(repo, path, commit string) *failure {
	f := failf(http.StatusNotFound, codeEntry, "%s has no %.300q", repo, path)
	f.commit = commit
	return f
}

var statuses = map[appliance.Code]int{
	appliance.CodeUser:        http.StatusBadRequest,
	appliance.CodeConflict:    http.StatusConflict,
	appliance.CodeUnsupported: http.StatusBadRequest,
	appliance.CodeNoFit:       http.StatusBadRequest,
	appliance.CodeNotFound:    http.StatusNotFound,
	appliance.CodeGone:        http.StatusNotFound,
	appliance.CodeTooLarge:    http.StatusRequestEntityTooLarge,
	appliance.CodeBusy:        http.StatusServiceUnavailable,
}

// problem is err's problem if its code is c.
func problem(err error, c appliance.Code) (*appliance.Problem, bool) {
	var p *appliance.Problem
	ok := errors.As(err, &p) && p.Code == c
	return p, ok
}

func isNotFound(err error) bool {
	_, ok := problem(err, appliance.CodeNotFound)
	return ok
}

// fail answers an error.
func (h *Handler) fail(w http.ResponseWriter, r *http.Request, err error) {
	var f *failure
	var p *appliance.Problem
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &f):
	case errors.As(err, &large):
		f = failf(http.StatusRequestEntityTooLarge, "", "the request has more than %d bytes; send large files by git-lfs or Xet, as preupload says", large.Limit)
	case errors.As(err, &p) && statuses[p.Code] != 0:
		f = failf(statuses[p.Code], "", "%s", p.Error())
		if f.status == http.StatusNotFound {
			f.code = codeEntry
		}
	default:
		f = failf(http.StatusInternalServerError, "", "the server failed; its log has the cause")
		h.log.Error("hub request failed", "method", r.Method, "error", err)
	}
	head := w.Header()
	for _, k := range []string{"Etag", "Content-Length", "Content-Type", "Accept-Ranges", "X-Linked-Etag", "X-Linked-Size"} {
		head.Del(k)
	}
	if f.code != "" {
		head.Set("X-Error-Code", f.code)
	}
	head.Set("X-Error-Message", oneLine(f.text))
	if f.commit != "" {
		head.Set("X-Repo-Commit", f.commit)
	}
	body := map[string]any{"error": f.text}
	if f.url != "" {
		body["url"] = f.url
	}
	answer(w, r, f.status, body)
}

// oneLine makes a text fit for a header.
func oneLine(s string) string {
	if len(s) > 1000 {
		s = s[:1000]
	}
	return strings.Map(func(c rune) rune {
		if c < 0x20 || c > 0x7e {
			return ' '
		}
		return c
	}, s)
}

// answer writes JSON. The status is always written: a router may have set another one before.
func answer(w http.ResponseWriter, r *http.Request, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil { // of our own types: can't be
		status, body = http.StatusInternalServerError, []byte("{}")
	}
	if w.Header().Get("Content-Type") == "" {
		w.Header().Set("Content-Type", "application/json")
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	if r.Method != "HEAD" {
		_, _ = w.Write(body) // the client has gone if this fails
	}
}

// decode reads a small JSON body.
func decode(w http.ResponseWriter, r *http.Request, limit int64, v any) error {
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, limit)).Decode(v)
	var large *http.MaxBytesError
	if err != nil && !errors.As(err, &large) {
		return failf(http.StatusBadRequest, "", "the body is not the JSON that %.120q takes: %v", r.URL.Path, err)
	}
	return err
}
