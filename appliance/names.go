package appliance

import (
	"io/fs"
	"regexp"
	"strings"

	"smolgym/store"
)

// reservedOrgs are first segments that mean something else in names, in our routes, or to hub clients and browsers.
var reservedOrgs = func() map[string]string {
	m := map[string]string{"runs": "it names checkpoints", "rack": "it names the embedded model"}
	for _, s := range strings.Fields(`api v1 v2 smolgym healthz readyz livez metrics docs ui dashboard assets static debug xet ws admin login logout oauth
		openapi.json llms.txt models datasets spaces kernels buckets model dataset space kernel bucket
		favicon.ico robots.txt settings collections papers organizations new join`) {
		m[s] = "it is a route"
	}
	return m
}()

var nameWord = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,95}$`)

// ModelName gives a model's full name: org/name or org/name:variant; a bare name
// is local/name.
func ModelName(s string) (string, error) {
	bad := func(why string) (string, error) {
		return "", Problemf(CodeUser, "model name %q: %s", clip(s), why).
			WithHint("use name, org/name or org/name:variant, of letters, digits and . _ - (at most 96 each)")
	}
	org, rest, ok := strings.Cut(s, "/")
	if !ok {
		org, rest = "local", s
	}
	name, variant, hasVariant := strings.Cut(rest, ":")
	switch {
	case strings.Contains(s, ".."), strings.Contains(s, "--"):
		return bad(`".." and "--" aren't allowed`)
	case !nameWord.MatchString(org), !nameWord.MatchString(name), hasVariant && !nameWord.MatchString(variant):
		return bad("not a model name")
	}
	return org + "/" + rest, nil
}

// newModelName is ModelName for a model to be stored.
func newModelName(s string) (string, error) {
	name, err := ModelName(s)
	if err != nil {
		return "", err
	}
	org, _, _ := strings.Cut(name, "/")
	if why, ok := reservedOrgs[strings.ToLower(org)]; ok {
		return "", Problemf(CodeUser, "model name %q: the organisation %q is reserved: %s", name, org, why).WithHint("choose another first part")
	}
	return name, nil
}

// checkFilePath refuses names of a model's files that could mean anything outside it.
func checkFilePath(path string) error {
	bad := func(why string) error {
		return Problemf(CodeUser, "file name %q: %s", clip(path), why).WithHint("use a relative path with slashes, without \"..\"")
	}
	switch {
	case path == "" || path == ".":
		return bad("empty")
	case len(path) > 255:
		return bad("longer than 255 bytes")
	case strings.ContainsFunc(path, func(r rune) bool { return r < 0x20 || r == 0x7f || r == '\\' || r == 0xfffd }):
		return bad("control characters, broken UTF-8 and \\ aren't allowed")
	case !fs.ValidPath(path):
		return bad("absolute or with \"..\" or empty parts")
	}
	return nil
}

var checkpointWord = regexp.MustCompile(`^[A-Za-z0-9._-]{1,255}$`)

// checkCheckpointName refuses what can't be the last part of a path.
func checkCheckpointName(name string) error {
	if !checkpointWord.MatchString(name) || name == "." || strings.Contains(name, "..") {
		return Problemf(CodeUser, "checkpoint name %q: not allowed", clip(name)).
			WithHint("use 1 to 255 of A-Z a-z 0-9 . _ - without \"..\"")
	}
	return nil
}

// parsePath reads tinker://<run>/<kind>/<name>; it is only ever looked up.
func parsePath(path string) (store.CheckpointKey, error) {
	key, err := store.ParsePath(path)
	if err != nil {
		return key, Problemf(CodeUser, "checkpoint path %q: not of the form tinker://<run>/weights/<name> or …/sampler_weights/<name>", clip(path)).Because(err)
	}
	return key, nil
}
