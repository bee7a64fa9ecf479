package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
)

// table is columns for people. Foreign text can't break it: control characters are
// shown escaped.
type table struct{ w *tabwriter.Writer }

func newTable(out io.Writer, head ...any) *table {
	t := &table{tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)}
	if len(head) > 0 {
		t.row(head...)
	}
	return t
}

func (t *table) row(cells ...any) {
	texts := make([]string, len(cells))
	for i, c := range cells {
		if texts[i] = plain(fmt.Sprint(c)); texts[i] == "" && i > 0 {
			texts[i] = "-"
		}
	}
	fmt.Fprintln(t.w, strings.Join(texts, "\t")) // errors show at flush
}

func (t *table) flush() error { return t.w.Flush() }

// plain shows control characters escaped: a terminal would obey them.
func plain(s string) string {
	if !strings.ContainsFunc(s, isControl) {
		return s
	}
	quoted := fmt.Sprintf("%q", s)
	return quoted[1 : len(quoted)-1]
}

func isControl(r rune) bool { return r < 0x20 || r >= 0x7f && r < 0xa0 }

// when is a time for people.
func when(at *time.Time) string {
	if at == nil || at.IsZero() {
		return "-"
	}
	return at.Local().Format("2006-01-02 15:04")
}

// say prints a line, or with --json what it is about.
func (c *client) say(cmd *cobra.Command, body any, format string, args ...any) error {
	if c.asJSON {
		return json.NewEncoder(cmd.OutOrStdout()).Encode(body)
	}
	_, err := fmt.Fprintf(cmd.OutOrStdout(), format, args...)
	return err
}

// exchange sends JSON and reads JSON.
func (c *client) exchange(method, path string, body, into any) error {
	raw, err := json.Marshal(body)
	if err != nil {
		return err
	}
	data, err := c.call(method, path, bytes.NewReader(raw), http.Header{"Content-Type": {"application/json"}})
	if err != nil {
		return err
	}
	return json.Unmarshal(data, into)
}
