package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"sync"
	"time"

	"smolgym/httpapi"
)

// copyBytes is the size of the buffer of long copies.
const copyBytes = 1 << 20

// describe hashes a file.
func describe(path, name string, p *progress) (httpapi.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return httpapi.File{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return httpapi.File{}, err
	}
	h := sha256.New()
	if _, err := io.CopyBuffer(h, p.reader(f, "hashing "+name, 0, info.Size()), make([]byte, copyBytes)); err != nil {
		return httpapi.File{}, fmt.Errorf("hash %s: %w", path, err)
	}
	return httpapi.File{Path: name, Size: info.Size(), SHA256: hex.EncodeToString(h.Sum(nil))}, nil
}

// send uploads the rest of a file.
func (c *client) send(id, path string, f httpapi.UploadFile, p *progress) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err := file.Seek(f.Have, io.SeekStart); err != nil {
		return err
	}
	if f.Have > 0 {
		p.line(fmt.Sprintf("going on with %s: %s of %s are there", f.Path, size(f.Have), size(f.Size)))
	}
	stop := p.watch(file, "sending "+f.Path, f.Size)
	defer stop()
	route := fmt.Sprintf("/smolgym/v1/uploads/%s/files/%s?offset=%d", id, url.PathEscape(f.Path), f.Have)
	_, err = c.call(http.MethodPut, route, &rest{file, f.Size - f.Have}, http.Header{"Content-Type": {"application/octet-stream"}})
	return err
}

// rest is what is left of a file, from where it stands, as a request's body.
type rest struct {
	*os.File
	n int64 // bytes
}

// progress tells on stderr how far a long copy is: at most once a second, and
// nothing of copies that take less.
type progress struct {
	out  io.Writer
	last time.Time
}

func (p *progress) line(text string) {
	fmt.Fprintln(p.out, text)
	p.last = time.Now()
}

// watch tells how far the file is read until the returned function is called. It asks
// the file where it stands, so that whoever reads it has the file itself and can hand
// it to the kernel.
func (p *progress) watch(f *os.File, what string, total int64) (stop func()) {
	over := make(chan struct{})
	var done sync.WaitGroup
	done.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-over:
				return
			case <-tick.C:
				if at, err := f.Seek(0, io.SeekCurrent); err == nil { // else it is read and closed
					p.line(fmt.Sprintf("%s: %s of %s", what, size(at), size(total)))
				}
			}
		}
	})
	return func() {
		close(over)
		done.Wait()
	}
}

type progressReader struct {
	io.Reader
	p           *progress
	what        string
	done, total int64
}

func (p *progress) reader(r io.Reader, what string, done, total int64) io.Reader {
	p.last = time.Now()
	return &progressReader{r, p, what, done, total}
}

func (r *progressReader) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	r.done += int64(n)
	if time.Since(r.p.last) > time.Second {
		r.p.line(fmt.Sprintf("%s: %s of %s", r.what, size(r.done), size(r.total)))
	}
	return n, err
}

// save writes everything from r into a new file and sees that it is on the disk. The
// disk is kept busy while more comes.
func save(f *os.File, r io.Reader) (n int64, err error) {
	w := &synced{f: f}
	n, err = io.CopyBuffer(w, r, make([]byte, copyBytes))
	if err = errors.Join(err, w.wait()); err == nil {
		err = f.Sync()
	}
	return n, err
}

// syncEvery is how many bytes are written before the disk is asked to have them.
const syncEvery = 64 << 20

// synced is a file that is synced while it is written.
type synced struct {
	f       *os.File
	since   int        // bytes
	pending chan error // of the sync that is under way
}

func (s *synced) Write(b []byte) (int, error) {
	n, err := s.f.Write(b)
	s.since += n
	if err != nil || s.since < syncEvery {
		return n, err
	}
	s.since = 0
	err = s.wait()
	done := make(chan error, 1)
	s.pending = done
	go func() { done <- s.f.Sync() }()
	return n, err
}

func (s *synced) wait() error {
	if s.pending == nil {
		return nil
	}
	err := <-s.pending
	s.pending = nil
	return err
}
