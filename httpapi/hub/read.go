package hub

import (
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// find opens a repository at a revision. A name or, for a variant, a revision that isn't here gives nil.
func (h *Handler) find(r *http.Request, repo, rev string) (*repository, *commit, error) {
	rep, err := h.openAny(r.Context(), repo, rev)
	if err != nil || rep == nil {
		return nil, nil, err
	}
	c, ok := rep.revision(rev)
	switch {
	case ok:
		return rep, c, nil
	case rep.variant:
		return nil, nil, nil
	}
	return nil, nil, noRevision(rep.Name, rev)
}

// resolve sends a file's bytes, or with HEAD what there is to know about them.
func (h *Handler) resolve(w http.ResponseWriter, r *http.Request, repo, rev, name string) error {
	rep, c, err := h.find(r, repo, rev)
	if err != nil {
		return err
	}
	if rep == nil || rep.variant && isWeights(name) {
		return h.elsewhere(w, r, repo)
	}
	f, ok := c.file(name)
	if !ok {
		return noEntry(rep.Name, name, c.ID)
	}
	oid, err := h.oid(rep, f)
	if err != nil {
		return err
	}
	head := w.Header()
	head.Set("ETag", `"`+oid+`"`)
	head.Set("X-Repo-Commit", c.ID)
	head.Set("Accept-Ranges", "bytes")
	head.Set("Cache-Control", "no-cache")
	// A page that somebody uploaded must not run as one of ours.
	head.Set("Content-Type", "application/octet-stream")
	head.Set("X-Content-Type-Options", "nosniff")
	head.Set("Content-Security-Policy", "sandbox; default-src 'none'")
	if f.large() {
		head.Set("X-Linked-ETag", `"`+oid+`"`)
		head.Set("X-Linked-Size", strconv.FormatInt(f.Size, 10))
	}
	if rep.export.makes(f) {
		x, err := rep.export.open(f)
		if err != nil {
			return err
		}
		defer x.stop()
		http.ServeContent(w, r, "", time.Time{}, x)
		return nil
	}
	content, err := h.box.OpenContent(f.SHA256)
	if err != nil {
		return fmt.Errorf("%s: %s: %w", rep.Name, name, err)
	}
	defer content.Close() // only read from
	http.ServeContent(w, r, "", time.Time{}, io.NewSectionReader(content, 0, content.Size()))
	return nil
}

// oids remembers the git ids of small files by their sha256.
type oids struct {
	mu sync.Mutex
	of map[string]string
}

const maxOIDs = 100000

// oid is what a file is known by: git's id, or for a large one its sha256.
func (h *Handler) oid(rep *repository, f file) (string, error) {
	if f.large() && rep.export.makes(f) {
		return h.exportSum(rep.export, f)
	}
	if f.large() {
		return f.SHA256, nil
	}
	h.oids.mu.Lock()
	oid := h.oids.of[f.SHA256]
	h.oids.mu.Unlock()
	if oid != "" {
		return oid, nil
	}
	sum := sha1.New()
	fmt.Fprintf(sum, "blob %d\x00", f.Size)
	if rep.export.makes(f) {
		x, err := rep.export.open(f)
		if err != nil {
			return "", err
		}
		defer x.stop()
		if _, err := io.Copy(sum, x); err != nil {
			return "", fmt.Errorf("%s: %s: %w", rep.Name, f.Path, err)
		}
	} else {
		content, err := h.box.OpenContent(f.SHA256)
		if err != nil {
			return "", fmt.Errorf("%s: %s: %w", rep.Name, f.Path, err)
		}
		defer content.Close() // only read from
		if _, err := io.Copy(sum, io.NewSectionReader(content, 0, content.Size())); err != nil {
			return "", fmt.Errorf("%s: %s: %w", rep.Name, f.Path, err)
		}
	}
	oid = hex.EncodeToString(sum.Sum(nil))
	h.oids.mu.Lock()
	defer h.oids.mu.Unlock()
	if h.oids.of == nil || len(h.oids.of) >= maxOIDs {
		h.oids.of = map[string]string{}
	}
	h.oids.of[f.SHA256] = oid
	return oid, nil
}

// lfsInfo is what is said of a large file.
type lfsInfo struct {
	OID         string `json:"oid,omitempty"`
	SHA256      string `json:"sha256,omitempty"`
	Size        int64  `json:"size"`
	PointerSize int    `json:"pointerSize"`
}

// pointer is the text that git holds in place of a large file.
func pointer(f file) string {
	return fmt.Sprintf("version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize %d\n", f.SHA256, f.Size)
}

func gitID(text string) string {
	sum := sha1.Sum(fmt.Appendf(nil, "blob %d\x00%s", len(text), text))
	return hex.EncodeToString(sum[:])
}

// entry is a line of a tree.
type entry struct {
	Type string   `json:"type"` // file or directory
	OID  string   `json:"oid"`
	Size int64    `json:"size"`
	Path string   `json:"path"`
	LFS  *lfsInfo `json:"lfs,omitempty"`
}

func (h *Handler) entry(rep *repository, f file) (entry, error) {
	e := entry{Type: "file", Size: f.Size, Path: f.Path}
	if f.large() {
		var err error
		if f.SHA256, err = h.oid(rep, f); err != nil {
			return e, err
		}
		p := pointer(f)
		e.OID, e.LFS = gitID(p), &lfsInfo{OID: f.SHA256, Size: f.Size, PointerSize: len(p)}
		return e, nil
	}
	var err error
	e.OID, err = h.oid(rep, f)
	return e, err
}

func directory(dir string) entry {
	sum := sha1.Sum([]byte("tree " + dir))
	return entry{Type: "directory", OID: hex.EncodeToString(sum[:]), Path: dir}
}

// listed are the entries below a folder, by path; ok is false if there is no such folder.
func (h *Handler) listed(rep *repository, c *commit, dir string, recursive bool) (list []entry, ok bool, err error) {
	prefix := ""
	if dir != "" {
		prefix = dir + "/"
	}
	dirs := map[string]bool{}
	for _, f := range c.Files {
		rest, below := strings.CutPrefix(f.Path, prefix)
		if !below {
			continue
		}
		ok = true
		parts := strings.Split(rest, "/")
		for i := 1; i < len(parts); i++ {
			if d := prefix + strings.Join(parts[:i], "/"); !dirs[d] && (recursive || i == 1) {
				dirs[d] = true
				list = append(list, directory(d))
			}
		}
		if recursive || len(parts) == 1 {
			e, err := h.entry(rep, f)
			if err != nil {
				return nil, false, err
			}
			list = append(list, e)
		}
	}
	return list, ok || dir == "", nil
}

func truth(s string) bool { return strings.EqualFold(s, "true") || s == "1" }

// page cuts a list at ?cursor=N and says where the next page is.
func page[T any](w http.ResponseWriter, r *http.Request, list []T, size int) ([]T, error) {
	q := r.URL.Query()
	if n, err := strconv.Atoi(q.Get("limit")); err == nil && n > 0 && n < size {
		size = n
	}
	at := 0
	if text := q.Get("cursor"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 || n > len(list) {
			return nil, failf(http.StatusBadRequest, "", "cursor %.40q: not one of ours", text)
		}
		at = n
	}
	list = list[at:]
	if len(list) > size {
		list = list[:size]
		q.Set("cursor", strconv.Itoa(at+size))
		w.Header().Set("Link", fmt.Sprintf("<%s%s?%s>; rel=\"next\"", base(r), r.URL.EscapedPath(), q.Encode()))
	}
	if list == nil {
		list = []T{}
	}
	return list, nil
}

func (h *Handler) tree(w http.ResponseWriter, r *http.Request, repo, rev string, segments []string) error {
	dir := ""
	if len(segments) > 0 {
		var err error
		if dir, err = joinPath(segments); err != nil {
			return err
		}
	}
	rep, c, err := h.find(r, repo, rev)
	if err != nil {
		return err
	}
	if rep == nil {
		return h.elsewhere(w, r, repo)
	}
	list, ok, err := h.listed(rep, c, dir, truth(r.URL.Query().Get("recursive")))
	if err != nil {
		return err
	}
	if !ok {
		return noEntry(rep.Name, dir, c.ID)
	}
	if list, err = page(w, r, list, h.opt.TreePage); err != nil {
		return err
	}
	w.Header().Set("X-Repo-Commit", c.ID)
	answer(w, r, http.StatusOK, list)
	return nil
}

// pathsInfo takes a form where the other routes take JSON; JSON is read too.
func (h *Handler) pathsInfo(w http.ResponseWriter, r *http.Request, repo, rev string) error {
	rep, c, err := h.find(r, repo, rev)
	if err != nil {
		return err
	}
	if rep == nil {
		return h.elsewhere(w, r, repo)
	}
	var paths []string
	if strings.HasPrefix(r.Header.Get("Content-Type"), "application/json") {
		var body struct{ Paths []string }
		if err := decode(w, r, 8<<20, &body); err != nil {
			return err
		}
		paths = body.Paths
	} else {
		text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 8<<20))
		if err != nil {
			return err
		}
		form, err := url.ParseQuery(string(text))
		if err != nil {
			return failf(http.StatusBadRequest, "", "the body is not a form: %v", err)
		}
		paths = form["paths"]
	}
	list := []entry{}
	for _, p := range paths {
		p = strings.Trim(p, "/")
		if f, ok := c.file(p); ok {
			e, err := h.entry(rep, f)
			if err != nil {
				return err
			}
			list = append(list, e)
		} else if p != "" && slices.ContainsFunc(c.Files, func(f file) bool { return strings.HasPrefix(f.Path, p+"/") }) {
			list = append(list, directory(p))
		}
	}
	answer(w, r, http.StatusOK, list)
	return nil
}

