package hub

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"smolgym/appliance"
)

// Export is a checkpoint's files. Each can be written any number of times with the same bytes.
type Export struct {
	Created time.Time
	Key     string // equal only for equal bytes
	Files   []ExportFile
}

// ExportFile is one file that is made when it is asked for.
type ExportFile struct {
	Path  string
	Size  int64 // bytes
	Write func(w io.Writer) error
}

// Namer is an Exporter that can list a run's checkpoints of a kind, to find those whose names are hashed.
type Namer interface {
	CheckpointNames(run, kind string) ([]string, error)
}

// Deriver is an Exporter that knows what a model shows beside its stored files, such as the folder that a GGUF file
// stands for. Key is equal only for equal bytes. No files are no error.
type Deriver interface {
	Derived(model string) ([]ExportFile, error)
}

// derivedModels remembers what models show beside their files: finding out reads a vocabulary.
type derivedModels struct {
	mu sync.Mutex
	of map[string]*Export // by the id of the commit with the stored files
}

// maxDerived bounds how many are remembered; each has a tokenizer in it.
const maxDerived = 4

// derive gives the head of main what the model shows beside its stored files. What it makes is never saved.
func (h *Handler) derive(r *repository, err error) (*repository, error) {
	if err != nil || r == nil || r.derivedFrom == "" {
		return r, err
	}
	d, ok := h.opt.Export.(Deriver)
	head := r.head()
	isGGUF := func(f file) bool { return strings.HasSuffix(f.Path, ".gguf") }
	if !ok || !r.variant && (r.Model != head.ID || !slices.ContainsFunc(head.Files, isGGUF)) {
		return r, nil
	}
	h.derived.mu.Lock()
	defer h.derived.mu.Unlock()
	key := r.derivedFrom + " " + head.ID
	x := h.derived.of[key]
	if x == nil {
		files, err := d.Derived(r.derivedFrom)
		if err != nil {
			return nil, err
		}
		x = &Export{Key: key, Files: files}
		if h.derived.of == nil || len(h.derived.of) >= maxDerived {
			h.derived.of = map[string]*Export{}
		}
		h.derived.of[key] = x
	}
	files := slices.Clone(head.Files)
	for _, f := range x.Files {
		if _, is := head.file(f.Path); !is && !(r.variant && isWeights(f.Path)) {
			files = append(files, x.standIn(f))
		}
	}
	if len(files) == len(head.Files) {
		return r, nil
	}
	c := newCommit(files, head.Title, head.Message, head.Date)
	if r.Model != "" {
		r.Model = c.ID
	}
	r.export = x
	r.append("main", c)
	return r, nil
}

// standIn is a file that is made on the fly: the hash of its content is only known once it has been made, see exportSum.
func (x *Export) standIn(f ExportFile) file {
	sum := sha256.Sum256([]byte(x.Key + "\x00" + f.Path))
	return file{f.Path, f.Size, hex.EncodeToString(sum[:])}
}

// makes says whether a file is made on the fly.
func (x *Export) makes(f file) bool {
	return x != nil && slices.ContainsFunc(x.Files, func(e ExportFile) bool { return e.Path == f.Path && x.standIn(e) == f })
}

// exportSums remembers the hashes of files that are made on the fly: making one to know its hash takes as long as sending it.
type exportSums struct {
	mu sync.Mutex
	of map[string]string // by the stand-in
}

const adapterRevision = "adapter"

