package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// addedToken is a token that is found in the text before the model sees it.
type addedToken struct {
	id         int32
	content    string
	singleWord bool // only where no word character touches it
	lstrip     bool // swallows white space on its left
	rstrip     bool // swallows white space on its right
	normalized bool // matched in the normalized text
	special    bool
}

// tokenTrie finds added tokens in a text, leftmost first and the longest of those.
type tokenTrie struct {
	nodes []trieNode
	first [256]bool // bytes that a token can begin with
	only  int       // the one byte that all tokens begin with, else -1
}

type trieNode struct {
	char    byte
	child   int32 // first child, 0 for none
	sibling int32 // next child of the same parent, 0 for none
	token   int32 // index of the added token that ends here, -1 for none
}

// newTokenTrie builds the trie of the tokens' contents, given by index. It is nil where there are none.
func newTokenTrie(contents []string, tokens []int32) *tokenTrie {
	t := &tokenTrie{nodes: []trieNode{{token: -1}}, only: -1}
	for i, s := range contents {
		if s == "" {
			continue
		}
		at := int32(0)
		for j := 0; j < len(s); j++ {
			at = t.step(at, s[j], true)
		}
		if t.nodes[at].token < 0 { // of equal contents the first one counts
			t.nodes[at].token = tokens[i]
		}
		t.first[s[0]] = true
	}
	if len(t.nodes) == 1 {
		return nil
	}
	if c := t.nodes[t.nodes[0].child]; c.sibling == 0 {
		t.only = int(c.char)
	}
	return t
}

// step gives the child of node by c; with grow it makes one, else it gives 0 where there is none.
func (t *tokenTrie) step(node int32, c byte, grow bool) int32 {
	at := t.nodes[node].child
	for at != 0 && t.nodes[at].char != c {
		at = t.nodes[at].sibling
	}
	if at == 0 && grow {
		at = int32(len(t.nodes))
		t.nodes = append(t.nodes, trieNode{char: c, sibling: t.nodes[node].child, token: -1})
		t.nodes[node].child = at
	}
	return at
}

// find gives the next match at or after from: the token's index and where it stands; -1 for none.
func (t *tokenTrie) find(s string, from int) (token int32, start, end int) {
	for i := from; i < len(s); i++ {
		if t.only >= 0 {
			n := strings.IndexByte(s[i:], byte(t.only))
			if n < 0 {
				break
			}
			i += n
		} else if !t.first[s[i]] {
			continue
		}
		token, at := int32(-1), int32(0)
		for j := i; j < len(s); j++ {
			if at = t.step(at, s[j], false); at == 0 {
				break
			}
			if n := t.nodes[at].token; n >= 0 {
				token, end = n, j+1
			}
		}
		if token >= 0 {
			return token, i, end
		}
	}
	return -1, 0, 0
}

// acceptor says whether an added token's text at [start,end) counts as the token.
type acceptor func(token *addedToken, start, end int) bool

func ordinary(token *addedToken, _, _ int) bool { return !token.special }

// scan cuts s at the added tokens and calls emit for each part in order: with a token's id, or with id -1 for a
// part that isn't a token. Tokens that accept refuses don't count; nil accepts all.
func (t *tokenTrie) scan(s string, added []addedToken, accept acceptor, emit func(id int32, start, end int)) {
	done := 0
	for from := 0; ; {
		index, start, end := t.find(s, from)
		if index < 0 {
			break
		}
		from = end
		token := &added[index]
		if accept != nil && !accept(token, start, end) {
			continue
		}
		if token.singleWord && (endsWithWord(s[:start]) || startsWithWord(s[end:])) {
			continue
		}
		if token.lstrip {
			// White space that the match before has taken stays with it.
			start = max(len(trimRightSpace(s[:start])), done)
		}
		if token.rstrip {
			end += len(s[end:]) - len(trimLeftSpace(s[end:]))
		}
		if done < start {
			emit(-1, done, start)
		}
		emit(token.id, start, end)
		done = end
	}
	if done < len(s) {
		emit(-1, done, len(s))
	}
}

func endsWithWord(s string) bool {
	r, n := utf8.DecodeLastRuneInString(s)
	return n > 0 && loadUnicode().isWord(r)
}

func startsWithWord(s string) bool {
	r, n := utf8.DecodeRuneInString(s)
	return n > 0 && loadUnicode().isWord(r)
}

func isSpace(r rune) bool { return loadUnicode().class(r)&classWS != 0 }

func trimLeftSpace(s string) string  { return strings.TrimLeftFunc(s, isSpace) }
func trimRightSpace(s string) string { return strings.TrimRightFunc(s, isSpace) }