// sibling is a file in a repository's description.
type sibling struct {
	Name   string   `json:"rfilename"`
	Size   *int64   `json:"size,omitempty"`
	BlobID string   `json:"blobId,omitempty"`
	LFS    *lfsInfo `json:"lfs,omitempty"`
}

// modelInfo describes a repository. Clients take tags for a list and join it.
type modelInfo struct {
	HexID        string    `json:"_id"`
	ID           string    `json:"id"`
	ModelID      string    `json:"modelId"`
	Author       string    `json:"author"`
	SHA          string    `json:"sha"`
	LastModified string    `json:"lastModified"`
	CreatedAt    string    `json:"createdAt"`
	Private      bool      `json:"private"`
	Gated        bool      `json:"gated"`
	Disabled     bool      `json:"disabled"`
	Downloads    int       `json:"downloads"`
	Likes        int       `json:"likes"`
	Tags         []string  `json:"tags"`
	Siblings     []sibling `json:"siblings"`
	Box          boxInfo   `json:"smolgym"`
}

// boxInfo says what the repository is to this box.
type boxInfo struct {
	Model   bool   `json:"model"`             // the revision asked for can be trained and sampled
	Missing string `json:"missing,omitempty"` // why the head of main can't
}

const timeForm = "2006-01-02T15:04:05.000Z"