// openAny is open, and for runs/… a checkpoint at one of its two forms.
func (h *Handler) openAny(ctx context.Context, repo, rev string) (*repository, error) {
	path, ok := checkpointPath(repo, h.hashed)
	if !ok || h.opt.Export == nil {
		return h.derive(h.open(repo))
	}
	if err := checkRepo(repo); err != nil {
		return nil, err
	}
	r := &repository{Name: repo, Branches: map[string]string{}}
	// A commit id names one form; which, only its files tell.
	for _, form := range []string{"main", adapterRevision} {
		if form != rev && !commitID.MatchString(rev) && rev != "refs/heads/"+form {
			continue
		}
		x, err := h.opt.Export.Export(ctx, path, form == adapterRevision)
		if isNotFound(err) {
			return nil, failf(404, codeRepo, "%s", err.Error())
		}
		if _, no := problem(err, appliance.CodeUnsupported); no && form != rev {
			continue // a full update has no adapter
		}
		if err != nil {
			return nil, err
		}
		files := make([]file, len(x.Files))
		for i, f := range x.Files {
			files[i] = x.standIn(f)
		}
		c := newCommit(files, "Checkpoint "+path, "", x.Created)
		if commitID.MatchString(rev) && c.ID != rev {
			continue
		}
		r.export, r.Created = &x, c.Date
		r.append(form, c)
		break
	}
	return r, nil
}

func (h *Handler) hashed(run, kind, name string) string {
	n, ok := h.opt.Export.(Namer)
	if !ok {
		return ""
	}
	names, err := n.CheckpointNames(run, kind)
	if i := slices.IndexFunc(names, func(s string) bool { return hashedName(s) == name }); err == nil && i >= 0 {
		return names[i]
	}
	return ""
}

// exportSum is the sha256 of a file that is made on the fly. It is worth finishing for a client that has gone: clients give
// up after seconds, come back, and find it ready.
func (h *Handler) exportSum(x *Export, f file) (string, error) {
	h.sums.mu.Lock()
	defer h.sums.mu.Unlock()
	if sum := h.sums.of[f.SHA256]; sum != "" {
		return sum, nil
	}
	r, err := x.open(f)
	if err != nil {
		return "", err
	}
	hash := sha256.New()
	if err := r.f.Write(hash); err != nil {
		return "", fmt.Errorf("make %s: %w", f.Path, err)
	}
	if h.sums.of == nil || len(h.sums.of) >= maxOIDs {
		h.sums.of = map[string]string{}
	}
	sum := hex.EncodeToString(hash.Sum(nil))
	h.sums.of[f.SHA256] = sum
	return sum, nil
}

// open reads a file as it is made.
func (x *Export) open(f file) (*exportReader, error) {
	i := slices.IndexFunc(x.Files, func(e ExportFile) bool { return e.Path == f.Path })
	if i < 0 {
		return nil, noEntry("the checkpoint", f.Path, "")
	}
	return &exportReader{f: x.Files[i]}, nil
}

// exportReader is an io.ReadSeeker over a writer: a range is made from the start of the file and cut out.
type exportReader struct {
	f    ExportFile
	at   int64
	pipe *io.PipeReader
	done chan struct{}
}

// Seek only notes the place.
func (e *exportReader) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += e.at
	case io.SeekEnd:
		offset += e.f.Size
	}
	if offset < 0 {
		return 0, errors.New("seek before the start")
	}
	if offset != e.at {
		e.stop()
		e.at = offset
	}
	return offset, nil
}

// Read starts the writer at the first byte that is wanted.
func (e *exportReader) Read(p []byte) (int, error) {
	if e.at >= e.f.Size {
		return 0, io.EOF
	}
	if e.pipe == nil {
		r, w := io.Pipe()
		e.pipe, e.done = r, make(chan struct{})
		skip, done, write := e.at, e.done, e.f.Write
		go func() {
			defer close(done)
			w.CloseWithError(write(&skipWriter{w, skip}))
		}()
	}
	n, err := e.pipe.Read(p)
	e.at += int64(n)
	return n, err
}

// stop ends the writer and waits for it, since it reads what the caller may give back after.
func (e *exportReader) stop() {
	if e.pipe != nil {
		_ = e.pipe.Close() // never fails
		<-e.done
		e.pipe = nil
	}
}

// skipWriter drops the first bytes.
type skipWriter struct {
	w    io.Writer
	skip int64
}

func (s *skipWriter) Write(p []byte) (int, error) {
	n := len(p)
	if s.skip >= int64(n) {
		s.skip -= int64(n)
		return n, nil
	}
	p = p[s.skip:]
	s.skip = 0
	if _, err := s.w.Write(p); err != nil {
		return 0, err
	}
	return n, nil
}
