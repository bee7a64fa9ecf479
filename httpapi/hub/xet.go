package hub

import (
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"
)

// xetSpaces are the uploads under way, each with an address of its own: clients remember on disk what they have sent to
// an address, and would refer to it after it is gone.
type xetSpaces struct {
	mu     sync.Mutex
	dir    string
	spaces map[string]*xetSpace
	tokens map[string]time.Time // to their ends
}

// xetSpace holds the xorbs that came to one address.
type xetSpace struct {
	id   string
	used time.Time // guarded by xetSpaces.mu

	mu    sync.Mutex
	xorbs map[string]xorb
}

// xorb is a received one.
type xorb struct {
	path   string
	chunks []chunkAt
}

const (
	xetTokenFor  = 24 * time.Hour // clients ask for a new one when the end is near
	xetIdle      = 2 * time.Hour  // after the last request: while an upload runs, later files refer to earlier xorbs
	maxXetSpaces = 1000
)

// open makes an address and a token for it. Those whose time is over go.
func (x *xetSpaces) open(now time.Time) (space, token string) {
	space, token = rand.Text(), rand.Text()
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.spaces == nil {
		x.spaces, x.tokens = map[string]*xetSpace{}, map[string]time.Time{}
	}
	for t, end := range x.tokens {
		if now.After(end) {
			delete(x.tokens, t)
		}
	}
	x.sweepLocked(now)
	for len(x.spaces) >= maxXetSpaces {
		eldest := ""
		for id, s := range x.spaces {
			if eldest == "" || s.used.Before(x.spaces[eldest].used) {
				eldest = id
			}
		}
		x.dropLocked(eldest)
	}
	x.spaces[space] = &xetSpace{id: space, used: now, xorbs: map[string]xorb{}}
	x.tokens[token] = now.Add(xetTokenFor)
	return space, token
}

// sweepLocked drops the spaces of uploads that ended; x.mu is held.
func (x *xetSpaces) sweepLocked(now time.Time) {
	for id, s := range x.spaces {
		if now.Sub(s.used) > xetIdle {
			x.dropLocked(id)
		}
	}
}

// dropLocked forgets a space; x.mu is held.
func (x *xetSpaces) dropLocked(id string) {
	delete(x.spaces, id)
	if x.dir != "" {
		_ = os.RemoveAll(filepath.Join(x.dir, id)) // the folder goes with the next start at the latest
	}
}

// find gives a space to the bearer of any live token: a client that renews its token keeps its first address.
func (x *xetSpaces) find(id, token string, now time.Time) *xetSpace {
	x.mu.Lock()
	defer x.mu.Unlock()
	known := 0
	for t, end := range x.tokens {
		if now.Before(end) {
			known |= subtle.ConstantTimeCompare([]byte(t), []byte(token))
		}
	}
	if known == 0 {
		return nil
	}
	x.sweepLocked(now)
	s := x.spaces[id]
	if s != nil {
		s.used = now
	}
	return s
}

// folder is where a space's xorbs are.
func (x *xetSpaces) folder(box Box, id string) (string, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.dir == "" {
		scratch, err := box.Scratch()
		if err != nil {
			return "", err
		}
		if x.dir, err = os.MkdirTemp(scratch, "xet-"); err != nil {
			x.dir = ""
			return "", err
		}
	}
	dir := filepath.Join(x.dir, id)
	return dir, os.MkdirAll(dir, 0o700)
}

func (x *xetSpaces) close() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.dir == "" {
		return nil
	}
	err := os.RemoveAll(x.dir)
	x.dir, x.spaces, x.tokens = "", nil, nil
	return err
}

// xetToken tells a client where to send large files.
func (h *Handler) xetToken(w http.ResponseWriter, r *http.Request, repo, rev string) error {
	if err := h.mayWrite(r); err != nil {
		return err
	}
	rep, err := h.openOwn(repo)
	if err != nil {
		return err
	}
	if _, ok := rep.revision(rev); !ok {
		return noRevision(repo, rev)
	}
	space, token := h.xet.open(h.opt.Now())
	url, end := base(r)+"/xet/"+space, h.opt.Now().Add(xetTokenFor).Unix()
	w.Header().Set("X-Xet-Cas-Url", url)
	w.Header().Set("X-Xet-Access-Token", token)
	w.Header().Set("X-Xet-Token-Expiration", strconv.FormatInt(end, 10))
	answer(w, r, http.StatusOK, map[string]any{"casUrl": url, "accessToken": token, "exp": end})
	return nil
}

// serveXet serves /xet/<space>/…; what it doesn't know it answers 404, upon which clients take the older way.
func (h *Handler) serveXet(w http.ResponseWriter, r *http.Request, p []string) error {
	if len(p) < 2 {
		return noRoute(r)
	}
	s := h.xet.find(p[0], token(r), h.opt.Now())
	if s == nil {
		return failf(http.StatusUnauthorized, "", "the token is not one for this upload, or it is too old; start the upload again")
	}
	p = p[1:]
	switch {
	case r.Method == "POST" && len(p) == 4 && p[0] == "v1" && p[1] == "xorbs" && p[2] == "default":
		return h.putXorb(w, r, s, p[3])
	case r.Method == "POST" && (slices.Equal(p, []string{"v1", "shards"}) || slices.Equal(p, []string{"shards"})):
		return h.putShard(w, r, s)
	}
	return failf(http.StatusNotFound, codeEntry, "not served here: the plain way is")
}

