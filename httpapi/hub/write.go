package hub

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
)

// Bounds of what is sent.
const (
	maxJSON     = 1 << 20
	maxManifest = 16 << 20
	maxLine     = 24 << 20  // of a commit: a file in base64, which preupload asks for up to 1 MiB
	maxCommit   = 512 << 20 // newer clients send 100 MiB at a time
)

// repoRequest names a repository to be made or deleted.
type repoRequest struct {
	Name         string  `json:"name"`
	Organization *string `json:"organization"`
	Type         *string `json:"type"`
}

func (h *Handler) repoRequest(w http.ResponseWriter, r *http.Request) (string, error) {
	if err := h.mayWrite(r); err != nil {
		return "", err
	}
	var req repoRequest
	if err := decode(w, r, maxJSON, &req); err != nil {
		return "", err
	}
	if req.Type != nil && *req.Type != "" && *req.Type != "model" {
		return "", failf(http.StatusBadRequest, "", "repositories of type %.60q aren't kept here: only models are", *req.Type)
	}
	name := req.Name
	if !strings.Contains(name, "/") {
		org := user
		if req.Organization != nil && *req.Organization != "" {
			org = *req.Organization
		}
		name = org + "/" + name
	}
	return name, checkNewRepo(name)
}

func (h *Handler) createRepo(w http.ResponseWriter, r *http.Request) error {
	name, err := h.repoRequest(w, r)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	rep, err := h.open(name)
	if err != nil {
		return err
	}
	if rep != nil && !rep.variant {
		f := failf(http.StatusConflict, "", "repository %s exists", name)
		f.url = base(r) + "/" + name // with exist_ok clients go on with it
		return f
	}
	if err := h.saveLocked(h.fresh(name)); err != nil {
		return err
	}
	answer(w, r, http.StatusOK, map[string]string{"url": base(r) + "/" + name, "name": name, "id": gitID(name)[:24]})
	return nil
}

// fresh is an empty repository.
func (h *Handler) fresh(name string) *repository {
	now := h.opt.Now().UTC()
	c := newCommit(nil, "initial commit", "", now)
	return &repository{Name: name, Created: now, Branches: map[string]string{"main": c.ID}, Commits: []commit{c}}
}

func (h *Handler) deleteRepo(w http.ResponseWriter, r *http.Request) error {
	name, err := h.repoRequest(w, r)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	rep, err := h.openOwn(name)
	if err != nil {
		return err
	}
	// The model first: it may be in use.
	if m, err := h.box.Model(name); err == nil && m.Name == name {
		if err := h.box.RemoveModel(name); err != nil {
			return err
		}
	}
	if err := h.box.RemoveRepository(rep.Name); err != nil && !isNotFound(err) {
		return err
	}
	answer(w, r, http.StatusOK, struct{}{})
	return nil
}

// openOwn is a repository that can be written to.
func (h *Handler) openOwn(name string) (*repository, error) {
	if err := checkNewRepo(name); err != nil {
		return nil, err
	}
	rep, err := h.open(name)
	if err == nil && (rep == nil || rep.variant) {
		f := noRepo(name)
		f.text = fmt.Sprintf("repository %s is not on this box; make it with create_repo", name)
		return nil, f
	}
	if err != nil {
		return nil, err
	}
	if m, err := h.box.Model(name); err == nil && m.Name != name {
		return nil, failf(http.StatusConflict, "", "%s is another name of %s; write to that", name, m.Name)
	}
	return rep, nil
}

func (h *Handler) createBranch(w http.ResponseWriter, r *http.Request, repo, branch string) error {
	if err := h.mayWrite(r); err != nil {
		return err
	}
	var req struct {
		StartingPoint string `json:"startingPoint"`
	}
	if err := decode(w, r, maxJSON, &req); err != nil {
		return err
	}
	if err := checkBranch(branch); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	rep, err := h.openOwn(repo)
	if err != nil {
		return err
	}
	if _, ok := rep.Branches[branch]; ok {
		return failf(http.StatusConflict, "", "%s has a branch %q", repo, branch)
	}
	if req.StartingPoint == "" {
		req.StartingPoint = "main"
	}
	c, ok := rep.revision(req.StartingPoint)
	if !ok {
		return noRevision(repo, req.StartingPoint)
	}
	rep.Branches[branch] = c.ID
	if err := h.saveLocked(rep); err != nil {
		return err
	}
	answer(w, r, http.StatusOK, struct{}{})
	return nil
}

// validateYAML is asked before a README is sent: the box doesn't use its head.
func (h *Handler) validateYAML(w http.ResponseWriter, r *http.Request) error {
	var req struct {
		Content string `json:"content"`
	}
	if err := decode(w, r, maxManifest, &req); err != nil {
		return err
	}
	answer(w, r, http.StatusOK, map[string]any{"errors": []string{}, "warnings": []string{}})
	return nil
}

