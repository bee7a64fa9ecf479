package pull

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
)

// Server is a running server as a sink, by its own routes for uploads.
type Server struct {
	URL    string
	Key    string
	Client *http.Client // without an overall timeout; the default one if nil
}

// RefusedError is a server's refusal, for the user to read.
type RefusedError struct {
	Status int
	Text   string
}

func (e *RefusedError) Error() string { return e.Text }

// uploadFile is a file as those routes have it.
type uploadFile struct {
	Path   string `json:"path"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
	Have   int64  `json:"have,omitempty"`
	Done   bool   `json:"done,omitempty"`
}

func (f uploadFile) state() State { return State{File{f.Path, f.Size, f.SHA256}, f.Have, f.Done} }

// Begin announces the files.
func (s *Server) Begin(ctx context.Context, name string, files []File) (string, []State, error) {
	req := struct {
		Name  string       `json:"name"`
		Files []uploadFile `json:"files"`
	}{Name: name}
	for _, f := range files {
		req.Files = append(req.Files, uploadFile{Path: f.Path, Size: f.Size, SHA256: f.SHA256})
	}
	body, err := json.Marshal(req)
	if err != nil {
		return "", nil, err
	}
	var up struct {
		ID    string       `json:"id"`
		Files []uploadFile `json:"files"`
	}
	if err := s.call(ctx, http.MethodPost, "/smolgym/v1/uploads", bytes.NewReader(body), "application/json", &up); err != nil {
		return "", nil, err
	}
	states := make([]State, len(up.Files))
	for i, f := range up.Files {
		states[i] = f.state()
	}
	return up.ID, states, nil
}

// Put sends bytes. After a failure it asks how far they came.
func (s *Server) Put(ctx context.Context, id, path string, offset int64, r io.Reader) (State, error) {
	var f uploadFile
	// Not a reader that the client could rewind: what was read is gone.
	err := s.call(ctx, http.MethodPut, fmt.Sprintf("/smolgym/v1/uploads/%s/files/%s?offset=%d", url.PathEscape(id), segments(path), offset), struct{ io.Reader }{r}, "application/octet-stream", &f)
	if err == nil {
		return f.state(), nil
	}
	if ctx.Err() == nil {
		if now, askErr := s.state(ctx, id, path); askErr == nil {
			return now, err
		}
	}
	return State{File: File{Path: path}, Have: offset}, err
}

func (s *Server) state(ctx context.Context, id, path string) (State, error) {
	var up struct {
		Files []uploadFile `json:"files"`
	}
	if err := s.call(ctx, http.MethodGet, "/smolgym/v1/uploads/"+url.PathEscape(id), nil, "", &up); err != nil {
		return State{}, err
	}
	for _, f := range up.Files {
		if f.Path == path {
			return f.state(), nil
		}
	}
	return State{}, fmt.Errorf("upload %s: no file %q", id, path)
}

// Commit lists the model.
func (s *Server) Commit(ctx context.Context, id string) error {
	return s.call(ctx, http.MethodPost, "/smolgym/v1/uploads/"+url.PathEscape(id)+"/commit", nil, "", nil)
}

func (s *Server) call(ctx context.Context, method, path string, body io.Reader, kind string, into any) error {
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimRight(s.URL, "/")+path, body)
	if err != nil {
		return err
	}
	req.Header.Set("X-API-Key", s.Key)
	if kind != "" {
		req.Header.Set("Content-Type", kind)
	}
	c := s.Client
	if c == nil {
		c = http.DefaultClient
	}
	resp, err := c.Do(req)
	if err != nil {
		return fmt.Errorf("server at %s: %w", s.URL, err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("server at %s: %w", s.URL, err)
	}
	if resp.StatusCode/100 != 2 {
		var answer struct {
			Detail string `json:"detail"`
		}
		if json.Unmarshal(data, &answer) != nil || answer.Detail == "" {
			answer.Detail = fmt.Sprintf("the server answered %s", resp.Status)
		}
		return &RefusedError{resp.StatusCode, answer.Detail}
	}
	if into == nil {
		return nil
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("server at %s: %w", s.URL, err)
	}
	return nil
}
