package wire

import (
	"net/url"
	"strconv"
)

// MaxPage is the most items a list answers at once; asking for more gets this many.
const MaxPage = 1000

// Page is the part of a list that a query asks for.
type Page struct {
	Limit, Offset int
	AccessScope   string // "owned" or "accessible"
	ProjectID     string // "" for all
}

// ParsePage reads limit, offset, access_scope and project_id of a list route. Errors match ErrMalformed.
func ParsePage(query url.Values, defaultLimit int) (Page, error) {
	p := Page{Limit: defaultLimit, AccessScope: "owned", ProjectID: query.Get("project_id")}
	var err error
	if p.Limit, err = queryInt(query, "limit", defaultLimit, 1); err != nil {
		return Page{}, err
	}
	p.Limit = min(p.Limit, MaxPage)
	if p.Offset, err = queryInt(query, "offset", 0, 0); err != nil {
		return Page{}, err
	}
	switch scope := query.Get("access_scope"); scope {
	case "":
	case "owned", "accessible":
		p.AccessScope = scope
	default:
		return Page{}, syntaxErrorf("query access_scope: want owned or accessible, got %q", clip(scope))
	}
	return p, nil
}

func queryInt(query url.Values, name string, absent, least int) (int, error) {
	text := query.Get(name)
	if text == "" {
		return absent, nil
	}
	v, err := strconv.ParseInt(text, 10, 32)
	if err != nil || int(v) < least {
		return 0, syntaxErrorf("query %s: want an integer from %d, got %q", name, least, clip(text))
	}
	return int(v), nil
}
