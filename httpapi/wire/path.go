package wire

import (
	"strings"
)

// MaxName is the largest length of a checkpoint name or run id, in bytes.
const MaxName = 255

// Kind is the middle part of a checkpoint path.
type Kind string

// Kinds of checkpoints.
const (
	KindWeights         Kind = "weights"          // weights and optimizer
	KindSamplerWeights  Kind = "sampler_weights"  // weights for sampling
	KindExternalWeights Kind = "external_weights" // files for other tools
)

// Type is the word that lists use for a kind: training, sampler or external.
func (k Kind) Type() string {
	switch k {
	case KindWeights:
		return "training"
	case KindSamplerWeights:
		return "sampler"
	case KindExternalWeights:
		return "external"
	}
	return ""
}

// ParseKind reads the middle part of a path.
func ParseKind(s string) (Kind, error) {
	if k := Kind(s); k.Type() != "" {
		return k, nil
	}
	return "", syntaxErrorf("checkpoint kind %q is unknown; use weights, sampler_weights or external_weights", clip(s))
}

// Path names a checkpoint: tinker://<run>/<kind>/<name>. It is a key to look up, never part of a file name.
type Path struct {
	Run  string
	Kind Kind
	Name string
}

const pathScheme = "tinker://"

// ParsePath reads a checkpoint path and checks each of its three parts. Errors match ErrMalformed.
func ParsePath(s string) (Path, error) {
	rest, ok := strings.CutPrefix(s, pathScheme)
	if !ok {
		return Path{}, syntaxErrorf("checkpoint path %q does not start with %s", clip(s), pathScheme)
	}
	parts := strings.SplitN(rest, "/", 4)
	if len(parts) != 3 {
		return Path{}, syntaxErrorf("checkpoint path %q wants three parts: %s<run>/<kind>/<name>", clip(s), pathScheme)
	}
	if err := CheckRunID(parts[0]); err != nil {
		return Path{}, err
	}
	kind, err := ParseKind(parts[1])
	if err != nil {
		return Path{}, err
	}
	if err := CheckName(parts[2]); err != nil {
		return Path{}, err
	}
	return Path{Run: parts[0], Kind: kind, Name: parts[2]}, nil
}

// String is the path as clients use it.
func (p Path) String() string { return pathScheme + p.Run + "/" + p.CheckpointID() }

// CheckpointID is the part of a path within its run, as lists show it.
func (p Path) CheckpointID() string { return string(p.Kind) + "/" + p.Name }

// CheckName tells whether s may name a checkpoint: letters, digits, dot, underscore, hyphen, no "..", 255 bytes at most.
func CheckName(s string) error { return checkWord("checkpoint name", s, "._-") }

// CheckRunID tells whether s may be a run id, which adds the colon to the letters of a name.
func CheckRunID(s string) error { return checkWord("run id", s, "._-:") }

func checkWord(what, s, punctuation string) error {
	switch {
	case s == "":
		return syntaxErrorf("%s is empty", what)
	case len(s) > MaxName:
		return syntaxErrorf("%s %q has %d bytes; at most %d are allowed", what, clip(s), len(s), MaxName)
	case s == "." || strings.Contains(s, ".."):
		return syntaxErrorf("%s %q must not be \".\" or contain \"..\"", what, clip(s))
	}
	for i := range len(s) {
		c := s[i]
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		if !letter && strings.IndexByte(punctuation, c) < 0 {
			return syntaxErrorf("%s %q contains %q; use letters, digits and %s", what, clip(s), string(s[i:i+1]), punctuation)
		}
	}
	return nil
}

// clip shortens foreign text for an error.
func clip(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	return s[:most] + "…"
}