func (h *Handler) infoOf(rep *repository, c *commit, blobs bool) (modelInfo, error) {
	org, _, _ := strings.Cut(rep.Name, "/")
	out := modelInfo{HexID: gitID(rep.Name)[:24], ID: rep.Name, ModelID: rep.Name, Author: org, SHA: c.ID,
		LastModified: c.Date.Format(timeForm), CreatedAt: rep.Created.UTC().Format(timeForm), Tags: []string{}, Siblings: []sibling{},
		Box: boxInfo{Model: rep.Model != "" && rep.Model == c.ID, Missing: rep.Missing}}
	for _, f := range c.Files {
		s := sibling{Name: f.Path}
		if blobs {
			e, err := h.entry(rep, f)
			if err != nil {
				return out, err
			}
			s.Size, s.BlobID = &e.Size, e.OID
			if e.LFS != nil {
				s.LFS = &lfsInfo{SHA256: e.LFS.OID, Size: e.LFS.Size, PointerSize: e.LFS.PointerSize}
			}
		}
		out.Siblings = append(out.Siblings, s)
	}
	return out, nil
}

func (h *Handler) info(w http.ResponseWriter, r *http.Request, repo, rev string) error {
	rep, c, err := h.find(r, repo, rev)
	if err != nil {
		return err
	}
	if rep == nil {
		return h.elsewhere(w, r, repo)
	}
	out, err := h.infoOf(rep, c, truth(r.URL.Query().Get("blobs")))
	if err == nil {
		answer(w, r, http.StatusOK, out)
	}
	return err
}

