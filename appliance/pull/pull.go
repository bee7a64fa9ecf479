package pull

import (
	"bytes"
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Errors of this package, to be told apart with errors.Is.
var (
	ErrNotFound    = errors.New("not on the hub")
	ErrNotAllowed  = errors.New("the hub doesn't allow it")
	ErrUnreachable = errors.New("the hub doesn't answer")
	ErrHub         = errors.New("the hub's answer can't be right") // or is beyond a limit
	ErrContent     = errors.New("other bytes than the hub announced")
)

// DefaultHub is where models come from unless another address is given.
const DefaultHub = "https://huggingface.co"

// File is a file of a model.
type File struct {
	Path   string
	Size   int64  // bytes
	SHA256 string // 64 hexadecimal digits
}

// State is how far a file has come.
type State struct {
	File
	Have int64 // bytes that are here: the next one to send
	Done bool
}

// Sink takes a model's files and keeps what has arrived.
type Sink interface {
	Begin(ctx context.Context, name string, files []File) (id string, states []State, err error)
	// Put takes bytes of a file from an offset on, which is what Have says. On error the state says how far it came.
	Put(ctx context.Context, id, path string, offset int64, r io.Reader) (State, error)
	// Commit lists the model. A refusal is the complete list of reasons.
	Commit(ctx context.Context, id string) error
}

// Options say what is pulled from where.
type Options struct {
	Name     string // org/name
	As       string // the name that the model gets here; Name if empty
	Revision string // a branch, a tag or a commit; main if empty
	From     string // the hub's address; DefaultHub if empty
	Token    string // sent to the hub and to no other host; none if empty

	Progress func(Progress)                                   // called now and then; may be nil
	Client   *http.Client                                     // without an overall timeout; one of our own if nil
	Wait     func(ctx context.Context, d time.Duration) error // before another try; sleeps if nil
}

// Progress is how far the whole has come.
type Progress struct {
	Path  string // the file that is on its way
	Have  int64  // bytes of all files that are here
	Total int64  // bytes of all files
}

// Result is what was pulled.
type Result struct {
	Name   string
	Commit string // on the hub
	Files  []File
}

// Bounds of what a hub may answer.
const (
	maxAnswer  = 32 << 20
	maxEntries = 100000
	maxSmall   = 64 << 20 // a file without a sha256 in the list
	maxTries   = 6        // without a byte of progress
)

var (
	hubName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}$`)
	sumForm = regexp.MustCompile(`^[0-9a-f]{64}$`)
	idForm  = regexp.MustCompile(`^[0-9a-f]{40}$`)
)

// Model pulls a model into a sink.
func Model(ctx context.Context, sink Sink, o Options) (Result, error) {
	if !hubName.MatchString(o.Name) {
		return Result{}, fmt.Errorf("pull %.200q: not a hub's name of a model; use org/name", o.Name)
	}
	p, err := newPuller(o)
	if err != nil {
		return Result{}, fmt.Errorf("pull %s: %w", o.Name, err)
	}
	r, err := p.model(ctx, sink)
	if err != nil {
		return r, fmt.Errorf("pull %s from %s: %w", o.Name, p.base, err)
	}
	return r, nil
}

func (p *puller) model(ctx context.Context, sink Sink) (Result, error) {
	commit, err := p.commit(ctx)
	if err != nil {
		return Result{}, err
	}
	entries, err := p.tree(ctx, commit)
	if err != nil {
		return Result{}, err
	}
	small := map[string][]byte{}
	chosen, err := choose(entries, func(e entry) ([]byte, error) {
		text, err := p.small(ctx, commit, e)
		small[e.Path] = text
		return text, err
	})
	if err != nil {
		return Result{}, err
	}
	files := make([]File, 0, len(chosen))
	for _, e := range chosen {
		f := File{e.Path, e.Size, ""}
		if e.LFS != nil {
			f.SHA256 = e.LFS.OID
		} else {
			text, ok := small[e.Path]
			if !ok {
				if text, err = p.small(ctx, commit, e); err != nil {
					return Result{}, err
				}
				small[e.Path] = text
			}
			sum := sha256.Sum256(text)
			f.SHA256 = hex.EncodeToString(sum[:])
		}
		p.total += f.Size
		files = append(files, f)
	}
	name := p.opt.As
	if name == "" {
		name = p.opt.Name
	}
	id, states, err := sink.Begin(ctx, name, files)
	if err != nil {
		return Result{}, err
	}
	for _, s := range states {
		if s.Done {
			s.Have = s.Size
		}
		p.have += s.Have
	}
	for _, s := range states {
		if s.Done {
			continue
		}
		if err := p.file(ctx, sink, id, commit, s, small); err != nil {
			return Result{}, err
		}
	}
	p.report("")
	return Result{name, commit, files}, sink.Commit(ctx, id)
}

// puller asks one hub about one model.
type puller struct {
	opt         Options
	base        string
	host        string
	have, total int64
	told        int64
}

func newPuller(o Options) (*puller, error) {
	if o.From == "" {
		o.From = DefaultHub
	}
	if o.Revision == "" {
		o.Revision = "main"
	}
	u, err := url.Parse(o.From)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.RawQuery != "" || u.User != nil {
		return nil, fmt.Errorf("the hub's address %.200q: use http://HOST or https://HOST", o.From)
	}
	if o.Client == nil {
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.ResponseHeaderTimeout = 30 * time.Second
		t.DisableCompression = true
		o.Client = &http.Client{Transport: t}
	}
	if o.Wait == nil {
		o.Wait = sleep
	}
	return &puller{opt: o, base: strings.TrimRight(o.From, "/"), host: u.Host}, nil
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// segments escapes a path, its slashes left.
func segments(s string) string {
	parts := strings.Split(s, "/")
	for i, p := range parts {
		parts[i] = url.PathEscape(p)
	}
	return strings.Join(parts, "/")
}

// again marks a failure after which another try may help.
type again struct{ error }

func (a again) Unwrap() error { return a.error }

// get asks once. The body of a good answer is the caller's to close. A token goes to the hub's own host alone: on the way
// to where the bytes are, the transport drops it.
func (p *puller) get(ctx context.Context, address string, from int64) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("User-Agent", "smolgym")
	req.Header.Set("Accept-Encoding", "identity")
	if p.opt.Token != "" && req.URL.Host == p.host {
		req.Header.Set("Authorization", "Bearer "+p.opt.Token)
	}
	if from > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", from))
	}
	resp, err := p.opt.Client.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, again{fmt.Errorf("%w: %w", ErrUnreachable, err)}
	}
	if resp.StatusCode == http.StatusOK || from > 0 && resp.StatusCode == http.StatusPartialContent {
		return resp, nil
	}
	defer resp.Body.Close()
	return nil, refusal(resp)
}

func refusal(resp *http.Response) error {
	text := resp.Header.Get("X-Error-Message")
	if text == "" {
		text = resp.Status
	}
	if len(text) > 300 {
		text = text[:300]
	}
	switch s := resp.StatusCode; {
	case s == http.StatusNotFound:
		return fmt.Errorf("%w: %s", ErrNotFound, text)
	case s == http.StatusUnauthorized, s == http.StatusForbidden:
		return fmt.Errorf("%w: %s; a model that is private or gated needs a token of somebody who was let in", ErrNotAllowed, text)
	case s == http.StatusTooManyRequests, s >= 500:
		return again{fmt.Errorf("%w: %s", ErrUnreachable, text)}
	default:
		return fmt.Errorf("%w: %s", ErrHub, text)
	}
}

// retry tries until it works, can't work, or made no progress for too long.
func (p *puller) retry(ctx context.Context, try func() (progress bool, err error)) error {
	for n := 0; ; n++ {
		progress, err := try()
		if err == nil {
			return nil
		}
		if progress {
			n = 0
		}
		var a again
		if !errors.As(err, &a) || n+1 >= maxTries {
			return err
		}
		if werr := p.opt.Wait(ctx, min(time.Second<<n, 20*time.Second)); werr != nil {
			return errors.Join(werr, err)
		}
	}
}

// read fetches a bounded answer whole.
func (p *puller) read(ctx context.Context, address string, limit int64) (text []byte, head http.Header, err error) {
	err = p.retry(ctx, func() (bool, error) {
		resp, err := p.get(ctx, address, 0)
		if err != nil {
			return false, err
		}
		defer resp.Body.Close()
		head = resp.Header
		text, err = io.ReadAll(io.LimitReader(resp.Body, limit+1))
		if err != nil {
			return false, again{fmt.Errorf("%w: %w", ErrUnreachable, err)}
		}
		if int64(len(text)) > limit {
			return false, fmt.Errorf("%w: more than %d bytes", ErrHub, limit)
		}
		return true, nil
	})
	return text, head, err
}

// commit finds what the revision is now.
func (p *puller) commit(ctx context.Context) (string, error) {
	text, _, err := p.read(ctx, p.base+"/api/models/"+p.opt.Name+"/revision/"+url.PathEscape(p.opt.Revision), maxAnswer)
	if err != nil {
		return "", fmt.Errorf("revision %s: %w", p.opt.Revision, err)
	}
	var info struct {
		SHA string `json:"sha"`
	}
	if err := json.Unmarshal(text, &info); err != nil || !idForm.MatchString(info.SHA) {
		return "", fmt.Errorf("revision %s: %w: no commit id in it; is it a hub?", p.opt.Revision, ErrHub)
	}
	return info.SHA, nil
}

// entry is a file in the hub's list.
type entry struct {
	Type string `json:"type"`
	Path string `json:"path"`
	Size int64  `json:"size"`
	OID  string `json:"oid"` // git's
	LFS  *struct {
		OID  string `json:"oid"` // sha256
		Size int64  `json:"size"`
	} `json:"lfs"`
}

var nextLink = regexp.MustCompile(`<([^>]*)>\s*;\s*rel="?next"?`)

// tree lists the files of a commit.
func (p *puller) tree(ctx context.Context, commit string) ([]entry, error) {
	var all []entry
	next := p.base + "/api/models/" + p.opt.Name + "/tree/" + commit + "?recursive=false"
	for next != "" {
		text, head, err := p.read(ctx, next, maxAnswer)
		if err != nil {
			return nil, fmt.Errorf("list files: %w", err)
		}
		var page []entry
		if err := json.Unmarshal(text, &page); err != nil {
			return nil, fmt.Errorf("list files: %w: %w", ErrHub, err)
		}
		if all = append(all, page...); len(all) > maxEntries {
			return nil, fmt.Errorf("list files: %w: more than %d", ErrHub, maxEntries)
		}
		next, err = p.next(head.Get("Link"), next)
		if err != nil || len(page) == 0 {
			return all, err
		}
	}
	return all, nil
}

// next is the address of the next page, on the same host.
func (p *puller) next(link, now string) (string, error) {
	m := nextLink.FindStringSubmatch(link)
	if m == nil {
		return "", nil
	}
	u, err := url.Parse(m[1])
	if err != nil || u.Host != p.host || m[1] == now {
		return "", fmt.Errorf("list files: %w: the next page is at %.200q", ErrHub, m[1])
	}
	return m[1], nil
}

// choose picks what a loader, a tokenizer or a person needs, and one form of the weights.
func choose(entries []entry, read func(entry) ([]byte, error)) ([]entry, error) {
	var side, weights []entry
	var index *entry
	pickles := false
	for _, e := range entries {
		if e.Type != "file" || strings.Contains(e.Path, "/") {
			continue
		}
		if err := sound(e); err != nil {
			return nil, err
		}
		switch path.Ext(e.Path) {
		case ".safetensors":
			weights = append(weights, e)
		case ".bin", ".pt", ".pth":
			pickles = true
		case ".json", ".jinja", ".model", ".txt", ".md":
			if e.Path == "model.safetensors.index.json" {
				index = &e
				continue
			}
			if !strings.HasSuffix(e.Path, ".index.json") {
				side = append(side, e)
			}
		}
	}
	hint := "it has no .safetensors files"
	if pickles {
		hint = "its weights are pickled only, which aren't taken: convert them to safetensors"
	}
	if len(weights) == 0 {
		return nil, fmt.Errorf("no weights: %s", hint)
	}
	has := func(name string) int { return slices.IndexFunc(weights, func(e entry) bool { return e.Path == name }) }
	if i := has("model.safetensors"); i >= 0 {
		return append(side, weights[i]), nil
	}
	if index == nil {
		return append(side, weights...), nil
	}
	text, err := read(*index)
	if err != nil {
		return nil, err
	}
	var of struct {
		Map map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(text, &of); err != nil {
		return nil, fmt.Errorf("%s: %w: %w", index.Path, ErrHub, err)
	}
	shards := map[string]bool{}
	for _, s := range of.Map {
		shards[s] = true
		if has(s) < 0 {
			return nil, fmt.Errorf("%s: %w: it names %.200q, which isn't there", index.Path, ErrHub, s)
		}
	}
	weights = slices.DeleteFunc(weights, func(e entry) bool { return !shards[e.Path] })
	return append(append(side, *index), weights...), nil
}

// sound refuses an entry that can't be right.
func sound(e entry) error {
	switch {
	case e.Path == "" || len(e.Path) > 255 || e.Path == "." || e.Path == ".." || strings.ContainsAny(e.Path, "\\\x00\n\r"),
		e.Size < 0, e.LFS != nil && (!sumForm.MatchString(e.LFS.OID) || e.LFS.Size != e.Size), e.LFS == nil && !idForm.MatchString(e.OID):
		return fmt.Errorf("list files: %w: entry %.200q of %d bytes", ErrHub, e.Path, e.Size)
	}
	return nil
}

func (p *puller) address(commit, file string) string {
	return p.base + "/" + p.opt.Name + "/resolve/" + commit + "/" + segments(file)
}

// small fetches a file that the list has git's id of, and checks it.
func (p *puller) small(ctx context.Context, commit string, e entry) ([]byte, error) {
	if e.Size > maxSmall {
		return nil, fmt.Errorf("%s: %w: %d bytes without a sha256; at most %d are taken", e.Path, ErrHub, e.Size, maxSmall)
	}
	text, _, err := p.read(ctx, p.address(commit, e.Path), maxSmall)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", e.Path, err)
	}
	if e.LFS != nil {
		if sum := sha256.Sum256(text); hex.EncodeToString(sum[:]) != e.LFS.OID {
			return nil, fmt.Errorf("%s: %w: sha256 is not %s", e.Path, ErrContent, e.LFS.OID)
		}
		return text, nil
	}
	sum := sha1.New()
	fmt.Fprintf(sum, "blob %d\x00", len(text))
	_, _ = sum.Write(text) // never fails
	if hex.EncodeToString(sum.Sum(nil)) != e.OID {
		return nil, fmt.Errorf("%s: %w: git's id is not %s", e.Path, ErrContent, e.OID)
	}
	return text, nil
}

// file sends one file to the sink, from where it stopped.
func (p *puller) file(ctx context.Context, sink Sink, id, commit string, s State, small map[string][]byte) error {
	if text, ok := small[s.Path]; ok {
		at := min(s.Have, int64(len(text)))
		now, err := sink.Put(ctx, id, s.Path, at, bytes.NewReader(text[at:]))
		if err == nil && !now.Done {
			err = fmt.Errorf("%d of %d bytes were taken", now.Have, s.Size)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", s.Path, err)
		}
		p.have += s.Size - at
		return nil
	}
	err := p.retry(ctx, func() (bool, error) {
		before := s.Have
		now, err := p.stream(ctx, sink, id, commit, s)
		if now.Have > before || now.Done {
			s.Have = now.Have
		}
		if err == nil && !now.Done {
			err = again{fmt.Errorf("%w: the connection broke at byte %d of %d", ErrUnreachable, now.Have, s.Size)}
		}
		return s.Have > before, err
	})
	if err != nil {
		return fmt.Errorf("%s: %w", s.Path, err)
	}
	return nil
}

// stream is one try.
func (p *puller) stream(ctx context.Context, sink Sink, id, commit string, s State) (State, error) {
	resp, err := p.get(ctx, p.address(commit, s.Path), s.Have)
	if err != nil {
		return s, err
	}
	defer resp.Body.Close()
	tag := strings.Trim(strings.TrimPrefix(resp.Header.Get("ETag"), "W/"), `"`)
	if sumForm.MatchString(tag) && tag != s.SHA256 && resp.Request.URL.Host == p.host {
		return s, fmt.Errorf("%w: the hub sends sha256 %s, its list says %s", ErrContent, tag, s.SHA256)
	}
	in := &source{r: resp.Body, tell: func(n int) {
		p.have += int64(n)
		p.report(s.Path)
	}}
	if resp.StatusCode == http.StatusOK && s.Have > 0 { // it knows no ranges
		if _, err := io.CopyN(io.Discard, resp.Body, s.Have); err != nil {
			return s, again{fmt.Errorf("%w: %w", ErrUnreachable, err)}
		}
	} else if resp.StatusCode == http.StatusPartialContent && !strings.HasPrefix(resp.Header.Get("Content-Range"), fmt.Sprintf("bytes %d-", s.Have)) {
		return s, fmt.Errorf("%w: asked for bytes from %d on, it sends %.60q", ErrHub, s.Have, resp.Header.Get("Content-Range"))
	}
	before := p.have
	now, err := sink.Put(ctx, id, s.Path, s.Have, in)
	if now.Done {
		now.Have = s.Size
	}
	p.have = before + now.Have - s.Have // what was read and not taken comes again
	if err == nil && in.err != nil && !now.Done && ctx.Err() == nil {
		err = again{fmt.Errorf("%w: %w", ErrUnreachable, in.err)}
	}
	return now, err
}

// source counts what is read. The hub's errors it keeps for itself and ends: to the sink a broken connection is a part,
// and the answer says how far it came.
type source struct {
	r    io.Reader
	tell func(n int)
	err  error
}

func (s *source) Read(b []byte) (int, error) {
	n, err := s.r.Read(b)
	if n > 0 {
		s.tell(n)
	}
	if err != nil && !errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		s.err, err = err, io.EOF
	}
	return n, err
}

// report tells of every mebibyte, and of the end.
func (p *puller) report(file string) {
	if p.opt.Progress == nil || file != "" && p.have < p.told+1<<20 && p.have > p.told {
		return
	}
	p.told = p.have
	p.opt.Progress(Progress{file, p.have, p.total})
}