func refusePullRequest(r *http.Request) error {
	if truth(r.URL.Query().Get("create_pr")) {
		return failf(http.StatusBadRequest, "", "pull requests are not supported: commit to a branch")
	}
	return nil
}

// preupload says how each file is to be sent, and what is there now, so that an unchanged one needn't be.
func (h *Handler) preupload(w http.ResponseWriter, r *http.Request, repo, rev string) error {
	if err := errors.Join(h.mayWrite(r), refusePullRequest(r)); err != nil {
		return err
	}
	var req struct {
		Files []struct {
			Path string `json:"path"`
			Size int64  `json:"size"`
		} `json:"files"`
	}
	if err := decode(w, r, maxManifest, &req); err != nil {
		return err
	}
	rep, err := h.openOwn(repo)
	if err != nil {
		return err
	}
	c, ok := rep.revision(rev)
	if !ok {
		return noRevision(repo, rev)
	}
	type mode struct {
		Path   string `json:"path"`
		Mode   string `json:"uploadMode"`
		Ignore bool   `json:"shouldIgnore"`
		OID    string `json:"oid,omitempty"`
	}
	list := []mode{}
	for _, f := range req.Files {
		if err := checkPath(f.Path); err != nil {
			return err
		}
		if isPickle(f.Path) {
			return refusePickle(f.Path)
		}
		m := mode{Path: f.Path, Mode: "regular"}
		if (file{Size: f.Size}).large() {
			m.Mode = "lfs"
		}
		if now, ok := c.file(f.Path); ok {
			if m.OID, err = h.oid(rep, now); err != nil {
				return err
			}
		}
		list = append(list, m)
	}
	answer(w, r, http.StatusOK, map[string]any{"files": list, "commitOid": c.ID})
	return nil
}

// change is one line of a commit.
type change struct {
	add    *file
	remove string // a file's path or a folder's with a slash at its end
}

// commitRequest is a commit as it is sent.
type commitRequest struct {
	Summary, Description, ParentCommit string
	changes                            []change
}

// readCommit reads a commit line by line. Files in it are stored as they come.
func (h *Handler) readCommit(body io.Reader) (*commitRequest, error) {
	req := &commitRequest{}
	in := bufio.NewReaderSize(body, 64<<10)
	for n := 0; ; n++ {
		line, err := readLine(in, maxLine)
		if errors.Is(err, io.EOF) {
			if n == 0 {
				return nil, failf(http.StatusBadRequest, "", "the commit is empty")
			}
			return req, nil
		}
		if err != nil {
			return nil, err
		}
		if n > 2*maxFiles {
			return nil, failf(http.StatusRequestEntityTooLarge, "", "the commit has more than %d changes", 2*maxFiles)
		}
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		if err := h.readChange(req, line); err != nil {
			return nil, err
		}
	}
}

