package hub

import (
	"crypto/sha1"
	"encoding/base32"
	"encoding/hex"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

// reserved are first segments that are no organisation: our own routes, what clients take for kinds of repositories, and
// what browsers ask for. Compared in lower case.
var reserved = set("api", "v1", "v2", "smolgym", "healthz", "readyz", "livez", "metrics", "docs", "ui", "dashboard", "assets", "static",
	"debug", "xet", "ws", "admin", "login", "logout", "oauth", "openapi.json", "llms.txt",
	"models", "datasets", "spaces", "kernels", "buckets", "model", "dataset", "space", "kernel", "bucket",
	"favicon.ico", "robots.txt", ".well-known", "settings", "collections", "papers", "organizations", "new", "join")

// ours are organisations whose repositories nobody uploads.
var ours = map[string]string{"runs": "it names checkpoints", "rack": "it names the embedded model"}

func set(words ...string) map[string]bool {
	m := map[string]bool{}
	for _, w := range words {
		m[w] = true
	}
	return m
}

func kindOfRepo(s string) bool {
	switch s {
	case "models", "datasets", "spaces", "kernels", "buckets":
		return true
	}
	return false
}

var word = regexp.MustCompile(`^[A-Za-z0-9._-]{1,96}$`)

// hubWord says whether clients take s as a part of a repository's name.
func hubWord(s string) bool {
	return word.MatchString(s) && !strings.Contains(s, "--") && !strings.Contains(s, "..") && !strings.HasSuffix(s, ".git") &&
		strings.Trim(s, "-.") == s
}

// checkRepo refuses what can't be a repository's name. A variant is one to the box, though clients never ask for it.
func checkRepo(repo string) error {
	org, name, _ := strings.Cut(repo, "/")
	if bare, variant, ok := strings.Cut(name, ":"); ok && hubWord(variant) {
		name = bare
	}
	if reserved[strings.ToLower(org)] || !hubWord(org) || !hubWord(name) {
		return failf(http.StatusNotFound, codeRepo, "%.200q can't be a repository's name; use org/name of letters, digits and . _ - (at most 96 each)", repo)
	}
	return nil
}

// checkNewRepo is checkRepo for a repository that somebody writes to.
func checkNewRepo(repo string) error {
	org, name, _ := strings.Cut(repo, "/")
	if why := ours[strings.ToLower(org)]; why != "" {
		return failf(http.StatusBadRequest, "", "repository %.200q: the organisation %q is reserved: %s; choose another first part", repo, org, why)
	}
	if strings.Contains(name, ":") || checkRepo(repo) != nil {
		return failf(http.StatusBadRequest, "", "repository %.200q: not a name; use org/name of letters, digits and . _ - (at most 96 each), whose first part is no route of this server", repo)
	}
	return nil
}

const maxPathBytes = 255

// joinPath is a file's path from the segments of a request.
func joinPath(segments []string) (string, error) {
	path := strings.Join(segments, "/")
	for _, s := range segments {
		if strings.Contains(s, "/") {
			return "", failf(http.StatusBadRequest, codeEntry, "path %.300q: a slash within a segment", path)
		}
	}
	return path, checkPath(path)
}

// checkPath refuses a path that could mean anything outside of its repository.
func checkPath(path string) error {
	bad := func(why string) error {
		return failf(http.StatusBadRequest, codeEntry, "path %.300q: %s; use a relative path with slashes", path, why)
	}
	switch {
	case path == "":
		return bad("empty")
	case len(path) > maxPathBytes:
		return bad("longer than " + strconv.Itoa(maxPathBytes) + " bytes")
	case !utf8.ValidString(path), strings.ContainsFunc(path, func(r rune) bool { return r < 0x20 || r == 0x7f || r == '\\' }):
		return bad("control characters, broken UTF-8 and \\ aren't allowed")
	}
	for s := range strings.SplitSeq(path, "/") {
		if s == "" || s == "." || s == ".." || s == ".git" {
			return bad("empty parts, \".\", \"..\" and \".git\" aren't allowed")
		}
	}
	return nil
}

// checkBranch refuses what can't be a branch.
func checkBranch(name string) error {
	if name == "" || len(name) > maxPathBytes || commitID.MatchString(name) || strings.HasPrefix(name, "refs/") || checkPath(name) != nil ||
		strings.ContainsAny(name, " ~^:?*[") || strings.Contains(name, "..") || strings.HasPrefix(name, ".") || strings.HasSuffix(name, ".") || strings.HasSuffix(name, ".lock") {
		return failf(http.StatusBadRequest, "", "branch %.200q: not a name for one", name)
	}
	return nil
}

var commitID = regexp.MustCompile(`^[0-9a-f]{40}$`)

// Kinds of a checkpoint, in its path and in its repository's name.
const (
	weightsKind, weightsLetter = "weights", "w"
	samplerKind, samplerLetter = "sampler_weights", "s"
)

var lower32 = base32.StdEncoding.WithPadding(base32.NoPadding)

// CheckpointRepo is the repository of tinker://<session>:train:<n>/<kind>/<name>: runs/<session>.<n>.<w|s>.<name>. A
// name that the hub would refuse is written in base 32 after "x-" or, where that is too long, as a hash after "h-".
func CheckpointRepo(path string) (repo string, ok bool) {
	rest, ok := strings.CutPrefix(path, "tinker://")
	run, rest, ok1 := strings.Cut(rest, "/")
	kind, name, ok2 := strings.Cut(rest, "/")
	session, n, ok3 := strings.Cut(run, ":train:")
	if !ok || !ok1 || !ok2 || !ok3 || name == "" {
		return "", false
	}
	letter := map[string]string{weightsKind: weightsLetter, samplerKind: samplerLetter}[kind]
	if letter == "" {
		return "", false
	}
	prefix := session + "." + n + "." + letter + "."
	for _, form := range []string{plainName(name), "x-" + strings.ToLower(lower32.EncodeToString([]byte(name))), hashedName(name)} {
		if form != "" && hubWord(prefix+form) {
			return "runs/" + prefix + form, true
		}
	}
	return "", false
}

func plainName(name string) string {
	if strings.HasPrefix(name, "x-") || strings.HasPrefix(name, "h-") {
		return ""
	}
	return name
}

func hashedName(name string) string {
	sum := sha1.Sum([]byte(name))
	return "h-" + hex.EncodeToString(sum[:])
}

// checkpointPath undoes CheckpointRepo, except for a hashed name: find finds that among the names of the run's kind.
func checkpointPath(repo string, find func(run, kind, hashed string) string) (path string, ok bool) {
	rest, ok := strings.CutPrefix(repo, "runs/")
	parts := strings.SplitN(rest, ".", 4)
	if !ok || len(parts) < 4 {
		return "", false
	}
	kind := map[string]string{weightsLetter: weightsKind, samplerLetter: samplerKind}[parts[2]]
	if _, err := strconv.ParseUint(parts[1], 10, 32); err != nil || kind == "" || strings.Contains(parts[0], ":") {
		return "", false
	}
	run, name := parts[0]+":train:"+parts[1], parts[3]
	if code, is := strings.CutPrefix(name, "x-"); is {
		text, err := lower32.DecodeString(strings.ToUpper(code))
		if err != nil {
			return "", false
		}
		name = string(text)
	} else if strings.HasPrefix(name, "h-") {
		name = find(run, kind, name)
	}
	path = "tinker://" + run + "/" + kind + "/" + name
	back, ok := CheckpointRepo(path)
	return path, ok && back == repo // one name for each
}
