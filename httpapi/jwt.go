package httpapi

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"smolgym/httpapi/wire"
)

// Who everyone is here: one box has one owner.
const (
	userURN   = "tml:user:" + owner
	userEmail = owner + "@localhost"
)

// tokenLife is how long a token is valid; clients get a new one halfway.
const tokenLife = 12 * time.Hour

// claims are what a token says. Clients read the first five.
type claims struct {
	Subject string `json:"sub"`
	Org     string `json:"org_id"`
	Email   string `json:"email"`
	Issued  int64  `json:"iat"` // seconds since 1970
	Expires int64  `json:"exp"`
	Key     string `json:"key"` // digest of the key that it was given for
}

// tokenHeader is the first part of every token.
var tokenHeader = base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"HS256","typ":"JWT"}`))

// keyDigest names the key of a hash in a token.
func keyDigest(hash [sha256.Size]byte) string {
	sum := sha256.Sum256(append([]byte("token "), hash[:]...))
	return hex.EncodeToString(sum[:8])
}

// authToken exchanges a key for a token.
func (s *server) authToken(c *gin.Context) (any, error) {
	key := c.GetHeader("X-API-Key")
	if strings.HasPrefix(key, "eyJ") {
		return nil, errorf(http.StatusUnauthorized, "auth/token takes a key that starts with tml-, not a token; set TINKER_API_KEY")
	}
	discard(c, maxJSON)
	now := s.now()
	body, err := json.Marshal(claims{Subject: userURN, Org: owner, Email: userEmail, Issued: now.Unix(), Expires: now.Add(tokenLife).Unix(), Key: keyDigest(sha256.Sum256([]byte(key)))})
	if err != nil {
		return nil, err
	}
	text := tokenHeader + "." + base64.RawURLEncoding.EncodeToString(body)
	sum, err := s.tokenSum(text)
	if err != nil {
		return nil, err
	}
	return wire.AuthTokenResponse{JWT: text + "." + base64.RawURLEncoding.EncodeToString(sum)}, nil
}

func (s *server) tokenSum(text string) ([]byte, error) {
	key, err := s.box.SigningKey("token")
	if err != nil {
		return nil, err
	}
	m := hmac.New(sha256.New, key)
	m.Write([]byte(text))
	return m.Sum(nil), nil
}

// checkToken is an error unless a token is ours, is still valid, and was given for
// a key that is still let in.
func (s *server) checkToken(token string) error {
	cut := strings.LastIndexByte(token, '.')
	if cut < 0 || len(token) > 4096 {
		return errors.New("it is not a token of this server")
	}
	want, err := s.tokenSum(token[:cut])
	if err != nil {
		return err
	}
	got, err := base64.RawURLEncoding.DecodeString(token[cut+1:])
	if err != nil || !hmac.Equal(want, got) {
		return errors.New("it is not a token of this server")
	}
	header, body, _ := strings.Cut(token[:cut], ".")
	raw, err := base64.RawURLEncoding.DecodeString(body)
	var c claims
	if header != tokenHeader || err != nil || json.Unmarshal(raw, &c) != nil {
		return errors.New("it is not a token of this server")
	}
	if s.now().Unix() >= c.Expires {
		return errors.New("it has expired")
	}
	hashes, needed, err := s.keyHashes()
	if err != nil || !needed {
		return err
	}
	for _, k := range hashes {
		if keyDigest(k) == c.Key {
			return nil
		}
	}
	return errors.New("the key it was given for is no longer known")
}

// refuseToken answers so that clients get a new token and try again.
func (s *server) refuseToken(c *gin.Context, why error) {
	c.Header("WWW-Authenticate", `Bearer error="invalid_token", error_description="`+why.Error()+`"`)
	s.fail(c, errorf(http.StatusUnauthorized, "the token in X-API-Key is refused: %v; exchange the key again at auth/token", why))
}