// readLine reads up to a newline, of at most limit bytes; io.EOF comes alone.
func readLine(in *bufio.Reader, limit int) ([]byte, error) {
	var line []byte
	for {
		part, err := in.ReadSlice('\n')
		if len(line)+len(part) > limit {
			return nil, failf(http.StatusRequestEntityTooLarge, "", "a line of the commit has more than %d bytes; send large files by git-lfs or Xet, as preupload says", limit)
		}
		line = append(line, part...)
		switch {
		case err == nil, errors.Is(err, io.EOF) && len(line) > 0:
			return line, nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
}

func (h *Handler) readChange(req *commitRequest, line []byte) error {
	var l struct {
		Key   string `json:"key"`
		Value struct {
			Summary      string `json:"summary"`
			Description  string `json:"description"`
			ParentCommit string `json:"parentCommit"`
			Path         string `json:"path"`
			Encoding     string `json:"encoding"`
			Content      string `json:"content"`
			Algo         string `json:"algo"`
			OID          string `json:"oid"`
		} `json:"value"`
	}
	if err := json.Unmarshal(line, &l); err != nil {
		return failf(http.StatusBadRequest, "", "a line of the commit is not JSON: %v", err)
	}
	v := &l.Value
	if l.Key == "header" {
		req.Summary, req.Description, req.ParentCommit = v.Summary, v.Description, v.ParentCommit
		return nil
	}
	path := strings.TrimSuffix(v.Path, "/")
	if err := checkPath(path); err != nil {
		return err
	}
	switch l.Key {
	case "file":
		text, err := []byte(v.Content), error(nil)
		switch v.Encoding {
		case "base64":
			text, err = base64.StdEncoding.DecodeString(v.Content)
		case "", "utf-8":
		default:
			err = fmt.Errorf("encoding %.40q is unknown", v.Encoding)
		}
		if err != nil {
			return failf(http.StatusBadRequest, "", "file %.200q: %v; use base64", path, err)
		}
		sum := sha256.Sum256(text)
		f := file{path, int64(len(text)), hex.EncodeToString(sum[:])}
		if err := h.putWhole(f, text); err != nil {
			return err
		}
		req.changes = append(req.changes, change{add: &f})
	case "lfsFile":
		if v.Algo != "" && v.Algo != "sha256" || !isSum(v.OID) {
			return failf(http.StatusBadRequest, "", "file %.200q: %.20q %.80q is not a sha256 in 64 hexadecimal digits", path, v.Algo, v.OID)
		}
		have, size, err := h.box.ContentState(v.OID)
		if isNotFound(err) || err == nil && have < size {
			return failf(http.StatusBadRequest, "", "file %.200q: its content, sha256 %s, is not all here; send it first", path, v.OID)
		}
		if err != nil {
			return err
		}
		req.changes = append(req.changes, change{add: &file{path, size, v.OID}})
	case "deletedFile":
		req.changes = append(req.changes, change{remove: path})
	case "deletedFolder":
		req.changes = append(req.changes, change{remove: path + "/"})
	default:
		return failf(http.StatusBadRequest, "", "a commit's %.60q is unknown here; it takes file, lfsFile, deletedFile and deletedFolder", l.Key)
	}
	return nil
}

// isSum says whether s is a sha256 in lower-case hexadecimal.
func isSum(s string) bool {
	return len(s) == 64 && strings.Trim(s, "0123456789abcdef") == ""
}

// putWhole stores content that is in memory.
func (h *Handler) putWhole(f file, text []byte) error {
	have, err := h.box.PutContent(f.SHA256, f.Size, 0, bytes.NewReader(text))
	if err == nil && have < f.Size {
		err = fmt.Errorf("store %s: %d of %d bytes were taken", f.Path, have, f.Size)
	}
	return err
}

// apply makes the changes to a list of files.
func apply(files []file, changes []change) ([]file, error) {
	now := map[string]file{}
	for _, f := range files {
		now[f.Path] = f
	}
	for _, c := range changes {
		switch dir, isDir := strings.CutSuffix(c.remove, "/"); {
		case c.add != nil:
			if isPickle(c.add.Path) {
				return nil, refusePickle(c.add.Path)
			}
			now[c.add.Path] = *c.add
		case isDir:
			for p := range now {
				if strings.HasPrefix(p, dir+"/") {
					delete(now, p)
				}
			}
		default:
			if _, ok := now[c.remove]; !ok {
				return nil, failf(http.StatusBadRequest, codeEntry, "file %.200q can't be deleted: it isn't there", c.remove)
			}
			delete(now, c.remove)
		}
	}
	if len(now) > maxFiles {
		return nil, failf(http.StatusRequestEntityTooLarge, "", "the repository would have %d files; at most %d are kept", len(now), maxFiles)
	}
	list := make([]file, 0, len(now))
	for p, f := range now {
		for _, dir := range parents(p) {
			if _, clash := now[dir]; clash {
				return nil, failf(http.StatusBadRequest, "", "%.200q would be a file and a folder", dir)
			}
		}
		list = append(list, f)
	}
	slices.SortFunc(list, func(a, b file) int { return strings.Compare(a.Path, b.Path) })
	return list, nil
}

// commit applies a commit whole or not at all.
func (h *Handler) commit(w http.ResponseWriter, r *http.Request, repo, rev string) error {
	if err := errors.Join(h.mayWrite(r), refusePullRequest(r)); err != nil {
		return err
	}
	if _, err := h.openOwn(repo); err != nil { // before a large body is read
		return err
	}
	req, err := h.readCommit(http.MaxBytesReader(w, r.Body, maxCommit))
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	rep, err := h.openOwn(repo)
	if err != nil {
		return err
	}
	rev = strings.TrimPrefix(rev, "refs/heads/")
	if _, ok := rep.Branches[rev]; !ok {
		return noRevision(repo, rev)
	}
	head, ok := rep.revision(rev)
	if !ok {
		return fmt.Errorf("repository %s: branch %s has no commit", repo, rev)
	}
	if req.ParentCommit != "" && req.ParentCommit != head.ID {
		return failf(http.StatusPreconditionFailed, "", "%s: %s has moved on from %.40s to %s; fetch it and commit again", repo, rev, req.ParentCommit, head.ID)
	}
	files, err := apply(head.Files, req.changes)
	if err != nil {
		return err
	}
	c := newCommit(files, clip(req.Summary, 1000), clip(req.Description, 10000), h.opt.Now())
	if c.ID != head.ID || rep.Missing != "" {
		rep.append(rev, c)
		if err := h.saveLocked(rep); err != nil {
			return err
		}
	}
	note := ""
	if rev == "main" && rep.Missing != "" {
		note = "not a model yet: " + rep.Missing
	}
	answer(w, r, http.StatusOK, map[string]any{"success": true, "commitOid": c.ID,
		"commitUrl": base(r) + "/" + repo + "/commit/" + c.ID, "hookOutput": note})
	return nil
}

func clip(s string, n int) string {
	if len(s) > n {
		return strings.ToValidUTF8(s[:n], "")
	}
	return s
}
