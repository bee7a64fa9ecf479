package httpapi

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/gin-gonic/gin"
)

// signedLife is how long a URL that carries its own permission is valid.
const signedLife = time.Hour

// signature permits a GET of what parts name until a moment.
func (s *server) signature(until int64, parts ...string) (string, error) {
	key, err := s.box.SigningKey("url")
	if err != nil {
		return "", err
	}
	m := hmac.New(sha256.New, key)
	for _, p := range append(parts, strconv.FormatInt(until, 10)) {
		m.Write([]byte(strconv.Itoa(len(p)) + ":" + p))
	}
	return base64.RawURLEncoding.EncodeToString(m.Sum(nil)), nil
}

// signedURL is an absolute URL that needs no key until a moment: below /api/v1,
// the parts are the path.
func (s *server) signedURL(c *gin.Context, until time.Time, parts ...string) (string, error) {
	sig, err := s.signature(until.Unix(), parts...)
	if err != nil {
		return "", err
	}
	path := make([]string, len(parts))
	for i, p := range parts {
		path[i] = url.PathEscape(p)
	}
	query := url.Values{"expires": {strconv.FormatInt(until.Unix(), 10)}, "signature": {sig}}
	return baseURL(c.Request) + "/api/v1/" + strings.Join(path, "/") + "?" + query.Encode(), nil
}

// baseURL is where the client reached us, by its own words or those of the proxy
// it came through.
func baseURL(r *http.Request) string {
	scheme, host := "http", r.Host
	if r.TLS != nil || strings.EqualFold(r.Header.Get("X-Forwarded-Proto"), "https") {
		scheme = "https"
	}
	if forwarded := r.Header.Get("X-Forwarded-Host"); forwarded != "" {
		host = forwarded
	}
	prefix := strings.Trim(r.Header.Get("X-Forwarded-Prefix"), "/")
	u := url.URL{Scheme: scheme, Host: host}
	if prefix != "" {
		u.Path = "/" + prefix
	}
	return u.String()
}

// permitted is an error unless the request carries a signature for the parts that
// has not expired.
func (s *server) permitted(c *gin.Context, parts ...string) error {
	const remedy = "ask for a new URL; nothing may be changed in it"
	until, err := strconv.ParseInt(c.Query("expires"), 10, 64)
	if err != nil {
		return errorf(http.StatusUnauthorized, "this URL has no permission in it; %s", remedy)
	}
	want, err := s.signature(until, parts...)
	if err != nil {
		return err
	}
	if !hmac.Equal([]byte(want), []byte(c.Query("signature"))) {
		return errorf(http.StatusUnauthorized, "the permission in this URL is not valid; %s", remedy)
	}
	if s.now().After(time.Unix(until, 0)) {
		return errorf(http.StatusUnauthorized, "the permission in this URL has expired; %s", remedy)
	}
	return nil
}