// putXorb keeps a xorb's bytes until the shard that says what they are. Its own hash isn't checked: that of the files is.
func (h *Handler) putXorb(w http.ResponseWriter, r *http.Request, s *xetSpace, hash string) error {
	if !isSum(hash) {
		return failf(http.StatusBadRequest, "", "xorb %.80q: not a hash", hash)
	}
	dir, err := h.xet.folder(h.box, s.id)
	if err != nil {
		return fmt.Errorf("keep xorb: %w", err)
	}
	f, err := os.CreateTemp(dir, "xorb-")
	if err != nil {
		return fmt.Errorf("keep xorb: %w", err)
	}
	x := xorb{path: f.Name()}
	in := http.MaxBytesReader(w, r.Body, maxXorb)
	if _, err = io.Copy(f, in); err == nil {
		if _, err = f.Seek(0, io.SeekStart); err == nil {
			x.chunks, err = indexXorb(f)
		}
	}
	if err = errors.Join(err, f.Close()); err != nil {
		_ = os.Remove(x.path)
		if errors.Is(err, errXorb) || r.Context().Err() != nil {
			return failf(http.StatusBadRequest, "", "xorb %s: %v", hash, err)
		}
		return err
	}
	s.mu.Lock()
	old, twice := s.xorbs[hash]
	s.xorbs[hash] = x
	s.mu.Unlock()
	if twice {
		_ = os.Remove(old.path)
	}
	answer(w, r, http.StatusOK, map[string]bool{"was_inserted": true})
	return nil
}

// putShard makes files of the xorbs that came and stores them by their sha256.
func (h *Handler) putShard(w http.ResponseWriter, r *http.Request, s *xetSpace) error {
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxShard))
	if err != nil {
		return err
	}
	files, err := readShard(b)
	if err != nil {
		return failf(http.StatusBadRequest, "", "%v", err)
	}
	for i := range files {
		if err := h.assemble(s, &files[i]); err != nil {
			return err
		}
	}
	answer(w, r, http.StatusOK, map[string]int{"result": 1})
	return nil
}

// assemble stores one file, chunk by chunk.
func (h *Handler) assemble(s *xetSpace, f *shardFile) error {
	if !isSum(f.sha256) {
		return failf(http.StatusBadRequest, "", "shard: a file has no sha256")
	}
	if f.size() > maxObjectBytes {
		return failf(http.StatusRequestEntityTooLarge, "", "file %s: too large", f.sha256)
	}
	if have, size, err := h.box.ContentState(f.sha256); err == nil && have == size {
		return nil // here already
	} else if err != nil && !isNotFound(err) {
		return err
	}
	r := &chunkReader{space: s, segments: f.segments}
	defer r.close()
	have, err := h.box.PutContent(f.sha256, f.size(), 0, r)
	if r.err != nil && !errors.Is(r.err, io.EOF) {
		return failf(http.StatusBadRequest, "", "file %s: %v", f.sha256, r.err)
	}
	if err == nil && have < f.size() {
		err = failf(http.StatusBadRequest, "", "file %s: the chunks give %d of %d bytes", f.sha256, have, f.size())
	}
	return err
}

// chunkReader reads the chunks of segments one after another.
type chunkReader struct {
	space    *xetSpace
	segments []segment

	file   *os.File
	chunks []chunkAt // still to come in this segment
	left   uint32    // bytes still to come in it
	rest   []byte    // of the chunk at hand
	packed []byte
	err    error
}

func (c *chunkReader) Read(p []byte) (int, error) {
	for len(c.rest) == 0 && c.err == nil {
		c.err = c.next()
	}
	if len(c.rest) == 0 {
		return 0, c.err
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

func (c *chunkReader) next() error {
	if len(c.chunks) == 0 {
		if c.left != 0 {
			return errShard
		}
		return c.nextSegment()
	}
	k := c.chunks[0]
	c.chunks = c.chunks[1:]
	if uint32(k.unpacked) > c.left {
		return errShard
	}
	c.left -= uint32(k.unpacked)
	if cap(c.packed) < k.packed {
		c.packed = make([]byte, k.packed)
	}
	packed := c.packed[:k.packed]
	if _, err := c.file.ReadAt(packed, k.offset); err != nil {
		return err
	}
	var err error
	c.rest, err = k.unpack(packed)
	return err
}

func (c *chunkReader) nextSegment() error {
	c.close()
	if len(c.segments) == 0 {
		return io.EOF
	}
	s := c.segments[0]
	c.segments = c.segments[1:]
	c.space.mu.Lock()
	x, ok := c.space.xorbs[s.xorb]
	c.space.mu.Unlock()
	if !ok || s.start > s.end || int64(s.end) > int64(len(x.chunks)) {
		return fmt.Errorf("chunks %d to %d of xorb %s are not here", s.start, s.end, s.xorb)
	}
	var err error
	if c.file, err = os.Open(x.path); err != nil {
		return errors.New("the upload is over; start it again")
	}
	c.chunks, c.left = x.chunks[s.start:s.end], s.bytes
	return nil
}

func (c *chunkReader) close() {
	if c.file != nil {
		_ = c.file.Close() // only read from
		c.file = nil
	}
}
