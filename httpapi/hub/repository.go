package hub

import (
	"crypto/sha1"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"smolgym/appliance"
)

// Bounds of what a repository keeps.
const (
	maxFiles   = 10000
	keepFor    = 24 * time.Hour // a commit that is no branch's head: a download that runs pins its id
	maxCommits = 200
)

// file is one file of a commit.
type file struct {
	Path   string `json:"path"`
	Size   int64  `json:"size"` // bytes
	SHA256 string `json:"sha256"`
}

// largeBytes is the size above which a file is a large one: sent apart, and known by its sha256 instead of its git id.
const largeBytes = 1 << 20

func (f file) large() bool { return f.Size > largeBytes }

// commit is a state of the repository.
type commit struct {
	ID      string    `json:"id"`
	Title   string    `json:"title"`
	Message string    `json:"message,omitempty"`
	Date    time.Time `json:"date"`
	Files   []file    `json:"files"` // by path
}

func (c *commit) file(path string) (file, bool) {
	i, ok := slices.BinarySearchFunc(c.Files, path, func(f file, p string) int { return strings.Compare(f.Path, p) })
	if !ok {
		return file{}, false
	}
	return c.Files[i], true
}

// newCommit sorts the files and names the commit by their hash: what has one id has one content, also in a
// repository that was deleted and made anew, since clients never ask again about an id.
func newCommit(files []file, title, message string, date time.Time) commit {
	slices.SortFunc(files, func(a, b file) int { return strings.Compare(a.Path, b.Path) })
	sum := sha1.New()
	fmt.Fprintf(sum, "smolgym files %d\n", len(files))
	for _, f := range files {
		fmt.Fprintf(sum, "%q %d %s\n", f.Path, f.Size, f.SHA256)
	}
	return commit{ID: hex.EncodeToString(sum.Sum(nil)), Title: title, Message: message, Date: date.UTC(), Files: files}
}

// repository is what is kept of one.
type repository struct {
	Name     string            `json:"name"`
	Created  time.Time         `json:"created"`
	Branches map[string]string `json:"branches"` // commit ids
	Commits  []commit          `json:"commits"`  // oldest first
	Model    string            `json:"model,omitempty"`
	Missing  string            `json:"missing,omitempty"` // why the head of main is no model

	variant     bool    // files are those of a variant of the name, without its weights
	derivedFrom string  // the model whose files main has; it may show more than is stored
	export      *Export // makes some files of the head of main, or all
}

// revision finds a branch's head or a commit.
func (r *repository) revision(rev string) (*commit, bool) {
	rev = strings.TrimPrefix(rev, "refs/heads/")
	if id, ok := r.Branches[rev]; ok {
		rev = id
	} else if !commitID.MatchString(rev) {
		return nil, false
	}
	for i := len(r.Commits) - 1; i >= 0; i-- {
		if r.Commits[i].ID == rev {
			return &r.Commits[i], true
		}
	}
	return nil, false
}

func (r *repository) head() *commit {
	c, ok := r.revision("main")
	if !ok {
		c = &commit{}
	}
	return c
}

// append puts a commit on a branch. Equal content keeps the id and moves to the end.
func (r *repository) append(branch string, c commit) {
	r.Commits = slices.DeleteFunc(r.Commits, func(x commit) bool { return x.ID == c.ID })
	r.Commits = append(r.Commits, c)
	r.Branches[branch] = c.ID
}

// prune forgets commits that nobody can be downloading any more, so that their content can go.
func (r *repository) prune(now time.Time) {
	heads := map[string]bool{r.Model: true}
	for _, id := range r.Branches {
		heads[id] = true
	}
	over := len(r.Commits) - maxCommits
	r.Commits = slices.DeleteFunc(r.Commits, func(c commit) bool {
		gone := !heads[c.ID] && (over > 0 || now.Sub(c.Date) > keepFor)
		if gone {
			over--
		}
		return gone
	})
}

// content lists the hashes of every file of every commit, each once.
func (r *repository) content() []string {
	seen := map[string]bool{}
	var list []string
	for _, c := range r.Commits {
		for _, f := range c.Files {
			if !seen[f.SHA256] {
				seen[f.SHA256] = true
				list = append(list, f.SHA256)
			}
		}
	}
	return list
}

// modelFiles are a stored model's files.
func modelFiles(m *appliance.ModelRecord) []file {
	files := make([]file, len(m.Files))
	for i, f := range m.Files {
		files[i] = file{f.Path, f.Size, f.SHA256.String()}
	}
	return files
}

// stored reads the repository that was written under the name; nil if there is none.
func (h *Handler) stored(name string) (*repository, error) {
	doc, err := h.box.Repository(name)
	if isNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	r := &repository{}
	if err := json.Unmarshal(doc, r); err != nil {
		return nil, fmt.Errorf("repository %s: %w", name, err)
	}
	return r, nil
}