// names are the repositories here: uploads and models.
func (h *Handler) names() ([]string, error) {
	list, err := h.box.Repositories()
	if err != nil {
		return nil, err
	}
	models, err := h.box.Models()
	if err != nil {
		return nil, err
	}
	for _, m := range models {
		if checkRepo(m.Name) == nil {
			list = append(list, m.Name)
		}
	}
	slices.Sort(list)
	return slices.Compact(list), nil
}

func (h *Handler) listModels(w http.ResponseWriter, r *http.Request) error {
	names, err := h.names()
	if err != nil {
		return err
	}
	q := r.URL.Query()
	names = slices.DeleteFunc(names, func(n string) bool {
		org, _, _ := strings.Cut(n, "/")
		return q.Get("author") != "" && org != q.Get("author") ||
			!strings.Contains(strings.ToLower(n), strings.ToLower(q.Get("search")))
	})
	if names, err = page(w, r, names, h.opt.TreePage); err != nil {
		return err
	}
	list := []modelInfo{}
	for _, n := range names {
		rep, err := h.derive(h.open(n))
		if err != nil || rep == nil {
			if f := (*failure)(nil); err == nil || errors.As(err, &f) {
				continue // removed since
			}
			return err
		}
		m, err := h.infoOf(rep, rep.head(), false)
		if err != nil {
			return err
		}
		list = append(list, m)
	}
	answer(w, r, http.StatusOK, list)
	return nil
}

func (h *Handler) refs(w http.ResponseWriter, r *http.Request, repo string) error {
	type ref struct {
		Name   string `json:"name"`
		Ref    string `json:"ref"`
		Commit string `json:"targetCommit"`
	}
	rep, err := h.openAny(r.Context(), repo, "main")
	if err != nil {
		return err
	}
	if rep == nil {
		return h.elsewhere(w, r, repo)
	}
	list := []ref{}
	for name, id := range rep.Branches {
		list = append(list, ref{name, "refs/heads/" + name, id})
	}
	slices.SortFunc(list, func(a, b ref) int { return strings.Compare(a.Name, b.Name) })
	answer(w, r, http.StatusOK, map[string]any{"branches": list, "converts": []ref{}, "tags": []ref{}})
	return nil
}

func (h *Handler) commits(w http.ResponseWriter, r *http.Request, repo, rev string) error {
	rep, c, err := h.find(r, repo, rev)
	if err != nil {
		return err
	}
	if rep == nil {
		return h.elsewhere(w, r, repo)
	}
	list := []map[string]any{}
	past := false
	for _, x := range slices.Backward(rep.Commits) {
		if past = past || x.ID == c.ID; past {
			list = append(list, map[string]any{"id": x.ID, "title": x.Title, "message": x.Message, "date": x.Date.Format(timeForm),
				"authors": []any{map[string]string{"user": user}}})
		}
	}
	if list, err = page(w, r, list, h.opt.TreePage); err == nil {
		answer(w, r, http.StatusOK, list)
	}
	return err
}

// user is who everybody is here, and the organisation of bare names.
const user = "local"

func (h *Handler) whoami(w http.ResponseWriter, r *http.Request) error {
	if err := h.mayWrite(r); err != nil {
		return err
	}
	answer(w, r, http.StatusOK, map[string]any{"type": "user", "id": strings.Repeat("0", 23) + "1", "name": user, "fullname": user,
		"isPro": false, "orgs": []any{},
		"auth": map[string]any{"type": "access_token", "accessToken": map[string]string{"displayName": user, "role": "write"}}})
	return nil
}

func (h *Handler) authCheck(w http.ResponseWriter, r *http.Request, repo string) error {
	rep, err := h.openAny(r.Context(), repo, "main")
	if err != nil {
		return err
	}
	if rep == nil {
		return h.elsewhere(w, r, repo)
	}
	answer(w, r, http.StatusOK, struct{}{})
	return nil
}

// parents are the folders above a path.
func parents(p string) (list []string) {
	for p = path.Dir(p); p != "."; p = path.Dir(p) {
		list = append(list, p)
	}
	return list
}
