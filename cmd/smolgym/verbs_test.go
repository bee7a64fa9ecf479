package main

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// misuse has a wrong call of every verb, and a word that says what was wrong.
var misuse = map[string]struct {
	args []string
	word string
}{
	"serve":             {[]string{"--addr", "nonsense"}, "HOST:PORT"},
	"status":            {[]string{"extra"}, "extra"},
	"ps":                {[]string{"extra"}, "extra"},
	"doctor":            {[]string{"extra"}, "extra"},
	"version":           {[]string{"extra"}, "extra"},
	"chat":              {nil, "NAME"},
	"tokenize":          {[]string{"hello"}, "--tokenizer"},
	"model add":         {[]string{"name"}, "NAME and DIR"},
	"model check":       {nil, "DIR or FILE"},
	"model list":        {[]string{"extra"}, "extra"},
	"model pull":        {nil, "ORG/NAME"},
	"model rm":          {nil, "NAME"},
	"model show":        {[]string{"a", "b"}, "NAME"},
	"run list":          {[]string{"--limit", "-1"}, "--limit"},
	"run show":          {nil, "ID"},
	"checkpoint list":   {[]string{"--limit", "many"}, "--limit"},
	"checkpoint show":   {[]string{"final"}, "tinker://RUN/weights/NAME"},
	"checkpoint export": {[]string{"tinker://a/weights/b"}, "--to"},
	"checkpoint import": {[]string{"."}, "--model"},
	"checkpoint ttl":    {[]string{"tinker://a/weights/b", "soon"}, "soon"},
	"checkpoint rm":     {nil, "PATH"},
	"key create":        {[]string{"extra"}, "extra"},
	"key list":          {[]string{"extra"}, "extra"},
	"key revoke":        {nil, "ID"},
}

// verbs are all commands that do something, by their words; groups are those that only hold verbs.
func verbs(cmd *cobra.Command) (list, groups map[string]*cobra.Command) {
	list, groups = map[string]*cobra.Command{}, map[string]*cobra.Command{}
	for _, sub := range cmd.Commands() {
		if sub.Name() == "help" || sub.Name() == "completion" {
			continue // cobra's own
		}
		if !sub.HasSubCommands() {
			list[sub.Name()] = sub
			continue
		}
		groups[sub.Name()] = sub
		below, _ := verbs(sub)
		for name, verb := range below {
			list[sub.Name()+" "+name] = verb
		}
	}
	return list, groups
}

// TestEveryVerb: each has a help text with an example of itself, and a wrong call ends with 2, what was wrong and that
// example.
func TestEveryVerb(t *testing.T) {
	list, groups := verbs(newRoot())
	for _, name := range slices.Sorted(maps.Keys(misuse)) {
		if list[name] == nil {
			t.Errorf("%s is no verb any more: take it out of misuse", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(list)) {
		t.Run(name, func(t *testing.T) {
			verb := list[name]
			if verb.Short == "" || verb.Short != strings.TrimSuffix(verb.Short, ".") {
				t.Errorf("short help %q: want a phrase", verb.Short)
			}
			lines := strings.Split(strings.TrimSpace(verb.Example), "\n")
			for _, line := range lines {
				if !strings.Contains(line, "smolgym "+name) {
					t.Errorf("example %q: want a call of smolgym %s", line, name)
				}
			}
			words := strings.Fields(name)
			help := cli(t, "", nil, append(words, "--help")...)
			help.want(t, 0, "Examples:", strings.TrimSpace(lines[0]), "Usage:")
			m, ok := misuse[name]
			if !ok {
				t.Fatalf("no wrong call of it is tested: add one to misuse")
			}
			cli(t, "", nil, append(words, m.args...)...).want(t, exitUsage, m.word, "for example: "+strings.TrimSpace(lines[0]))
			cli(t, "", nil, append(words, "--no-such-flag")...).want(t, exitUsage, "no-such-flag", "for example: ")
		})
	}
	for name, group := range groups {
		cli(t, "", nil, name, "frobnicate").want(t, exitUsage, "frobnicate", "smolgym "+name+" --help")
		help := cli(t, "", nil, name, "--help")
		for _, verb := range group.Commands() {
			help.want(t, 0, verb.Name(), verb.Short)
		}
	}
}