// open finds a repository: what was uploaded under the name, a model of that name, or the side files of its variants. nil
// if there is none.
func (h *Handler) open(name string) (*repository, error) {
	if err := checkRepo(name); err != nil {
		return nil, err
	}
	r, err := h.stored(name)
	if err != nil {
		return nil, err
	}
	m, err := h.box.Model(name)
	switch {
	case isNotFound(err):
		if r != nil {
			r.Model = ""
			return r, nil
		}
		return h.openVariant(name)
	case err != nil:
		return nil, err
	}
	c := newCommit(modelFiles(&m), "Model added", "", m.Created)
	if r == nil {
		return &repository{Name: name, Created: c.Date, Branches: map[string]string{"main": c.ID}, Commits: []commit{c}, Model: c.ID, derivedFrom: m.Name}, nil
	}
	if r.Model != c.ID { // added by another way since
		r.append("main", c)
		r.Model, r.Missing = c.ID, ""
	}
	r.derivedFrom = m.Name
	return r, nil
}

// openVariant is the repository of a name of which only variants are stored: client libraries drop the variant when they
// look for tokenizers. The eldest answers, without its weights.
func (h *Handler) openVariant(name string) (*repository, error) {
	if strings.Contains(name, ":") {
		return nil, nil
	}
	models, err := h.box.Models()
	if err != nil {
		return nil, err
	}
	models = slices.DeleteFunc(models, func(m appliance.ModelRecord) bool { return !strings.HasPrefix(m.Name, name+":") })
	if len(models) == 0 {
		return nil, nil
	}
	m := slices.MinFunc(models, func(a, b appliance.ModelRecord) int {
		if c := a.Created.Compare(b.Created); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
	files := slices.DeleteFunc(modelFiles(&m), func(f file) bool { return isWeights(f.Path) })
	c := newCommit(files, "Files of "+m.Name, "", m.Created)
	return &repository{Name: name, Created: c.Date, Branches: map[string]string{"main": c.ID}, Commits: []commit{c}, variant: true, derivedFrom: m.Name,
		Missing: "only variants of it are on this box: their tokenizer and configuration answer for it"}, nil
}

// isWeights says whether a file holds weights, or says which files do.
func isWeights(path string) bool {
	for _, end := range []string{".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json", ".gguf", ".pt", ".pth", ".onnx", ".h5", ".msgpack"} {
		if strings.HasSuffix(path, end) {
			return true
		}
	}
	return false
}

// isPickle says whether a file is a pickle of weights, which nothing here reads and clients would hand on for conversion.
func isPickle(path string) bool {
	name := path[strings.LastIndexByte(path, '/')+1:]
	return strings.HasSuffix(name, ".bin") && (strings.HasPrefix(name, "pytorch_model") || strings.HasPrefix(name, "adapter_model")) ||
		strings.HasSuffix(name, ".pth") || strings.HasSuffix(name, ".ckpt")
}

func refusePickle(path string) error {
	return failf(http.StatusBadRequest, "", "file %.200q: pickled weights aren't taken; save them as safetensors (save_pretrained(..., safe_serialization=True))", path)
}

// save settles what the head of main is and keeps the repository. It is called with h.mu held.
func (h *Handler) saveLocked(r *repository) error {
	if err := h.settle(r); err != nil {
		return err
	}
	r.prune(h.opt.Now())
	doc, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("repository %s: %w", r.Name, err)
	}
	return h.box.PutRepository(r.Name, doc, r.content())
}

// settle lists the head of main as a model if it is one. If it is none, a former one stays as it was: an upload in several
// commits passes through states that fit together nowhere.
func (h *Handler) settle(r *repository) error {
	head := r.head()
	if head.ID == r.Model {
		r.Missing = ""
		return nil
	}
	if r.Missing = incomplete(head); r.Missing != "" {
		return nil
	}
	files := make([]appliance.ManifestFile, len(head.Files))
	for i, f := range head.Files {
		var err error
		if files[i], err = appliance.NewManifestFile(f.Path, f.Size, f.SHA256); err != nil {
			return err
		}
	}
	err := h.box.SetModel(r.Name, files)
	if p := (*appliance.Problem)(nil); errors.As(err, &p) && (p.Code == appliance.CodeUnsupported || p.Code == appliance.CodeUser) {
		r.Missing = p.Error()
		h.log.Info("repository is no model yet", "repository", r.Name, "why", r.Missing)
		return nil
	}
	if err == nil {
		r.Model = head.ID
	}
	return err
}

// incomplete says what a commit lacks to be a model before anything is read.
func incomplete(c *commit) string {
	var missing []string
	if slices.ContainsFunc(c.Files, func(f file) bool { return strings.HasSuffix(f.Path, ".gguf") && !strings.Contains(f.Path, "/") }) {
		return "" // has its configuration in it
	}
	if _, ok := c.file("config.json"); !ok {
		missing = append(missing, "config.json")
	}
	if !slices.ContainsFunc(c.Files, func(f file) bool { return strings.HasSuffix(f.Path, ".safetensors") && !strings.Contains(f.Path, "/") }) {
		missing = append(missing, "a .safetensors file with weights")
	}
	if len(missing) == 0 {
		return ""
	}
	return "missing: " + strings.Join(missing, ", ")
}
