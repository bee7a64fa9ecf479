package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

const defaultServer = "http://127.0.0.1:8080"

// client talks to a running server for the commands that need one.
type client struct {
	server string
	asJSON bool
}

func (c *client) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&c.server, "server", "", "address of the server (default: $TINKER_BASE_URL, else "+defaultServer+")")
}

func (c *client) base() string {
	for _, s := range []string{c.server, os.Getenv("TINKER_BASE_URL")} {
		if s != "" {
			return strings.TrimRight(s, "/")
		}
	}
	return defaultServer
}

// modelPath is the route of a model; every part of the name is escaped.
func modelPath(name string) string {
	parts := strings.Split(name, "/")
	for i, p := range parts {
		parts[i] = url.PathEscape(p)
	}
	return "/smolgym/v1/models/" + strings.Join(parts, "/")
}

func (c *client) get(path string) ([]byte, error) { return c.call(http.MethodGet, path, nil, nil) }

// call sends one request and reads the whole answer; body may be nil.
func (c *client) call(method, path string, body io.Reader, header http.Header) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	resp, err := c.open(ctx, method, path, body, header)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("read the answer of %s %s: %w", method, path, err)
	}
	return data, nil
}

// open sends one request; the caller closes the answer's body. Answers other than
// 2xx become errors with the exit code of their kind.
func (c *client) open(ctx context.Context, method, path string, body io.Reader, header http.Header) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.base()+path, body)
	if err != nil {
		return nil, usagef("server address %q: %w", c.base(), err)
	}
	for k, v := range header {
		req.Header[k] = v
	}
	req.Header.Set("X-API-Key", apiKey())
	if file, ok := body.(*rest); ok {
		req.Body, req.ContentLength = file.File, file.n // the file itself goes to the socket without a copy
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err
		}
		return nil, &exitError{code: exitUnreachable, hint: "start one with: smolgym serve", err: fmt.Errorf("no server at %s: %w", c.base(), err)}
	}
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return nil, fmt.Errorf("read the answer of %s %s: %w", method, path, err)
	}
	return nil, c.refusal(resp.StatusCode, data)
}

// apiKey is the key to send; on a box without keys any will do.
func apiKey() string {
	if key := os.Getenv("TINKER_API_KEY"); key != "" {
		return key
	}
	return "tml-local"
}

func (c *client) refusal(status int, data []byte) error {
	var answer struct {
		Detail string `json:"detail"`
		Hint   string `json:"hint"`
	}
	if json.Unmarshal(data, &answer) != nil || answer.Detail == "" {
		answer.Detail = fmt.Sprintf("server answered %d: %s", status, bytes.TrimSpace(data))
	}
	code := exitFailed
	switch status {
	case http.StatusNotFound:
		code = exitNotFound
	case http.StatusUnauthorized, http.StatusForbidden:
		code = exitNotAllowed
	}
	return &exitError{code: code, hint: answer.Hint, err: errors.New(answer.Detail)}
}
